"""The model in Megatron-LM's arguments (core_v0.19)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardwright.exporters.megatron.hybrid import by_pattern
from shardwright.exporters.megatron.positions import Arguments, position_arguments
from shardwright.exporters.support.traits import SILU, SQUARED_RELU, gated
from shardwright.spec.mixers import GatedDelta
from shardwright.spec.model import Attention, Model, Moe

VOCABULARY_MULTIPLE = 128
DROPOUT = "0.1"


def model_arguments(model: Model, seq_len: int, tensor_parallel: int) -> Arguments:
    """Return the arguments that describe the dense part of `model`, none of whose layers is refused. The size of the
    token table is the model's, padded for `tensor_parallel` ranks, whatever the tokenizer's is."""
    attention = model.self_attention
    arguments: list[tuple[str, ...]] = [
        ("--num-layers", str(len(model.layers))),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(_dense_width(model))),
        ("--num-attention-heads", str(attention.heads)),
    ]
    arguments += latent_arguments(attention) if attention.latent else _attention_arguments(attention)
    arguments += _window_arguments(model)
    arguments += position_arguments(model, seq_len)
    arguments.append(("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"))
    if model.norm_epsilon is not None:
        arguments.append(("--norm-epsilon", repr(model.norm_epsilon)))
    if model.norm_about_one:
        arguments.append(("--apply-layernorm-1p",))
    arguments += _activation_arguments(model)
    arguments += _bias_arguments(attention)
    if not model.tied_embeddings:
        arguments.append(("--untie-embeddings-and-output-weights",))
    dropout = DROPOUT if model.dropout else "0.0"
    arguments += [("--hidden-dropout", dropout), ("--attention-dropout", dropout)]
    arguments.append(("--vocab-size", str(model.vocab)))
    multiple = VOCABULARY_MULTIPLE * tensor_parallel
    arguments.append(("--padded-vocab-size", str(-(-model.vocab // multiple) * multiple)))
    if attention.gate is not None:
        arguments.append(("--attention-output-gate",))
    arguments += _delta_arguments(model)
    if model.mtp_layers:
        arguments.append(("--mtp-num-layers", str(model.mtp_layers)))
    return tuple(arguments)


def moe_arguments(model: Model, *, grouped_gemm: bool, dispatcher: Arguments) -> Arguments:
    """Return the arguments of the experts, none for a dense model."""
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    if moe is None:
        return ()
    arguments: list[tuple[str, ...]] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.top_k)),
        ("--moe-ffn-hidden-size", str(moe.expert_width)),
    ]
    pattern = [int(layer.moe is not None) for layer in model.layers]
    if not all(pattern) and not by_pattern(model):
        arguments.append(("--moe-layer-freq", pattern_text(pattern)))
    if moe.latent is not None:
        arguments.append(("--moe-latent-size", str(moe.latent)))
    if moe.shared_width:
        arguments.append(("--moe-shared-expert-intermediate-size", str(moe.shared_width)))
    if moe.shared_gate:
        arguments.append(("--moe-shared-expert-gate",))
    arguments += _router_arguments(moe) + _group_arguments(moe)
    arguments += dispatcher
    if grouped_gemm:
        arguments.append(("--moe-grouped-gemm",))
    return tuple(arguments)


def pattern_text(pattern: Sequence[int]) -> str:
    """Return a list of zeros and ones as the expression that Megatron evaluates: `([0]*3+[1]*58)`, `([1]+[0])*6`."""
    count = len(pattern)
    period = next(
        n for n in range(1, count + 1) if count % n == 0 and list(pattern) == list(pattern[:n]) * (count // n)
    )
    runs = [(value, len(list(run))) for value, run in itertools.groupby(pattern[:period])]
    body = "(" + "+".join(f"[{value}]" + (f"*{length}" if length > 1 else "") for value, length in runs) + ")"
    return body if period == count else f"{body}*{count // period}"


def _dense_width(model: Model) -> int:
    """The width of the dense layers; where every layer has experts, theirs, which Megatron then does not use."""
    widths = [kind.mlp.width for kind in model.kinds if kind.mlp]
    return widths[0] if widths else next(kind.moe.expert_width for kind in model.kinds if kind.moe)


def _attention_arguments(attention: Attention) -> Arguments:
    grouped: Arguments = ()
    if attention.kv_heads != attention.heads:
        grouped = (("--group-query-attention",), ("--num-query-groups", str(attention.kv_heads)))
    normed: Arguments = (("--qk-layernorm",),) if attention.qk_norm else ()
    return (*grouped, ("--kv-channels", str(attention.head_dim)), *normed)


def latent_arguments(attention: Attention) -> Arguments:
    """Return the arguments of multi-head latent attention. Its low-rank projections always have norms here."""
    latent = attention.latent
    assert latent is not None
    query: Arguments = () if latent.query_rank is None else (("--q-lora-rank", str(latent.query_rank)),)
    return (
        ("--multi-latent-attention",),
        *query,
        ("--kv-lora-rank", str(latent.kv_rank)),
        ("--qk-head-dim", str(latent.nope_head_dim)),
        ("--qk-pos-emb-head-dim", str(latent.rope_head_dim)),
        ("--v-head-dim", str(attention.value_head_dim)),
        ("--kv-channels", str(attention.value_head_dim)),
        ("--qk-layernorm",),
    )


def _delta_arguments(model: Model) -> Arguments:
    """Return the arguments of the gated delta rule, none for a model without; a 1 in its pattern is a layer of it
    (transformer_config.py 294)."""
    mixer = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, GatedDelta)), None)
    if mixer is None:
        return ()
    pattern = [int(layer.mixer is not None) for layer in model.layers]
    return (
        ("--experimental-attention-variant", "gated_delta_net"),
        ("--linear-attention-freq", pattern_text(pattern)),
        ("--linear-conv-kernel-dim", str(mixer.width)),
        ("--linear-key-head-dim", str(mixer.key_dim)),
        ("--linear-value-head-dim", str(mixer.value_dim)),
        ("--linear-num-key-heads", str(mixer.key_heads)),
        ("--linear-num-value-heads", str(mixer.value_heads)),
    )


def _window_arguments(model: Model) -> Arguments:
    """A window of W tokens counts the token itself, so W - 1 to the left. A list entry 0 is a layer without window."""
    windows = [layer.window for layer in model.layers]
    width = next((window for window in windows if window is not None), None)
    if width is None:
        return ()
    arguments: Arguments = (("--window-size", f"{width - 1},0"),)
    if all(windows):
        return arguments
    pattern = [int(window is not None) for window in windows]
    return (*arguments, ("--window-attn-skip-freq", pattern_text(pattern)))


def _activation_arguments(model: Model) -> Arguments:
    activation = model.activation.casefold()
    if any(gated(kind) for kind in model.kinds):
        return (("--swiglu",),) if activation in SILU else (("--quick-geglu",),)
    return (("--squared-relu",),) if activation in SQUARED_RELU else ()


def _bias_arguments(attention: Attention) -> Arguments:
    """All linear layers have biases, or the query, key and value projections alone, or none."""
    if attention.out_bias:
        return ()
    return (("--disable-bias-linear",), ("--add-qkv-bias",)) if attention.qkv_bias else (("--disable-bias-linear",),)


def _router_arguments(moe: Moe) -> Arguments:
    """A bias per expert balances without an auxiliary loss (arXiv 2408.15664), and goes with sigmoid scores."""
    if moe.router_bias:
        bias = (("--moe-router-score-function", "sigmoid"), ("--moe-router-enable-expert-bias",))
        return (*bias, ("--moe-router-load-balancing-type", "none"), ("--moe-router-dtype", "fp32"))
    balance = (("--moe-router-load-balancing-type", "aux_loss"), ("--moe-aux-loss-coeff", "0.01"))
    return (*balance, ("--moe-router-pre-softmax",)) if moe.top_k == 1 or moe.pre_softmax else balance


def _group_arguments(moe: Moe) -> Arguments:
    """Groups of experts, and the factor of their weights."""
    groups: Arguments = ()
    if moe.router_groups and moe.router_top_groups:
        groups = (
            ("--moe-router-num-groups", str(moe.router_groups)),
            ("--moe-router-group-topk", str(moe.router_top_groups)),
        )
    scaling = moe.router_scaling
    return groups if scaling is None else (*groups, ("--moe-router-topk-scaling-factor", repr(scaling)))
