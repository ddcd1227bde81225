"""Parts of a model that sees images whose weights are frozen, against PyTorch: FLOPs of a step by its own counter, and
what a layer of the language model keeps by the tensors that autograd saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.cost.test_towers import SEEING, account
from tests.nightly import nightly

from shardwright import Model, make_job
from shardwright.cost.compute.flops import job_flops, score_flops_per_token
from shardwright.cost.compute.operator_table import ATTENTION, GEMM
from shardwright.cost.compute.operators import Shard
from shardwright.cost.compute.tower import tower_parts
from shardwright.cost.layers.table import language_operators
from shardwright.cost.memory.activations import layer_activation_bytes
from shardwright.cost.memory.sizes import trained_share
from shardwright.cost.strategies import UNSHARDED, ZERO3
from shardwright.errors import Problem
from shardwright.plans.check import position_problems
from shardwright.spec.images import trained_parameters
from shardwright.spec.job import Job, Part
from shardwright.spec.read.huggingface import model_of_config

TOKENS, IMAGE = 256, 16
TEXT: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 344, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip
VISION: dict[str, Any] = {
    "model_type": "siglip_vision_model", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": 56, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
OFTEN = [("vision", "language"), ("projector",)]
PARTS: tuple[Part, ...] = ("vision", "projector", "language")
RARELY = [parts for count in range(len(PARTS)) for parts in combinations(PARTS, count) if parts not in OFTEN]
ONES, NO = np.ones(1, dtype=np.int64), np.zeros(1, dtype=bool)


def config(depth: int) -> dict[str, Any]:
    return {
        "model_type": "llava", "text_config": {**TEXT, "num_hidden_layers": depth}, "vision_config": VISION, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full", "image_token_index": 5,
    }  # fmt: skip


def described(config: dict[str, Any], frozen: tuple[str, ...]) -> tuple[Model, Job]:
    job = make_job(global_batch=1, seq_len=TOKENS, framework="fsdp", freeze=frozen or None)
    return model_of_config(config, "config.json"), job


def shard(*, flash: bool) -> Shard:
    return Shard(
        tp=ONES, cp=ONES, ep=ONES, etp=ONES, micro_batch=ONES, sequence_parallel=NO, flash=NO | flash, overlap_tp=NO
    )


def built(config: dict[str, Any], frozen: tuple[str, ...], **how: Any) -> Any:
    """Return the model of transformers with parts frozen."""
    transformers = pytest.importorskip("transformers")
    read = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForImageTextToText.from_config(read, **how).train()
    for name, weight in model.named_parameters():
        part = "vision" if "vision_" in name else "projector" if "projector" in name else "language"
        weight.requires_grad_(part not in frozen)
    return model


def loss_of(model: Any) -> Any:
    import torch

    ids = torch.full((1, TOKENS), 7)
    ids[:, :IMAGE] = 5
    pixels = torch.zeros(1, 3, VISION["image_size"], VISION["image_size"], dtype=model.dtype)
    return model(input_ids=ids, pixel_values=pixels, use_cache=False).logits.float().sum()


def priced_flops(model: Model, job: Job, samples: Shard) -> float:
    """Return the FLOPs of all products and scores whose seconds are priced."""
    assert model.tower is not None
    times = [1, *(model.kind_of_layer.count(kind) for kind in range(len(model.kinds))), 1]
    parts = [*zip(times, language_operators(model, samples, job), strict=True)]
    parts += [(part.count, part.operators) for part in tower_parts(model.tower, samples, job)]
    return sum(
        count * float(operator.flops[0])
        for count, operators in parts
        for operator in operators
        if operator.kind in (GEMM, ATTENTION)
    )


@pytest.mark.parametrize("frozen", [*OFTEN, *nightly((parts,) for parts in RARELY)], ids="+".join)
def test_a_step_has_the_weights_and_the_flops_of_pytorch(frozen: tuple[str, ...]) -> None:
    has_the_weights_and_the_flops(config(2), frozen, loss_of)


def has_the_weights_and_the_flops(
    config: dict[str, Any], frozen: tuple[str, ...], loss_of: Callable[[Any], Any]
) -> None:
    pytest.importorskip("torch")
    theirs = built(config, frozen, attn_implementation="eager")
    counted = counted_flops(lambda: loss_of(theirs).backward())
    model, job = described(config, frozen)
    trained = sum(weight.numel() for weight in theirs.parameters() if weight.requires_grad)
    assert trained_parameters(model, job) == trained
    heads = [layer.attention for layer in model.layers if layer.attention]  # eager code computes all scores
    masked = 3.0 * TOKENS * sum(score_flops_per_token(attention, TOKENS) for attention in heads)
    assert job_flops(model, job) + masked == pytest.approx(counted, rel=5e-3)
    assert priced_flops(model, job, shard(flash=False)) == pytest.approx(counted, rel=5e-3)


def saved(config: dict[str, Any], frozen: tuple[str, ...], loss_of: Callable[[Any], Any]) -> int:
    torch = pytest.importorskip("torch")
    model = built(config, frozen, dtype=torch.bfloat16, attn_implementation="sdpa")
    return saved_bytes(model, partial(loss_of, model))


@pytest.mark.parametrize(
    "frozen", [("vision", "language"), *nightly([(("vision",),), (("projector", "language"),)])], ids="+".join
)
def test_a_layer_keeps_as_much_as_pytorch_saves(frozen: tuple[str, ...]) -> None:
    model, job = described(config(2), frozen)
    kept = float(layer_activation_bytes(model, shard(flash=True), job).kept[1][0])
    assert kept == pytest.approx(saved(config(3), frozen, loss_of) - saved(config(2), frozen, loss_of), rel=0.03)


def test_a_frozen_language_model_has_no_gradients_and_no_state() -> None:
    """Its weights are kept as they are, in shares where these are sharded."""
    assert SEEING.tower is not None
    projector, everything = SEEING.tower.projector_parameters, SEEING.parameters
    asked = {"freeze": "vision+language"}
    job = make_job(global_batch=32, seq_len=2048, framework="fsdp", **asked)
    assert trained_share(SEEING, job) * (everything - SEEING.tower.encoder_parameters) == pytest.approx(projector)
    for sharding, ranks, copies in ((UNSHARDED, 1, 2), (ZERO3, 4, 1)):  # buckets of DistributedDataParallel
        seconds, memory = account(SEEING, row={"sharding": sharding}, **asked)
        assert memory.gradients[0, 0] == pytest.approx(
            4.0 * copies * projector / ranks, rel=0.15
        )  # and of two layers on their way
        assert memory.optimizer[0, 0] == pytest.approx(12.0 * projector / ranks)
        assert memory.weights[0, 0] >= 2.0 * everything / ranks
        assert (
            seconds.backward < 0.75 * account(SEEING, row={"sharding": sharding}, freeze="vision")[0].backward
        ).all()
    assert account(SEEING, row={}, **asked)[1].weights[0, 0] == pytest.approx(2.0 * everything)


def test_nothing_to_train_and_muon_are_refused() -> None:
    def problems(**asked: Any) -> list[Problem]:
        return [*position_problems(SEEING, make_job(global_batch=8, seq_len=4096, framework="fsdp", **asked))]

    assert problems(freeze="vision+language") == []
    assert problems(freeze=PARTS, adapter="lora:8") == []
    assert [problem.path for problem in problems(freeze=PARTS)] == ["`freeze=`"]
    assert [problem.path for problem in problems(freeze="language", optimizer="muon")] == ["`optimizer=`"]
