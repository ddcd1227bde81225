"""What a forward pass must know and a plan need not: epsilons, scaling of rotary positions, weights of the router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass

from shardwright.errors import Problem, bad, reject
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
        "bailing_hybrid", "mellum", "minimax_m2", "seed_oss", "smollm3", "youtu",
    ),
    1e-6,
) | {"bert": 1e-12, "glm": 1.5625e-7, "glm4": 1.5625e-7, "helium": 1e-8}  # fmt: skip
ROTARY_KINDS = ("default", "linear", "llama3", "yarn", "longrope")  # scalings that `rotary` computes
FIXED_EPSILONS = {"olmo": 1e-5, "opt": 1e-5, "biogpt": 1e-5}  # whatever the config says
# What a config may say otherwise than the plan: what is taken from it, sources, counts, and how transformers computes.
OF_CONFIG = (
    "norm_epsilon", "rotary_scaling", "name", "family", "max_position", "dropout", "mtp_layers",
    "extra_parameters", "layer_vocab", "norm_form", "fused_qkv", "particular", "tower", "audio", "guesses", "assumed",
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
    reject(
        Problem(name, f"{part} is {there!r:.60}, in the plan {planned!r:.60}", HINT)
        for part, there, planned in differences(given, model)
    )
    return given


def differences(given: object, planned: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield in what a model computes otherwise than that of a plan, beside the details: which field, and what it is in
    each. Of the layers the first that differs is told."""
    if path == "layers" and isinstance(given, tuple) and isinstance(planned, tuple):
        if len(given) != len(planned):
            yield "the number of layers", len(given), len(planned)
            return
        pairs = enumerate(zip(given, planned, strict=True))
        of_layers = ([*differences(*pair, f"{path}[{number}]")] for number, pair in pairs if pair[0] != pair[1])
        yield from next(filter(None, of_layers), [])
    elif is_dataclass(given) and type(given) is type(planned):
        for name in (item.name for item in fields(given)):
            place = f"{path}.{name}".lstrip(".")
            if place not in OF_CONFIG and name != "pre_softmax":  # what details have
                yield from differences(getattr(given, name), getattr(planned, name), place)
    elif given != planned:
        yield path, given, planned


HINT = "make the plan of this config.json"


def _known(scaling: RotaryScaling | None, name: str) -> RotaryScaling:
    if scaling is not None and scaling.kind not in ROTARY_KINDS:
        raise bad(name, f"{shown(scaling.kind)} cannot be run", f"supported: {', '.join(ROTARY_KINDS)}")
    if scaling is not None and scaling.kind == "longrope" and not (scaling.short_factors and scaling.long_factors):
        raise bad(name, "longrope without its factors cannot be run", "give short_factor and long_factor")
    return scaling or RotaryScaling()
