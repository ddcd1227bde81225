"""Machine profiles: what is written is read back, and a faulty file is refused by field."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import SpecError
from shardwright.spec.catalog.gpus import find_gpu
from shardwright.spec.read.machine_profile import (
    CollectiveTime,
    MachineProfile,
    OperatorTime,
    from_document,
    load_profile,
    save_profile,
    to_document,
)

PROFILE = MachineProfile(
    gpu=find_gpu("H200"),
    device="NVIDIA H200",
    backend="cuda",
    count=8,
    memory_bytes=150e9,
    operators=(
        OperatorTime(
            kind="gemm", direction="wgrad", dtype="bf16", seconds=1e-3, spread=0.01, m=64, n=128, k=64, groups=1
        ),
        OperatorTime(
            kind="attention",
            direction="backward",
            dtype="bf16",
            seconds=2e-3,
            tokens=4096,
            seq=2048,
            heads=32,
            kv_heads=8,
            head_dim=128,
        ),
        OperatorTime(kind="memory", direction="forward", dtype="bf16", operation="add", seconds=1e-4, bytes=10**8),
    ),
    collectives=(CollectiveTime(collective="all_reduce", ranks=8, bytes=2**20, seconds=5e-5),),
    torch="2.13.0",
    date="2026-11-21",
    row_seconds=1.25,
    flops_per_second=7e14,
)
CPU = {"name": "my cpu", "fp32_tflops": 0.1, "memory_gb": 16, "memory_gb_per_second": 20}


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    save_profile(PROFILE, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == PROFILE


def test_a_gpu_that_the_catalogue_does_not_have_is_described_in_the_file() -> None:
    document = to_document(PROFILE) | {"gpu": CPU, "threads": 4, "backend": "cpu"}
    found = from_document(document)
    assert found.gpu.name == "my cpu"
    assert found.gpu.peak("fp32") == pytest.approx(0.1e12)
    assert found.gpu.peak("bf16") is None
    again = from_document(to_document(found))
    assert again.gpu.memory_bytes == pytest.approx(found.gpu.memory_bytes)
    assert again.operators == found.operators


def test_what_a_hand_written_file_leaves_out_is_unknown_and_not_an_error() -> None:
    document = to_document(PROFILE)
    for key in ("torch", "cuda", "driver", "date", "collectives", "threads", "complete", "row_seconds"):
        document.pop(key)
    found = from_document(document)
    assert found.collectives == ()
    assert found.complete


def _changed(path: str, value: object) -> dict[str, object]:
    document = copy.deepcopy(to_document(PROFILE))
    *parents, last = path.split(".")
    place: Any = document
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("version", 2, "version: is 2"),
        ("version", True, "version: is true"),
        ("gpu", "H2000", "unknown GPU"),
        ("gpu", {"name": "x"}, "memory_gb: is missing"),
        ("gpu", CPU | {"name": "H200"}, "is in the catalogue"),
        ("gpu", {k: v for k, v in CPU.items() if k != "fp32_tflops"}, "no peak is given"),
        ("gpu", CPU | {"link": "string"}, "no link"),
        ("backend", "tpu", "backend: is 'tpu'"),
        ("count", 0, "count: must be more than zero"),
        ("memory_bytes", "80G", "memory_bytes: expected a number"),
        ("speed", 3, "speed: unknown key"),
        ("operators", KeyError, "operators: is missing"),
        ("operators", {}, "operators: expected a list"),
        ("operators.0.kind", "gem", "did you mean gemm?"),
        ("operators.0.pass", "sideways", "operators[0].pass: is 'sideways'"),
        ("operators.0.m", 1.5, "operators[0].m: expected a whole number"),
        ("operators.0.m", KeyError, "operators[0].m: is missing"),
        ("operators.0.bytes", 4, "operators[0].bytes: unknown key"),
        ("operators.0.seconds", 0, "operators[0].seconds: must be more than zero"),
        ("operators.1.dtype", "int8", "operators[1].dtype"),
        ("operators.2.seconds", None, "operators[2].seconds: is missing"),
        ("collectives.0.collective", "broadcast", "collectives[0].collective"),
        ("collectives.0.ranks", 1, "one rank alone"),
        ("collectives.0.scope", "moon", "collectives[0].scope"),
    ],
)
def test_a_faulty_field_is_named_with_a_remedy(path: str, value: object, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_document(_changed(path, value), "p.json")
    assert any(words in str(problem) and "p.json" in problem.path for problem in caught.value.problems), str(
        caught.value
    )
    assert all(problem.hint for problem in caught.value.problems)


def test_every_fault_is_told_at_once() -> None:
    document = _changed("operators.0.m", -1) | {"count": None, "backend": 3}
    with pytest.raises(SpecError) as caught:
        from_document(document)
    assert {problem.path.split(": ")[-1] for problem in caught.value.problems} >= {"operators[0].m", "count", "backend"}


def test_a_profile_of_layers_is_told_from_one_of_a_machine() -> None:
    with pytest.raises(SpecError, match="of a model's layers"):
        from_document({"version": 1, "model": "x", "entries": []})


@pytest.mark.parametrize("text", ["", "[]", "3", '{"version": 1', "null"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"p\.json"):
        load_profile(path)


def test_the_file_is_the_same_for_equal_profiles(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_profile(PROFILE, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert json.loads((tmp_path / "a").read_text())["gpu"] == "H200"
