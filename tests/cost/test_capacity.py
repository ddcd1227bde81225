"""Experts with a capacity: rows that are dropped or padded, in products, messages and bytes; and the way out and back."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.plans import uniform_plan

import shardwright
from shardwright import Job, Plan, SpecError, check
from shardwright.cost.compute.operators import expert_copies
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.importers.launch import plan_from_launch
from shardwright.plans.plan import Prediction
from shardwright.spec.options import Options, said

MODELS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite")
CAPACITIES = st.floats(0.1, 3.0)
PADDED = st.sampled_from([None, "none", "capacity"])


def job_with(**options: Any) -> Job:
    return Job(global_batch=32, seq_len=4096, options=Options(dispatcher="alltoall", **options))


@cache
def _model(name: str) -> Any:
    return shardwright.load_model(name)


@cache
def predicted(name: str, capacity: float | None, padding: Any, dispatcher: Any = "alltoall") -> Prediction:
    job = Job(
        global_batch=32,
        seq_len=4096,
        options=Options(dispatcher=dispatcher, expert_capacity=capacity, expert_padding=padding),
    )
    return predict(plan_of(name, job), default_efficiency())


def plan_of(name: str, job: Job) -> Plan:
    model = _model(name)
    return uniform_plan(model, nodes=2, job=job, micro_batch=1, tp=1, ep=8, counts=(len(model.layers),))


@given(st.sampled_from(MODELS), st.integers(1, 20_000), CAPACITIES, st.booleans())
def test_rows_are_those_that_megatron_counts(name: str, tokens: int, capacity: float, padded: bool) -> None:
    (moe,) = {kind.moe for kind in _model(name).kinds if kind.moe}
    job = job_with(expert_capacity=capacity, expert_padding="capacity" if padded else None)
    (copies,) = expert_copies(moe, np.array([float(tokens)]), np.ones(1), job)
    most = math.ceil(tokens * moe.top_k / moe.experts * capacity) * moe.experts  # moe_utils.py: get_capacity
    assert copies * tokens == pytest.approx(most if padded else min(most, tokens * moe.top_k))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MODELS), CAPACITIES, PADDED)
def test_time_memory_and_messages_follow_the_rows(name: str, capacity: float, padding: Any) -> None:
    """Experts that drop take no more of anything than without a capacity, padded ones more where they have more rows.
    Messages have a start, too, whatever is in them."""
    plain, found = predicted(name, None, None), predicted(name, capacity, padding)
    (moe,) = {kind.moe for kind in _model(name).kinds if kind.moe}
    rows = math.ceil(plain_share(moe) * capacity) / plain_share(moe)
    rows = rows if padding == "capacity" else min(rows, 1.0)
    if rows == 1.0:
        assert found == plain
    less, more = (found, plain) if rows < 1.0 else (plain, found)
    assert less.iteration_seconds <= more.iteration_seconds
    assert less.memory[0][0].total_bytes <= more.memory[0][0].total_bytes
    sent, sent_with = (prediction.time.expert_parallel_seconds for prediction in (plain, found))
    assert sent_with / sent == pytest.approx(rows, abs=0.02 * abs(1.0 - rows) + 1e-9)


def plain_share(moe: Any) -> float:
    return 4096.0 * moe.top_k / moe.experts


def test_a_gather_sends_all_tokens_whatever_is_dropped() -> None:
    plain, dropped = (predicted("mixtral-8x7b", capacity, None, "allgather") for capacity in (None, 0.5))
    assert dropped.time.expert_parallel_seconds == plain.time.expert_parallel_seconds
    assert dropped.iteration_seconds < plain.iteration_seconds
    assert dropped.memory[0][0].total_bytes < plain.memory[0][0].total_bytes


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS[:2]), CAPACITIES, PADDED, st.sampled_from(["megatron", "bridge"]))
def test_it_goes_out_and_comes_back(
    tmp_path_factory: pytest.TempPathFactory, name: str, capacity: float, padding: Any, target: str
) -> None:
    job = job_with(expert_capacity=capacity, expert_padding=padding)
    plan = plan_of(name, job)
    folder: Path = tmp_path_factory.mktemp("out")
    for file, text in shardwright.export(plan, target).files.items():
        (folder / file).write_text(text, encoding="utf-8")
    reading = plan_from_launch(folder / "run.sh", environment={"DATA_PATH": "a", "TOKENIZER_MODEL": "a"})
    options = reading.plan.job.options
    assert options.expert_capacity == capacity and options.padded == job.options.padded
    assert not any("capacity" in words for words in (*reading.ignored, *reading.uncounted))


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({"expert_padding": "capacity"}, "expert_padding", "no capacity is said"),
        ({"expert_capacity": 0.0}, "expert_capacity", "above 0"),
        ({"expert_capacity": math.nan}, "expert_capacity", "above 0"),
        ({"expert_capacity": 4.5, "expert_padding": "capacity"}, "expert_capacity", "4 or less"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], path: str, words: str) -> None:
    (problem,) = check(plan_of("mixtral-8x7b", job_with(**options)))
    assert problem.path == f"job.options.{path}" and words in str(problem)


@pytest.mark.parametrize("option", [{"expert_capacity": 1.0}, {"expert_padding": "capacity"}, {"expert_imbalance": 2}])
def test_a_model_without_experts_has_no_options_of_experts(option: dict[str, Any]) -> None:
    dense = _model("llama-3.2-1b")
    job = Job(global_batch=32, seq_len=4096, options=Options(**option))
    (problem,) = check(uniform_plan(dense, nodes=1, job=job, micro_batch=1, tp=1, counts=(len(dense.layers),)))
    assert problem.path == f"job.options.{next(iter(option))}" and "no experts" in problem.message


@given(st.integers(1, 10**15))
def test_whole_numbers_are_words_as_others_are(number: int) -> None:
    for name in ("expert_capacity", "expert_imbalance"):
        assert said(Options(**{name: number})) == said(Options(**{name: float(number)}))


def test_hybridep_alone_sends_padded_rows() -> None:
    pins = {"expert_capacity": "1", "expert_padding": "capacity", "ep": "16"}
    job = shardwright.make_job(global_batch=64, seq_len=4096)
    for machines, backend in (("2x8xH100-SXM", None), ("2x8xB200", "hybridep")):
        plan = shardwright.plan("qwen3-30b-a3b", machines, job, pins=pins, top=1).best
        script = shardwright.export(plan, "megatron").files["run.sh"]
        assert "--moe-expert-capacity-factor 1.0" in script and "--moe-pad-expert-input-to-capacity" in script
        asked = replace(plan, job=replace(plan.job, options=replace(plan.job.options, dispatcher="flex")))
        if backend is None:
            assert "--moe-token-dispatcher-type alltoall" in script
            with pytest.raises(SpecError, match="HybridEP"):
                shardwright.export(asked, "megatron")
        else:
            assert backend in shardwright.export(asked, "megatron").files["run.sh"]
