"""The model of a published run, from its printed dimensions or the preset of that name."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from shardwright.errors import bad
from shardwright.spec.cluster import Assumption
from shardwright.spec.layer import Attention, Layer, Mlp, Moe
from shardwright.spec.model import Model
from shardwright.spec.read.presets import find_preset, preset_model, preset_names
from shardwright.validation.runs import PublishedRun

VOCAB = 51200  # of GPT-2's tokenizer, padded; the usual one of runs that do not print theirs
NAMELESS = "without a name"
LARGEST = 1_000_000  # of a dimension that is believed
UNGATED = ("gpt", "mpt", "opt", "bert", "nemotron", "bloom", "falcon", "t5")


def model_of(run: PublishedRun, guesses: list[Assumption]) -> Model:
    """Return the model of a run. A preset counts if its hidden size and layers are those of the run (a run of fewer
    layers, a proxy, keeps the preset's first ones). Raises SpecError where neither tells the dimensions."""
    preset = _preset(run)
    if preset is not None:
        return preset
    return _dense_or_moe(run, guesses, experts=int(run.n_experts) if run.n_experts and run.n_experts > 1 else 0)


def _preset(run: PublishedRun) -> Model | None:
    """Return the preset that fits name and printed dimensions, cut to the run's layers."""
    plain = re.sub(r"\(.*\)|proxy|\[.*\]", "", run.model).strip()
    plain = re.sub(r"^(deepseek)(v[0-9])", r"\1-\2", plain, flags=re.I)
    name = find_preset(plain)
    model = preset_model(name) if name else None
    if model is None or not _agrees(run, model):
        model = _by_dimensions(run)
    if model is None:
        return None
    layers = int(run.layers or len(model.layers))
    if layers > len(model.layers):
        return None
    vocab = int(run.vocab or model.vocab)
    kept = _shortened(model, layers) if run.noted.first_dense else model.layers[:layers]
    predicted = model.mtp_layers if layers == len(model.layers) else 0
    return replace(model, layers=kept, vocab=vocab, mtp_layers=predicted)


def _shortened(model: Model, layers: int) -> tuple[Layer, ...]:
    """Return `layers` layers of which one is dense and the others are like the model's last."""
    return (model.layers[0], *([model.layers[-1]] * (layers - 1)))


def _agrees(run: PublishedRun, model: Model) -> bool:
    attention = model.attention
    checks = (
        (run.hidden, model.hidden),
        (run.heads, attention.heads if attention else None),
        (run.kv_heads, attention.kv_heads if attention and attention.latent is None else None),
        (run.n_experts or None, max((kind.moe.experts for kind in model.kinds if kind.moe), default=None)),
        (run.ffn, _width(model)),
    )
    return all(mine is None or theirs is None or mine == theirs for mine, theirs in checks)


def _width(model: Model) -> int | None:
    layers = [kind for kind in reversed(model.layers) if kind.moe or kind.mlp]
    layer = next(iter(layers), model.layers[-1])
    return layer.moe.expert_width if layer.moe else layer.mlp.width if layer.mlp else None


@lru_cache
def _moe_presets() -> tuple[Model, ...]:
    models = (preset_model(name) for name in preset_names())
    return tuple(model for model in models if model.has_experts)


def _by_dimensions(run: PublishedRun) -> Model | None:
    """Return the mixture-of-experts preset with the run's dimensions: what a run does not print of experts (shared
    ones, dense first layers, latent attention) is known only from there."""
    if not run.n_experts or not run.hidden or not run.ffn:
        return None
    return next((model for model in _moe_presets() if _agrees(run, model)), None)


def _dense_or_moe(run: PublishedRun, guesses: list[Assumption], *, experts: int) -> Model:
    sizes = {name: int(getattr(run, name) or 0) for name in ("layers", "hidden", "heads")}
    missing = [name for name, size in sizes.items() if not 0 < size < LARGEST]
    if missing:
        lacking = f"is no preset, and {', '.join(missing)} not published"
        raise bad(f"model {run.model or NAMELESS}", lacking, "give the dimensions")
    layers, hidden, heads = sizes.values()
    if hidden < heads:
        raise bad(f"model {run.model}", f"hidden size {hidden} is less than the heads, {heads}", "give the dimensions")
    width = int(run.ffn or 4 * hidden)
    if run.vocab is None:
        guesses.append(Assumption("vocabulary", f"{VOCAB}"))
    attention = Attention(
        heads=heads, kv_heads=int(run.kv_heads or heads), head_dim=hidden // heads, value_head_dim=hidden // heads
    )
    old = run.model.casefold().lstrip("[(").startswith(UNGATED)
    shapes = [
        _assembled(run, attention, layers, hidden, width, experts, gated=gated, tied=tied)
        for gated in ((False, True) if old or width == 4 * hidden else (True, False))
        for tied in ((True, False) if old else (False, True))
    ]
    if run.n_params:
        return min(shapes, key=lambda model: abs(model.parameters - (run.n_params or 0.0)))
    return shapes[0]


def _assembled(
    run: PublishedRun,
    attention: Attention,
    layers: int,
    hidden: int,
    width: int,
    experts: int,
    *,
    gated: bool,
    tied: bool,
) -> Model:
    moe = Moe(experts=experts, top_k=int(run.top_k or 2), expert_width=width, gated=gated) if experts else None
    layer = Layer(attention=attention, mlp=None if moe else Mlp(width=width, gated=gated), moe=moe)
    return Model(
        name=run.model or "unnamed",
        family="published",
        hidden=hidden,
        vocab=int(run.vocab or VOCAB),
        layers=(layer,) * layers,
        norm="rmsnorm" if gated else "layernorm",
        position="rope" if gated else "learned",
        tied_embeddings=tied,
        dropout=not gated and "gpt" in run.model.casefold(),
        activation="silu" if gated else "gelu",
    )
