"""The fitted efficiency model: light to import, deterministic, monotone, near what was measured, sane on any GPU; its
trees by hand, and as xgboost itself evaluates them.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.compute.operator_table import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    GEMM,
    MEMORY,
    Operator,
    OperatorTable,
    table,
)
from shardwright.cost.compute.operators import FLASH_BACKWARD_FLOPS
from shardwright.cost.learned import Learned, default_efficiency
from shardwright.cost.learned.fitted import Forest, forest_arrays, forest_from, forest_sum
from shardwright.cost.network.collectives import gather_seconds, group, reduce_seconds
from shardwright.errors import SpecError
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import NodePool
from shardwright.spec.job import Job
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job

LEARNED = Learned()
COMMON = ("T4", "V100-SXM2", "A10G", "A100-SXM-80", "L40S", "RTX4090", "H20", "H100-SXM", "B200", "MI300X")
every_gpu = st.sampled_from(sorted(gpus()))
common_gpu = st.sampled_from(COMMON)
tokens = st.sampled_from([512, 1024, 2048, 4096, 8192, 16384])
widths = st.integers(4, 128).map(lambda blocks: 256 * blocks)
groups = st.sampled_from([1, 1, 1, 2, 4, 8, 16])


def job_for(gpu: str, precision: str | None = None) -> Job:
    able = gpus()[gpu].peak("bf16")
    return make_job(global_batch=8, seq_len=4096, precision=precision or ("bf16" if able else "fp16"))


def product(m: float, n: float, k: float, count: float = 1.0, *, low: bool = False) -> OperatorTable:
    m_, n_, k_, count_ = (np.array([float(size)]) for size in (m, n, k, count))
    size = 2.0 * (m_ * k_ + k_ * n_ + m_ * n_) * count_
    operator = Operator(
        kind=GEMM, direction=FORWARD, m=m_, n=n_, k=k_, groups=count_, flops=2.0 * m_ * n_ * k_ * count_, bytes=size,
        low_precision=low,
    )  # fmt: skip
    return table([operator])


def attention(
    batch: float, length: float, heads: float, dim: float = 128.0, *, backward: bool = False
) -> OperatorTable:
    size, span, dims, count = (np.array([float(x)]) for x in (batch * length, length, dim, heads))
    flops = 2.0 * size * length * heads * dim * (FLASH_BACKWARD_FLOPS if backward else 1.0)
    traffic = 2.0 * size * dim * 4.0 * heads * (2.0 if backward else 1.0)
    direction = BACKWARD if backward else FORWARD
    return table(
        [
            Operator(
                kind=ATTENTION, direction=direction, m=size, n=span, k=dims, groups=count, flops=flops, bytes=traffic
            )
        ]
    )


def traffic(size_bytes: float) -> OperatorTable:
    zero, size = np.zeros(1), np.array([float(size_bytes)])
    return table(
        [Operator(kind=MEMORY, direction=FORWARD, m=zero, n=zero, k=zero, groups=zero, flops=zero, bytes=size)]
    )


def seconds(gpu: str, operators: OperatorTable, precision: str | None = None) -> float:
    return float(LEARNED.operator_seconds(gpus()[gpu], job_for(gpu, precision), operators)[0, 0])


def pool(cluster: str) -> NodePool:
    return load_cluster(cluster).pools[0]


def test_importing_reads_no_fit():
    program = (
        "import sys, shardwright.cost.learned.fitted as f; import shardwright.cost.learned.links as l;"
        "print(f.shipped.cache_info().currsize, l.shipped_links.cache_info().currsize, 'xgboost' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "False"]


def test_planning_uses_it_by_default():
    assert default_efficiency() == LEARNED


@pytest.mark.parametrize(
    ("gpu", "flops_per_second"),
    [("A100-SXM-80", 240e12), ("H100-SXM", 690e12), ("B200", 1080e12), ("V100-SXM2", 95e12)],
)
def test_large_products_run_as_measured_in_long_runs(gpu, flops_per_second):
    """microsoft/vidur (A100, H100), MooreThreads/SimuMax (B200), eth-easl/sailor (V100), within a fifth."""
    size = 8192.0
    assert 2.0 * size**3 / seconds(gpu, product(size, size, size)) == pytest.approx(flops_per_second, rel=0.2)


@pytest.mark.parametrize(("gpu", "share"), [("A100-SXM-80", 0.62), ("H100-SXM", 0.60), ("B200", 0.55)])
def test_flash_attention_runs_as_measured(gpu, share):
    """Forward, causal, 16k tokens of head dimension 128: ai-dynamo/aiconfigurator, within a quarter."""
    found = attention(1, 16384, 32)
    assert found.flops[0, 0] / seconds(gpu, found) / (gpus()[gpu].peak("bf16") or 0) == pytest.approx(share, rel=0.25)


@given(gpu=every_gpu, m=tokens, n=widths, k=widths, count=groups)
def test_no_product_is_faster_than_the_peak_or_slower_than_a_hundredth(gpu, m, n, k, count):
    operators = product(m, n, k, count)
    precision = job_for(gpu).precision
    share = operators.flops[0, 0] / seconds(gpu, operators) / (gpus()[gpu].peak(precision) or np.inf)
    assert 0.004 < share <= 1.15


@given(gpu=common_gpu, m=tokens, n=widths, k=widths, count=groups, grown=st.sampled_from("mnkg"))
def test_twice_the_work_is_never_much_faster(gpu, m, n, k, count, grown):
    once = seconds(gpu, product(m, n, k, count))
    sizes = {"m": m, "n": n, "k": k, "g": count}
    sizes[grown] *= 2
    assert seconds(gpu, product(*sizes.values())) >= 0.85 * once


@given(gpu=common_gpu, batch=st.sampled_from([1, 2, 4]), length=st.sampled_from([1024, 4096, 16384]), heads=groups)
def test_longer_sequences_and_backward_passes_take_longer(gpu, batch, length, heads):
    forward = seconds(gpu, attention(batch, length, 4 * heads))
    assert seconds(gpu, attention(batch, 2 * length, 4 * heads)) >= forward
    assert seconds(gpu, attention(batch, length, 4 * heads, backward=True)) >= forward


@given(gpu=every_gpu, size=st.floats(1e5, 1e10), more=st.floats(1.0, 8.0))
def test_more_traffic_is_never_faster_than_memory_nor_faster_than_less(gpu, size, more):
    less, many = (seconds(gpu, traffic(bytes_)) for bytes_ in (size, more * size))
    assert 0.97 * less <= many
    assert many * 1.05 >= more * size / gpus()[gpu].memory_bytes_per_second


def test_equal_operators_take_equal_time_wherever_they_stand():
    """The distinct operators are timed once; nothing of an operator's neighbours shows."""
    together = table(
        [
            Operator(
                kind=GEMM, direction=FORWARD, m=np.array([512.0, 1024.0, 512.0]), n=np.full(3, 4096.0),
                k=np.full(3, 4096.0), groups=np.ones(3), flops=2.0 * np.array([512.0, 1024.0, 512.0]) * 4096.0**2,
                bytes=np.full(3, 1e8),
            )
        ]
    )  # fmt: skip
    found = LEARNED.operator_seconds(gpus()["H100-SXM"], job_for("H100-SXM"), together)[0]
    again = LEARNED.operator_seconds(gpus()["H100-SXM"], job_for("H100-SXM"), together)[0]
    assert found[0] == found[2] != found[1]
    np.testing.assert_array_equal(found, again)


