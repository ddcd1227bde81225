"""Replays: every hour has its cause, by hand where nothing happens, and local state first is never the dearer one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.running import run
from tests.cli.schemas import holds

import shardwright
from shardwright import Plan, replan, save
from shardwright.cost.money import checkpoint_bytes, egress_dollars
from shardwright.recovery.outlook import Rates
from shardwright.recovery.quorum import stand_ins
from shardwright.recovery.simulation import strategies
from shardwright.recovery.simulation.replay import ON_DEMAND, USEFUL, saving_of, simulate
from shardwright.recovery.simulation.strategies import from_cloud, moved, survival
from shardwright.recovery.simulation.traces import BOOT_SECONDS, MARKETS, generate_for, spans, trace_of
from shardwright.recovery.ways import REFORM_SECONDS, choose
from shardwright.reports.spot import spot_text
from shardwright.spec.read.cluster import build_cluster


@pytest.fixture(scope="module")
def plan() -> Plan:
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("4x8xA100-SXM-80")
    return shardwright.plan(model, cluster, shardwright.make_job(global_batch=256, seq_len=4096)).best


def test_where_nothing_happens_all_is_useful_but_booting_and_saving(plan: Plan) -> None:
    gpu = plan.cluster.pools[0].gpu.name
    trace = trace_of("steady", {(time, ("a", gpu)): (4, 10.0) for time in (0.0, 360_000.0)})
    local, *_, steady = simulate(trace, plan)
    saving = saving_of(plan, spans(trace, plan), Rates())
    read = from_cloud(plan, stand_ins(plan.cluster), Rates(link=plan.cluster.pools[0].inter_bytes_per_second))
    trained = 360_000.0 - BOOT_SECONDS - REFORM_SECONDS - read.seconds
    assert local.tokens == pytest.approx(trained * (1 - saving.stalled) * plan.predicted.tokens_per_second, rel=1e-9)
    assert local.dollars == pytest.approx(40.0 * (100.0 - BOOT_SECONDS / 3600.0))
    assert steady.strategy == ON_DEMAND and steady.hours[USEFUL] < 100.0


def test_traffic_between_sites_is_paid_for_every_iteration() -> None:
    nodes = [{"count": 1, "gpu": "A100-SXM-80", "gpus": 8, "site": site} for site in ("east", "west")]
    link = {"between": ["east", "west"], "gbps": 100, "latency_ms": 1, "egress_dollars_per_gb": 0.02}
    cluster = build_cluster({"nodes": nodes, "site_links": [link]}, "two")
    job = shardwright.make_job(global_batch=64, seq_len=4096)
    plan = shardwright.plan(shardwright.load_model("llama-2-7b"), cluster, job, top=1, gap=0.2).best
    assert egress_dollars(plan) > 0.0
    (dear,) = cluster.site_links
    free = replace(plan, cluster=replace(cluster, site_links=(replace(dear, egress_dollars_per_gigabyte=0.0),)))
    events = {(time, ("a", gpu)): (1, 10.0) for time in (0.0, 360_000.0) for gpu in plan.gpus_by_type}
    paid, unpaid = (simulate(trace_of("steady", events), each) for each in (plan, free))
    for one, other in ((paid[0], unpaid[0]), (paid[-1], unpaid[-1])):
        trained = one.tokens * sum(one.hours[cause] for cause in (USEFUL, "work done anew")) / one.hours[USEFUL]
        iterations = trained / job.tokens_per_iteration
        assert one.tokens == other.tokens > 0.0
        assert one.dollars - other.dollars == pytest.approx(iterations * egress_dollars(plan), rel=1e-6)


def test_an_upload_has_the_work_of_when_it_began(plan: Plan) -> None:
    """Machines that are all lost take with them what came after the last whole upload began."""
    gpu, rates = plan.cluster.pools[0].gpu.name, Rates(cloud=1e8)
    part = checkpoint_bytes(plan.model, plan.job) / 4
    begin = BOOT_SECONDS + REFORM_SECONDS + from_cloud(plan, stand_ins(plan.cluster), rates).seconds
    lost = begin + 2.5 * part / rates.cloud
    times = {0.0: 4, lost: 0, lost + 60.0: 4, 400_000.0: 4}
    trace = trace_of("once", {(time, ("a", gpu)): (number, 10.0) for time, number in times.items()})
    saving = saving_of(plan, spans(trace, plan), rates)
    for item in simulate(trace, plan, rates=rates)[:2]:
        begun = next(time for time, rate in item.rates if rate)
        whole = (lost - begun) // saving.upload_seconds
        kept = max(whole * saving.upload_seconds - saving.uploading_seconds, 0.0)
        expected = (lost - begun - kept) * (1 - saving.stalled) / 3600
        assert item.hours["work done anew"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("market", range(len(MARKETS)))
def test_every_hour_has_a_cause_and_local_state_is_cheapest(plan: Plan, market: int) -> None:
    trace = generate_for(plan, MARKETS[market], days=3.0, zones=3, seed=market)
    local, cloud, restart, _ = simulate(trace, plan)
    for item in (local, cloud, restart):
        assert sum(item.hours.values()) == pytest.approx(trace.hours, rel=1e-9)
        assert item.dollars == pytest.approx(local.dollars)
    assert local.dollars_per_million_tokens <= 1.0001 * cloud.dollars_per_million_tokens
    assert local.dollars_per_million_tokens <= 1.0001 * restart.dollars_per_million_tokens
    assert local.moved_bytes["cloud"] < cloud.moved_bytes["cloud"]


def test_the_decision_is_that_of_a_run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(*arguments: object) -> object:
        asked.append(arguments)
        return choose(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(strategies, "choose", noted)
    trace = generate_for(plan, MARKETS[1], days=1.0, zones=3, seed=0)
    local, *_ = simulate(trace, plan)
    assert len(asked) >= local.recoveries > 0


def test_what_machines_hold_is_the_whole_state_and_moves_only_where_it_must(plan: Plan) -> None:
    machines = stand_ins(plan.cluster)
    whole = checkpoint_bytes(plan.model, plan.job)
    stays = moved(plan, machines, plan, machines, Rates())
    assert stays.bytes["peers' memory"] == stays.bytes["cloud"] == 0.0
    assert stays.bytes["own memory"] == pytest.approx(whole, rel=1e-6)
    less = replan(plan, shardwright.load_cluster("3x8xA100-SXM-80"))
    assert less is not None
    shrunk = moved(plan, machines, less, machines[:3], Rates())
    assert shrunk.bytes["cloud"] == 0.0  # the copy that another machine has of what the lost one held
    assert sum(shrunk.bytes.values()) == pytest.approx(whole, rel=1e-6)
    after = survival(plan, machines, machines[:3])
    assert (after.now, after.in_snapshots) == (not plan.optimizer.distributed, True)
    assert not survival(plan, machines, machines[:1]).in_snapshots or not plan.optimizer.distributed


def test_the_command_prints_a_table_a_document_and_a_picture(plan: Plan, tmp_path: Path) -> None:
    save(plan, tmp_path / "plan.json")
    trace, picture, gpu = tmp_path / "trace.csv", tmp_path / "spot.svg", plan.cluster.pools[0].gpu.name
    told = ["simulate-spot", str(tmp_path / "plan.json"), "--days", "1", "--zones", "2", "--market", "batches"]
    shown = run([*told, "--save-trace", str(trace), "-o", str(picture)])
    assert shown.code == 0 and "local first" in shown.out and picture.read_text().startswith("<svg")
    again = run(["simulate-spot", str(tmp_path / "plan.json"), "--trace", str(trace), "--json"])
    found = json.loads(again.out)
    holds("simulation", found)
    assert [item["strategy"] for item in found["strategies"]][:2] == ["local first", "reload from the cloud"]
    assert np.isclose(sum(found["strategies"][0]["hours"].values()), 24.0)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe")
    (tmp_path / "endless.csv").write_text("\n".join([*trace.read_text().splitlines()[:2], f"inf,a,{gpu},inf,1"]))
    calm = ["--market", "calm"]
    for wrong in (
        *(["--market", "wild"], [], [*calm, "--trace", str(trace)], [*calm, "--seed", "-1"], [*calm, "--days", "1e9"]),
        *([*calm, "--days", "1e-4"], [*calm, "--zones", "0"]),
        *(["--trace", str(tmp_path / name)] for name in ("bytes.csv", "endless.csv", "missing.csv")),
    ):
        failed = run(["simulate-spot", str(tmp_path / "plan.json"), *wrong])
        assert failed.code == 2 and "Traceback" not in failed.err


def test_where_no_machine_ever_comes_nothing_is_compared(plan: Plan) -> None:
    gpu = plan.cluster.pools[0].gpu.name
    trace = trace_of("none", {(time, ("a", gpu)): (0, 10.0) for time in (0.0, 3600.0)})
    text = spot_text(trace, simulate(trace, plan))
    assert "nan" not in text and "inf" not in text and "–" in text
