"""Which device is found, and what is said where there is none."""

from __future__ import annotations

import sys

import pytest
from tests.cli.running import refused, run

from shardwright.errors import SpecError
from shardwright.measure.device import CPU_PROCESSES, cuda_dtypes, find_device


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
