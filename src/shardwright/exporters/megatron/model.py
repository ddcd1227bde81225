"""A model in the words of Megatron-Core v0.19: Megatron-LM's arguments, and of its positions the fields of
Megatron-Bridge's providers too.

Rotary positions are stretched as Llama 3.1 does by any factor, its other numbers fixed (rotary_pos_embedding.py);
linearly; and by YaRN (yarn_rotary_pos_embedding.py), whose numbers latent attention has by other names and, in
Megatron-LM, not all as arguments (arguments.py 3391-3396, transformer_config.py 2936-2952).

Blocks of a mixer or a feed-forward alone are written as a pattern of letters, one a block, with `|` at the end of each
virtual stage (megatron/core/models/hybrid/hybrid_layer_allocation.py 18-26): `pretrain_hybrid.py` builds it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shardwright.exporters.support.traits import SILU, SQUARED_RELU, gated
from shardwright.records import record
from shardwright.spec.forward_pass import FAST_TURNS, SLOW_TURNS, RotaryScaling
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.mixers import GatedDelta, Mamba2
from shardwright.spec.model import Model

VOCABULARY_MULTIPLE = 128
DROPOUT = "0.1"

Arguments = tuple[tuple[str, ...], ...]

GPT, HYBRID = "pretrain_gpt.py", "pretrain_hybrid.py"
STACK = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


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


@record
class Yarn:
    """The numbers of YaRN by the names of Megatron-Core's configuration. The defaults are those that latent attention
    has in Megatron-LM, which takes the first three as arguments there."""

    rotary_scaling_factor: float
    mscale: float
    mscale_all_dim: float
    original_max_position_embeddings: int = 4096
    beta_fast: float = FAST_TURNS
    beta_slow: float = SLOW_TURNS
    correction_range_round_to_int: bool = True

    @property
    def usual_range(self) -> bool:
        """Whether the frequencies that are stretched are those of Megatron-Core's defaults."""
        usual = Yarn(
            rotary_scaling_factor=self.rotary_scaling_factor, mscale=self.mscale, mscale_all_dim=self.mscale_all_dim
        )
        return self == usual


def yarn_of(model: Model) -> Yarn | None:
    """Return the numbers of a model's YaRN; None where it has none or one that Megatron-Core cannot run: of a part of
    each head, of interleaved pairs.

    Megatron-Core multiplies the rotation by the magnitude of `mscale` over that of `mscale_all_dim`, and the scores of
    latent attention by the square of the latter (multi_latent_attention.py 177).
    """
    scaling, latent = model.rotary_scaling, model.self_attention.latent
    if scaling is None or scaling.kind != "yarn" or model.rotary_interleaved or model.rotary_fraction != 1.0:
        return None
    published = scaling.mscale and scaling.mscale_all and scaling.attention_factor is None
    of_scores = (scaling.mscale_all or 0.0) if published or latent else 0.0
    rotation = scaling.rotation_factor * scaling.magnitude(of_scores)
    solved = 1.0 if scaling.factor <= 1.0 else round((rotation - 1.0) / (0.1 * math.log(scaling.factor)), 12)
    return Yarn(
        rotary_scaling_factor=scaling.factor,
        mscale=scaling.mscale if published and scaling.mscale else solved,
        mscale_all_dim=of_scores,
        original_max_position_embeddings=scaling.original_positions,
        beta_fast=scaling.fast_turns or FAST_TURNS,
        beta_slow=scaling.slow_turns or SLOW_TURNS,
        correction_range_round_to_int=scaling.whole_bounds is not False,
    )


def position_arguments(model: Model, seq_len: int) -> Arguments:
    """Return Megatron-LM's arguments of the positions of `model`, for sequences of `seq_len` tokens."""
    table = model.learned_positions if model.position == "learned" else model.max_position
    longest = ("--max-position-embeddings", str(max(table, seq_len)))
    if model.position != "rope":
        return (("--position-embedding-type", "none" if model.position == "none" else "learned_absolute"), longest)
    kind = "rope" if _yarn_with_arguments(model) is None else "yarn"
    latent = model.self_attention.latent
    arguments: list[tuple[str, ...]] = [("--position-embedding-type", "rope" if latent else kind)]
    if latent:
        arguments.append(("--rope-type", kind))
    arguments.append(("--rotary-base", str(int(model.rotary_base))))
    if model.rotary_fraction != 1.0:
        arguments.append(("--rotary-percent", str(model.rotary_fraction)))
    if model.rotary_interleaved:
        arguments.append(("--rotary-interleaved",))
    return (*arguments, *scaling_arguments(model), longest)


def scaling_arguments(model: Model) -> Arguments:
    """Return Megatron-LM's arguments of the scaling of rotary positions, none where there is none or no argument."""
    scaling, yarn = model.rotary_scaling, _yarn_with_arguments(model)
    if yarn is not None:
        return _yarn_arguments(yarn, latent=model.self_attention.latent is not None)
    if scaling is None or model.self_attention.latent:
        return ()
    if scaling == RotaryScaling(kind="llama3", factor=scaling.factor):
        return (("--use-rope-scaling",), ("--rope-scaling-factor", repr(scaling.factor)))
    if scaling.kind == "linear" and scaling.factor == int(scaling.factor):
        return (("--rotary-seq-len-interpolation-factor", str(int(scaling.factor))),)
    return ()


