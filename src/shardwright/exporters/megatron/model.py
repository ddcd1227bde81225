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
Values = Mapping[str, object]
"""Arguments by their flags. True is a switch, a tuple several words; None and False leave a flag out."""

GPT, HYBRID = "pretrain_gpt.py", "pretrain_hybrid.py"
STACK = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


def arguments_of(values: Values) -> Arguments:
    """Return values as the words of a command line, each flag with its own."""
    stated = {flag: value for flag, value in values.items() if value is not None and value is not False}
    several = {flag: value if isinstance(value, tuple) else (value,) for flag, value in stated.items()}
    return tuple((flag, *(str(word) for word in words if word is not True)) for flag, words in several.items())


def model_arguments(model: Model, seq_len: int, tensor_parallel: int) -> Values:
    """Return the arguments that describe the dense part of `model`, none of whose layers is refused. The size of the
    token table is the model's, padded for `tensor_parallel` ranks, whatever the tokenizer's is."""
    attention, multiple = model.self_attention, VOCABULARY_MULTIPLE * tensor_parallel
    dropout = DROPOUT if model.dropout else "0.0"
    return {
        "--num-layers": len(model.layers),
        "--hidden-size": model.hidden,
        "--ffn-hidden-size": _dense_width(model),
        "--num-attention-heads": attention.heads,
        **(latent_arguments(attention) if attention.latent else _attention_arguments(attention)),
        **_window_arguments(model),
        **position_arguments(model, seq_len),
        "--normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "--norm-epsilon": model.norm_epsilon,
        "--apply-layernorm-1p": bool(model.norm_about_one),
        **_activation_arguments(model),
        # All linear layers have biases, or the query, key and value projections alone, or none.
        "--disable-bias-linear": not attention.out_bias,
        "--add-qkv-bias": attention.qkv_bias and not attention.out_bias,
        "--untie-embeddings-and-output-weights": not model.tied_embeddings,
        "--hidden-dropout": dropout,
        "--attention-dropout": dropout,
        "--vocab-size": model.vocab,
        "--padded-vocab-size": -(-model.vocab // multiple) * multiple,
        "--attention-output-gate": attention.gate is not None,
        **_delta_arguments(model),
        "--mtp-num-layers": model.mtp_layers or None,
    }


def moe_arguments(model: Model, *, grouped_gemm: bool, dispatcher: Values) -> Values:
    """Return the arguments of the experts, none for a dense model."""
    moe = next((kind.moe for kind in model.kinds if kind.moe), None)
    if moe is None:
        return {}
    pattern = [int(layer.moe is not None) for layer in model.layers]
    return {
        "--num-experts": moe.experts,
        "--moe-router-topk": moe.top_k,
        "--moe-ffn-hidden-size": moe.expert_width,
        "--moe-layer-freq": None if all(pattern) or by_pattern(model) else pattern_text(pattern),
        "--moe-latent-size": moe.latent,
        "--moe-shared-expert-intermediate-size": moe.shared_width or None,
        "--moe-shared-expert-gate": moe.shared_gate,
        **_router_arguments(moe),
        **_group_arguments(moe),
        **dispatcher,
        "--moe-grouped-gemm": grouped_gemm,
    }


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


def _attention_arguments(attention: Attention) -> Values:
    grouped = attention.kv_heads != attention.heads
    return {
        "--group-query-attention": grouped,
        "--num-query-groups": attention.kv_heads if grouped else None,
        "--kv-channels": attention.head_dim,
        "--qk-layernorm": attention.qk_norm,
    }


def latent_arguments(attention: Attention) -> Values:
    """Return the arguments of multi-head latent attention. Its low-rank projections always have norms here."""
    latent = attention.latent
    assert latent is not None
    return {
        "--multi-latent-attention": True,
        "--q-lora-rank": latent.query_rank,
        "--kv-lora-rank": latent.kv_rank,
        "--qk-head-dim": latent.nope_head_dim,
        "--qk-pos-emb-head-dim": latent.rope_head_dim,
        "--v-head-dim": attention.value_head_dim,
        "--kv-channels": attention.value_head_dim,
        "--qk-layernorm": True,
    }


def _delta_arguments(model: Model) -> Values:
    """Return the arguments of the gated delta rule, none for a model without; a 1 in its pattern is a layer of it
    (transformer_config.py 294)."""
    mixer = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, GatedDelta)), None)
    if mixer is None:
        return {}
    pattern = [int(layer.mixer is not None) for layer in model.layers]
    return {
        "--experimental-attention-variant": "gated_delta_net",
        "--linear-attention-freq": pattern_text(pattern),
        "--linear-conv-kernel-dim": mixer.width,
        "--linear-key-head-dim": mixer.key_dim,
        "--linear-value-head-dim": mixer.value_dim,
        "--linear-num-key-heads": mixer.key_heads,
        "--linear-num-value-heads": mixer.value_heads,
    }


def _window_arguments(model: Model) -> Values:
    """A window of W tokens counts the token itself, so W - 1 to the left. A list entry 0 is a layer without window."""
    left, layers = window_of(model)
    return {
        "--window-size": None if left is None else f"{left},0",
        "--window-attn-skip-freq": None if layers is None else pattern_text(layers),
    }


def window_of(model: Model) -> tuple[int | None, list[int] | None]:
    """Return how many tokens before itself a token sees, None where all, and where it is not in all layers in which,
    as ones and zeros."""
    windows = [layer.window for layer in model.layers]
    width = next((window for window in windows if window is not None), None)
    some = width is not None and not all(windows)
    return None if width is None else width - 1, [int(window is not None) for window in windows] if some else None


