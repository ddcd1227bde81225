"""An efficiency model that remembers: a fit asks for the same operators again and again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.compute.operator_table import OperatorTable
from shardwright.cost.network.collectives import Fabric
from shardwright.spec.cluster import Gpu, NodePool
from shardwright.spec.job import Job


@dataclass(frozen=True, slots=True)
class Remembering:
    """The same answers as `base`, each computed once."""

    base: Efficiency
    known: dict[bytes, Floats] = field(default_factory=dict)

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the times of `base`, [operators, M]."""
        key = hashlib.blake2b(repr((gpu, job.precision, job.fp8_recipe, job.framework)).encode())
        for column in fields(operators):
            values = getattr(operators, column.name)
            key.update(
                np.ascontiguousarray(values).tobytes() if isinstance(values, np.ndarray) else repr(values).encode()
            )
        if key.digest() not in self.known:
            self.known[key.digest()] = self.base.operator_seconds(gpu, job, operators)
        return self.known[key.digest()]

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links of `base`."""
        return self.base.fabric(pool)
