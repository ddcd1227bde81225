"""Where each rank stands in a plan: its replica copy, stage and tensor-parallel rank, and what it holds.

A model is a row of *units*: 0 the embedding, 1 to n the layers, n + 1 the head (final norm and output projection).
Which GPU a rank stands on, and so its number, is `plans.placement`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

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
