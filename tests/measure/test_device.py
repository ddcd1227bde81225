"""Which device is found, what is measured on it, and what is said where there is none."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from tests.cli.running import refused, run
from tests.measure.samples import device

from shardwright.errors import SpecError
from shardwright.measure.device import CPU_PROCESSES, cuda_dtypes, find_device
from shardwright.measure.operators import (
    CALL_SHARE,
    ShapeSettings,
    collective_rows,
    operator_rows,
    row_count,
    shape_scale,
)


def test_without_pytorch_the_message_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    words = refused(run(["profile"]))
    assert "needs PyTorch" in words
    assert "pip install" in words


def test_a_cpu_is_two_devices_that_share_its_cores_and_memory() -> None:
    pytest.importorskip("torch")
    device = find_device("cpu", None)
    assert (device.backend, device.count, device.gpu) == ("cpu", CPU_PROCESSES, None)
    assert device.threads is not None and device.threads >= 1
    assert device.memory_bytes > 1e8


def test_a_name_of_the_catalogue_is_looked_up_and_another_is_not() -> None:
    pytest.importorskip("torch")
    known, new = find_device("cpu", "NVIDIA H100 80GB HBM3").gpu, find_device("cpu", "my machine").gpu
    assert known is not None and known.name == "H100-SXM"
    assert new is None


def test_a_gpu_that_is_not_there_and_an_unknown_kind_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(SpecError, match="not known"):
        find_device("tpu", None)
    if not torch.cuda.is_available():
        with pytest.raises(SpecError, match="finds no GPU"):
            find_device("cuda", None)


@pytest.mark.parametrize(
    ("capability", "amd", "dtypes"),
    [
        ((7, 0), False, {"fp16", "fp32"}),
        ((8, 0), False, {"bf16", "fp16", "tf32", "fp32"}),
        ((9, 0), False, {"bf16", "fp8", "fp16", "tf32", "fp32"}),
        ((9, 4), True, {"bf16", "fp16", "fp32"}),
    ],
)
def test_what_is_measured_is_what_the_gpu_computes_in(capability: tuple, amd: bool, dtypes: set) -> None:
    assert set(cuda_dtypes(capability, amd=amd)) == dtypes


FAST = ShapeSettings(row_seconds=1.0, flops_per_second=7e14)


def test_about_thirty_products_of_the_main_precision_are_measured_in_all_passes() -> None:
    rows = [row for row in operator_rows(device(), FAST) if row.kind == "gemm" and row.dtype == "bf16"]
    assert 30 <= len(rows) <= 36
    passes = Counter(row.direction for row in rows)
    assert passes["dgrad"] == passes["wgrad"] == 11
    assert any(row.groups > 1 for row in rows)
    assert row_count(device()) < 200


def test_gradients_are_the_same_work_as_their_product() -> None:
    rows = [row for row in operator_rows(device(), FAST) if row.kind == "gemm" and row.groups == 1]
    by_work = Counter((row.dtype, tuple(sorted((row.m, row.n, row.k)))) for row in rows)
    assert all(count % 3 == 0 for count in by_work.values())


def test_a_fast_gpu_has_the_sizes_of_real_layers() -> None:
    assert shape_scale(device(), FAST) == 1.0
    assert max(row.m * row.n * row.k for row in operator_rows(device(), FAST)) == 8192**3


@pytest.mark.parametrize("row_seconds", [0.01, 0.1, 1.0, 5.0])
def test_on_a_slow_device_no_product_takes_more_than_its_share(row_seconds: float) -> None:
    settings = ShapeSettings(row_seconds=row_seconds, flops_per_second=1e11)
    rows = operator_rows(device(backend="cpu", dtypes=("fp32",)), settings)
    longest = max(2.0 * row.m * row.n * row.k * row.groups for row in rows) / settings.flops_per_second
    assert longest <= 1.3 * CALL_SHARE * row_seconds + 2.0 * 64**3 * 8 / settings.flops_per_second
    assert len(rows) == len(set(rows))


def test_operands_fit_in_a_small_memory() -> None:
    rows = operator_rows(device(memory_bytes=4e9), FAST)
    assert max(4 * (row.m * row.k + row.k * row.n + row.m * row.n) for row in rows) < 0.1 * 4e9


def test_collectives_go_over_all_devices_and_over_pairs() -> None:
    rows = collective_rows(device(), FAST)
    assert {row.ranks for row in rows if row.collective == "all_reduce"} == {2, 8}
    assert {row.ranks for row in rows if row.collective == "send"} == {2}
    assert (min(row.bytes for row in rows), max(row.bytes for row in rows)) == (2**16, 2**28)
    assert {row.ranks for row in collective_rows(device(count=3), FAST)} == {2, 3}
    assert collective_rows(device(count=1), FAST) == ()


def test_slow_links_are_spared_the_longest_messages() -> None:
    hurried = ShapeSettings(row_seconds=0.01, flops_per_second=1e11)
    assert max(row.bytes for row in collective_rows(device(backend="cpu", count=2), hurried)) < 2**25
