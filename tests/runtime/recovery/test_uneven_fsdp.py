"""Uneven FSDP outlives its workers and machines: losses are those of one process."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.recovery.fleet import ENDLESS, MODEL, Fleet, copies, undisturbed
from tests.runtime.samples import stage, under

from shardwright.plans.check import check
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Replica, Schedule
from shardwright.spec.job import Optimizer

STEPS = 60


def uneven(optimizer: Optimizer) -> Plan:
    """Three machines of one GPU, of which one has most of the rows and of the state."""
    layers = (stage((0, len(MODEL.layers))),)
    replicas = (
        Replica(count=1, micro_batches=2, stages=layers, rows=4, state=3),
        Replica(count=2, micro_batches=1, stages=layers, rows=1, state=1),
    )
    return replace(
        under(optimizer, copies()),
        micro_batch=2,
        replicas=replicas,
        schedule=Schedule(kind="layered", waves=1),
        optimizer=OptimizerPlan(sharding="zero3", parts=5),
        overlap=Overlap(grad_reduce=True, param_gather=True),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("optimizer", ["adam", "adam8bit", "muon"])
def test_a_worker_is_killed_and_then_a_machine_is_lost(optimizer: Optimizer, tmp_path: Path) -> None:
    plan = uneven(optimizer)
    assert check(plan) == ()
    with Fleet(tmp_path, plan, STEPS) as fleet:
        fleet.until(lambda: fleet.step() >= 8, "steps")
        generation = fleet.generation()
        fleet.signal_worker(1, signal.SIGKILL, random.Random(3))
        fleet.until(lambda: fleet.generation() > generation, "a recovery")
        fleet.until(lambda: fleet.step() >= 20, "steps")
        generation = fleet.generation()
        fleet.lose(2)
        fleet.until(lambda: fleet.generation() > generation, "a plan for two machines")
        assert fleet.recoveries()[-1]["ranks"] == 2
        fleet.finish()
        losses = fleet.losses()
    alone = undisturbed(tmp_path / "undisturbed", STEPS, under(optimizer, copies()))
    assert losses == pytest.approx(list(alone.values()), rel=1e-5)


@pytest.mark.nightly
def test_weights_sharded_evenly_go_on_in_unequal_shares(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a new plan may ask for: the same state in other pieces, on the machines that had it."""
    extra = ["--upload", f"file://{tmp_path_factory.mktemp('store')}"]
    with Fleet(tmp_path, copies(sharding="zero3"), ENDLESS, every=5, extra=extra) as fleet:
        fleet.until(lambda: fleet.step() >= 12, "steps")
        fleet.stop()
        even = fleet.losses()
    with Fleet(tmp_path, uneven("adam"), STEPS + len(even), every=5, extra=extra) as fleet:
        fleet.finish()
        assert fleet.recoveries()[-1]["step"] == len(even), "nothing is done again"
        losses = fleet.losses()
    alone = undisturbed(tmp_path / "undisturbed", STEPS + len(even), copies())
    assert losses == pytest.approx(list(alone.values()), rel=1e-5)
