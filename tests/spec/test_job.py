from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright import Job, SpecError
from shardwright.spec.read.job import make_job, parse_count


def test_a_plain_job() -> None:
    job = make_job(global_batch=512, seq_len=4096)
    assert job == Job(global_batch=512, seq_len=4096)
    assert job.tokens_per_iteration == 2097152 and job.iterations is None


def test_length_in_tokens_or_steps() -> None:
    assert make_job(global_batch=4, seq_len=1024, tokens="1T").tokens == 1e12
    by_steps = make_job(global_batch=4, seq_len=1024, steps=100)
    assert by_steps.tokens == 409600 and by_steps.iterations == 100


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.5T", 1.5e12), ("300B", 300e9), ("300 b", 300e9), ("20M", 20e6), ("4k", 4e3), ("2e12", 2e12), ("1_000", 1e3),
     ("1,000,000", 1e6), (".5T", 5e11), (7, 7.0), (1e12, 1e12)],
)  # fmt: skip
def test_counts_people_write(text: str | float, value: float) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text", ["", "T", "1.5X", "-1T", "0", "nan", "inf", "1e400", "1 2", "1..2", math.nan, -3, True]
)
def test_bad_counts(text: Any) -> None:
    with pytest.raises(SpecError):
        parse_count(text)


@pytest.mark.parametrize(
    ("change", "place", "part"),
    [
        ({"global_batch": 0}, "global_batch", "more than zero"),
        ({"global_batch": 2.5}, "global_batch", "whole"),
        ({"global_batch": "8"}, "global_batch", "without quotes"),
        ({"seq_len": -1}, "seq_len", "more than zero"),
        ({"seq_len": math.nan}, "seq_len", "finite"),
        ({"tokens": "many"}, "tokens", "no number"),
        ({"tokens": 1e9, "steps": 10}, "steps", "not both"),
        ({"precision": "bf61"}, "precision", "bf16"),
        ({"precision": ["bf16"]}, "precision", "expected a name"),
        ({"precision": "fp8", "fp8_recipe": "blokwise"}, "fp8_recipe", "blockwise"),
        ({"fp8_recipe": "delayed"}, "fp8_recipe", "set precision fp8"),
        ({"optimizer": "adma"}, "optimizer", "adam"),
        ({"objective": "tiem"}, "objective", "time"),
        ({"budget_dollars": 100.0}, "budget_dollars", "give `tokens=`"),
        ({"deadline_hours": 5.0}, "deadline_hours", "give `tokens=`"),
        ({"budget_dollars": -5.0, "tokens": 1e9}, "budget_dollars", "more than zero"),
    ],
)
def test_each_bad_field_is_named(change: dict[str, Any], place: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_job(**({"global_batch": 8, "seq_len": 128} | change))
    assert any(problem.path == place and part in str(problem) for problem in caught.value.problems)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        make_job(global_batch=0, seq_len=0, precision="x", objective="y", budget_dollars=1)
    assert len(caught.value.problems) == 5


@given(st.floats(1, 1e14))
@settings(max_examples=examples(60))
def test_a_printed_count_is_read_back(value: float) -> None:
    assert parse_count(repr(value)) == value


FIELDS = st.sampled_from(
    (
        "global_batch",
        "seq_len",
        "tokens",
        "steps",
        "precision",
        "fp8_recipe",
        "optimizer",
        "objective",
        "budget_dollars",
        "deadline_hours",
    )
)
VALUES = (
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=1) | st.booleans()
)


@given(st.dictionaries(FIELDS, VALUES, max_size=4))
@settings(max_examples=examples(200))
def test_noisy_jobs_raise_nothing_but_spec_error(change: dict[str, Any]) -> None:
    try:
        job = make_job(**({"global_batch": 8, "seq_len": 128} | change))
    except SpecError as error:
        assert all(problem.path and problem.message for problem in error.problems)
        return
    assert job.global_batch > 0 and job.seq_len > 0
    assert job.tokens is None or (math.isfinite(job.tokens) and job.tokens > 0)
