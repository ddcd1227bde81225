"""Well-known published runs as the cost model sees them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.validation.known import known_runs

from shardwright.validation.case import case_of
from shardwright.validation.facts import SkippedRunError

RUNS = known_runs()
# Parameters as published, and the settings that the publication prints.
EXPECTED = {
    "8a16e6807f": (64.9e9, "H100-SXM", 512, dict(tp=1, pp=1, dp=512, micro_batch=8, sharding=3, recompute=2)),
    "413f238ffe": (70.55e9, "H100-SXM", 64, dict(tp=4, pp=8, vpp=5, dp=2, sequence_parallel=True, recompute=0)),
    "75913be254": (39.1e9, "A100-SXM-80", 512, dict(tp=8, pp=2, dp=32, flash=False, sharding=0, recompute=2)),
    "6ea33e895a": (8.67e9, "A100-SXM-40", 8, dict(tp=8, pp=1, dp=1, micro_batch=16)),
    "f834da62d3-2": (8.03e9, "H100-SXM", 8, dict(tp=1, dp=8, sharding=3, recompute=1)),
    "a7431c524c": (70.55e9, "H100-SXM", 256, dict(tp=8, dp=32, sharding=3, sequence_parallel=True)),
    "40c68fce13": (12.37e9, "B200", 8, dict(pp=2, dp=4, overlap_grad=False, overlap_tp=False)),
    "52f61678bc": (774e6, "A100-SXM-40", 4, dict(tp=4, dp=1, sharding=0)),
    "6a2cfef538": (80e9, "H100-SXM", 128, dict(tp=4, pp=32, dp=1, recompute=0)),
    "fa4a51162f": (6.17e9, "A100-SXM-80", 8, dict(pp=4, vpp=8, dp=2, sharding=1)),
    "94cfbc7a84": (30.5e9, "H100-SXM", 16, dict(ep=16, dp=16, micro_batch=1)),
}  # fmt: skip


@pytest.mark.parametrize("row_id", EXPECTED)
def test_a_published_run_is_understood(row_id) -> None:
    parameters, gpu, gpus, settings = EXPECTED[row_id]
    case = case_of(RUNS[row_id])
    assert case.model.parameters == pytest.approx(parameters, rel=0.01)
    assert (case.pool.gpu.name, case.pool.gpus) == (gpu, gpus)
    assert {name: case.row[name] for name in settings} == settings
    assert case.job.global_batch == RUNS[row_id].global_batch


def test_a_run_on_two_types_of_gpu_has_the_published_stages() -> None:
    plan = case_of(RUNS["03c76e4414"]).plan
    assert plan is not None
    (replica,) = plan.replicas
    assert [stage.gpu for stage in replica.stages] == ["V100-SXM2-16"] * 12 + ["T4"] * 4
    covered = [layers for stage in replica.stages for layers in stage.layers]
    assert covered[0][0] == 0 and covered[-1][1] == 24
    assert all(left[1] == right[0] for left, right in pairwise(covered))


def test_what_is_not_published_is_said() -> None:
    case = case_of(RUNS["94cfbc7a84"])
    assert case.open_recompute
    assert any(guess.about == "recomputation" for guess in case.guesses)
    assert any(guess.about == "optimizer sharding" for guess in case.guesses)
    assert not case_of(RUNS["6ea33e895a"]).guesses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "nvfp4"}, "nvfp4"),
        ({"tp": None, "pp": None}, "tp and pp"),
        ({"n_gpus": None}, "n_gpus"),
        ({"tp": 3.0}, "does not divide"),
        ({"global_batch": 4097.0}, "global batch"),
        ({"gpu": "Imaginary-9000"}, "Imaginary-9000"),
        ({"model": "nobody-knows", "hidden": None, "layers": None}, "hidden"),
    ],
)
def test_a_run_that_cannot_be_predicted_says_why(changes, words) -> None:
    with pytest.raises(SkippedRunError, match=words):
        case_of(replace(RUNS["8a16e6807f"], **changes))
