"""Every group of ranks that a plan needs, derived from it in this one place, as plain lists of ranks.

Parameters of a unit are cut into *shards*, as many as the least common multiple of the tensor-parallel degrees of all
stages that hold it. A rank of a stage with degree t holds shards/t of them. The holders of a shard, one rank of each
copy, sum its gradient; so replicas of different degree need no other exchange than those of equal degree. Experts are
cut likewise, into blocks of experts and parts of their width. Tied output projections make the ranks of the head
holders of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import lcm
from typing import Literal

from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.runtime.layout.places import Place, places_of

Purpose = Literal[
    "tensor",
    "context",
    "copies",
    "experts",
    "forward",
    "backward",
    "gradient",
    "matrices",
]
Pipelines = Mapping[tuple[int, int, int], tuple[tuple[int, ...], ...]]
"""Maps (replica, copy, context-parallel rank) to the ranks of each stage, these in tensor-parallel order."""


@record
class Communicator:
    """A process group: what it is for, and its ranks."""

    purpose: Purpose
    ranks: tuple[int, ...]


@record
class Unit:
    """The shards of a unit and who holds each: `holders[shard]` are ranks in ascending order, and so are
    `experts[block][part]` of its experts, where the model has any."""

    index: int
    holders: tuple[tuple[int, ...], ...]
    experts: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def shards(self) -> int:
        return len(self.holders)


@record(slots=False)
class Layout:
    """A plan as ranks and groups."""

    plan: Plan
    places: tuple[Place, ...]
    units: tuple[Unit, ...]
    pipelines: Pipelines

    @property
    def world_size(self) -> int:
        return len(self.places)

    @property
    def head(self) -> int:
        """The number of the last unit."""
        return len(self.units) - 1

    def tensor_group(self, place: Place) -> tuple[int, ...]:
        """Return the tensor-parallel ranks of a place's stage."""
        return self.pipelines[place.pipeline][place.stage]

    def context_group(self, place: Place) -> tuple[int, ...]:
        """Return the ranks that hold the same as a place and have the other parts of the sequence."""
        parts = range(place.context_parallel)
        of = (self.pipelines[place.replica, place.copy, part][place.stage] for part in parts)
        return tuple(sorted(ranks[place.tensor_rank] for ranks in of))

    def copies_group(self, place: Place) -> tuple[int, ...]:
        """Return the tensor-parallel ranks that hold the same key-value heads as a place, nothing where it has heads of
        its own, or no attention. Heads of all layers are alike."""
        layers = [self.plan.model.layers[unit - 1] for unit in place.units if 0 < unit < self.head]
        heads = next((layer.attention.kv_heads for layer in layers if layer.attention), None)
        groups = () if heads is None else key_value_copies(self.tensor_group(place), heads)
        return next((group for group in groups if place.rank in group), ())

    def neighbours(self, place: Place) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ranks of the stages before and after, which close to a ring with virtual stages."""
        stages = self.pipelines[place.pipeline]
        ring = self.plan.schedule.virtual_stages > 1
        before = stages[place.stage - 1] if place.stage or ring else ()
        after = stages[(place.stage + 1) % place.depth] if place.stage + 1 < place.depth or ring else ()
        return before, after

    def held(self, place: Place, unit: int) -> range:
        """Return the shards of a unit that a place holds."""
        shards = self.units[unit].shards // place.tensor_parallel
        return range(place.tensor_rank * shards, (place.tensor_rank + 1) * shards)

    def held_experts(self, place: Place, unit: int) -> tuple[range, range]:
        """Return the blocks of a unit's experts that a place holds, and which parts of their width."""
        experts = self.units[unit].experts
        if not experts:
            return range(0), range(0)
        rank, part = expert_rank(self.pipelines, place)
        blocks, parts = len(experts) // place.expert_parallel, len(experts[0]) // place.expert_tensor_parallel
        return range(rank * blocks, (rank + 1) * blocks), range(part * parts, (part + 1) * parts)

    def unit_numbers(self, place: Place) -> tuple[int, ...]:
        """Return the units whose parameters a place holds: its own, and the embedding where its head is tied to it."""
        tied = self.plan.model.tied_embeddings and self.head in place.units and 0 not in place.units
        return (0, *place.units) if tied else place.units

    def communicators(self) -> tuple[Communicator, ...]:
        """Return every process group, each once, in the order in which all ranks create them."""
        return tuple(dict.fromkeys(_communicators(self)))


def layout_of(plan: Plan) -> Layout:
    """Return the ranks and groups of a legal plan."""
    places = places_of(plan)
    pipelines: dict[tuple[int, int, int], dict[int, dict[int, int]]] = {}
    for place in places:
        pipelines.setdefault(place.pipeline, {}).setdefault(place.stage, {})[place.tensor_rank] = place.rank
    ordered = {
        key: tuple(tuple(ranks[t] for t in sorted(ranks)) for _, ranks in sorted(stages.items()))
        for key, stages in sorted(pipelines.items())
    }
    head = len(plan.model.layers) + 1
    moe = plan.model.has_experts
    units = []
    for number in range(head + 1):
        members = [place for place in places if number in place.units]
        tied = [place for place in places if head in place.units] if plan.model.tied_embeddings and not number else []
        experts = _expert_holders(ordered, members) if moe else ()
        units.append(Unit(index=number, holders=_holders([*members, *tied]), experts=experts))
    return Layout(plan=plan, places=places, units=tuple(units), pipelines=ordered)


