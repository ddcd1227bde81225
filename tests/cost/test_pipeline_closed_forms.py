"""Closed forms of a pipeline: bounds that never exceed the simulation, and meet it where they should, and activations
in flight, against a count along the order of work.
"""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.pipeline.bound import interleaved_lower_bound, lower_bound, zero_bubble_lower_bound
from shardwright.cost.pipeline.in_flight import in_flight, live_at_end, most_live
from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, WEIGHTS, Order, interleaved, one_f_one_b, zero_bubble
from shardwright.cost.pipeline.simulate import folded, simulate


def random_times(rng, candidates, stages):
    """Stage times over two orders of magnitude, backward independent of forward, transfers from none to slow."""
    forward, backward = 10 ** rng.uniform(-1, 1, (2, candidates, 1)) * 10 ** rng.uniform(
        -0.5, 0.5, (2, candidates, stages)
    )
    slow = np.where(rng.random((candidates, 1)) < 0.25, 0.0, 10 ** rng.uniform(-3, 1, (candidates, 1)))
    return forward, backward, slow * rng.random((candidates, stages - 1))


def test_bound_of_1f1b_holds_on_twenty_thousand_pipelines():
    rng, cases = np.random.default_rng(20), 0
    for ranks in range(1, 13):
        for micro_batches in range(1, 34):
            times = random_times(rng, 52, ranks)
            order = one_f_one_b(ranks, micro_batches)
            for blocking in (False, True):
                exact = simulate(order, *times, blocking=blocking).makespan_seconds
                bound = lower_bound(*(folded(*times) if blocking else times), micro_batches)
                assert (bound <= exact * (1 + 1e-12)).all(), (ranks, micro_batches, blocking)
            cases += len(exact)
    assert cases > 20_000


def test_bound_of_the_interleaved_schedule_holds_on_ten_thousand_pipelines():
    rng, cases = np.random.default_rng(21), 0
    for ranks in range(1, 9):
        for virtual in (2, 3, 4):
            for groups in (1, 2, 3, 5):
                times = random_times(rng, 110, ranks * virtual)
                order = interleaved(ranks, virtual, groups * ranks)
                for blocking in (False, True):
                    exact = simulate(order, *times, blocking=blocking).makespan_seconds
                    forward, backward, transfer = folded(*times) if blocking else times
                    bound = interleaved_lower_bound(forward, backward, ranks, groups * ranks, transfer)
                    free = interleaved_lower_bound(forward, backward, ranks, groups * ranks)
                    assert (bound <= exact * (1 + 1e-12)).all(), (ranks, virtual, groups, blocking)
                    assert (free <= bound * (1 + 1e-12)).all()
                cases += len(exact)
    assert cases > 10_000


def test_bound_of_zero_bubble_holds_on_ten_thousand_pipelines():
    rng, cases = np.random.default_rng(22), 0
    for ranks in range(1, 9):
        for virtual in (1, 2, 3):
            for groups in (1, 2, 3, 5):
                times, weights = random_times(rng, 110, ranks * virtual), random_times(rng, 110, ranks * virtual)[0]
                order = zero_bubble(ranks, virtual, groups * ranks)
                for blocking in (False, True):
                    exact = simulate(order, *times, weights, blocking=blocking).makespan_seconds
                    forward, backward, transfer = folded(*times) if blocking else times
                    bound = zero_bubble_lower_bound(forward, backward, weights, ranks, groups * ranks, transfer)
                    assert (bound <= exact * (1 + 1e-12)).all(), (ranks, virtual, groups, blocking)
                cases += len(exact)
    assert cases > 10_000


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8, 9, 64])
def test_bound_is_exact_for_equal_stages_without_transfers(ranks, micro_batches):
    rng = np.random.default_rng(0)
    forward, backward = (np.repeat(10 ** rng.uniform(-1, 1, (50, 1)), ranks, axis=1) for _ in range(2))
    times = forward, backward, np.zeros((50, ranks - 1))
    exact = simulate(one_f_one_b(ranks, micro_batches), *times).makespan_seconds
    np.testing.assert_allclose(lower_bound(*times, micro_batches), exact, rtol=1e-12)


@pytest.mark.parametrize(("ranks", "virtual", "groups"), [(2, 2, 1), (4, 2, 1), (4, 3, 4), (8, 2, 7)])
def test_interleaved_bound_is_exact_for_equal_stages_without_transfers(ranks, virtual, groups):
    stages = ranks * virtual
    times = np.full((1, stages), 0.4), np.full((1, stages), 1.1), np.zeros((1, stages - 1))
    exact = simulate(interleaved(ranks, virtual, groups * ranks), *times).makespan_seconds
    bound = interleaved_lower_bound(*times[:2], ranks, groups * ranks)
    np.testing.assert_allclose(bound, exact, rtol=1e-12)


