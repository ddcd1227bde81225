"""Tiny models rehearsed in the trainers' own code, held against figures that follow from their shapes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.running import succeeded
from tests.cli.schemas import holds
from tests.rehearsal.tiny import SEQUENCE, require_guard, tiny_model, tiny_plan

import shardwright
from shardwright.plans.document import save
from shardwright.rehearsal.document import RankRehearsal, messages
from shardwright.rehearsal.rehearse import rehearse
from shardwright.search.space.axes import parse_pins

PADDING = 0.01  # of a tiny model's buffers, whose parts begin at round addresses


def sent(rank: RankRehearsal, kind: str, purpose: str) -> int:
    """Return the bytes of all messages of a type and purpose."""
    return sum(m["bytes"] for m in messages(rank) if (m["type"], m["purpose"]) == (kind, purpose))


def test_train_holds_weights_gradients_and_state_sends_and_computes_what_its_shapes_say(tmp_path: Path) -> None:
    require_guard()
    plan = tiny_plan("train", "tp=2 pp=2 vpp=1 micro_batch=1 recompute=none sequence_parallel=on")
    file = tmp_path / "plan.json"
    save(plan, file)
    outcome = succeeded(["rehearse", str(file), "--rank", "0", "--json"])
    assert "executing the trainer's code" in outcome.err
    document = json.loads(outcome.out)
    holds("rehearsal", document)
    (rank,) = document["ranks"]
    model = plan.model
    layer = model.dense_layer_parameters(model.layers[0]) - 2 * model.hidden
    held = (model.token_table_parameters + 2 * layer) / 2 + 4 * model.hidden
    kinds = rank["kinds"]
    assert kinds["parameters"] == pytest.approx(2 * held, rel=PADDING)
    assert kinds["gradients"] == pytest.approx(4 * held, rel=PADDING)
    assert kinds["state"] == pytest.approx(12 * held / 2, rel=PADDING)
    assert sum(kinds.values()) == rank["tensor_bytes"]
    tokens = SEQUENCE * plan.replicas[0].micro_batches
    attention = model.layers[0].self_attention
    scores = 2 * attention.heads * attention.head_dim * SEQUENCE  # causal: half of both products
    products = 2 * (model.hidden * (2 * attention.query_width + 2 * attention.key_width) + 3 * 512 * model.hidden)
    assert rank["flops"] == tokens * 2 * (3 * products + 3.5 * scores) / 2
    sums = {(m["type"], m["purpose"]): m["bytes"] for m in rank["messages"]}
    assert sums["send", "stages"] == tokens * model.hidden * 2 / 2
    assert sums["receive", "stages"] == tokens * model.hidden * 2 / 2
    assert sums["reduce-scatter", "gradient"] == kinds["gradients"]
    assert [shim["name"] for shim in rank["shims"]] == ["RMSNorm"]
    assert rank["host_bytes"] < 2e9


def test_fsdp_gathers_every_layer_twice_and_reduces_once() -> None:
    require_guard()
    pytest.importorskip("transformers")
    pins = "tp=1 pp=1 micro_batch=1 sharding=zero3 recompute=uniform recompute_layers=1"
    plan = tiny_plan("fsdp", pins, model=tiny_model(2))
    (rank,) = rehearse(plan).ranks
    parameters, ends = plan.model.parameters, plan.model.head_parameters
    kinds = rank.figures["kinds"]
    assert kinds["parameters"] == pytest.approx(4 * parameters / 8, rel=PADDING)
    assert kinds["state"] == pytest.approx(8 * parameters / 8, rel=PADDING)
    gathered = 2 * (2 * parameters - ends)  # final norm and head stay there
    assert sent(rank, "all-gather", "gradient") == pytest.approx(gathered, rel=PADDING)
    assert sent(rank, "reduce-scatter", "gradient") == pytest.approx(2 * parameters, rel=PADDING)
    assert rank.shim_share == 0.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("framework", "pins", "tolerance"),
    [
        ("train", "tp=2 pp=1 micro_batch=1 recompute=none", 0.02),
        ("train", "tp=1 pp=1 micro_batch=1 recompute=none", 0.02),
    ],
)
def test_the_account_agrees_with_an_eighth_of_llama_3_8b(framework: str, pins: str, tolerance: float) -> None:
    require_guard()
    large = shardwright.load_model("llama-3-8b")
    plan = tiny_plan(framework, pins, model=replace(large, layers=large.layers[:4]))
    for rank in rehearse(plan).ranks:
        assert abs(rank.difference) < tolerance
        assert rank.figures["flops"] == pytest.approx(rank.expected.flops, rel=0.005)


@pytest.mark.nightly
def test_megatron_core_holds_what_the_account_says() -> None:
    python = os.environ.get("SHARDWRIGHT_MEGATRON_PYTHON", "")
    require_guard()
    if not python:
        pytest.skip(
            "SHARDWRIGHT_MEGATRON_PYTHON names no interpreter with Megatron-LM (tests/targets/megatron_venv.sh)"
        )
    large = shardwright.load_model("llama-3-8b")
    pins = parse_pins(["tp=2", "cp=1", "pp=2", "vpp=1", "micro_batch=1", "recompute=none"])
    job = shardwright.make_job(global_batch=4, seq_len=4096)
    model = replace(large, layers=large.layers[:4])
    plan = shardwright.plan(model, shardwright.load_cluster("1x8xH100-SXM"), job, space=pins).best
    for rank in rehearse(plan, python=python).ranks:
        memory, kinds = rank.expected.memory, rank.figures["kinds"]
        assert kinds["parameters"] == pytest.approx(memory.weights_bytes, rel=0.005)
        assert kinds["gradients"] == pytest.approx(memory.gradients_bytes, rel=0.005)
        assert kinds["state"] == pytest.approx(memory.optimizer_bytes, rel=0.005)
        assert rank.figures["flops"] == pytest.approx(rank.expected.flops, rel=0.005)
