"""What stays fixed while many strategies are costed: the model, the machines, the job and the efficiency model."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from shardwright.arrays import Array, Bools, Ints, bits_of, packed, unpacked
from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.compute.operators import Shard
from shardwright.cost.frameworks.overheads import Overheads, overheads
from shardwright.cost.layers.source import LayerSource, layer_source
from shardwright.cost.layers.table import LayerTable
from shardwright.cost.network.collectives import Fabric
from shardwright.cost.strategies import Strategies
from shardwright.cost.trust.rarity import switches_for
from shardwright.plans.findings import RareSwitch
from shardwright.records import record
from shardwright.rounding import coarse
from shardwright.spec.cluster import NodePool, on_slots
from shardwright.spec.job import Job
from shardwright.spec.model import Model


class Sharding(Protocol):
    """How the layers of some strategies are sharded, columns [N]."""

    @property
    def tp(self) -> Ints: ...
    @property
    def cp(self) -> Ints: ...
    @property
    def ep(self) -> Ints: ...
    @property
    def micro_batch(self) -> Ints: ...


@record(slots=False)
class Context:
    """One model on machines of one type. `headroom` is the part of a GPU's memory that a plan may fill. `one_machine`
    says that all GPUs in question, of several types, are in one machine."""

    model: Model
    pool: NodePool
    job: Job
    efficiency: Efficiency
    headroom: float = 1.0
    measured_overheads: Overheads | None = None
    one_machine: bool = False

    @cached_property
    def software(self) -> Overheads:
        """What the job's framework adds on this GPU (or `measured_overheads` in its place)."""
        known = self.measured_overheads or overheads(self.job.framework, self.pool.gpu)
        return self.source.overheads(self.pool.gpu, self.job, known)

    @cached_property
    def rare_switches(self) -> tuple[RareSwitch, ...]:
        """What of strategies is rare for such a model on such GPUs."""
        return switches_for(self.model, self.job, self.pool.gpu)

    @cached_property
    def source(self) -> LayerSource:
        """Where the times of layers come from."""
        return layer_source(self.efficiency)

    def timed(self, rows: Sharding) -> Bools:
        """Return for which of `rows` there are times, [N]: all of them, unless only some layers were measured."""
        return self.source.knows(self.pool.gpu, rows.tp, rows.cp, rows.ep, rows.micro_batch)

    @cached_property
    def alike_after(self) -> int:
        """The number of layers at the beginning of the model after which all are alike."""
        return self.source.alike_after(self.pool.gpu, self.model)

    @cached_property
    def links(self) -> Fabric:
        """The links as the framework's collectives find them, never faster than measured or on the data sheet. In one
        machine those of its GPUs of other types are in place of the network."""
        return self.inside if self.one_machine and self.inside else self._over_the_network

    @cached_property
    def inside(self) -> Fabric | None:
        """The links where GPUs of other types in the same machine are in place of other machines; None where it has
        none."""
        if self.pool.mixed is None:
            return None
        slots = self.efficiency.fabric(on_slots(self.pool))
        return replace(
            self._over_the_network,
            inter_bytes_per_second=slots.intra_bytes_per_second * min(self.software.intra, 1.0),
            inter_latency_seconds=slots.intra_latency_seconds,
            inter_ramp_bytes=slots.ramp_bytes,
            inter_messages=slots.intra_messages,
        )

    @cached_property
    def quickest(self) -> Fabric:
        """The links where whatever leaves a domain takes the better way: the network, or what is inside a machine. What
        is bounded with these is bounded wherever GPUs stand."""
        inside = self.inside
        if inside is None:
            return self.links
        return replace(
            self.links,
            inter_bytes_per_second=max(self.links.inter_bytes_per_second, inside.inter_bytes_per_second),
            inter_latency_seconds=min(self.links.inter_latency_seconds, inside.inter_latency_seconds),
            inter_ramp_bytes=min(self.links.inter_ramp_bytes, inside.inter_ramp_bytes),
            inter_messages=self.links.inter_messages if self.one_machine else None,
        )

    @cached_property
    def _over_the_network(self) -> Fabric:
        links, pool, software = self.efficiency.fabric(self.pool), self.pool, self.software
        inter_share = pool.inter_bytes_per_second / pool.gpus_per_node
        intra = max(links.intra_bytes_per_second, pool.intra_bytes_per_second)
        inter = max(links.inter_bytes_per_second, pool.inter_bytes_per_second)
        reached = min(links.inter_bytes_per_second * software.inter, inter)
        return replace(
            links,
            intra_bytes_per_second=min(links.intra_bytes_per_second * software.intra, intra),
            inter_bytes_per_second=reached,
            rack_gpus=pool.rack_nodes * pool.gpus_per_node if pool.rack_nodes < pool.nodes else 0,
            rack_bytes_per_second=pool.rack_bytes_per_second * min(reached / inter_share, 1.0),
            inter_latency_seconds=links.inter_latency_seconds * software.latency,
        )

    @cached_property
    def strain(self) -> float:
        """Factor by which stragglers lengthen a stage."""
        return coarse(1.0 + self.software.straggling * math.log2(max(self.pool.nodes, 1)))

    @cached_property
    def indexed(self) -> list[ShardIndex]:
        """The layer tables made so far: what a search has timed, its best plans are explained from."""
        return []

    @property
    def memory_limit_bytes(self) -> float:
        """What a plan may fill of each GPU."""
        return self.pool.memory_bytes * self.headroom

    def holds(self, on_gpu: Array | float, in_host: Array | float) -> Bools:
        """Return which stages stay within what a plan may fill of a GPU, and within its share of the machine's memory,
        by the bytes that they take of both."""
        return np.asarray((on_gpu <= self.memory_limit_bytes) & (in_host <= self.pool.host_memory_bytes_per_gpu))

    @property
    def layer_count(self) -> int:
        return len(self.model.layers)