def test_bound_is_near_the_simulation_for_ordinary_pipelines():
    rng = np.random.default_rng(4)
    forward = rng.uniform(0.5, 2.0, (500, 8))
    times = forward, 2 * forward, rng.uniform(0.0, 0.3, (500, 7))
    gap = 1 - lower_bound(*times, 32) / simulate(one_f_one_b(8, 32), *times).makespan_seconds
    assert gap.mean() < 0.01
    assert gap.max() < 0.1


def test_slow_links_are_in_the_bound():
    forward, backward, transfer = np.ones((1, 2)), np.ones((1, 2)), np.full((1, 1), 100.0)
    # Two micro-batches go round at a time, each round taking f + b of both stages and two transfers.
    assert lower_bound(forward, backward, transfer, 20)[0] >= 10 * 204


def test_every_candidate_may_have_its_own_number_of_micro_batches():
    rng = np.random.default_rng(6)
    times = random_times(rng, 30, 5)
    counts = rng.integers(1, 40, 30)
    mixed = lower_bound(*times, counts)
    one_by_one = [lower_bound(*(t[n : n + 1] for t in times), int(counts[n]))[0] for n in range(30)]
    np.testing.assert_allclose(mixed, one_by_one, rtol=1e-14)


def sign_of(kind: int, order: Order) -> int:
    """Activations live until the whole backward pass is done."""
    return 1 if kind == FORWARD else -1 if kind == (WEIGHTS if order.kinds == 3 else BACKWARD) else 0


def counted(order: Order) -> list[int]:
    peaks = []
    for rank in range(order.ranks):
        change = [sign_of(operation.kind, order) for operation in order.operations(rank)]
        peaks.append(int(np.cumsum(change).max()))
    return peaks


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 7, 8, 90])
def test_one_virtual_stage(ranks, micro_batches):
    peaks = in_flight(ranks, 1, micro_batches, np.arange(ranks)).tolist()
    assert peaks == counted(one_f_one_b(ranks, micro_batches))
    assert peaks == [min(micro_batches, ranks - rank) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "virtual"), [(2, 2), (4, 2), (4, 4), (8, 3), (3, 5)])
@pytest.mark.parametrize("groups", [1, 2, 9])
def test_several_virtual_stages(ranks, virtual, groups):
    peaks = in_flight(ranks, virtual, groups * ranks, np.arange(ranks))
    assert peaks.tolist() == counted(interleaved(ranks, virtual, groups * ranks))


@pytest.mark.parametrize(("ranks", "virtual"), [(1, 1), (4, 1), (7, 1), (2, 2), (4, 3), (8, 3), (3, 5)])
@pytest.mark.parametrize("groups", [1, 2, 9])
def test_zero_bubble(ranks, virtual, groups):
    peaks = in_flight(ranks, virtual, groups * ranks, np.arange(ranks), apart=True)
    assert peaks.tolist() == counted(zero_bubble(ranks, virtual, groups * ranks))


def test_candidates_of_different_shape_go_together():
    shapes = [(4, 1, 2, 0), (4, 1, 64, 1), (4, 2, 8, 3), (8, 3, 8, 0), (1, 1, 5, 0), (16, 2, 16, 7)]
    ranks, virtual, micro_batches, rank = (np.array(column) for column in zip(*shapes, strict=True))
    expected = [counted(interleaved(p, v, k))[i] for p, v, k, i in shapes]
    assert in_flight(ranks, virtual, micro_batches, rank).tolist() == expected


@pytest.mark.parametrize("schedule", [interleaved, zero_bubble])
@pytest.mark.parametrize(("ranks", "virtual"), [(1, 1), (5, 1), (2, 2), (3, 4), (4, 2), (8, 3), (3, 5)])
def test_what_unequal_virtual_stages_hold_is_counted_along_the_order(ranks, virtual, schedule):
    pick, groups = np.random.default_rng(ranks * 10 + virtual), np.array([1, 2, 3, 4, 9, 1, 2])
    values = pick.lognormal(sigma=1.5, size=(len(groups), virtual, ranks))
    apart = schedule is zero_bubble
    most = most_live(values, groups * ranks, apart=apart)
    head, first = (live_at_end(values, groups * ranks, last=last, apart=apart) for last in (True, False))
    for row, count in enumerate(groups.tolist()):
        order = schedule(ranks, virtual, count * ranks)
        for rank in range(ranks):
            signs = [(sign_of(step.kind, order), step.virtual_stage) for step in order.operations(rank)]
            held = np.cumsum([sign * values[row, stage // ranks, rank] for sign, stage in signs])
            assert most[row, rank] == pytest.approx(held.max(), rel=1e-12)
            stages, back = np.array([stage for _, stage in signs]), np.array([sign < 0 for sign, _ in signs])
            if rank == 0:
                assert first[row] == pytest.approx(held[back & (stages == 0)].max(), rel=1e-12, abs=1e-12)
            if rank == ranks - 1:
                assert head[row] == pytest.approx(held[stages == ranks * virtual - 1].max(), rel=1e-12)
