"""`Strategies`: many uniform parallel strategies as columns, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RECOMPUTE = ("none", "selective", "uniform", "block")
NONE, SELECTIVE, UNIFORM, BLOCK = range(4)
SHARDING = ("none", "zero1", "zero2", "zero3")
UNSHARDED, ZERO1, ZERO2, ZERO3 = range(4)
RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
PIPELINE_OUTERMOST, DATA_OUTERMOST = range(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategies:
    """Columns of equal length [N].

    `recompute`, `sharding` and `rank_order` are codes into the tuples above. `first_layers` and `last_layers` are
    the layers of the first and the last virtual stage; those between share the rest as evenly as can be, larger ones
    last (`stages.boundaries`). `recompute_layers` is Megatron-LM's --recompute-num-layers.
    """

    tp: Ints
    cp: Ints
    pp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    vpp: Ints
    micro_batch: Ints
    rank_order: Ints
    sequence_parallel: Bools
    flash: Bools
    overlap_tp: Bools
    overlap_pp: Bools
    first_layers: Ints
    last_layers: Ints
    recompute: Ints
    recompute_layers: Ints
    sharding: Ints
    offload: Floats
    overlap_grad: Bools
    overlap_param: Bools

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, rows: Array | slice) -> Strategies:
        """Return the given rows (indices, a mask or a slice)."""
        return Strategies(**{name: getattr(self, name)[rows] for name in COLUMNS})

    @property
    def gpus(self) -> Ints:
        """GPUs that each strategy uses, [N]."""
        return self.tp * self.cp * self.pp * self.dp


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Strategies))
DTYPES: dict[str, type] = {
    name: bool if name.startswith(("overlap", "sequence", "flash")) else float if name == "offload" else int
    for name in COLUMNS
}


def strategies(rows: Sequence[dict[str, Any]]) -> Strategies:
    """Return the rows, given as dictionaries by column name, as columns."""
    return Strategies(**{name: np.array([row[name] for row in rows], dtype=DTYPES[name]) for name in COLUMNS})


def concatenate(parts: Sequence[Strategies]) -> Strategies:
    """Return the rows of all parts in order."""
    return Strategies(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})
