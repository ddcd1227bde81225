"""How much the mixed search does for its plans and proofs, counted: seconds would be those of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from shardwright.cost.layers import source
from shardwright.plans.ranking import Ranking
from shardwright.search.mixed.branch_and_bound import run
from shardwright.search.mixed.master import column_pool
from shardwright.search.mixed.master.program import MasterProblem
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model

A100, H800 = "A100-SXM-80", "H800-SXM"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return what is counted from here on: layer tables, programs of regions, attempts at plans, integer programs."""
    calls: Counter[str] = Counter()

    def count(name: str, where: Any, attribute: str) -> None:
        inner: Callable[..., Any] = getattr(where, attribute)

        def outer(*given: Any, **named: Any) -> Any:
            calls[name] += 1
            return inner(*given, **named)

        monkeypatch.setattr(where, attribute, outer)

    count("layer tables", source, "layer_table")
    count("programs", column_pool.ColumnPool, "__init__")
    count("attempts", run, "attempt")
    count("integer programs", MasterProblem, "_integer")
    return calls


def planned(model: str, cluster: str, global_batch: int, seq_len: int) -> Ranking:
    job = make_job(global_batch=global_batch, seq_len=seq_len)
    return plan(load_model(model), load_cluster(cluster), job)


def test_where_the_best_plan_is_known_the_proof_takes_no_further_plans(counted):
    ranking = planned("llama-3.1-8b", "1x8xRTX-3090+1x4xA100-40", 64, 4096)
    assert ranking.search.gap == 0.0
    assert counted["attempts"] <= 9, "of whole settings: no number of replicas is worth any"
    assert counted["programs"] <= 80, "with and without the optimizer in host memory"
    assert counted["layer tables"] <= 12, "plans are priced with the tables that the search has made"
    assert not counted["integer programs"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cluster", "global_batch", "gap", "programs"),
    [
        (f"8x8x{A100}+4x8x{H800}+4x8xH20", 512, 0.0120, 30),
        (f"4x8x{A100}+2x8x{H800}+4x8xH20", 256, 0.0125, 30),
    ],
)
def test_three_types_are_proven_closely_by_few_integer_programs(counted, cluster, global_batch, gap, programs):
    ranking = planned("llama-2-70b", cluster, global_batch, 4096)
    assert ranking.search.gap is not None
    assert ranking.search.gap <= gap
    assert counted["integer programs"] <= programs
