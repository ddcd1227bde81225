"""Which model of torchtitan's registry a model is: told by its size, which is counted the same on both sides.

`data/models.csv` has the models of torchtitan 0.3.0, their parameters counted by building each on the meta device, the
longest sample that each takes (`max_seq_len`), and the constants that its `models/<module>/__init__.py` gives each
(blank: it has none such). A configuration cannot say others, so what a model has of its own is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.forward_pass import FAST_TURNS, SLOW_TURNS
from shardwright.spec.layer import Layer
from shardwright.spec.model import Model

TOLERANCE = 1e-6  # of the parameters: torchtitan keeps the bias of a router as a buffer


@record
class Registered:
    """A model of the registry: `torchtitan.models.<module>.model_registry(flavor)`. `constants` are by their place in a
    `Model`, `rotary_scaling.factor`, None where the registry has none such."""

    module: str
    flavor: str
    hidden: int
    layers: int
    vocab: int
    parameters: int
    longest: int
    constants: Mapping[str, str | None]


@cache
def registry() -> tuple[Registered, ...]:
    """Return the models of the registry."""
    sizes = ("hidden", "layers", "vocab", "parameters", "longest")
    return tuple(
        Registered(
            module=row["module"],
            flavor=row["flavor"],
            **{name: int(row[name]) for name in sizes},
            constants={name: row[name] or None for name in row if name not in ("module", "flavor", *sizes)},
        )
        for row in shipped_table("shardwright.exporters.torchtitan", "models.csv")
    )


def registered(model: Model) -> Registered | None:
    """Return the model of the registry that `model` is, or None where there is none."""
    shape, parameters = (model.hidden, len(model.layers), model.vocab), model.parameters
    for entry in registry():
        close = abs(entry.parameters - parameters) <= TOLERANCE * parameters
        if (entry.hidden, entry.layers, entry.vocab) == shape and close and _built_alike(model, entry.module):
            return entry
    return None


def _built_alike(model: Model, module: str) -> bool:
    """Return whether a model has the parts of the registry's and no others, which hardly show in its size."""
    plain = model.position == "rope" and model.rotary_fraction == 1.0 and model.norm == "rmsnorm" and model.final_norm
    other = model.embedding_norm or model.head_bias or model.dropout or model.parallel_block or model.learned_positions
    return plain and not other and all(_block_alike(layer, module) for layer in model.kinds)


def _block_alike(layer: Layer, module: str) -> bool:
    attention, mlp = layer.attention, layer.mlp
    if attention is None or not attention.causal or attention.qkv_bias or attention.out_bias:
        return False
    if attention.value_norm or attention.reused is not None or layer.embedded:
        return False
    names = attention.qk_norm == (module == "qwen3") and (attention.latent is not None) == (module == "deepseek_v3")
    return names and layer.norms == 2 and (mlp is None or (mlp.gated and not mlp.bias))


NONE = {"rotary_scaling.kind": "default", "moe.router_scaling": "1", "moe.pre_softmax": "0", "moe.router_bias": "0"}
YARN = {"rotary_scaling.fast_turns": f"{FAST_TURNS:g}", "rotary_scaling.slow_turns": f"{SLOW_TURNS:g}"}


def differences(model: Model, entry: Registered) -> Iterator[tuple[str, str, str]]:
    """Yield the constants in which a model differs from its entry of the registry: name, value of the model, value of
    the registry. What a model's source does not say is not compared."""
    kinds = {_word(model, "rotary_scaling.kind"), entry.constants["rotary_scaling.kind"] or "default"}
    for name, theirs in entry.constants.items():
        detail = name.startswith("rotary_scaling.") and name != "rotary_scaling.kind"
        unsaid = name == "norm_epsilon" and model.norm_epsilon is None
        if unsaid or (detail and (len(kinds) > 1 or theirs is None)):
            continue
        ours, given = _word(model, name), theirs or NONE.get(name, "none")
        if ours != (given if name == "rotary_scaling.kind" else _plain(given)):
            yield name.replace("_", " ").replace(".", " "), ours, given


def _word(model: Model, name: str) -> str:
    """Return a constant of a model as the registry writes it."""
    first, _, rest = name.partition(".")
    if first == "moe":
        part: object = next((layer.moe for layer in model.layers if layer.moe is not None), None)
    else:
        part = getattr(model, first)
    value = getattr(part, rest, None) if rest else part
    return _plain(YARN.get(name, NONE.get(name, "none")) if value is None else value)


def _plain(value: object) -> str:
    """Return a figure without needless digits, other values as they are."""
    try:
        return f"{float(value):.10g}"  # type: ignore[arg-type]
    except ValueError:
        return str(value)
