"""What a family of models has that its `config.json` does not say: biases, norms, gates, positions.

`data/families.json` has the families by `model_type`, those of them that `shardwright train` runs, other names of them,
and those that are refused since they need a kind of layer or a training that the cost model lacks. Its rows follow the
model classes of Hugging Face transformers 5.23 (`models/*/modeling_*.py`); the tests compare parameter counts with
those classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Literal

from shardwright.errors import bad
from shardwright.files import shipped_file
from shardwright.records import record
from shardwright.spec.layer import Norm, NormForm, Position
from shardwright.spec.read.config_fields import ConfigFields

Stated = bool | tuple[str, bool]
"""A trait that is fixed, or the field of the config that states it and what holds where that is missing."""

Windows = Literal["all", "later", "none", "listed"] | int
"""Which layers have the sliding window: all, none, those from `max_window_layers` on, those that `layer_types` must
list, or all but every n-th (where negative, all but the first and every n-th after it)."""


@record
class ModelFamily:
    """The traits of a `model_type`.

    `tied`, `activation`, `rotary_base`, `rotary_fraction` and `dropout` hold where the config does not say; `sizes`
    are the sizes that transformers assumes where a config leaves them out. `width_factor` times the hidden size is the
    feed-forward width where none is given; `position_offset` rows of the position table are beyond its positions.
    Queries, keys and values are views of one projection where they are `fused_qkv`; queries and keys have norms over
    each head, with the same weights, or `qk_norm_over` the whole projection. Layers with experts may have an
    `expert_norm` more; weights of a token's experts are `normalised` where the config does not say. `sinks` are learned
    scores, one a head; `scalars` loose numbers of a layer. `norm_…` and `particular` are those of `Model`. `mixer`
    names the reader of what mixes tokens in blocks that are not attention (`spec.read.mixers`); `blocks` that are
    `halves` have a mixer or a feed-forward, others both unless none `feeds_forward`; attention may
    have an `attention_gate`.
    """

    mixer: str | None = None
    blocks: Literal["whole", "halves"] = "whole"
    feeds_forward: bool = True
    attention_gate: Literal["element", "head"] | None = None
    gated: bool = True
    activation: str = "silu"
    norm: Norm = "rmsnorm"
    norms: int = 2
    norm_vectors: int | None = None
    norm_about_one: bool = False
    norm_form: NormForm | None = None
    final_norm: bool = True
    embedding_norm: bool = False
    position: Position = "rope"
    position_offset: int = 0
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_interleaved: bool = False
    qkv_bias: Stated = False
    out_bias: Stated = False
    mlp_bias: Stated = False
    fused_qkv: bool = False
    qk_norm: Stated = False
    qk_norm_over: Literal["head", "projection"] = "head"
    sinks: bool = False
    scalars: int = 0
    head_bias: Stated = False
    tied: bool = False
    parallel: Stated = False
    windows: Windows = "none"
    causal: bool = True
    dropout: float = 0.0
    router_bias: bool = False
    normalised: bool = True
    expert_bias: bool = False
    expert_norm: bool = False
    shared_experts: int = 0
    shared_gate: bool = True
    width_factor: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    particular: str | None = None


def _families() -> Mapping[str, ModelFamily]:
    """Return the rows of the table; a row that is `like` another says what differs from it."""
    families: dict[str, ModelFamily] = {}
    for name, row in [*_TABLE["bases"].items(), *_TABLE["families"].items()]:
        traits: dict[str, Any] = {
            trait: tuple(value) if isinstance(value, list) else value for trait, value in row.items()
        }
        base = families[traits.pop("like")] if "like" in traits else ModelFamily()
        families[name] = replace(base, **traits)
    return MappingProxyType({name: families[name] for name in _TABLE["families"]})


_TABLE: Mapping[str, Mapping[str, Any]] = json.loads(shipped_file("shardwright.spec.read", "families.json"))
FAMILIES: Mapping[str, ModelFamily] = _families()
TRAINED: frozenset[str] = frozenset(_TABLE["trained"])
"""The families that `shardwright train` runs."""
SYNONYMS: Mapping[str, str] = MappingProxyType(_TABLE["synonyms"])
REFUSED: Mapping[str, str] = MappingProxyType(
    {name: reason for reason, names in _TABLE["refused"].items() for name in names}
)
"""What each refused `model_type` has that no layer of `Model` describes."""


def reject_refused(fields: ConfigFields, model_type: str) -> None:
    """Raise SpecError with the reason where the family is a refused one."""
    if model_type in REFUSED:
        raise bad(
            fields.section.place_of("model_type"),
            f"{model_type} has {REFUSED[model_type]}, which cannot be costed",
            "plan from its measured layers, or take a model of a known family",
        )