def test_operators_that_are_not_there_take_no_time():
    assert seconds("H100-SXM", traffic(0.0)) == 0.0


def test_low_precision_products_alone_gain_from_fp8():
    plain = seconds("H100-SXM", product(8192, 8192, 8192), "bf16")
    assert seconds("H100-SXM", product(8192, 8192, 8192), "fp8") == plain
    assert 1.3 < plain / seconds("H100-SXM", product(8192, 8192, 8192, low=True), "fp8") < 2.1


def test_a_precision_that_the_gpu_lacks_is_refused():
    with pytest.raises(SpecError, match="cannot compute in fp8"):
        LEARNED.operator_seconds(gpus()["A100-SXM-80"], job_for("A100-SXM-80", "fp8"), product(512, 512, 512, low=True))


@pytest.mark.parametrize(
    ("cluster", "collective", "size", "bus_bytes_per_second"),
    [
        ("1x8xA100-SXM-80", "gather", 512e6, 205e9),
        ("1x8xH100-SXM", "gather", 512e6, 335e9),
        ("1x8xH100-SXM", "reduce", 512e6, 445e9),
        ("1x8xB200", "reduce", 512e6, 701e9),
    ],
)
def test_collectives_in_a_machine_run_as_measured(cluster, collective, size, bus_bytes_per_second):
    """nccl-tests of ai-dynamo/aiconfigurator@095f58a, eight ranks, within a fifth."""
    links = LEARNED.fabric(pool(cluster))
    ranks, buffer = group(links, np.array([8]), np.array([1])), np.array([size])
    passes, run = (1.0, gather_seconds) if collective == "gather" else (2.0, reduce_seconds)
    bus = passes * size * 7 / 8 / run(links, ranks, buffer)[0]
    assert bus == pytest.approx(bus_bytes_per_second, rel=0.2)


