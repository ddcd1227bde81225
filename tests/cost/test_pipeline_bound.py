"""The closed-form bounds never exceed the simulation, and meet it where they should."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.pipeline.bound import interleaved_lower_bound, lower_bound, zero_bubble_lower_bound
from shardwright.cost.pipeline.schedule import interleaved, one_f_one_b, zero_bubble
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
