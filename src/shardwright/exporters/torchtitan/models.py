"""Which model of torchtitan's registry a model is: told by its size, which is counted the same on both sides.

`data/models.csv` has the models of torchtitan 0.3.0, their parameters counted by building each on the meta device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from shardwright.files import shipped_table
from shardwright.spec.model import Model

TOLERANCE = 1e-6  # of the parameters: torchtitan keeps the bias of a router as a buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A model of the registry: `torchtitan.models.<module>.model_registry(flavor)`."""

    module: str
    flavor: str
    hidden: int
    layers: int
    vocab: int
    parameters: int


@cache
def registry() -> tuple[Registered, ...]:
    """Return the models of the registry."""
    sizes = ("hidden", "layers", "vocab", "parameters")
    return tuple(
        Registered(module=row["module"], flavor=row["flavor"], **{name: int(row[name]) for name in sizes})
        for row in shipped_table("shardwright.exporters.torchtitan", "models.csv")
    )


def registered(model: Model) -> Registered | None:
    """Return the model of the registry that `model` is, or None where there is none."""
    shape, parameters = (model.hidden, len(model.layers), model.vocab), model.parameters
    for each in registry():
        close = abs(each.parameters - parameters) <= TOLERANCE * parameters
        if (each.hidden, each.layers, each.vocab) == shape and close:
            return each
    return None
