"""Positions in Megatron-Core's words: Megatron-LM's arguments, and the fields of Megatron-Bridge's providers.

Megatron-Core v0.19 stretches rotary positions as Llama 3.1 does by any factor, its other numbers fixed
(rotary_pos_embedding.py); linearly; and by YaRN (yarn_rotary_pos_embedding.py), whose numbers latent attention has by
other names and, in Megatron-LM, not all as arguments (arguments.py 3391-3396, transformer_config.py 2936-2952).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.spec.model import FAST_TURNS, SLOW_TURNS, Model, RotaryScaling

Arguments = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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
