"""The same run on fewer machines: choices are of the cluster's own groups, and each is the plan that a search finds."""

from __future__ import annotations

from shardwright import load_cluster, load_model, make_job, replan
from shardwright.cost.compute.efficiency import Analytic
from shardwright.search.nearby import MOST_CHOICES, fewer_counts, fewer_machines
from shardwright.search.planner import on_fewer, plan
from shardwright.search.space.axes import parse_pins


def test_counts_are_fewer_each_once_and_not_none_at_all() -> None:
    for counts in ((1,), (8,), (3, 5), (1, 1, 1), (64, 1, 7, 30)):
        found = list(fewer_counts(counts))
        assert len(found) == len(set(found)) <= MOST_CHOICES
        assert all(any(nodes) and nodes != counts for nodes in found)
        assert all(0 <= count <= most for nodes in found for count, most in zip(nodes, counts, strict=True))
    assert list(fewer_counts((8,))) == [(6,), (4,), (2,)]


def test_machines_of_one_type_are_searched_as_the_plan_was() -> None:
    model, job = load_model("llama-3.1-8b"), make_job(global_batch=64, seq_len=4096, tokens=1e9)
    best = plan(model, load_cluster("4x8xH100-SXM"), job, efficiency=Analytic(), top=1).best
    rows = {row.nodes: row for row in on_fewer(best, efficiency=Analytic())}
    assert set(rows) == {(3,), (2,), (1,)}
    other = plan(model, load_cluster("2x8xH100-SXM"), job, efficiency=Analytic(), top=1).best
    assert rows[2,].iteration_seconds == other.iteration_seconds


def test_fast_links_join_no_more_machines_than_there_are() -> None:
    model, job = load_model("llama-2-70b"), make_job(global_batch=32, seq_len=4096)
    best = plan(model, load_cluster("9x4xGB200"), job, efficiency=Analytic(), top=1).best
    rows = {row.nodes: row for row in on_fewer(best, efficiency=Analytic())}
    other = plan(model, load_cluster("4x4xGB200"), job, efficiency=Analytic(), top=1).best
    assert rows[4,].iteration_seconds == other.iteration_seconds


def test_several_types_are_planned_anew() -> None:
    model, job = load_model("opt-350m"), make_job(global_batch=64, seq_len=1024, tokens=1e9, precision="fp16")
    cluster, everywhere = load_cluster("1x8xA100-SXM-40+2x8xV100-SXM2"), parse_pins(["gpus=24"])
    best = plan(model, cluster, job, space=everywhere, efficiency=Analytic(), top=1).best
    rows = fewer_machines(best, lambda cluster: replan(best, cluster, efficiency=Analytic()))
    assert {(1, 1), (1, 0), (0, 1)} <= {row.nodes for row in rows}
    found = replan(best, load_cluster("1x8xA100-SXM-40+1x8xV100-SXM2"), efficiency=Analytic())
    assert found is not None
    (row,) = [row for row in rows if row.nodes == (1, 1)]
    assert row.iteration_seconds == found.iteration_seconds and row.gpus == found.gpus