def vocabulary(plan: Plan) -> int:
    """Return the rows of the embedding, padded so that every tensor-parallel degree of the plan divides them."""
    multiple = lcm(*(stage.tensor_parallel for stage in plan.stages))
    return -(-plan.model.vocab // multiple) * multiple


def expert_group(pipelines: Pipelines, place: Place) -> tuple[int, ...]:
    """Return the ranks that share the experts of a place's stage and hold the same part of each, among the ranks of the
    stage in all copies of the replica. Megatron-LM's order: parts of experts vary first, then experts."""
    keys = sorted(key for key in pipelines if key[0] == place.replica)
    ranks = [rank for key in keys for rank in pipelines[key][place.stage]]
    size = place.expert_parallel * place.expert_tensor_parallel
    index = ranks.index(place.rank)
    first = index // size * size
    return tuple(
        sorted(ranks[first + index % place.expert_tensor_parallel : first + size : place.expert_tensor_parallel])
    )


def expert_rank(pipelines: Pipelines, place: Place) -> tuple[int, int]:
    """Return which of the equal shares of the experts a place holds, and which part of each of them."""
    index = (place.copy * place.context_parallel + place.context_rank) * place.tensor_parallel + place.tensor_rank
    return expert_group(pipelines, place).index(place.rank), index % place.expert_tensor_parallel


def _holders(members: Sequence[Place]) -> tuple[tuple[int, ...], ...]:
    shards = lcm(*(place.tensor_parallel for place in members))
    holders: list[set[int]] = [set() for _ in range(shards)]
    for place in members:
        columns = shards // place.tensor_parallel
        for shard in range(place.tensor_rank * columns, (place.tensor_rank + 1) * columns):
            holders[shard].add(place.rank)
    return tuple(tuple(sorted(ranks)) for ranks in holders)


def _expert_holders(pipelines: Pipelines, members: Sequence[Place]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    blocks = lcm(*(place.expert_parallel for place in members))
    parts = lcm(*(place.expert_tensor_parallel for place in members))
    holders: list[list[list[int]]] = [[[] for _ in range(parts)] for _ in range(blocks)]
    for place in members:
        rank, part = expert_rank(pipelines, place)
        per_group, wide = blocks // place.expert_parallel, parts // place.expert_tensor_parallel
        for block in range(rank * per_group, (rank + 1) * per_group):
            for number in range(part * wide, (part + 1) * wide):
                holders[block][number].append(place.rank)
    return tuple(tuple(tuple(ranks) for ranks in block) for block in holders)


def _communicators(layout: Layout) -> Iterator[Communicator]:
    yield from _pipeline_communicators(layout)
    for place in layout.places:
        if place.context_parallel > 1:
            yield Communicator(purpose="context", ranks=layout.context_group(place))
    for place in layout.places if layout.units[0].experts else ():
        group = expert_group(layout.pipelines, place)
        if len(group) > 1:
            yield Communicator(purpose="experts", ranks=group)
    for unit in layout.units:
        for ranks in (*unit.holders, *chain.from_iterable(unit.experts)):
            if len(ranks) > 1:
                yield Communicator(purpose="gradient", ranks=ranks)
    if layout.plan.job.optimizer == "muon":
        yield from _matrix_communicators(layout)


def _matrix_communicators(layout: Layout) -> Iterator[Communicator]:
    """Yield the ranks that hold something of the same matrices of layers, which Muon wants whole."""
    for unit in layout.units[1:-1]:
        for holders in (unit.holders, *unit.experts):
            ranks = tuple(sorted(set(chain.from_iterable(holders))))
            if len(ranks) > 1:
                yield Communicator(purpose="matrices", ranks=ranks)


def _pipeline_communicators(layout: Layout) -> Iterator[Communicator]:
    """Yield the groups inside the stages of each pipeline and between two of them, senders first: one for each way, as
    NCCL takes the messages of a group one after another."""
    ring = layout.plan.schedule.virtual_stages > 1
    for stages in layout.pipelines.values():
        for ranks in stages:
            if len(ranks) > 1:
                yield Communicator(purpose="tensor", ranks=ranks)
                copies = (layout.copies_group(layout.places[rank]) for rank in ranks)
                yield from (Communicator(purpose="copies", ranks=group) for group in copies if group)
        ends = [(stages[-1], stages[0])] if ring and len(stages) > 1 else []
        for before, after in (*pairwise(stages), *ends):
            yield Communicator(purpose="forward", ranks=(*before, *after))
            yield Communicator(purpose="backward", ranks=(*after, *before))


def key_value_copies(ranks: tuple[int, ...], kv_heads: int) -> tuple[tuple[int, ...], ...]:
    """Return the tensor-parallel ranks that hold each key-value head, nothing where every rank has heads of its own."""
    if len(ranks) <= kv_heads:
        return ()
    copies = len(ranks) // kv_heads
    return tuple(ranks[start : start + copies] for start in range(0, len(ranks), copies))
