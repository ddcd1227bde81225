"""Efficiency corrected by a machine profile: exact on synthetic machines, monotone, and nobody else's business."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost.samples import gpu, pool

from shardwright import Cluster, SpecError
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.measured.machine import base_seconds, fitted, profiled
from shardwright.cost.measured.operators import job_of, table_of
from shardwright.cost.measured.summary import family_summaries, link_summaries
from shardwright.cost.network.collectives import (
    Group,
    exchange_seconds,
    gather_seconds,
    reduce_seconds,
    transfer_seconds,
)
from shardwright.spec.read.machine_profile import CollectiveTime, MachineProfile, OperatorTime

SIZES = (64, 512, 1024, 2048, 4096, 8192)
PRODUCTS = [
    OperatorTime(kind="gemm", direction=direction, dtype=dtype, seconds=0.0, m=m, n=n, k=SIZES[(i + j) % 6], groups=1)
    for dtype in ("bf16", "fp8")
    for i, m in enumerate(SIZES)
    for j, n in enumerate(SIZES[::2])
    for direction in ("forward", "dgrad", "wgrad")
]
OTHERS = [
    OperatorTime(
        kind="attention", direction=direction, dtype="bf16", seconds=0.0,
        tokens=tokens, seq=2048, heads=16, kv_heads=4, head_dim=128,
    )
    for tokens in (2048, 4096, 8192)
    for direction in ("forward", "backward")
] + [
    OperatorTime(kind="memory", direction=direction, dtype="bf16", operation=operation, seconds=0.0, bytes=size)
    for size in (10**7, 10**8, 10**9)
    for operation, direction in (("add", "forward"), ("layer_norm", "forward"), ("layer_norm", "backward"))
]  # fmt: skip
POOL, CLUSTER = pool(), Cluster(pools=(pool(),))


def of_one_dtype(rows):
    return [[row for row in rows if row.dtype == dtype] for dtype in dict.fromkeys(row.dtype for row in rows)]


def timed(rows, factor):
    """Return rows with the times of the base model multiplied by `factor(row)`."""
    return tuple(
        replace(row, seconds=float(seconds) * factor(row))
        for group in of_one_dtype(rows)
        for row, seconds in zip(group, base_seconds(Analytic(), POOL.gpu, group), strict=True)
    )


def machine(operators, collectives=()) -> MachineProfile:
    return MachineProfile(
        gpu=POOL.gpu, device="A100", backend="cuda", count=8, memory_bytes=80e9,
        operators=tuple(operators), collectives=tuple(collectives),
    )  # fmt: skip


def of_machine(operators, collectives=()):
    return profiled(Analytic(), [machine(operators, collectives)], CLUSTER)


def shape(m, n, k, direction="forward", dtype="bf16", groups=1) -> OperatorTime:
    return OperatorTime(kind="gemm", direction=direction, dtype=dtype, seconds=0.0, m=m, n=n, k=k, groups=groups)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_machine_at_seven_tenths_of_the_base_time_is_recovered_exactly(precision: str) -> None:
    model = of_machine(timed(PRODUCTS + OTHERS, lambda row: 0.7))
    operators = table_of([*PRODUCTS, *OTHERS, shape(300, 700, 1300, "wgrad"), shape(10**5, 10**5, 10**4)])
    base = Analytic().operator_seconds(POOL.gpu, job_of(precision), operators)
    assert model.operator_seconds(POOL.gpu, job_of(precision), operators) == pytest.approx(0.7 * base, rel=1e-9)


def test_each_kind_pass_and_precision_has_its_own_factor() -> None:
    factors = {
        ("gemm", "forward", "bf16"): 1.1, ("gemm", "dgrad", "bf16"): 1.3, ("gemm", "wgrad", "bf16"): 0.9,
        ("gemm", "forward", "fp8"): 2.0, ("gemm", "dgrad", "fp8"): 2.0, ("gemm", "wgrad", "fp8"): 2.5,
        ("attention", "forward", "bf16"): 0.8, ("attention", "backward", "bf16"): 1.6,
        ("memory", "forward", "bf16"): 1.2, ("memory", "backward", "bf16"): 3.0,
    }  # fmt: skip
    rows = timed(PRODUCTS + OTHERS, lambda row: factors[row.kind, row.direction, row.dtype])
    model = of_machine(rows)
    for group in of_one_dtype(rows):
        expected = [row.seconds for row in group]
        assert base_seconds(model, POOL.gpu, group) == pytest.approx(expected, rel=1e-9)


def test_a_drift_with_size_is_followed_most_of_the_way() -> None:
    """A device that is twice as slow as the model on small products, and right on large ones."""
    base = base_seconds(Analytic(), POOL.gpu, of_one_dtype(PRODUCTS)[0])
    logs = np.log(base)
    drift = dict(zip(of_one_dtype(PRODUCTS)[0], np.exp(np.log(2.0) * (logs.max() - logs) / np.ptp(logs)), strict=True))
    rows = timed(of_one_dtype(PRODUCTS)[0], lambda row: drift[row])
    found = base_seconds(of_machine(rows), POOL.gpu, rows)
    measured = np.array([row.seconds for row in rows])
    constant = np.median(measured / base)
    assert np.abs(np.log(found / measured)).mean() < 0.5 * np.abs(np.log(constant * base / measured)).mean()


def test_a_device_without_tiles_is_timed_by_its_roofline() -> None:
    """The base model charges whole tiles; a device that does not is found out, and shapes between tiles are right."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 60, size=(36, 3)) * 64
    flat = [
        replace(shape(*map(int, row)), seconds=float(2.0 * np.prod(row.astype(float)) / 200e12 + 4e-6)) for row in sizes
    ]
    model = of_machine(flat[:30])
    error = np.abs(np.log(base_seconds(model, POOL.gpu, flat[30:]) / [row.seconds for row in flat[30:]]))
    before = np.abs(np.log(base_seconds(Analytic(), POOL.gpu, flat[30:]) / [row.seconds for row in flat[30:]]))
    assert np.median(error) < 0.4 * np.median(before)


