"""What a forward pass must know and a plan need not: epsilons, scaling of rotary positions, weights of the router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from shardwright.errors import Problem, SpecError, bad
from shardwright.records import record
from shardwright.spec.forward_pass import RotaryScaling
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.text.fields import shown

# Of norms where no config says, as transformers 5.23 has them; in all other families 1e-5.
USUAL_EPSILON = dict.fromkeys(
    (
        "llama", "mistral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text",
        "vaultgemma", "deepseek_v2", "deepseek_v3", "dots1", "granite", "granitemoe", "granitemoeshared", "flex_olmo",
        "granitemoehybrid", "hyperclovax", "jamba", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        "mellum", "minimax_m2", "seed_oss", "smollm3", "youtu",
    ),
    1e-6,
) | {"bert": 1e-12, "glm": 1.5625e-7, "glm4": 1.5625e-7, "helium": 1e-8}  # fmt: skip
ROTARY_KINDS = ("default", "linear", "llama3", "yarn", "longrope")  # scalings that `rotary` computes
FIXED_EPSILONS = {"olmo": 1e-5, "opt": 1e-5, "biogpt": 1e-5}  # whatever the config says
# What a plan tells of the forward pass, and a config at hand may contradict.
TOLD = (
    "norm", "position", "rotary_base", "rotary_fraction", "rotary_interleaved", "activation", "parallel_block",
    "norm_vectors", "norm_about_one", "final_norm", "embedding_norm", "forward_pass",
)  # fmt: skip


@record
class Details:
    """The numbers of a forward pass beside the sizes. `renormalise`: the weights of a token's experts sum to 1."""

    norm_epsilon: float = 1e-5
    rotary: RotaryScaling = field(default_factory=RotaryScaling)
    renormalise: bool = True


def details_of(model: Model, config: Mapping[str, object] | None, name: str = "config.json") -> Details:
    """Return the details in a Hugging Face config; where there is none, those that the model tells, or those usual in
    its family.

    Raises SpecError for a scaling of rotary positions that the runtime does not have, and for a config whose forward
    pass is another than the plan's.
    """
    described = model if config is None else _described(model, config, name)
    epsilon = FIXED_EPSILONS.get(model.family, described.norm_epsilon)
    return Details(
        norm_epsilon=USUAL_EPSILON.get(model.family, 1e-5) if epsilon is None else epsilon,
        rotary=_known(described.rotary_scaling, "model.rotary_scaling" if config is None else f"{name}: rope_type"),
        renormalise=not any(kind.moe and kind.moe.pre_softmax for kind in described.kinds),
    )


def _described(model: Model, config: Mapping[str, object], name: str) -> Model:
    """Return the model that a config describes. Raises SpecError where it computes otherwise than the plan's."""
    given = model_of_config(config, name, accept_guess=True)
    others = [part for part in TOLD if getattr(given, part) != getattr(model, part)]
    if others:
        raise SpecError(
            *(
                Problem(name, f"{part} is {getattr(given, part)!r}, in the plan {getattr(model, part)!r}", HINT)
                for part in others
            )
        )
    return given


HINT = "make the plan of this config.json"


def _known(scaling: RotaryScaling | None, name: str) -> RotaryScaling:
    if scaling is not None and scaling.kind not in ROTARY_KINDS:
        raise bad(name, f"{shown(scaling.kind)} cannot be run", f"supported: {', '.join(ROTARY_KINDS)}")
    if scaling is not None and scaling.kind == "longrope" and not (scaling.short_factors and scaling.long_factors):
        raise bad(name, "longrope without its factors cannot be run", "give short_factor and long_factor")
    return scaling or RotaryScaling()
