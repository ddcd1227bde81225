"""Published memory is compared with a predicted figure of the same kind and rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.samples import context, llama, pool, row

from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.strategies import strategies
from shardwright.spec.job import Job
from shardwright.validation.facts import first_and_last
from shardwright.validation.forecast import comparable_bytes
from shardwright.validation.outcome import measured_bytes
from shardwright.validation.runs import PublishedRun

JOB = Job(global_batch=64, seq_len=4096)
RUN = PublishedRun(row_id="a")


@pytest.fixture(name="verdict", scope="module")
def fixture_verdict():
    where = context(llama(16, 2048, 32, 32, 8192, 131072), pool(1, 8), JOB)
    return evaluate(where, strategies([row(where, pp=4, dp=2)]))


@pytest.mark.parametrize(
    ("words", "ranks", "context_too", "reserved"),
    [
        ("GiB max over ranks of max_memory_allocated", "tensor_bytes", False, False),
        ("GiB max_memory_allocated on last global rank", "last_tensor_bytes", False, False),
        ("GB as in dataset (nanotron logged peak memory, logging rank)", "first_tensor_bytes", False, False),
        ("GiB max_memory_reserved, worst rank", "tensor_bytes", False, True),
        ("GiB nvidia-smi process memory", "tensor_bytes", True, True),
        ("peak GB", "tensor_bytes", False, False),
    ],
)
def test_like_is_compared_with_like(verdict, words, ranks, context_too, reserved):
    found = comparable_bytes(replace(RUN, mem_kind=words), JOB, verdict, 0)
    expected = getattr(verdict, ranks)[0] * (1 + reserved * memory_facts("megatron").fragmentation)
    assert found == pytest.approx(expected + 1.2e9 * context_too)


def test_torchtitan_prints_reserved_gib(verdict):
    run = replace(RUN, mem_kind="GB peak memory as reported", framework="torchtitan", measured_mem_gb=10.0)
    job = replace(JOB, framework="torchtitan")
    assert measured_bytes(run) == 10 * 2**30
    assert comparable_bytes(run, job, verdict, 0) > comparable_bytes(run, JOB, verdict, 0)


@pytest.mark.parametrize(
    ("layers", "stages", "head", "expected"),
    [(16, 1, 4.0, (16, 16)), (16, 4, 4.0, (6, 0)), (28, 4, 4.0, (9, 3)), (12, 4, 0.0, (3, 3)), (32, 2, 2.3, (18, 14))],
)
def test_balanced_stages_take_layers_until_they_have_more_than_their_share(layers, stages, head, expected):
    """16 layers and a head as heavy as four make shares of five; a stage stops at its sixth unit, above five."""
    assert first_and_last(layers, stages, head) == expected