def test_one_wild_row_changes_next_to_nothing() -> None:
    rows = timed(PRODUCTS, lambda row: 1.2)
    wild = (replace(rows[0], seconds=rows[0].seconds * 100), *rows[1:])
    found = base_seconds(of_machine(wild), POOL.gpu, rows[:54])
    assert found == pytest.approx([row.seconds for row in rows[:54]], rel=0.02)


def test_few_rows_give_one_factor() -> None:
    rows = timed([shape(512, 512, 512), shape(8192, 8192, 8192)], lambda row: 2.0 if row.m == 512 else 1.0)
    (factor,) = {
        round(float(value), 9)
        for value in base_seconds(of_machine(rows), POOL.gpu, rows) / base_seconds(Analytic(), POOL.gpu, rows)
    }
    assert 1.0 < factor < 2.0


def test_other_gpus_are_left_alone() -> None:
    other = replace(gpu(), name="B100")
    cluster = Cluster(pools=(POOL, replace(POOL, gpu=other)))
    model = profiled(Analytic(), [machine(timed(PRODUCTS, lambda row: 3.0), _rings(1e-4, 1e9))], cluster)
    operators = table_of(PRODUCTS[:9])
    for job in (job_of("bf16"), job_of("fp16")):
        expected = Analytic().operator_seconds(other, job, operators)
        assert np.array_equal(model.operator_seconds(other, job, operators), expected)
    assert model.fabric(cluster.pools[1]) == Analytic().fabric(cluster.pools[1])
    assert model.fabric(POOL) != Analytic().fabric(POOL)


def test_what_was_not_measured_is_left_alone_but_for_precisions_alike() -> None:
    model = of_machine(timed([row for row in PRODUCTS if row.dtype == "bf16"], lambda row: 2.0))
    products, others = table_of(PRODUCTS[:9]), table_of(OTHERS)
    for precision, factor in (("fp16", 2.0), ("fp32", 1.0)):
        base = Analytic().operator_seconds(POOL.gpu, job_of(precision), products)
        assert model.operator_seconds(POOL.gpu, job_of(precision), products) == pytest.approx(factor * base)
    base = Analytic().operator_seconds(POOL.gpu, job_of("bf16"), others)
    assert np.array_equal(model.operator_seconds(POOL.gpu, job_of("bf16"), others), base)


@given(
    noise=st.lists(st.floats(-2.0, 2.0), min_size=36, max_size=36),
    sizes=st.tuples(*[st.integers(1, 20000)] * 3),
    axis=st.integers(0, 2),
    more=st.floats(1.0, 8.0),
)
def test_a_larger_product_never_takes_less_time_whatever_was_measured(noise, sizes, axis, more) -> None:
    rows = PRODUCTS[:36]
    wild = [
        replace(row, seconds=row.seconds * float(np.exp(value)))
        for row, value in zip(timed(rows, lambda row: 1.0), noise, strict=True)
    ]
    model = of_machine(wild)
    larger = list(sizes)
    larger[axis] = int(larger[axis] * more)
    small, large = base_seconds(model, POOL.gpu, [shape(*sizes), shape(*larger)])
    assert large >= small * (1 - 1e-12)


