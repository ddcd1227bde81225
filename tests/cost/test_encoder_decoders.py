"""Encoder-decoders against PyTorch: FLOPs of a step by its own counter, and what a layer of either stack keeps by the
tensors that autograd saves; and plans of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.cost.test_frozen_parts import priced_flops, shard
from tests.nightly import nightly
from tests.spec.test_encoder_decoders import seq2seq_class

from shardwright import Job, Model, export, load_cluster, load_model, make_job, plan
from shardwright.cost.compute.flops import job_flops, score_flops_per_token
from shardwright.cost.memory.activations import layer_activation_bytes, tower_kept_bytes
from shardwright.plans.document import from_document, to_document
from shardwright.search.sizing import fit
from shardwright.spec.read.huggingface import model_of_config

HIDDEN, READ, WRITTEN, SAMPLES = 128, 192, 64, 2
BART: dict[str, Any] = {
    "vocab_size": 500, "d_model": HIDDEN, "encoder_ffn_dim": 320, "decoder_ffn_dim": 384, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "max_position_embeddings": 512, "dropout": 0.0, "attention_dropout": 0.0,
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
T5: dict[str, Any] = {
    "vocab_size": 500,
    "d_model": HIDDEN,
    "d_kv": 40,
    "d_ff": 320,
    "num_heads": 4,
    "dropout_rate": 0.0,
}
CASES: dict[str, dict[str, Any]] = {
    "t5": T5 | {"feed_forward_proj": "gated-gelu"},
    "bart": BART,
    "whisper": BART | {"max_source_positions": READ, "max_target_positions": WRITTEN, "num_mel_bins": 16},
}
RARELY: dict[str, dict[str, Any]] = {
    "mt5": T5 | {"feed_forward_proj": "relu"}, "mbart": BART,
    "pegasus": BART | {"activation_function": "relu"},
}  # fmt: skip
EVERY = CASES | RARELY
KINDS = [*CASES, *nightly(RARELY)]


def fields(kind: str, encoder: int, decoder: int) -> dict[str, Any]:
    names = ("num_layers", "num_decoder_layers") if "t5" in kind else ("encoder_layers", "decoder_layers")
    return {**EVERY[kind], **dict(zip(names, (encoder, decoder), strict=True))}


def described(kind: str, **asked: Any) -> tuple[Model, Job]:
    length = {} if kind == "whisper" else {"encoder_seq_len": READ}
    job = make_job(global_batch=SAMPLES, seq_len=WRITTEN, framework="fsdp", **length, **asked)
    return model_of_config({"model_type": kind, **fields(kind, 2, 3)}, "config.json"), job


def built(kind: str, encoder: int = 2, decoder: int = 3, **how: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[kind](**fields(kind, encoder, decoder))
    return seq2seq_class(transformers, kind).from_config(config, **how).train()


def loss_of(model: Any) -> Any:
    import torch

    given: dict[str, Any] = {"input_ids": torch.full((SAMPLES, READ), 7)}
    if model.config.model_type == "whisper":
        given = {"input_features": torch.zeros(SAMPLES, 16, 2 * READ, dtype=model.dtype)}
    decoded = torch.full((SAMPLES, WRITTEN), 7)
    return model(**given, decoder_input_ids=decoded, use_cache=False).logits.float().sum()


@pytest.mark.parametrize(("kind", "freeze"), [*((kind, None) for kind in CASES), ("whisper", "encoder"), *nightly((kind, None) for kind in RARELY)])  # fmt: skip
def test_a_step_has_the_flops_that_pytorch_counts(kind: str, freeze: str | None) -> None:
    torch = pytest.importorskip("torch")
    with torch.device("cpu" if kind == "whisper" else "meta"):  # its positions are looked at
        theirs = built(kind, attn_implementation="eager")
        theirs.get_encoder().requires_grad_(freeze is None)
        counted = counted_flops(lambda: loss_of(theirs).backward())
    model, job = described(kind, freeze=freeze)
    samples = replace(shard(flash=False), micro_batch=np.full(1, SAMPLES))
    assert priced_flops(model, job, samples) == pytest.approx(counted, rel=5e-3)
    heads = [layer.self_attention for layer in model.layers]  # eager code computes all scores, causal or not
    masked = 3.0 * SAMPLES * WRITTEN * sum(score_flops_per_token(attention, WRITTEN) for attention in heads)
    assert job_flops(model, job) + masked == pytest.approx(counted, rel=5e-3)


def fused_with_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have scores with a bias attended to as on GPUs: by PyTorch's memory-efficient kernel, which saves its inputs, bias
    and result, and a number a row (derivatives.yaml: `_scaled_dot_product_efficient_attention`). On CPUs it has none."""
    import torch

    usual: Callable[..., Any] = torch.nn.functional.scaled_dot_product_attention

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
            result = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
            ctx.save_for_backward(query, key, value, bias, result, torch.empty(query.shape[:3], dtype=torch.float32))
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise NotImplementedError

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, **how: Any) -> Any:
        if attn_mask is None:
            return usual(query, key, value, **how)
        return Fused.apply(query, key, value, attn_mask.expand(len(query), -1, -1, -1).contiguous()
                           if key.shape[2] == READ else attn_mask)  # fmt: skip

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)


def saved(kind: str, encoder: int, decoder: int) -> int:
    torch = pytest.importorskip("torch")
    model = built(kind, encoder, decoder, dtype=torch.bfloat16, attn_implementation="sdpa")
    return saved_bytes(model, partial(loss_of, model))


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_keeps_as_much_as_pytorch_saves(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    if "t5" in kind:
        fused_with_bias(monkeypatch)
    model, job = described(kind)
    assert model.tower is not None
    samples = replace(shard(flash=True), micro_batch=np.full(1, SAMPLES))
    least, *more = (saved(kind, *depths) for depths in ((1, 1), (2, 1), (1, 2)))
    one, two = (tower_kept_bytes(replace(model.tower, depth=depth), samples, job)[0][0] for depth in (1, 2))
    assert two - one == pytest.approx(more[0] - least, rel=0.03)
    assert layer_activation_bytes(model, samples, job).kept[1][0] == pytest.approx(more[1] - least, rel=0.03)


def test_a_plan_of_an_encoder_decoder_is_kept_in_its_file_and_exported() -> None:
    model, cluster = load_model("flan-t5-xxl"), load_cluster("1x8xA100-SXM-80")
    job = make_job(global_batch=64, seq_len=128, encoder_seq_len=512)
    ranking = plan(model, cluster, job)
    best = ranking.best
    assert best.job.framework in ("fsdp", "deepspeed")
    assert {(stage.tensor_parallel, len(replica.stages)) for replica in best.replicas for stage in replica.stages} == {
        (1, 1)
    }
    assert from_document(to_document(best)) == best
    assert "TRAIN_SCRIPT" in export(best, ranking.trainers[0][0]).files["run.sh"]
    longer = plan(model, cluster, replace(job, encoder_seq_len=1024)).best
    assert 1.5 < longer.iteration_seconds / best.iteration_seconds < 2.1


def test_no_adapters_are_sized_beside_an_encoder_decoder() -> None:
    job = make_job(global_batch=4, seq_len=512, framework="fsdp")
    sizes = fit(load_model("bart-large"), load_cluster("1x1xRTX-4090"), job).sizes
    assert sizes and all(size.way.adapter is None for size in sizes)