def position_fields(model: Model) -> dict[str, Any]:
    """Return the positions of `model` as fields of Megatron-Bridge's providers."""
    if model.position != "rope":
        return {"position_embedding_type": "learned_absolute" if model.position == "learned" else "none"}
    fields: dict[str, Any] = {"position_embedding_type": "rope", "rotary_base": int(model.rotary_base)}
    if model.rotary_fraction != 1.0:
        fields["rotary_percent"] = model.rotary_fraction
    if model.rotary_interleaved:
        fields["rotary_interleaved"] = True
    return fields | (_latent_scaling(model) if model.self_attention.latent else _scaling_fields(model))


def _scaling_fields(model: Model) -> dict[str, Any]:
    scaling, yarn = model.rotary_scaling, yarn_of(model)
    if yarn is not None:
        numbers = {f"yarn_{name}": value for name, value in asdict(yarn).items()}
        return {"position_embedding_type": "yarn", **numbers}
    if scaling is not None and scaling == RotaryScaling(kind="llama3", factor=scaling.factor):
        return {"rope_scaling": True, "rope_scaling_factor": scaling.factor}
    if scaling is not None and scaling.kind == "linear":
        return {"seq_len_interpolation_factor": scaling.factor}
    return {}


def _latent_scaling(model: Model) -> dict[str, Any]:
    yarn = yarn_of(model)
    if yarn is None or not yarn.correction_range_round_to_int:
        return {"rope_type": "rope"}
    numbers = asdict(yarn)
    del numbers["correction_range_round_to_int"]
    return {"rope_type": "yarn", **numbers}


def _yarn_with_arguments(model: Model) -> Yarn | None:
    """Return the YaRN that Megatron-LM has arguments for."""
    yarn = yarn_of(model)
    return None if yarn is None or (model.self_attention.latent and not yarn.usual_range) else yarn


def _yarn_arguments(yarn: Yarn, *, latent: bool) -> Arguments:
    numbers: Arguments = (
        ("--rotary-scaling-factor", repr(yarn.rotary_scaling_factor)),
        ("--mscale", repr(yarn.mscale)),
        ("--mscale-all-dim", repr(yarn.mscale_all_dim)),
    )
    rounded = "--yarn-correction-range-round-to-int"
    of_the_range: Arguments = (
        ("--yarn-original-max-position-embeddings", str(yarn.original_max_position_embeddings)),
        ("--yarn-beta-fast", repr(yarn.beta_fast)),
        ("--yarn-beta-slow", repr(yarn.beta_slow)),
        (rounded if yarn.correction_range_round_to_int else rounded.replace("--", "--no-"),),
    )
    return numbers if latent else (*numbers, *of_the_range)


BESIDE_A_MODEL: Mapping[str, tuple[str, Callable[[Layer], bool]]] = {
    "--hybrid-layer-pattern": ("hybrid models", lambda kind: isinstance(kind.mixer, Mamba2) or kind.sublayers < 2),
    "--moe-latent-size": ("experts in a latent space", lambda kind: bool(kind.moe and kind.moe.latent)),
    "--attention-output-gate": ("gates on attention", lambda kind: bool(kind.attention and kind.attention.gate)),
    "--experimental-attention-variant": ("layers without attention", lambda kind: isinstance(kind.mixer, GatedDelta)),
}  # arguments that say a model in part, what of it in words, and the layers that have it


def by_pattern(model: Model) -> bool:
    """Whether a model has blocks that only a pattern of letters tells."""
    return any(isinstance(kind.mixer, Mamba2) or kind.sublayers < 2 for kind in model.kinds)


def described(model: Model) -> bool:
    """Whether the arguments have all that `importers.megatron` needs to know of a model."""
    return not any(of_kind(kind) for kind in model.kinds for _, of_kind in BESIDE_A_MODEL.values())


def program(model: Model) -> str:
    """Return the script of Megatron-LM that trains a model."""
    return HYBRID if by_pattern(model) else GPT


def pattern_arguments(model: Model, layer_counts: Sequence[int]) -> Arguments:
    """Return the pattern of a model whose virtual stages have so many layers each, in order of execution, and the sizes
    of Mamba-2."""
    letters = iter(letters_of(model))
    stages = ["".join(itertools.islice(letters, count)) for count in layer_counts]
    arguments: list[tuple[str, ...]] = [("--hybrid-layer-pattern", "|".join(stages)), ("--spec", *STACK)]
    mixer = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, Mamba2)), None)
    if mixer is not None:
        arguments += [
            ("--mamba-num-heads", str(mixer.heads)),
            ("--mamba-head-dim", str(mixer.head_dim)),
            ("--mamba-num-groups", str(mixer.groups)),
            ("--mamba-state-dim", str(mixer.state)),
        ]
    return tuple(arguments)


def letters_of(model: Model) -> str:
    """Return the letters of all blocks of a model."""
    return "".join(map(_letter, model.layers))


def _letter(layer: Layer) -> str:
    if layer.mixer is not None:
        return "M"
    return "*" if layer.attention is not None else "-" if layer.mlp is not None else "E"
