"""The vectorised simulator against a slow and obvious one, closed forms, and what must hold of any schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples, nightly

from shardwright.cost.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    Operation,
    Order,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from shardwright.cost.pipeline.simulate import folded, simulate, timeline
from shardwright.errors import SpecError


def order_of_work(ranks: int, virtual_stages: int, micro_batches: int, work: Sequence[Sequence[Operation]]) -> Order:
    """Return the order in which rank i runs `work[i]`, each operation as soon as it can. It has to come to its end."""
    stages = ranks * virtual_stages
    rows: dict[Operation, int] = {}
    next_row, done = [0] * ranks, [0] * ranks
    while any(done[rank] < len(work[rank]) for rank in range(ranks)):
        for rank in range(ranks):
            while done[rank] < len(work[rank]):
                operation = Operation(*work[rank][done[rank]])
                needs = _predecessor(operation, stages)
                if needs is not None and needs not in rows:
                    break
                row = max(next_row[rank], 0 if needs is None else rows[needs] + 1)
                rows[operation], next_row[rank], done[rank] = row, row + 1, done[rank] + 1
    needed = {operation: before for operation in rows if (before := _predecessor(operation, stages)) is not None}
    depth = max((rows[operation] - rows[before] for operation, before in needed.items()), default=1)
    shape = max(rows.values()) + 1, ranks
    code, index, source = np.full(shape, 2 * stages), np.full(shape, -1), np.zeros(shape, dtype=np.intp)
    for operation, row in rows.items():
        rank = operation.virtual_stage % ranks
        code[row, rank], index[row, rank] = operation.kind * stages + operation.virtual_stage, operation.micro_batch
        if operation in needed:
            before = needed[operation]
            source[row, rank] = (depth - row + rows[before]) * ranks + before.virtual_stage % ranks
    return Order(
        ranks=ranks, virtual_stages=virtual_stages, micro_batches=micro_batches,
        code=code, micro_batch=index, source=source, depth=depth,
    )  # fmt: skip


def gpipe(ranks: int, micro_batches: int) -> Order:
    """Return GPipe: every rank runs all forwards, then all backwards (arXiv 1811.06965)."""
    kinds = (FORWARD, BACKWARD)
    work = [[Operation(kind, rank, m) for kind in kinds for m in range(micro_batches)] for rank in range(ranks)]
    return order_of_work(ranks, 1, micro_batches, work)


def _predecessor(operation: Operation, stages: int) -> Operation | None:
    """Return the operation whose message `operation` waits for; the last backward waits for its own forward."""
    kind, stage, micro_batch = operation
    if kind == FORWARD:
        return Operation(FORWARD, stage - 1, micro_batch) if stage else None
    return Operation(BACKWARD, stage + 1, micro_batch) if stage + 1 < stages else Operation(FORWARD, stage, micro_batch)


SHAPES = st.one_of(
    st.tuples(st.just("1f1b"), st.integers(1, 7), st.just(1), st.integers(1, 90)),
    st.tuples(st.just("gpipe"), st.integers(1, 6), st.just(1), st.integers(1, 20)),
    st.tuples(st.just("interleaved"), st.integers(1, 5), st.integers(2, 4), st.integers(1, 9)).map(
        lambda shape: (*shape[:3], shape[1] * shape[3])
    ),
    st.tuples(st.just("zero bubble"), st.integers(1, 6), st.just(1), st.integers(1, 90)),
    st.tuples(st.just("zero bubble"), st.integers(1, 5), st.integers(2, 4), st.integers(1, 9)).map(
        lambda shape: (*shape[:3], shape[1] * shape[3])
    ),
)


def order_of(kind: str, ranks: int, virtual: int, micro_batches: int) -> Order:
    if kind == "gpipe":
        return gpipe(ranks, micro_batches)
    if kind == "zero bubble":
        return zero_bubble(ranks, virtual, micro_batches)
    return one_f_one_b(ranks, micro_batches) if kind == "1f1b" else interleaved(ranks, virtual, micro_batches)


def megatron_order(kind: str, ranks: int, virtual: int, micro_batches: int, rank: int) -> list[tuple[str, int, int]]:
    """The order of one rank, written as the loops that a training framework runs."""
    forwards, backwards = [], []
    group = ranks if virtual > 1 else 1
    for begin in range(0, micro_batches, group):
        for chunk in range(virtual):
            for m in range(begin, begin + group):
                forwards.append(("F", chunk * ranks + rank, m))
                backwards.append(("B", (virtual - 1 - chunk) * ranks + rank, m))
    warmup = {
        "gpipe": len(forwards),
        "1f1b": ranks - rank - 1,
        "interleaved": (ranks - rank - 1) * 2 + (virtual - 1) * ranks,
        "zero bubble": ranks - rank - 1 + (virtual - 1) * ranks,
    }[kind]
    warmup = min(warmup, len(forwards))
    result = forwards[:warmup]
    weights = [("W", stage, m) for _, stage, m in backwards] if kind == "zero bubble" else []
    for k in range(len(forwards)):
        result += [*forwards[warmup + k : warmup + k + 1], backwards[k]]
        result += weights[k - rank : k - rank + 1] if k >= rank else []
    return result + (weights[-rank:] if len(weights) >= rank > 0 else weights if rank else [])


def reference(orders, ranks, forward, backward, transfer, blocking, weights=None):
    """Run every rank in turn as far as it gets; ends of all operations by name."""
    stages = len(forward)
    ends: dict[tuple[str, int, int], float] = {}
    at, free = [0] * ranks, [0.0] * ranks
    while any(at[r] < len(orders[r]) for r in range(ranks)):
        for r in range(ranks):
            while at[r] < len(orders[r]):
                kind, stage, m = orders[r][at[r]]
                before = {"F": stage - 1, "B": stage + 1, "W": -1}[kind]
                start = free[r]
                if 0 <= before < stages:
                    if (kind, before, m) not in ends:
                        break
                    arrived = ends[kind, before, m]
                    if not blocking:
                        arrived += transfer[min(stage, before)]
                    start = max(start, arrived)
                elif kind == "B":
                    assert ("F", stage, m) in ends
                elif kind == "W":
                    assert ("B", stage, m) in ends
                length = {"F": forward, "B": backward, "W": weights}[kind][stage]
                after = {"F": stage + 1, "B": stage - 1, "W": -1}[kind]
                if blocking and 0 <= after < stages:
                    length += transfer[min(stage, after)]
                free[r] = ends[kind, stage, m] = start + length
                at[r] += 1
    return ends


def times_of(seed: int, candidates: int, stages: int, *, slow_links: float = 1.0):
    rng = np.random.default_rng(seed)
    forward, backward = rng.uniform(0.1, 2.0, (2, candidates, stages))
    return forward, backward, slow_links * rng.uniform(0.0, 1.0, (candidates, stages - 1))


@pytest.mark.parametrize(
    ("kind", "ranks", "virtual", "micro_batches"),
    [("1f1b", 4, 1, 9), ("1f1b", 5, 1, 3), ("1f1b", 3, 1, 100), ("gpipe", 4, 1, 6), ("gpipe", 1, 1, 3),
     ("interleaved", 4, 2, 4), ("interleaved", 3, 3, 24), ("interleaved", 2, 4, 40), ("interleaved", 1, 3, 5),
     ("zero bubble", 4, 1, 9), ("zero bubble", 5, 1, 3), ("zero bubble", 3, 1, 100), ("zero bubble", 3, 3, 24),
     ("zero bubble", 4, 2, 4), ("zero bubble", 1, 1, 4), ("zero bubble", 1, 3, 5)],
)  # fmt: skip
def test_orders_are_those_of_the_frameworks(kind, ranks, virtual, micro_batches):
    order = order_of(kind, ranks, virtual, micro_batches)
    for rank in range(ranks):
        work = [("FBW"[kind_], stage, m) for kind_, stage, m in order.operations(rank)]
        assert work == megatron_order(kind, ranks, virtual, micro_batches, rank)


@settings(max_examples=examples(150), deadline=None)
@given(
    shape=SHAPES, seed=st.integers(0, 2**32 - 1), slow=st.sampled_from([0.0, 0.1, 1.0, 20.0]), blocking=st.booleans()
)
def test_agrees_with_the_reference(shape, seed, slow, blocking):
    kind, ranks, virtual, _ = shape
    times = times_of(seed, 3, ranks * virtual, slow_links=slow)
    weights = times_of(seed + 1, 3, ranks * virtual)[0] if kind == "zero bubble" else None
    result = simulate(order_of(*shape), *times, weights, blocking=blocking)
    orders = [megatron_order(*shape, rank) for rank in range(ranks)]
    for n in range(3):
        forward, backward, transfer = (t[n] for t in times)
        apart = None if weights is None else weights[n]
        ends = reference(orders, ranks, forward, backward, transfer, blocking, apart)
        finish = [max(end for (_, stage, _), end in ends.items() if stage % ranks == rank) for rank in range(ranks)]
        np.testing.assert_allclose(result.finish_seconds[n], finish, rtol=1e-12)
        np.testing.assert_allclose(result.makespan_seconds[n], max(finish), rtol=1e-12)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    ("kind", "ranks", "virtual", "micro_batches"),
    [
        ("1f1b", 4, 1, 700),
        ("1f1b", 9, 1, 400),
        ("interleaved", 3, 2, 300),
        ("zero bubble", 6, 1, 500),
        ("zero bubble", 3, 2, 300),
    ],
)
def test_skipping_periods_changes_nothing(kind, ranks, virtual, micro_batches, blocking):
    order = order_of(kind, ranks, virtual, micro_batches)
    assert order.repeat is not None
    assert order.repeat.times > 5
    rng = np.random.default_rng(7)
    for slow in (0.0, 0.2, 5.0):
        forward = np.where(rng.random((40, 1)) < 0.5, 1.0, rng.uniform(0.5, 2.0, (40, ranks * virtual)))
        times = forward, 2 * forward, slow * rng.uniform(0.5, 1.0, (40, ranks * virtual - 1))
        weights = forward * rng.uniform(0.5, 1.5, (40, 1)) if kind == "zero bubble" else None
        every_step = simulate(order.expanded(), *times, weights, blocking=blocking)
        skipped = simulate(order, *times, weights, blocking=blocking)
        np.testing.assert_allclose(skipped.finish_seconds, every_step.finish_seconds, rtol=1e-12)


@pytest.mark.parametrize("difference", [1e-5, 1e-7, 1e-9, 1e-11, 1e-13, 1e-15])
def test_nearly_equal_stages_are_not_taken_for_periodic_too_soon(difference):
    rng = np.random.default_rng(8)
    order = one_f_one_b(7, 600)
    full = order.expanded()
    for _ in range(20):
        shapes = (1.0, 7), (2.0, 7), (0.2, 6)
        times = [base * (1 + difference * rng.random((1, columns))) for base, columns in shapes]
        # One at a time, since a batch goes on until all its candidates are periodic.
        every_step, skipped = simulate(full, *times), simulate(order, *times)
        np.testing.assert_allclose(skipped.finish_seconds, every_step.finish_seconds, rtol=1e-12)


@pytest.mark.parametrize(
    ("ranks", "micro_batches"), [(1, 1), (1, 60), (4, 1), (4, 3), (4, 8), (8, 300), *nightly([(64, 2048)])]
)
def test_equal_stages_of_1f1b_have_a_closed_form(ranks, micro_batches):
    forward, backward = np.array([0.3, 1.0, 5.0]), np.array([0.7, 2.0, 0.1])
    times = np.tile(forward[:, None], ranks), np.tile(backward[:, None], ranks), np.zeros((3, ranks - 1))
    expected = (micro_batches + ranks - 1) * (forward + backward)
    result = simulate(one_f_one_b(ranks, micro_batches), *times)
    np.testing.assert_allclose(result.makespan_seconds, expected, rtol=1e-12)
    np.testing.assert_allclose(simulate(gpipe(ranks, micro_batches), *times).makespan_seconds, expected, rtol=1e-12)


@pytest.mark.parametrize(("ranks", "virtual", "groups"), [(2, 2, 1), (4, 2, 2), (4, 3, 16), (8, 4, 5), (16, 2, 32)])
def test_equal_stages_of_the_interleaved_schedule_have_a_closed_form(ranks, virtual, groups):
    forward, backward, stages = 0.3, 0.7, ranks * virtual
    times = np.full((1, stages), forward), np.full((1, stages), backward), np.zeros((1, stages - 1))
    expected = (groups * ranks * virtual + ranks - 1) * (forward + backward)
    result = simulate(interleaved(ranks, virtual, groups * ranks), *times)
    np.testing.assert_allclose(result.makespan_seconds, expected, rtol=1e-12)
    np.testing.assert_allclose(
        result.makespan_seconds[:, None] - result.busy_seconds, (ranks - 1) * (forward + backward), rtol=1e-9
    )


def test_unequal_stages_of_gpipe_have_a_closed_form():
    forward, backward, transfer = times_of(3, 50, 6)
    result = simulate(gpipe(6, 15), forward, backward, transfer)
    expected = sum(t.sum(axis=1) + 14 * t.max(axis=1) for t in (forward, backward)) + 2 * transfer.sum(axis=1)
    np.testing.assert_allclose(result.makespan_seconds, expected, rtol=1e-12)


def test_candidates_of_a_batch_do_not_touch_each_other():
    times = times_of(11, 20, 5)
    together = simulate(one_f_one_b(5, 200), *times)
    for n in range(20):
        alone = simulate(one_f_one_b(5, 200), *(t[n : n + 1] for t in times))
        np.testing.assert_allclose(together.finish_seconds[n], alone.finish_seconds[0], rtol=1e-12)


def test_time_scales_and_never_falls_when_something_takes_longer():
    forward, backward, transfer = times_of(5, 200, 6)
    order = one_f_one_b(6, 40)
    base = simulate(order, forward, backward, transfer).makespan_seconds
    thrice = simulate(order, 3 * forward, 3 * backward, 3 * transfer).makespan_seconds
    np.testing.assert_allclose(thrice, 3 * base, rtol=1e-12)
    longer = forward + (np.random.default_rng(1).random(forward.shape) < 0.2)
    assert (simulate(order, longer, backward, transfer).makespan_seconds >= base - 1e-9).all()


def test_blocking_sends_are_busy_time_and_cost_at_least_as_much():
    times = times_of(9, 50, 4)
    order = one_f_one_b(4, 16)
    overlapped, blocking = simulate(order, *times), simulate(order, *times, blocking=True)
    assert (blocking.makespan_seconds >= overlapped.makespan_seconds * (1 - 1e-12)).all()
    sends = 16 * (np.pad(times[2], ((0, 0), (0, 1))) + np.pad(times[2], ((0, 0), (1, 0))))
    np.testing.assert_allclose(blocking.busy_seconds - overlapped.busy_seconds, sends, rtol=1e-9)
    np.testing.assert_array_equal(overlapped.busy_seconds.argmax(axis=1), (times[0] + times[1]).argmax(axis=1))
    np.testing.assert_allclose(
        simulate(order, *folded(*times)).makespan_seconds, blocking.makespan_seconds, rtol=1e-12
    )  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), blocking=st.booleans())
def test_timeline_holds_every_operation_at_its_time(shape, seed, blocking):
    kind, ranks, virtual, _ = shape
    times = tuple(t[0] for t in times_of(seed, 1, ranks * virtual))
    weights = times_of(seed + 1, 1, ranks * virtual)[0][0] if kind == "zero bubble" else None
    trace = timeline(order_of(*shape), *times, weights, blocking=blocking)
    ends = reference([megatron_order(*shape, r) for r in range(ranks)], ranks, *times, blocking, weights)
    names = ["FBW"[k] for k in trace.kind]
    keys = list(zip(names, trace.virtual_stage.tolist(), trace.micro_batch.tolist(), strict=True))
    assert set(keys) == set(ends)
    assert len(keys) == len(ends)
    np.testing.assert_allclose(trace.end_seconds, [ends[key] for key in keys], rtol=1e-12)
    np.testing.assert_array_equal(trace.rank, trace.virtual_stage % ranks)
    same_rank = trace.rank[1:] == trace.rank[:-1]
    assert (trace.start_seconds[1:] >= trace.end_seconds[:-1] - 1e-9)[same_rank].all()


def test_any_order_can_be_simulated():
    ranks, micro_batches = 3, 8
    work = [one_f_one_b(ranks, micro_batches).operations(rank) for rank in range(ranks)]
    times = times_of(2, 10, ranks)
    known = simulate(one_f_one_b(ranks, micro_batches), *times)
    given_order = simulate(order_of_work(ranks, 1, micro_batches, work), *times)
    np.testing.assert_allclose(given_order.finish_seconds, known.finish_seconds, rtol=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_random_orders_agree_with_the_reference(data, seed):
    ranks, virtual, micro_batches = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 4)))
    stages, rng = ranks * virtual, np.random.default_rng(seed)
    ready = [(0, 0, m) for m in range(micro_batches)]
    work: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    while ready:
        kind, stage, m = ready.pop(rng.integers(len(ready)))
        work[stage % ranks].append((kind, stage, m))
        if kind == 0:
            ready.append((0, stage + 1, m) if stage + 1 < stages else (1, stage, m))
        elif stage:
            ready.append((1, stage - 1, m))
    times = times_of(seed, 2, stages)
    result = simulate(order_of_work(ranks, virtual, micro_batches, work), *times)
    named = [[("FB"[kind], stage, m) for kind, stage, m in rank_work] for rank_work in work]
    for n in range(2):
        ends = reference(named, ranks, *(t[n] for t in times), False)
        np.testing.assert_allclose(result.makespan_seconds[n], max(ends.values()), rtol=1e-12)


def test_bad_schedules_are_refused_with_the_remedy():
    with pytest.raises(SpecError, match="multiple of 4"):
        interleaved(4, 2, 6)
    with pytest.raises(SpecError, match="number of micro-batches is 0"):
        one_f_one_b(4, 0)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 4), (4, 8), (4, 4), (8, 300), (7, 21)])
def test_equal_stages_of_zero_bubble_have_the_published_bubble(ranks, micro_batches):
    """(P - 1)(F + B - W), arXiv 2401.10241 table 1, where B and F are alike and W is not longer."""
    forward, weights = np.array([0.3, 1.0, 5.0]), np.array([0.3, 0.6, 2.0])
    times = np.tile(forward[:, None], ranks), np.tile(forward[:, None], ranks), np.zeros((3, ranks - 1))
    result = simulate(zero_bubble(ranks, 1, micro_batches), *times, np.tile(weights[:, None], ranks))
    expected = micro_batches * (2 * forward + weights) + (ranks - 1) * (2 * forward - weights)
    np.testing.assert_allclose(result.makespan_seconds, expected, rtol=1e-12)


@pytest.mark.parametrize(("ranks", "virtual", "micro_batches"), [(4, 2, 8), (2, 3, 6), (3, 2, 3), (4, 4, 16)])
def test_zero_bubble_is_the_order_of_pytorch(ranks, virtual, micro_batches):
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    told = schedules.ScheduleInterleavedZeroBubble.__new__(schedules.ScheduleInterleavedZeroBubble)
    vars(told).update(
        n_local_stages=virtual, pp_group_size=ranks, microbatches_per_round=ranks, _n_microbatches=micro_batches
    )
    names = {"FORWARD": 0, "BACKWARD_INPUT": 1, "BACKWARD_WEIGHT": 2}
    for rank in range(ranks):
        theirs = [
            (names[action.computation_type.name], action.stage_index, action.microbatch_index)
            for action in told._calculate_single_rank_operations(rank)
            if action is not None
        ]
        assert [tuple(work) for work in zero_bubble(ranks, virtual, micro_batches).operations(rank)] == theirs
