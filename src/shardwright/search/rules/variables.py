"""The variables of which a rule may speak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.search.space.parameters import PARAMETERS, Parameter

SCHEMA: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in PARAMETERS})
"""Each variable by its canonical name."""

CANONICAL: Mapping[str, str] = MappingProxyType(
    {name: row.name for row in PARAMETERS for name in (row.name, row.synonym) if name}
)
"""Every name that a rule may use, and the canonical one it stands for."""


def schema_with_gpus(gpus: Iterable[str]) -> Mapping[str, Parameter]:
    """Return the schema in which `$gpu` takes only the names in `gpus`."""
    return MappingProxyType({**SCHEMA, "gpu": replace(SCHEMA["gpu"], words=tuple(gpus))})
