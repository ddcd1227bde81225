"""What is on a GPU at a time, and what never is together: held against rehearsals in `tests.rehearsal`, here by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.samples import context, llama, mixtral, pool, row

from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.iteration.gathers import moved_in_passes
from shardwright.cost.iteration.moments import LAST_LAYER, LOGITS, REFERENCE, fixed_bytes
from shardwright.cost.iteration.room import least_bytes
from shardwright.cost.strategies import (
    BLOCK,
    NONE,
    SELECTIVE,
    UNIFORM,
    UNSHARDED,
    ZERO1,
    ZERO2,
    ZERO3,
    boundaries,
    strategies,
)
from shardwright.spec.adapter import Adapter
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.job import Framework, Job
from shardwright.spec.options import Options
from shardwright.spec.preference import parse_preference

HIDDEN, WIDTH, VOCAB, TOKENS = 1024, 4096, 4096, 8192
MODEL = llama(8, HIDDEN, 8, 8, WIDTH, VOCAB)


def of(framework: Framework, batch: int = 16, model=MODEL, adapter: Adapter | None = None) -> Context:
    return context(model, pool(1, 8), Job(global_batch=batch, seq_len=TOKENS, framework=framework, adapter=adapter))


def taken(where: Context, **columns: int) -> Footprint:
    rows = strategies([row(where, flash=True, **columns)])
    chunks = int(rows.pp[0] * rows.vpp[0])
    starts = boundaries(where.layer_count, chunks, rows.first_layers, rows.last_layers)
    return footprint(where, rows, layer_rows(where, rows), starts)


def test_what_the_head_kept_is_gone_while_a_layer_runs_backward() -> None:
    """Under full recomputation the inputs of the layers but the last are there, the working set of one with the
    gradient of a matrix of its feed-forward block, and nothing of the norm and the projection after them; with these
    the logits are."""
    where = of("fsdp")
    rows = strategies([row(where, flash=True, dp=8, sharding=ZERO3, recompute=UNIFORM, recompute_layers=1)])
    shards = layer_rows(where, rows)
    table, starts = shards.table, boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
    found = footprint(where, rows, shards, starts)
    inputs, live = 8 * 2 * TOKENS * HIDDEN, float(table.live[0, 2] + table.group[0])
    assert found.activations[0, 0] == pytest.approx(inputs + live + 2 * HIDDEN * WIDTH)
    assert table.before_logits[0] == pytest.approx(8 * TOKENS * HIDDEN)
    assert fixed_bytes(where, rows, shards, starts).moments[0, LOGITS, -1] > table.before_logits[0]


@pytest.mark.parametrize("adapter", [None, Adapter(rank=16)])
@pytest.mark.parametrize("sharding", [ZERO2, ZERO3])
def test_the_unit_of_a_tied_embedding_is_whole_while_layers_run_backward(
    sharding: int, adapter: Adapter | None
) -> None:
    """Its weights, and where it is trained the gradient of the logits, which waits for that of the embedding. Of two
    matrices the output projection is whole no more, and its gradient is being summed beside the last layer; there are
    shards of one more."""
    both = []
    for tied in (True, False):
        where = of("fsdp", model=llama(8, HIDDEN, 8, 8, WIDTH, VOCAB, tied_embeddings=tied), adapter=adapter)
        rows = strategies([row(where, flash=True, dp=8, sharding=sharding)])
        starts = boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
        both.append(fixed_bytes(where, rows, layer_rows(where, rows), starts))
    one, two = both
    table = 2.0 * HIDDEN * VOCAB
    shards = table / 8 if adapter else 0.0  # masters are state
    whole = table if sharding == ZERO3 else 0.0
    assert one.weights[0, 0] - two.weights[0, 0] == pytest.approx(whole - shards)
    sums = 2.0 * table / 8 if adapter is None else 0.0  # in fp32
    running = [fixed.gradients[0, 0] + fixed.moments[0, LAST_LAYER, 0] for fixed in both]
    assert running[0] - running[1] == pytest.approx(-sums)


@pytest.mark.parametrize("sharding", [ZERO2, ZERO3])
@pytest.mark.parametrize("adapter", [None, Adapter(rank=16)])
def test_beside_tiles_of_logits_are_their_gradients_and_a_layer_that_comes(
    sharding: int, adapter: Adapter | None
) -> None:
    """By hand, of TRL's loss: gradients in fp32 and 16 bits of the hidden states and of the projection if that is
    trained, a tile, under ZeRO-3 the projection and the last layer in its buffer, and what norm and projection keep."""
    job = Job(global_batch=16, seq_len=TOKENS, framework="fsdp", adapter=adapter, options=Options(loss="tiled"))
    where = context(llama(8, HIDDEN, 8, 8, WIDTH, 1 << 17), pool(1, 8), job)
    rows = strategies([row(where, flash=True, dp=8, sharding=sharding)])
    starts = boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
    found = fixed_bytes(where, rows, layer_rows(where, rows), starts).moments[0, LOGITS, -1]
    projection, layer = HIDDEN * (1 << 17), 2.0 * (4 * HIDDEN**2 + 3 * HIDDEN * WIDTH + 2 * HIDDEN)
    gathered = (2.0 * projection + layer) * (sharding == ZERO3)
    if adapter is None:
        kept = 8 * TOKENS * HIDDEN  # of the norm its input in fp32 and what its weights multiply; the projection's
        assert found == pytest.approx(6.0 * (TOKENS * HIDDEN + projection) + 2.0 * 4096 * 32768 + gathered + kept)
    else:  # it is in the buffer still in which it came, the layer in its own
        assert found == pytest.approx(4.0 * projection * (sharding == ZERO3) + 2.0 * projection * (sharding == ZERO2)
            + max(layer, 2.0 * 4096 * 32768 + (2 + 6) * TOKENS * HIDDEN), rel=0.01)  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "adapter", "width"),
    [
        ("orpo:llamafactory", None, 12),
        ("dpo:llamafactory", None, 16),
        ("dpo:torchtune", None, 12),
        ("dpo:torchtune", Adapter(rank=8), 16),
        ("kto:llamafactory", None, 12),
    ],
)
def test_answers_by_other_trainers_are_in_fp32(loss: str, adapter: Adapter | None, width: int) -> None:
    """Without shards nothing is gathered beside them."""
    preference, vocab = parse_preference(loss), 1 << 17
    job = Job(global_batch=16, seq_len=TOKENS, framework="fsdp", adapter=adapter, preference=preference)
    where = context(llama(8, HIDDEN, 8, 8, WIDTH, vocab), pool(1, 8), job)
    rows = strategies([row(where, flash=True, dp=8)])
    starts = boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
    found = fixed_bytes(where, rows, layer_rows(where, rows), starts).moments[0, [LOGITS, REFERENCE], -1].max()
    assert found // (preference.passes.trained * TOKENS * vocab) == width


@pytest.mark.parametrize("adapter", [None, Adapter(rank=16)])
@pytest.mark.parametrize("loss", ["orpo", "cpo"])
def test_whole_logits_of_answers_are_three_in_16_bits(loss: str, adapter: Adapter | None) -> None:
    """Beside the projection under ZeRO-3, and what norm and projection keep: the projection nothing where it is frozen."""
    job = Job(
        global_batch=16, seq_len=TOKENS, framework="fsdp", adapter=adapter, preference=parse_preference(loss)
    )  # fmt: skip
    vocab = 1 << 17
    where = context(llama(8, HIDDEN, 8, 8, WIDTH, vocab), pool(1, 8), job)
    rows = strategies([row(where, flash=True, dp=8, sharding=ZERO3)])
    starts = boundaries(where.layer_count, 1, rows.first_layers, rows.last_layers)
    found = fixed_bytes(where, rows, layer_rows(where, rows), starts).moments[0, LOGITS, -1]
    kept = 8 if adapter is None else 4
    pair = 2 * TOKENS
    assert found == pytest.approx(6.0 * pair * vocab + 2.0 * HIDDEN * vocab + kept * pair * HIDDEN)


def test_before_the_first_adapter_nothing_is_kept() -> None:
    """Beside a frozen embedding the first norm of a model without recomputation keeps neither input nor output."""
    lora = Adapter(rank=16)
    kept = {
        recompute: taken(of("fsdp", adapter=lora), dp=8, sharding=ZERO3, recompute=recompute, recompute_layers=1)
        for recompute in (NONE, UNIFORM)
    }
    table = layer_rows(
        of("fsdp", adapter=lora), strategies([row(of("fsdp", adapter=lora), flash=True, dp=8, sharding=ZERO3)])
    ).table
    first, layer = table.kept[0, 0, 1], table.kept[0, 0, 2] - table.kept[0, 0, 1]
    assert first == pytest.approx(-(2 + 2) * TOKENS * HIDDEN)
    assert kept[NONE].activations[0, 0] > 7 * layer
    assert table.kept[0, 2, 1] == 0.0  # where layers run again, the first one's input has a gradient


@pytest.mark.parametrize("framework", ["fsdp", "eager", "deepspeed"])
def test_experts_stay_in_16_bits_beside_quantised_matrices(framework: Framework) -> None:
    model = mixtral(4, HIDDEN, 8, 8, 2048, 32000, 8, 2)
    experts = 2.0 * sum(model.expert_layer_parameters(layer) for layer in model.layers)
    plain, quantised = (
        taken(of(framework, model=model, adapter=Adapter(frozen=frozen)), sharding=UNSHARDED).weights[0, 0]
        for frozen in ("16-bit", "nf4")
    )
    assert experts < quantised < plain
    dense = taken(of(framework, adapter=Adapter(frozen="nf4")), sharding=UNSHARDED).weights[0, 0]
    assert dense < 0.6 * taken(of(framework, adapter=Adapter()), sharding=UNSHARDED).weights[0, 0]


def test_chunks_that_go_once_have_weights_and_gradients_one_after_another() -> None:
    """Two chunks of a rank, in as many micro-batches as ranks: weights of the second are gone before gradients of the
    first come."""
    once, again = (taken(of("torchtitan", batch), pp=2, vpp=2, dp=4, recompute=NONE) for batch in (8, 16))
    saved = (again.gradients - once.gradients)[0, 0]
    assert 0.0 < saved <= again.gradients[0, 0]
    assert np.all(
        taken(of("megatron", 8), pp=2, vpp=2, dp=4).gradients == taken(of("megatron", 16), pp=2, vpp=2, dp=4).gradients
    )


@pytest.mark.parametrize("framework", ["fsdp", "torchtitan"])
def test_a_tied_table_is_gathered_once_a_pass(framework: Framework) -> None:
    where = of(framework, model=replace(MODEL, tied_embeddings=True))
    rows = strategies([row(where, dp=8, sharding=ZERO3)])
    parts = (np.array([[size]]) for size in (100.0, 10.0, 10.0, 10.0))
    moved = moved_in_passes(where.job, rows, *parts)
    assert moved.forward[0, 0] == moved.summed[0, 0] == 90.0


def test_torchtitan_keeps_what_its_ranks_gather() -> None:
    """Inputs of queries, keys and values and of the block, and of the output projection; Megatron-LM gathers again."""
    columns = {"tp": 4, "dp": 2, "sequence_parallel": True, "recompute": NONE}
    tables = []
    for framework in ("torchtitan", "megatron"):
        where = of(framework)
        tables.append(layer_rows(where, strategies([row(where, flash=True, **columns)])).table)
    whole = 2 * TOKENS * HIDDEN * (1 - 1 / 4)
    ours, others = tables
    assert ours.before_logits[0] - others.before_logits[0] == pytest.approx(whole)


def drawn(draw: random.Random) -> tuple[Context, dict[str, Any]]:
    """Return a model and a job with options, and a layout of theirs on eight GPUs, whatever trainers have of these."""
    framework = draw.choice(framework_names())
    dense = llama(draw.choice([1, 2, 8, 12]), HIDDEN, 8, 8, WIDTH, draw.choice([4096, 131072]))
    model = mixtral(8, HIDDEN, 8, 8, 2048, 32000, 8, 2) if draw.random() < 0.25 else dense
    model = replace(model, tied_embeddings=draw.random() < 0.4)
    options = Options(
        loss=draw.choice([None, None, "chunked", "tiled", "fused"]),
        master_weights=draw.choice([None, None, "none"]),
        activation_offload=draw.choice([None, None, None, "inputs"]),
        gradient_sync=draw.choice([None, None, None, "last"]),
    )
    preference = draw.choice([None, None, None, "dpo", "orpo"])
    job = Job(
        global_batch=draw.choice([8, 16, 64]),
        seq_len=draw.choice([512, TOKENS]),
        framework=framework,
        adapter=draw.choice([None, None, Adapter(rank=16), Adapter(rank=8, frozen="nf4")]),
        options=options,
        preference=parse_preference(preference) if preference else None,
        optimizer=draw.choice(["adam", "adam", "sgd", "adam8bit", "muon"]),
    )
    pp, tp = draw.choice([1, 1, 2, 4]) if len(model.layers) >= 8 else 1, draw.choice([1, 1, 2])
    vpp = draw.choice([1, 1, 2]) if pp > 1 else 1
    shardings = [UNSHARDED, ZERO1, ZERO2, ZERO3] if pp == 1 or framework == "torchtitan" else [UNSHARDED, ZERO1]
    layout = {
        "flash": True,
        "pp": pp,
        "vpp": vpp,
        "tp": tp,
        "dp": 8 // pp // tp,
        "sequence_parallel": tp > 1 and draw.random() < 0.5,
        "sharding": draw.choice(shardings),
        "offload": draw.choice([0.0, 0.0, 0.5, 1.0]),
        "zero_bubble": pp > 1 and vpp == 1 and draw.random() < 0.3,
    }
    return context(model, pool(1, 8), job), layout


@pytest.mark.parametrize("seed", range(150))
def test_no_recomputation_takes_less_than_the_least(seed: int) -> None:
    """Bounds that searches drop by, under every way to recompute; what is always there and the fullest moment make the
    whole, of which the parts are told."""
    where, layout = drawn(random.Random(seed))
    for recompute, layers in ((NONE, 0), (SELECTIVE, 0), (UNIFORM, 1), (UNIFORM, 2), (BLOCK, 1)):
        rows = strategies([row(where, recompute=recompute, recompute_layers=layers, **layout)])
        shards, chunks = layer_rows(where, rows), int(rows.pp[0] * rows.vpp[0])
        starts = boundaries(where.layer_count, chunks, rows.first_layers, rows.last_layers)
        fixed = fixed_bytes(where, rows, shards, starts)
        peak = footprint(where, rows, shards, starts, fixed)
        least = least_bytes(where, rows, shards, starts, fixed)
        assert least[0] <= peak.total.max() * (1 + 1e-9), layout
        together = rows.vpp[0] == 1  # else weights and gradients of chunks may come one after another
        assert not together or np.all(peak.tensors >= (fixed.always + fixed.moments.max(axis=1)) * (1 - 1e-9))
        assert np.all(peak.activations >= 0.0) and np.all(peak.logits >= 0.0) and np.all(peak.optimizer >= 0.0)