def test_all_reduce_over_eight_machines_runs_as_measured():
    """64 × H100, 400 Gbit/s each: 384 GB/s of bus bandwidth at 8 GB (coreweave/nccl-tests)."""
    links = LEARNED.fabric(pool("8x8xH100-SXM"))
    took = reduce_seconds(links, group(links, np.array([64]), np.array([1])), np.array([8.6e9]))[0]
    assert 2.0 * 63 / 64 * 8.6e9 / took == pytest.approx(384e9, rel=0.1)


def test_pcie_is_far_from_its_data_sheet():
    """Rings over PCIe 3 reach a third of it at best, as measured on RTX 2080 Ti and TITAN RTX machines."""
    links = LEARNED.fabric(pool("1x4xT4"))
    took = reduce_seconds(links, group(links, np.array([4]), np.array([1])), np.array([64e6]))[0]
    assert 2e9 < 2.0 * 3 / 4 * 64e6 / took < 6e9


@given(name=every_gpu, size=st.integers(10, 34).map(lambda power: 2.0**power), ranks=st.sampled_from([2, 4, 8, 16, 64]))
def test_links_of_any_gpu_are_monotone_and_slower_than_their_data_sheet(name, size, ranks):
    machines = pool(f"16x8x{name}")
    links = LEARNED.fabric(machines)
    groups_ = group(links, np.array([ranks]), np.array([1]))
    for run in (gather_seconds, reduce_seconds):
        less, many = (run(links, groups_, np.array([bytes_]))[0] for bytes_ in (size, 2.0 * size))
        assert 0.0 < less <= many
        assert less >= size * (ranks - 1) / ranks / (1.2 * machines.intra_bytes_per_second)


def test_bridged_cards_are_not_bound_by_pcie():
    """What a user states of the links counts: beyond the slot's own bandwidth they are bridges."""
    slots = pool("1x4xA40")
    bridged = replace(slots, intra_bytes_per_second=56e9)
    plain, fast = (LEARNED.fabric(machine).intra_bytes_per_second for machine in (slots, bridged))
    assert plain < 0.4 * slots.intra_bytes_per_second and fast > 0.6 * bridged.intra_bytes_per_second


def test_a_row_falls_below_or_not_below_each_threshold():
    forest = Forest(
        feature=np.array([[0, 1, 1]], dtype=np.int32),
        threshold=np.array([[0.5, 2.0, np.inf]], dtype=np.float32),
        leaf=np.array([[1.0, 10.0, 100.0, 1000.0]], dtype=np.float32),
        bias=0.25,
    )
    rows = np.array([[0.0, 0.0], [0.0, 2.0], [0.5, 0.0], [9.0, 9.0]])
    assert forest_sum(forest, rows).tolist() == [1.25, 10.25, 100.25, 100.25]


def test_a_forest_survives_its_file():
    random = np.random.default_rng(0)
    forest = Forest(
        feature=random.integers(0, 5, (4, 7)).astype(np.int32),
        threshold=random.normal(size=(4, 7)).astype(np.float32),
        leaf=random.normal(size=(4, 8)).astype(np.float32),
        bias=0.5,
    )
    rows = random.normal(size=(1000, 5))
    again = forest_from(forest_arrays(forest))
    np.testing.assert_array_equal(forest_sum(again, rows), forest_sum(forest, rows))


def test_it_predicts_as_xgboost_does():
    xgboost = pytest.importorskip("xgboost", reason="needs the extra `calibrate`")
    from tools.refit.operators import forest_of

    random = np.random.default_rng(1)
    columns = random.normal(size=(3000, 6)).astype(np.float32)
    target = columns[:, 0] * np.where(columns[:, 1] > 0, 1.0, -2.0) + 0.1 * random.normal(size=3000)
    settings = {"max_depth": 5, "eta": 0.3, "nthread": 1, "seed": 0, "min_child_weight": 20.0}
    booster = xgboost.train(settings, xgboost.DMatrix(columns, target), 40)
    more = random.normal(size=(500, 6))
    expected = booster.predict(xgboost.DMatrix(more.astype(np.float32)))
    np.testing.assert_allclose(forest_sum(forest_of(booster, 5), more), expected, rtol=1e-4, atol=1e-4)