@record
class LayerRows:
    """The layer table of a set of strategies, and each strategy's row in it, [N]."""

    table: LayerTable
    row: Ints


SHARD = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "flash", "overlap_tp")


def sharding_of(rows: Strategies) -> list[Array]:
    """Return the columns that say how the layers of `rows` are sharded."""
    return [getattr(rows, name) for name in SHARD]


@record
class ShardIndex:
    """A layer table with the sorted codes of its rows, of so many `bits` a column."""

    codes: Ints
    bits: tuple[int, ...]
    table: LayerTable

    @property
    def ways(self) -> list[tuple[int, ...]]:
        """The ways to shard a layer (`SHARD`) that the rows of the table have."""
        return list(zip(*(column.tolist() for column in unpacked(self.codes, self.bits)), strict=True))

    def of(self, rows: Strategies) -> LayerRows:
        """Return the rows of the table that belong to `rows`; all must have been indexed."""
        return LayerRows(table=self.table, row=np.searchsorted(self.codes, packed(sharding_of(rows), self.bits)))

    def known(self, rows: Strategies) -> LayerRows | None:
        """Return the rows of the table that belong to `rows`, None where some have not been indexed."""
        try:
            codes = packed(sharding_of(rows), self.bits)
        except OverflowError:
            return None
        row = np.searchsorted(self.codes, codes)
        there = bool((row < len(self.codes)).all()) and bool((self.codes[row] == codes).all())
        return LayerRows(table=self.table, row=row) if there else None


def shard_index(context: Context, rows: Strategies) -> ShardIndex:
    """Return the layer table of the distinct ways in which `rows` shard layers."""
    columns = sharding_of(rows)
    bits = bits_of(columns)
    codes, first = np.unique(packed(columns, bits), return_index=True)
    distinct = rows.take(first)
    shard = Shard(**dict(zip(SHARD, sharding_of(distinct), strict=True)))
    table = context.source.table(
        context.model, context.pool.gpu, context.job, shard, context.links, context.software, strain=context.strain
    )
    index = ShardIndex(codes=codes, bits=bits, table=table)
    context.indexed.append(index)
    return index


def layer_rows(context: Context, rows: Strategies) -> LayerRows:
    """Return a layer table of `rows` with each row's place in it, one made before if there is any."""
    for index in context.indexed:
        found = index.known(rows)
        if found is not None:
            return found
    return shard_index(context, rows).of(rows)
