"""The messages of data parallelism that the account of time counts, held against how often trainers send them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.cost.samples import context, llama, pool, row

from shardwright import load_model
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration import step
from shardwright.cost.iteration.gathers import micro_batches, summed_beside
from shardwright.cost.iteration.moments import held_parameters
from shardwright.cost.stage.exact import of_pipelines
from shardwright.cost.strategies import UNSHARDED, ZERO1, ZERO2, ZERO3, Strategies, boundaries, strategies
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.job import Job
from shardwright.spec.options import Options

FRAMEWORKS = ("fsdp", "torchtitan", "deepspeed", "megatron", "train", "nanotron")
SEQUENCE = 128
NORMS = 0.002  # which tensor parallelism does not cut


def sent(where: Context, rows: Strategies) -> float:
    """Return the bytes that one GPU gathers of weights and sums of gradients in a step, where a byte takes a second and
    nothing runs beside it."""
    shards = layer_rows(where, rows)
    starts = boundaries(where.layer_count, int(rows.pp[0]), rows.first_layers, rows.last_layers)
    stages = of_pipelines(shards.row, starts, where.layer_count)
    nothing = np.zeros(stages.low.shape)
    in_passes = sum(step.sharded_weight_seconds(where, rows, shards.table, stages, nothing, nothing))
    times = step.StageTimes(
        forward=nothing[:, None], backward=nothing[:, None], recompute=nothing[:, None], weights=nothing[:, None]
    )
    held = held_parameters(where, rows, shards, starts)
    groups = step.stage_groups(where, rows, held.dense.shape[1])
    tails = sum(step.reduction_tails(where, rows, times, groups, held.dense, held.expert))
    return float((micro_batches(where.job, rows) * in_passes + tails)[0, 0])


def passes(framework: str, sharding: int, count: int, *, tied: bool, last: bool) -> tuple[tuple[float, ...], float]:
    """Return how often a trainer gathers the embedding, its layers and its head in a step of `count` micro-batches, a
    tied projection as part of the embedding, and how often it sums gradients. FSDP2 and torchtitan have both ends of a
    tied table in one unit, which goes through a pass whole; torchtitan frees it between the passes."""
    once = 2 if framework == "nanotron" and sharding == ZERO1 else 1  # of which all ranks have the sum
    sums = count if sharding >= ZERO2 and not last else once if sharding else 2
    if sharding < ZERO2 or (sharding == ZERO2 and framework not in ("fsdp", "torchtitan")):
        return (float(sharding > 0),) * 3, sums
    if sharding == ZERO2:
        return (count, count, count), sums
    ends = {
        "fsdp": (1 if tied else 2, 2, 1),
        "torchtitan": (2, 2, 2),
        "train": (3 if tied else 2, 2, 1),
    }.get(framework, (4 if tied else 2, 2, 2))
    once_less = count - 1 if framework == "train" else 0
    return (count * ends[0] - once_less, count * 2, count * ends[2]), sums


@pytest.mark.parametrize("seed", range(60))
def test_a_step_sends_what_is_priced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "gather_seconds", lambda links, group, size_bytes: np.asarray(size_bytes))
    draw = random.Random(seed)
    framework, sharding, count = draw.choice(FRAMEWORKS), draw.randrange(4), draw.randint(1, 4)
    tied, tp = draw.random() < 0.5, draw.choice((1, 2))
    last = framework == "fsdp" and sharding >= ZERO2 and draw.random() < 0.5
    model = replace(llama(3, 512, 8, 8, 1024, 4096), tied_embeddings=tied)
    options = Options(gradient_sync="last" if last else None)
    job = Job(global_batch=4 * count, seq_len=SEQUENCE, framework=framework, options=options)
    where = context(model, pool(1, 8), job)
    rows = strategies([row(where, tp=tp, dp=4, micro_batch=1, sharding=sharding)])
    gathers, sums = passes(framework, sharding, count, tied=tied, last=last)
    ends = np.array([model.embedding_parameters, model.head_parameters]) / tp
    held = np.array([ends[0], model.parameters / tp - ends.sum(), ends[1]])
    widths = widths_of(job)
    whole = framework == "fsdp" and sharding == UNSHARDED  # by DistributedDataParallel, in the masters' type
    width = 4.0 if whole else widths.gradient_reduction
    expected = widths.weight_gather * np.dot(gathers, held) + width * sums * held.sum()
    assert sent(where, rows) == pytest.approx(expected, rel=NORMS)


@pytest.mark.parametrize("framework", framework_names())
@pytest.mark.parametrize("sharding", [UNSHARDED, ZERO1])
def test_gradients_are_summed_beside_the_last_backward_pass(framework: str, sharding: int) -> None:
    """But by nanotron under ZeRO-1, which sums them once that has ended."""
    where = context(llama(3, 512, 8, 8, 1024, 4096), pool(1, 8), Job(global_batch=8, seq_len=128, framework=framework))
    rows = strategies([row(where, dp=8, sharding=sharding, overlap_grad=beside) for beside in (True, False)])
    after = framework == "nanotron" and sharding == ZERO1
    assert summed_beside(where.job, rows).tolist() == [not after, False]


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_that_layers_share_are_gathered_once_a_step(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `train`, with the embedding to which the output projection is tied (tests/runtime/test_traffic.py)."""
    monkeypatch.setattr(step, "gather_seconds", lambda links, group, size_bytes: np.asarray(size_bytes))
    model = load_model("zamba2-1.2b")
    where = context(model, pool(1, 8), Job(global_batch=4 * count, seq_len=SEQUENCE, framework="train"))
    rows = strategies([row(where, dp=4, micro_batch=1, sharding=ZERO3)])
    ends = model.embedding_parameters, model.head_parameters
    gathered = ends[0] + 2 * count * (model.parameters - sum(ends)) + count * ends[1]
    widths = widths_of(where.job)
    expected = widths.weight_gather * gathered + widths.gradient_reduction * count * model.parameters
    assert sent(where, rows) == pytest.approx(expected, rel=NORMS)
