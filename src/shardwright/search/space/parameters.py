"""The parameters of a strategy, as pins and rules call them: a row each of `data/parameters.csv`.

`name` and `synonym` are what rules call it, `axis` is what pins and columns do; pins take the names of rules and those
of `pins` too, unless several parameters speak of one axis. `of` says what decides the value: the layout, the rest of
the strategy, an option of the trainer, or what is given (model, job, machines).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, cast, get_args

from shardwright.cost.strategies import RANK_ORDERS, RECOMPUTE, SHARDING
from shardwright.files import shipped_table
from shardwright.plans.plan import Granularity, Method
from shardwright.records import record
from shardwright.spec.options import VALUES

Kind = Literal["number", "switch", "word"]
# What words stand for, on axes and in columns: their place.
_CODES = {"rank_order": RANK_ORDERS, "recompute": RECOMPUTE, "sharding": SHARDING}
_WORDS: Mapping[str, tuple[str, ...]] = {
    **VALUES,
    "recompute_granularity": get_args(Granularity),
    "recompute_method": get_args(Method),
    "recompute_modules": (),  # any, joined by +
    "rank_order": RANK_ORDERS,
    "sharding": SHARDING,
}
_SWITCH = MappingProxyType({"false": 0, "off": 0, "no": 0, "true": 1, "on": 1, "yes": 1})


@record
class Parameter:
    """A row. A `word` takes one of `words` (any word, where there are none); a `switch` is True or False.

    `optional` marks those that may be None: they have no meaning for some candidates.
    """

    name: str
    synonym: str
    of: Literal["layout", "strategy", "option", "given"]
    axis: str
    pins: tuple[str, ...]
    kind: Kind
    words: tuple[str, ...]
    optional: bool
    description: str

    @property
    def may_be_unset(self) -> bool:
        """Whether a comparison with None can come out true."""
        return self.optional or self.kind == "switch" or "none" in self.words


def _parameter(row: Mapping[str, str]) -> Parameter:
    return Parameter(
        name=row["name"],
        synonym=row["synonym"],
        of=row["of"],  # type: ignore[arg-type]
        axis=row["axis"],
        pins=tuple(row["pins"].split()),
        kind=cast("Kind", row["kind"]),
        words=_WORDS.get(row["name"], ()),
        optional=bool(row["optional"]),
        description=row["description"],
    )


PARAMETERS = tuple(map(_parameter, shipped_table("shardwright.search.space", "parameters.csv")))
_PINNED = tuple(row for row in PARAMETERS if row.of in ("layout", "strategy"))

AXES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        row.axis: {word: code for code, word in enumerate(_CODES[row.axis])}
        if row.axis in _CODES
        else (_SWITCH if row.kind == "switch" else {})
        for row in _PINNED
    }
)
"""The axes that a user may pin, with the words that stand for codes. Numbers stand for themselves."""

AXIS_OF: Mapping[str, str] = MappingProxyType({row.name: row.axis for row in _PINNED})
"""The axis that decides a parameter of rules by itself, where one does."""

BEYOND_LAYOUT = frozenset(row.name for row in PARAMETERS if row.of == "strategy")
"""The parameters of rules that a layout alone does not decide."""

_SHARED = {axis for axis in AXES if sum(row.axis == axis for row in PARAMETERS) > 1}
SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        name: row.axis
        for row in PARAMETERS
        if row.axis
        for name in (*(() if row.axis in _SHARED else (row.name,)), *row.pins)
        if name != row.axis
    }
)
"""Other names of axes and options, for pins."""