@given(
    points=st.lists(st.tuples(st.floats(1e-6, 10.0), st.floats(-3.0, 3.0)), min_size=1, max_size=60),
    times=st.lists(st.floats(1e-7, 100.0), min_size=2, max_size=20),
)
def test_a_curve_is_monotone_and_stays_within_what_it_saw(points, times) -> None:
    predicted, deviation = np.array(points).T
    curve = fitted(predicted, deviation)
    ordered = np.sort(np.array(times))
    corrected = curve.corrected(ordered)
    assert (np.diff(corrected) >= -1e-12 * corrected[1:]).all()
    assert (np.log(corrected / ordered) <= max(curve.shifts) + 1e-9).all()


def _seconds(links, row: CollectiveTime) -> float:
    inter = row.scope == "inter_node"
    groups = Group(size=np.array([row.ranks]), local=np.array([1 if inter else row.ranks]))
    size = np.array([float(row.bytes)])
    if row.collective == "send":
        return float(transfer_seconds(links, size, np.array([inter]))[0])
    call = {"all_reduce": reduce_seconds, "all_to_all": exchange_seconds}.get(row.collective, gather_seconds)
    return float(call(links, groups, size)[0])


def _rings(latency: float, rate: float, scope="intra_node", ranks=8) -> list[CollectiveTime]:
    links = Analytic().fabric(POOL)
    names = ("inter_latency_seconds", "inter_bytes_per_second") if scope == "inter_node" else (
        "intra_latency_seconds", "intra_bytes_per_second")  # fmt: skip
    links = replace(links, **dict(zip(names, (latency, rate), strict=True)))
    rows = [
        CollectiveTime(collective=collective, ranks=ranks, bytes=size, seconds=0.0, scope=scope)
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
        for size in (2**16, 2**19, 2**22, 2**25, 2**28)
    ]
    return [replace(row, seconds=_seconds(links, row)) for row in rows]


@pytest.mark.parametrize(("latency", "rate"), [(1e-6, 3e11), (2e-5, 2e10), (1e-4, 1e9)])
def test_links_are_recovered_from_their_collectives(latency: float, rate: float) -> None:
    rows = _rings(latency, rate)
    rows[3] = replace(rows[3], seconds=rows[3].seconds * 50)
    links = of_machine(timed(PRODUCTS, lambda row: 1.0), rows).fabric(POOL)
    assert links.intra_latency_seconds == pytest.approx(latency, rel=0.01)
    assert links.intra_bytes_per_second == pytest.approx(rate, rel=0.01)
    assert links.inter_bytes_per_second == Analytic().fabric(POOL).inter_bytes_per_second


def test_links_between_machines_are_their_own() -> None:
    rows = [*_rings(1e-6, 2e11), *_rings(3e-5, 1.5e10, scope="inter_node", ranks=4)]
    links = of_machine(timed(PRODUCTS, lambda row: 1.0), rows).fabric(POOL)
    assert links.intra_bytes_per_second == pytest.approx(2e11, rel=0.01)
    assert links.inter_bytes_per_second == pytest.approx(1.5e10, rel=0.01)
    assert links.inter_latency_seconds == pytest.approx(3e-5, rel=0.01)


def test_profiles_of_one_gpu_count_together() -> None:
    right, wrong = machine(timed(PRODUCTS, lambda row: 1.0)), machine(timed(PRODUCTS, lambda row: 4.0))
    found = base_seconds(profiled(Analytic(), [right, wrong, right], CLUSTER), POOL.gpu, PRODUCTS[:9])
    assert found == pytest.approx(base_seconds(Analytic(), POOL.gpu, PRODUCTS[:9]), rel=1e-9)


def test_a_profile_of_another_gpu_or_without_rows_is_refused() -> None:
    with pytest.raises(SpecError, match="the cluster has A100"):
        profiled(Analytic(), [replace(machine(()), gpu=replace(gpu(), name="B100"))], CLUSTER)
    with pytest.raises(SpecError, match="no measured operator"):
        profiled(Analytic(), [machine(())], CLUSTER)


def test_the_summary_tells_the_error_before_and_after() -> None:
    rows = timed(PRODUCTS + OTHERS, lambda row: 2.0 if row.direction == "wgrad" else 1.5)
    summaries = {(item.kind, item.dtype): item for item in family_summaries(Analytic(), POOL, machine(rows))}
    assert set(summaries) == {("gemm", "bf16"), ("gemm", "fp8"), ("attention", "bf16"), ("memory", "bf16")}
    for item in summaries.values():
        assert item.ratio == pytest.approx(1.5)
        assert item.error == pytest.approx(np.log(1.5))
        assert item.corrected_error < 0.01
        assert 0 < item.achieved <= item.best < 1
    assert link_summaries(Analytic(), POOL, machine(rows)) == ()
    (link,) = link_summaries(Analytic(), POOL, machine(rows, _rings(1e-5, 5e10)))
    assert link.measured.bytes_per_second == pytest.approx(5e10, rel=0.01)
