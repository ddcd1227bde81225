"""Ways to go on: who breaks with a machine, what repairs keep, who sits where, what the future is expected to bring, and
which is chosen, by expected dollars per useful token.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright import check, predict
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Schedule
from shardwright.recovery.outlook import FleetChange, Outlook, outlook_of
from shardwright.recovery.quorum import Machine, copies_on, kept_share, seated, seats, share_after_a_loss, stand_ins
from shardwright.recovery.ways import (
    COPIES_LEFT,
    REFILL,
    REFORM_SECONDS,
    Phase,
    RecoveryOption,
    RunPlans,
    broken_copies,
    choose,
    decide,
    dollars_per_token,
    expected_tokens,
    refilled,
    without,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Four copies of three stages, each stage four GPUs: a copy on one and a half machines of eight."""
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("6x8xA100-SXM-80")
    found = shardwright.plan(model, cluster, shardwright.make_job(global_batch=512, seq_len=4096)).best
    (replica,) = found.replicas
    stage = replace(replica.stages[0], tensor_parallel=4, expert_tensor_parallel=4, expert_parallel=1)
    cuts = ((0, 11), (11, 22), (22, 32))
    stages = tuple(replace(stage, layers=(cut,)) for cut in cuts)
    pipelines = replace(replica, count=4, micro_batches=512 // found.micro_batch // 4, stages=stages)
    made = replace(found, replicas=(pipelines,), rank_order="tp-cp-ep-pp-dp", prediction=None)
    assert not check(made)
    return predict(made)


def named(plan: Plan) -> tuple[Machine, ...]:
    return tuple(replace(machine, name=f"m{n}") for n, machine in enumerate(stand_ins(plan.cluster)))


def test_a_machine_breaks_the_copies_that_have_a_rank_there(plan: Plan) -> None:
    copies = copies_on(plan, named(plan))
    assert copies == {
        "m0": {(0, 0)},
        "m1": {(0, 0), (0, 1)},
        "m2": {(0, 1)},
        "m3": {(0, 2)},
        "m4": {(0, 2), (0, 3)},
        "m5": {(0, 3)},
    }
    assert kept_share(plan, copies["m0"]) == 0.75 and kept_share(plan, copies["m1"]) == 0.5
    assert share_after_a_loss(plan) == pytest.approx((4 * 0.75 + 2 * 0.5) / 6)


def test_copies_left_take_all_micro_batches(plan: Plan) -> None:
    found = without(plan, {(0, 1)}, plan.cluster)
    assert found is not None and not check(found) and found.prediction is not None
    assert found.data_parallel == 3
    assert sum(r.count * r.micro_batches for r in found.replicas) == 4 * plan.replicas[0].micro_batches
    assert max(r.micro_batches for r in found.replicas) - min(r.micro_batches for r in found.replicas) <= 1
    assert without(plan, {(0, n) for n in range(4)}, plan.cluster) is None


def uneven(plan: Plan) -> Plan:
    """Two copies on single GPUs, the first with three times the rows of the other in as many micro-batches."""
    (pipelines,) = plan.replicas
    stage = replace(
        pipelines.stages[0], tensor_parallel=1, expert_tensor_parallel=1, layers=((0, len(plan.model.layers)),)
    )
    whole = replace(pipelines, count=1, micro_batches=64, stages=(stage,), rows=384, state=1)
    found = replace(
        plan,
        micro_batch=6,
        replicas=(whole, replace(whole, rows=128)),
        schedule=Schedule(kind="layered", waves=1),
        optimizer=OptimizerPlan(sharding="zero3", parts=2),
        overlap=Overlap(grad_reduce=True, param_gather=True),
        sequence_parallel=False,
    )
    assert not check(found)
    return found


def test_what_a_loss_leaves_of_uneven_fsdp_is_counted_in_rows(plan: Plan) -> None:
    assert kept_share(uneven(plan), {(0, 0)}) == 0.25 and kept_share(uneven(plan), {(1, 0)}) == 0.75


def test_copies_of_uneven_fsdp_never_stand_beside_pipelines(plan: Plan) -> None:
    """A new plan for the machines that are left over may be of either kind."""
    (pipelines,), shared = plan.replicas, uneven(plan)
    smaller = replace(plan, replicas=(replace(pipelines, count=1),))
    assert refilled(plan, {(0, 1)}, smaller, plan.cluster) is not None
    assert refilled(plan, {(0, 1)}, shared, plan.cluster) is None
    assert refilled(shared, {(0, 0)}, smaller, plan.cluster) is None
    mixed = replace(plan, replicas=(pipelines, *shared.replicas))
    assert {"replicas[1].rows", "replicas[1].state"} <= {problem.path for problem in check(mixed)}


def test_the_choice_names_all_ways_in_a_line(plan: Plan) -> None:
    machines = named(plan)
    run = RunPlans(now=plan, seated=machines, first=plan)
    left = machines[:1] + machines[2:]  # two copies are broken, and two machines have nothing whole
    assert broken_copies(run, left) == {(0, 0), (0, 1)}
    choice = choose(run, left, Outlook(), {})
    assert choice.plan is not None and "\n" not in choice.reason
    for words in (COPIES_LEFT, REFILL, "replan", "wait infinite"):
        assert words in choice.reason
    assert sum(pool.nodes for pool in choice.plan.cluster.pools) == 5


def test_one_waits_only_for_machines_that_come_before_going_on_pays(plan: Plan) -> None:
    """To go on with fewer machines until more come costs a pause more."""
    machines = named(plan)
    run = RunPlans(now=plan, seated=machines, first=plan)
    soon = choose(run, machines[1:], Outlook(arrivals_per_hour=1000.0), {})
    assert soon.plan is None and soon.again_seconds == REFORM_SECONDS
    assert choose(run, machines[1:], Outlook(arrivals_per_hour=6.0), {}).plan is not None


def test_with_frequent_losses_many_small_copies_are_worth_more() -> None:
    """Liveput: the plan that is slower undisturbed wins where machines are lost often, as a loss takes less of it."""

    def way(phase: Phase) -> RecoveryOption:
        return RecoveryOption(name="", dollars_per_hour=10.0, phases=(phase,))

    one, many = (Phase(tokens_per_second=rate, pause_seconds=10.0) for rate in (110.0, 100.0))
    assert dollars_per_token(way(one), 3600.0) < dollars_per_token(way(many), 3600.0)
    one = replace(one, losses_per_hour=2.0, then_tokens_per_second=0.0)
    many = replace(many, losses_per_hour=2.0, then_tokens_per_second=88.0, then_pause_seconds=10.0)
    assert dollars_per_token(way(one), 3600.0) > dollars_per_token(way(many), 3600.0)


@given(rate=st.floats(0.1, 50.0), pause=st.floats(0.0, 500.0), then=st.floats(0.0, 90.0), wait=st.floats(0.0, 500.0))
def test_expected_tokens_are_the_mean_over_the_moment_of_the_loss(
    rate: float, pause: float, then: float, wait: float
) -> None:
    first = Phase(
        tokens_per_second=100.0, pause_seconds=pause, losses_per_hour=rate, then_tokens_per_second=then,
        then_pause_seconds=wait,
    )  # fmt: skip
    later = Phase(tokens_per_second=7.0, pause_seconds=100.0, begin_seconds=2000.0)
    left = 2000.0 - pause
    moment = (np.arange(200_000) + 0.5) / 200_000 * left
    density = rate / 3600.0 * np.exp(-rate / 3600.0 * moment) * left / len(moment)
    lost = density @ (100.0 * moment + then * np.maximum(left - wait - moment, 0.0))
    whole = lost + exp(-rate / 3600.0 * left) * 100.0 * left + 7.0 * 1500.0
    found = expected_tokens(RecoveryOption(name="", dollars_per_hour=1.0, phases=(first, later)), 3600.0)
    assert found == pytest.approx(whole, rel=1e-4)


def test_outlook_counts_batches_of_losses_and_arrivals_while_machines_are_missing() -> None:
    changes = [
        FleetChange(seconds=0.0, machines=8, lost=0, came=8),
        FleetChange(seconds=36_000.0, machines=5, lost=3, came=0),
        FleetChange(seconds=39_600.0, machines=8, lost=0, came=3),
    ]
    found = outlook_of(changes, 8, 43_200.0)
    assert found.losses_per_machine_hour == pytest.approx((1 + 1) / (80 + 5 + 8 + 100))
    assert found.arrivals_per_hour == pytest.approx(3.0 / 1.25)
    assert found.arrival_seconds(3) == pytest.approx(1.25 * 3600.0)
    assert Outlook().arrival_seconds(1) == inf


def test_machines_are_seated_where_their_state_is(plan: Plan) -> None:
    machines = named(plan)
    rng = np.random.default_rng(3)
    order = rng.permutation(6)
    kept = rng.random((6, 6))
    kept[order, np.arange(6)] += 10.0
    found = seated(plan, machines, kept)
    assert [machine.name for machine in found] == [f"m{n}" for n in order]
    assert {seat.machine for seat in seats(plan, found)} == {f"m{n}" for n in range(6)}


def way(name: str, tokens_per_second: float, dollars_per_hour: float, pause_seconds: float) -> RecoveryOption:
    phase = Phase(tokens_per_second=tokens_per_second, pause_seconds=pause_seconds)
    return RecoveryOption(name=name, dollars_per_hour=dollars_per_hour, phases=(phase,))


FULL, LESS = way("wait", 100.0, 10.0, 900.0), way("replan", 60.0, 6.5, 60.0)


def test_dollars_per_token_by_hand() -> None:
    assert dollars_per_token(LESS, 3660.0) == pytest.approx(6.5 * 3660.0 / 3600.0 / (60.0 * 3600.0))
    assert dollars_per_token(FULL, 900.0) == inf


@pytest.mark.parametrize(("horizon_seconds", "name"), [(1_800.0, "replan"), (360_000.0, "wait")])
def test_waiting_pays_where_machines_stay_long(horizon_seconds: float, name: str) -> None:
    found = decide([FULL, LESS], horizon_seconds)
    assert [FULL, LESS][found.chosen].name == name
    assert found.reason.startswith(f"{name}: ") and "wait" in found.reason and "replan" in found.reason


def test_of_equal_ways_the_first_is_taken() -> None:
    assert decide([LESS, LESS], 3600.0).chosen == 0
