"""What a forward pass must know and a plan need not: epsilons, scaling of rotary positions, weights of the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.errors import bad
from shardwright.spec.model import Model, RotaryScaling
from shardwright.spec.text.fields import shown

ROTARY_KINDS = ("default", "linear", "llama3")
EPSILON_FIELDS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """The numbers of a forward pass beside the sizes. `renormalise`: the weights of a token's experts sum to 1."""

    norm_epsilon: float = 1e-5
    rotary: RotaryScaling = field(default_factory=RotaryScaling)
    renormalise: bool = True


def details_of(model: Model, config: Mapping[str, object] | None, name: str = "config.json") -> Details:
    """Return the details in a Hugging Face config; where there is none, those that the model tells, or those usual in
    its family.

    Raises SpecError for a scaling of rotary positions that the runtime does not have.
    """
    fields = {} if config is None else config
    epsilon = next((fields[key] for key in EPSILON_FIELDS if fields.get(key) is not None), model.norm_epsilon)
    usual = model.family in ("mixtral",)
    normalised = not any(kind.moe and kind.moe.pre_softmax for kind in model.kinds) if config is None else usual
    return Details(
        norm_epsilon=_number(epsilon, name, 1e-6 if model.family.startswith(("qwen", "llama")) else 1e-5),
        rotary=_known(model.rotary_scaling, "model.rotary_scaling") if config is None else _rotary(fields, name),
        renormalise=usual or bool(fields.get("norm_topk_prob", normalised)),
    )


def _known(scaling: RotaryScaling | None, name: str) -> RotaryScaling:
    if scaling is not None and scaling.kind not in ROTARY_KINDS:
        raise bad(name, f"{shown(scaling.kind)} cannot be run", f"supported: {', '.join(ROTARY_KINDS)}")
    return scaling or RotaryScaling()


def _rotary(fields: Mapping[str, object], name: str) -> RotaryScaling:
    raw = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(raw, Mapping):
        return RotaryScaling()
    kind = str(raw.get("rope_type", raw.get("type", "default")))
    _known(RotaryScaling(kind=kind), f"{name}: rope_type")
    return RotaryScaling(
        kind=kind,
        factor=_number(raw.get("factor"), name, 1.0),
        low_factor=_number(raw.get("low_freq_factor"), name, 1.0),
        high_factor=_number(raw.get("high_freq_factor"), name, 4.0),
        original_positions=int(_number(raw.get("original_max_position_embeddings"), name, 8192.0)),
    )


def _number(value: object, name: str, usual: float) -> float:
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad(name, f"expected a number, got {shown(value)}", "correct the config")
    return float(value)