def _activation_arguments(model: Model) -> Values:
    activation, gate = model.activation.casefold(), any(gated(kind) for kind in model.kinds)
    return {
        "--swiglu": gate and activation in SILU,
        "--quick-geglu": gate and activation not in SILU,
        "--squared-relu": not gate and activation in SQUARED_RELU,
    }


def _router_arguments(moe: Moe) -> Values:
    """A bias per expert balances without an auxiliary loss (arXiv 2408.15664), and goes with sigmoid scores."""
    if moe.router_bias:
        return {
            "--moe-router-score-function": "sigmoid",
            "--moe-router-enable-expert-bias": True,
            "--moe-router-load-balancing-type": "none",
            "--moe-router-dtype": "fp32",
        }
    return {
        "--moe-router-load-balancing-type": "aux_loss",
        "--moe-aux-loss-coeff": "0.01",
        "--moe-router-pre-softmax": moe.top_k == 1 or bool(moe.pre_softmax),
    }


def _group_arguments(moe: Moe) -> Values:
    """Groups of experts, and the factor of their weights."""
    both = moe.router_groups and moe.router_top_groups
    return {
        "--moe-router-num-groups": moe.router_groups if both else None,
        "--moe-router-group-topk": moe.router_top_groups if both else None,
        "--moe-router-topk-scaling-factor": moe.router_scaling,
    }


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


def position_arguments(model: Model, seq_len: int) -> Values:
    """Return Megatron-LM's arguments of the positions of `model`, for sequences of `seq_len` tokens."""
    table = model.learned_positions if model.position == "learned" else model.max_position
    longest = {"--max-position-embeddings": max(table, seq_len)}
    if model.position != "rope":
        return {"--position-embedding-type": "none" if model.position == "none" else "learned_absolute", **longest}
    kind = "rope" if _yarn_with_arguments(model) is None else "yarn"
    latent = model.self_attention.latent
    return {
        "--position-embedding-type": "rope" if latent else kind,
        "--rope-type": kind if latent else None,
        "--rotary-base": int(model.rotary_base),
        "--rotary-percent": model.rotary_fraction if model.rotary_fraction != 1.0 else None,
        "--rotary-interleaved": bool(model.rotary_interleaved),
        **scaling_arguments(model),
        **longest,
    }


def scaling_arguments(model: Model) -> Values:
    """Return Megatron-LM's arguments of the scaling of rotary positions, none where there is none or no argument."""
    scaling, yarn = model.rotary_scaling, _yarn_with_arguments(model)
    if yarn is not None:
        return _yarn_arguments(yarn, latent=model.self_attention.latent is not None)
    if scaling is None or model.self_attention.latent:
        return {}
    if scaling == RotaryScaling(kind="llama3", factor=scaling.factor):
        return {"--use-rope-scaling": True, "--rope-scaling-factor": scaling.factor}
    if scaling.kind == "linear" and scaling.factor == int(scaling.factor):
        return {"--rotary-seq-len-interpolation-factor": int(scaling.factor)}
    return {}


def position_fields(model: Model) -> dict[str, Any]:
    """Return the positions of `model` as fields of Megatron-Bridge's providers."""
    if model.position != "rope":
        return {"position_embedding_type": "learned_absolute" if model.position == "learned" else "none"}
    return {
        "position_embedding_type": "rope",
        "rotary_base": int(model.rotary_base),
        **({"rotary_percent": model.rotary_fraction} if model.rotary_fraction != 1.0 else {}),
        **({"rotary_interleaved": True} if model.rotary_interleaved else {}),
        **(_latent_scaling(model) if model.self_attention.latent else _scaling_fields(model)),
    }


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


def _yarn_arguments(yarn: Yarn, *, latent: bool) -> Values:
    numbers = {
        "--rotary-scaling-factor": yarn.rotary_scaling_factor,
        "--mscale": yarn.mscale,
        "--mscale-all-dim": yarn.mscale_all_dim,
    }
    of_the_range = {
        "--yarn-original-max-position-embeddings": yarn.original_max_position_embeddings,
        "--yarn-beta-fast": yarn.beta_fast,
        "--yarn-beta-slow": yarn.beta_slow,
        "--yarn-correction-range-round-to-int": yarn.correction_range_round_to_int,
        "--no-yarn-correction-range-round-to-int": not yarn.correction_range_round_to_int,
    }
    return numbers if latent else numbers | of_the_range


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


def pattern_arguments(model: Model, layer_counts: Sequence[int]) -> Values:
    """Return the pattern of a model whose virtual stages have so many layers each, in order of execution, and the sizes
    of Mamba-2."""
    letters = iter(letters_of(model))
    stages = ["".join(itertools.islice(letters, count)) for count in layer_counts]
    mixer = next((kind.mixer for kind in model.kinds if isinstance(kind.mixer, Mamba2)), None)
    sizes = (
        {}
        if mixer is None
        else {
            "--mamba-num-heads": mixer.heads,
            "--mamba-head-dim": mixer.head_dim,
            "--mamba-num-groups": mixer.groups,
            "--mamba-state-dim": mixer.state,
        }
    )
    return {"--hybrid-layer-pattern": "|".join(stages), "--spec": STACK, **sizes}


def letters_of(model: Model) -> str:
    """Return the letters of all blocks of a model."""
    return "".join(map(_letter, model.layers))


def _letter(layer: Layer) -> str:
    if layer.mixer is not None:
        return "M"
    return "*" if layer.attention is not None else "-" if layer.mlp is not None else "E"
