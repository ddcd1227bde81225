"""Where each rank stands in a plan, and every group of ranks that the plan needs, as plain lists of ranks: all derived
from it in this one place.

A model is a row of *units*: 0 the embedding, 1 to n the layers, n + 1 the head (final norm and output projection).
Which GPU a rank stands on, and so its number, is `plans.placement`'s.

Parameters of a unit are cut into *shards*, as many as the least common multiple of the tensor-parallel degrees of all
stages that hold it. A rank of a stage with degree t holds shards/t of them. The holders of a shard, one rank of each
copy, sum its gradient; so replicas of different degree need no other exchange than those of equal degree. Experts are
cut likewise, into blocks of experts and parts of their width. Tied output projections make the ranks of the head
holders of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, product
from math import lcm
from typing import Literal

from shardwright.plans.placement import placement_of, ranks
from shardwright.plans.plan import Plan, Replica
from shardwright.records import record


@record
class Place:
    """One rank: copy `copy` of replica `replica`, stage `stage` of `depth`, context-parallel rank `context_rank` of
    `context_parallel`, tensor-parallel rank `tensor_rank` of `tensor_parallel`. `chunks` has the units of each virtual
    stage; their experts are split over `expert_parallel` ranks and each expert over `expert_tensor_parallel`. The copy
    takes micro-batches of `sizes` samples in each step, from sample `first_sample` of the global batch on."""

    rank: int
    gpu: str
    replica: int
    copy: int
    stage: int
    depth: int
    context_rank: int
    context_parallel: int
    tensor_rank: int
    tensor_parallel: int
    expert_parallel: int
    expert_tensor_parallel: int
    chunks: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    first_sample: int

    @property
    def micro_batches(self) -> int:
        return len(self.sizes)

    def samples(self, micro_batch: int) -> tuple[int, int]:
        """Return the first sample of a micro-batch in the global batch, and how many it has."""
        return self.first_sample + sum(self.sizes[:micro_batch]), self.sizes[micro_batch]

    @property
    def name(self) -> str:
        """The rank in words, for messages."""
        context = f", cp {self.context_rank}" if self.context_parallel > 1 else ""
        where = f"replica {self.replica}.{self.copy}, stage {self.stage}{context}, tp {self.tensor_rank}"
        return f"rank {self.rank} ({where})"

    @property
    def units(self) -> tuple[int, ...]:
        """All units of the rank, in order of the model."""
        return tuple(unit for chunk in self.chunks for unit in chunk)

    @property
    def pipeline(self) -> tuple[int, int, int]:
        """Which pipeline the rank belongs to: a copy of the model has one for each part of the sequence."""
        return self.replica, self.copy, self.context_rank


def places_of(plan: Plan) -> tuple[Place, ...]:
    """Return the place of every rank, in the order of the ranks. The plan must be legal (`plan.check`)."""
    numbers = iter(ranks(plan, placement_of(plan)).tolist())
    places = [place for index in range(len(plan.replicas)) for place in _of_replica(plan, index, numbers)]
    return tuple(sorted(places, key=lambda place: place.rank))


def units_of(plan: Plan, replica: Replica, stage: int) -> tuple[tuple[int, ...], ...]:
    """Return the units of each virtual stage of a stage: its layers, with embedding and head at the ends."""
    layers, last = len(plan.model.layers), (len(replica.stages) - 1, plan.schedule.virtual_stages - 1)
    chunks = []
    for chunk, (start, end) in enumerate(replica.stages[stage].layers):
        head = (layers + 1,) if (stage, chunk) == last else ()
        embedding = (0,) if (stage, chunk) == (0, 0) else ()
        chunks.append((*embedding, *range(start + 1, end + 1), *head))
    return tuple(chunks)


def _of_replica(plan: Plan, index: int, ranks: Iterator[int]) -> Iterator[Place]:
    """Yield the places of a replica's copies in the order of a placement's columns, which `ranks` follow."""
    replica = plan.replicas[index]
    before = sum(other.count * other.samples(plan.micro_batch) for other in plan.replicas[:index])
    for number, stage in enumerate(replica.stages):
        chunks = units_of(plan, replica, number)
        inside = product(range(replica.count), range(stage.context_parallel), range(stage.tensor_parallel))
        for copy, context_rank, tensor_rank in inside:
            yield Place(
                rank=next(ranks),
                gpu=stage.gpu,
                replica=index,
                copy=copy,
                stage=number,
                depth=len(replica.stages),
                context_rank=context_rank,
                context_parallel=stage.context_parallel,
                tensor_rank=tensor_rank,
                tensor_parallel=stage.tensor_parallel,
                expert_parallel=stage.expert_parallel,
                expert_tensor_parallel=stage.expert_tensor_parallel,
                chunks=chunks,
                sizes=replica.sizes(plan.micro_batch),
                first_sample=before + copy * replica.samples(plan.micro_batch),
            )


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
# Maps (replica, copy, context-parallel rank) to the ranks of each stage, these in tensor-parallel order.
Pipelines = Mapping[tuple[int, int, int], tuple[tuple[int, ...], ...]]


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

    def predicted_bytes(self, place: Place) -> float | None:
        """Return the memory that the plan predicts for a rank, None where it predicts none."""
        prediction = self.plan.prediction
        if prediction is None or place.replica >= len(prediction.memory):
            return None
        return prediction.memory[place.replica][place.stage].total_bytes

    def tensor_group(self, place: Place) -> tuple[int, ...]:
        """Return the tensor-parallel ranks of a place's stage."""
        return self.pipelines[place.pipeline][place.stage]

    def context_group(self, place: Place) -> tuple[int, ...]:
        """Return the ranks that hold the same as a place and have the other parts of the sequence."""
        stages = (self.pipelines[place.replica, place.copy, part] for part in range(place.context_parallel))
        return tuple(sorted(ranks[place.stage][place.tensor_rank] for ranks in stages))

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
        return tuple(dict.fromkeys(group for group in _communicators(self) if len(group.ranks) > 1))


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
    """Yield what a plan's ranks form groups for, those of one rank too."""
    yield from _pipeline_communicators(layout)
    for place in layout.places:
        yield Communicator(purpose="context", ranks=layout.context_group(place))
    for place in layout.places if layout.units[0].experts else ():
        yield Communicator(purpose="experts", ranks=expert_group(layout.pipelines, place))
    for unit in layout.units:
        for holders in (*unit.holders, *chain.from_iterable(unit.experts)):
            yield Communicator(purpose="gradient", ranks=holders)
    for unit in layout.units[1:-1] if layout.plan.job.optimizer == "muon" else ():
        for shards in (unit.holders, *unit.experts):  # of the same matrices, which Muon wants whole
            yield Communicator(purpose="matrices", ranks=tuple(sorted(set(chain.from_iterable(shards)))))


def _pipeline_communicators(layout: Layout) -> Iterator[Communicator]:
    """Yield the groups inside the stages of each pipeline and between two of them, senders first: one for each way, as
    NCCL takes the messages of a group one after another."""
    ring = layout.plan.schedule.virtual_stages > 1
    for stages in layout.pipelines.values():
        for stage in stages:
            yield Communicator(purpose="tensor", ranks=stage)
            for rank in stage:
                yield Communicator(purpose="copies", ranks=layout.copies_group(layout.places[rank]))
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
