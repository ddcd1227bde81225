"""The closed form of activations in flight against a count along the order of work."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.pipeline.in_flight import in_flight, live_at_end, most_live
from shardwright.cost.pipeline.schedule import BACKWARD, FORWARD, WEIGHTS, Order, interleaved, one_f_one_b, zero_bubble


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
