"""What frameworks add: factors multiply, host time shows only where the device would be faster, nothing makes an
iteration faster."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cost.samples import BARE, context, gpu, llama, pool, row

from shardwright.cost.compute.operator_table import ATTENTION, GEMM
from shardwright.cost.frameworks.overheads import (
    Calibration,
    Clocks,
    Overheads,
    kernel_factor,
    launched_seconds,
    overheads,
    power_factor,
    shipped,
)
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.strategies import strategies
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.job import Job

SLOWER = dict.fromkeys(("gemm", "attention", "memory", "optimizer", "latency"), 2.0)
SLOWER |= {"intra": 0.5, "inter": 0.5}
SLOWER |= {"launch_seconds": 1e-3, "rank_seconds": 1e-3, "pass_seconds": 1e-3, "step_seconds": 1e-2, "straggling": 0.1}
JOB = Job(global_batch=16, seq_len=2048)
MODEL = llama(8, 2048, 16, 16, 5632, 32000)
seconds = st.floats(1e-6, 10.0)


def test_every_framework_has_overheads_and_every_measured_architecture_clocks():
    assert set(shipped().frameworks) == set(framework_names())
    assert {"Ampere", "Hopper", "Blackwell"} <= set(shipped().architectures)
    for software in shipped().frameworks.values():
        assert all(getattr(software, field.name) >= 0.0 for field in fields(software))


def test_clocks_multiply_the_factors_of_a_framework():
    made = Calibration(
        frameworks={"megatron": replace(BARE, gemm=2.0, attention=3.0)},
        architectures={"Ampere": Clocks(gemm=1.5, attention=0.5)},
    )
    found = made.of("megatron", gpu())
    assert (found.gemm, found.attention, found.memory) == (3.0, 1.5, 1.0)
    assert made.of("megatron", gpu(architecture="another")).gemm == 2.0


def test_a_gpu_capped_below_its_data_sheet_is_slower():
    known = gpus()["H100-SXM"]
    assert power_factor(known) == 1.0
    capped = replace(known, tdp_watts=known.tdp_watts / 4.0)
    assert power_factor(capped) == pytest.approx(2.0)
    assert overheads("megatron", capped).gemm == pytest.approx(2.0 * overheads("megatron", known).gemm)
    assert power_factor(replace(known, name="of my own", tdp_watts=1.0)) == 1.0


@given(device=seconds, host=seconds, more=st.floats(1.0, 10.0))
def test_a_pass_takes_the_longer_of_device_and_host(device, host, more):
    both = float(launched_seconds(np.array(device), host))
    assert max(device, host) <= both <= 2**0.25 * max(device, host) * (1 + 1e-12)
    assert both <= float(launched_seconds(np.array(device * more), host))
    assert both <= float(launched_seconds(np.array(device), host * more))
    assert float(launched_seconds(np.array(device), 0.0)) == pytest.approx(device)


@pytest.mark.parametrize("name", SLOWER)
@pytest.mark.parametrize("columns", [{"dp": 16}, {"tp": 4, "pp": 2, "dp": 2, "sequence_parallel": True}])
def test_no_overhead_makes_an_iteration_faster(name, columns):
    where = context(MODEL, pool(2), JOB)
    sure = strategies([row(where, flash=True, overlap_grad=True, **columns)])
    worse = replace(where, measured_overheads=replace(BARE, **{name: SLOWER[name]}))
    before, after = evaluate(where, sure).seconds[0], evaluate(worse, sure).seconds[0]
    shows = name not in ("rank_seconds", "intra", "latency") or "tp" in columns
    assert after > before if shows and (name != "latency" or "tp" not in columns) else after >= before


def test_factors_go_to_their_operators():
    software = Overheads(gemm=2.0, gemm_fp8=3.0, attention=5.0, memory=7.0)
    for precision, low in (("bf16", 2.0), ("fp8", 3.0)):
        where = context(MODEL, pool(), replace(JOB, precision=precision))
        from tests.cost.samples import shard

        from shardwright.cost.compute.operator_table import table
        from shardwright.cost.compute.operators import layer_operators

        operators = table(list(layer_operators(MODEL, MODEL.kinds[0], shard(flash=True), where.job)))
        factor = kernel_factor(software, where.job, operators)
        kind = operators.kind[:, 0]
        assert set(factor[(kind == GEMM) & operators.low_precision[:, 0], 0]) == {low}
        assert set(factor[kind == ATTENTION, 0]) == {5.0}
        assert set(factor[(kind != GEMM) & (kind != ATTENTION), 0]) == {7.0}
