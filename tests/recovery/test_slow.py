"""Slow machines: found by their peers or their own past, named once they stay slow, and split around where it pays."""

from __future__ import annotations

import pytest

import shardwright
from shardwright.plans.check import check
from shardwright.recovery.outlook import Outlook
from shardwright.recovery.quorum import Machine, fits
from shardwright.recovery.slow import Pace, answer, factors, slow_machines, slowed, with_slow_pools
from shardwright.recovery.ways import template_of


def pace(machine: int, slot: int, seconds: float, work: str = "stage 0") -> Pace:
    return Pace(rank=(f"m{machine}", slot), work=work, seconds=seconds)


def test_a_machine_is_as_slow_as_its_slowest_rank_against_its_peers() -> None:
    paces = [pace(0, 0, 1.0), pace(0, 1, 1.0), pace(1, 0, 1.0), pace(1, 1, 1.6), pace(2, 0, 5.0, "stage 1")]
    assert factors(paces, {}) == pytest.approx({"m0": 1.0, "m1": 1.6, "m2": 1.0})


def test_who_has_no_peers_is_held_against_its_own_best() -> None:
    assert factors([pace(0, 0, 3.0)], {("m0", 0): 2.0}) == {"m0": 1.5}


def test_only_who_stays_slow_is_named() -> None:
    windows = [{"m0": 1.0, "m1": 1.5}, {"m0": 1.3, "m1": 1.4}, {"m0": 1.0, "m1": 1.6}]
    assert slow_machines(windows) == {"m1": 1.4}
    assert slow_machines(windows[:2]) == {}
    assert slow_machines([*windows, {"m0": 1.0, "m1": 1.0}]) == {}


def test_a_new_split_gives_the_slow_machine_less_and_pays() -> None:
    """A plan of several types in which the slow machine is one of its own; where it is hardly slow, nobody moves."""
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("4x8xA100-SXM-80")
    plan = shardwright.plan(model, cluster, shardwright.make_job(global_batch=256, seq_len=4096)).best
    machines = [Machine(name=f"m{n}", host="", port=n, gpu="A100-SXM-80", gpus=8) for n in range(4)]
    decision, split = answer(plan, plan, machines, {"m1": 1.8}, Outlook())
    assert split and decision.reason.startswith("split anew: ")
    assert not answer(plan, plan, machines, {"m1": 1.001}, Outlook())[1]
    renamed = [slowed(machine, 1.8) if machine.name == "m1" else machine for machine in machines]
    first = with_slow_pools(plan, renamed)
    found = template_of(first, renamed, {})
    assert found is not None and not check(found) and fits(found, renamed)
    size = found.micro_batch
    shares = {stage.gpu: item.samples(size) for item in found.replicas for stage in item.stages}
    assert found.predicted.tokens_per_second > plan.predicted.tokens_per_second / 1.8
    if "A100-SXM-80@slow-1.80" in shares:
        assert shares["A100-SXM-80@slow-1.80"] < shares["A100-SXM-80"]


def test_windows_are_of_all_ranks_and_the_third_names_who_stays_slow() -> None:
    from shardwright.runtime.recovery.fleet.observations import RankSpeeds

    speeds = RankSpeeds(ranks=3)
    for window in range(3):
        assert speeds.take(pace(0, 0, 1.0)) == speeds.take(pace(1, 0, 1.0)) == {}
        found = speeds.take(pace(2, 0, 1.5))
        assert found == ({"m2": 1.5} if window == 2 else {})
