"""The same input gives the same plan everywhere: on other processors, with other hash seeds, with other last bits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.determinism.disturbed import disturbance
from tests.golden_replay.compare import answers_of
from tests.golden_replay.problem import KINDS, problems
from tests.nightly import nightly

ROOT = Path(__file__).parents[2]
FEW = (
    "mixed:two types, a small model",
    "mixed:rules",
    "money:least dollars on two types",
    "money:rentals, with deadline and budget",
    "own:measured layers, two types",
    "special:optimizer without moments",
    "special:memory is short, optimizer offloaded",
    "uniform:Llama-2-70B on 256 A800s",
)
LARGE = "nightly/large"  # the cluster of benchmarks/mixed.py whose plan once hung on the linear-algebra library
CHOSEN = ("machines now", "rented", "picks", "plan", "best", "micro-batch", "switches", "replicas", "infeasible")
PROCESSORS = {"Haswell": "X86_V4", "Sandybridge": "X86_V3 X86_V4"}  # kernels of OpenBLAS; what NumPy goes without


@cache
def answered(asked: tuple[str, ...], mode: str = "exact", seed: int = 0, kernel: str = "") -> str:
    """Return the answers of a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONWARNINGS": "ignore"}
    if kernel:
        environment |= {"OPENBLAS_CORETYPE": kernel, "NPY_DISABLE_CPU_FEATURES": PROCESSORS[kernel]}
    command = [sys.executable, "-m", "tests.determinism.answers", mode, *asked]
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def chosen(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return what was chosen of the answers in a text, without the figures."""
    found = {}
    for name, figures in answers_of(text).items():
        found[name] = [figure for figure in figures if figure[0] in CHOSEN]
    return found


def everything() -> tuple[str, ...]:
    return (*KINDS, LARGE)


def test_the_problems_are_there() -> None:
    assert all(name in problems(kind) for kind, name in (one.split(":") for one in FEW))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels are those of x86")
@pytest.mark.parametrize("kernel", ["Sandybridge", *nightly(["Haswell"])])
def test_answers_are_byte_equal_on_other_processors(kernel: str) -> None:
    assert answered(FEW, seed=len(kernel), kernel=kernel) == answered(FEW)


@pytest.mark.parametrize("mode", ["1", *nightly(["up"])])
def test_plans_do_not_hang_on_last_bits(mode: str) -> None:
    found, kept = answered(FEW, mode), answered(FEW)
    assert chosen(found) == chosen(kept)


@pytest.mark.nightly
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels are those of x86")
@pytest.mark.parametrize("kernel", PROCESSORS)
def test_all_answers_are_byte_equal_on_other_processors(kernel: str) -> None:
    assert answered(everything(), seed=len(kernel), kernel=kernel) == answered(everything())


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["up", "down", *map(str, range(1, 7))])
def test_no_plan_hangs_on_last_bits(mode: str) -> None:
    assert chosen(answered(everything(), mode)) == chosen(answered(everything()))


@pytest.mark.parametrize("mode", ["up", "down", "7"])
def test_disturbances_are_in_the_last_bits(mode: str) -> None:
    values = np.linspace(1.0, 2.0, 100)
    steps = (disturbance(mode)(values) - values) / 2.0**-52
    assert 1.0 <= np.abs(steps).max() <= 8.0
    assert {"up": steps.min() > 0.0, "down": steps.max() < 0.0, "7": steps.min() < 0.0 < steps.max()}[mode]
    assert disturbance(mode)(np.arange(3)).tolist() == [0, 1, 2]
