"""Where each rank stands in a plan: its replica copy, stage and tensor-parallel rank, and what it holds.

A model is a row of *units*: 0 the embedding, 1 to n the layers, n + 1 the head (final norm and output projection).
Ranks are numbered by machine: GPU types in the order of the cluster's pools, machines in order within a type. The
tensor-parallel ranks of a stage have consecutive numbers on one machine wherever a machine has room for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.plans.plan import Plan, Replica, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank: copy `copy` of replica `replica`, stage `stage` of `depth`, context-parallel rank `context_rank` of
    `context_parallel`, tensor-parallel rank `tensor_rank` of `tensor_parallel`. `chunks` has the units of each virtual
    stage; their experts are split over `expert_parallel` ranks and each expert over `expert_tensor_parallel`. The copy
    takes `micro_batches` micro-batches of each step, from sample `first_sample` of the global batch on."""

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
    micro_batches: int
    first_sample: int

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
    unnumbered = [place for block in _blocks(plan) for place in block]
    slots = _slots(plan, _blocks(plan))
    order = sorted(range(len(unnumbered)), key=lambda index: slots[index])
    return tuple(replace(unnumbered[index], rank=rank) for rank, index in enumerate(order))


def units_of(plan: Plan, replica: Replica, stage: int) -> tuple[tuple[int, ...], ...]:
    """Return the units of each virtual stage of a stage: its layers, with embedding and head at the ends."""
    layers, last = len(plan.model.layers), (len(replica.stages) - 1, plan.schedule.virtual_stages - 1)
    chunks = []
    for chunk, (start, end) in enumerate(replica.stages[stage].layers):
        head = (layers + 1,) if (stage, chunk) == last else ()
        embedding = (0,) if (stage, chunk) == (0, 0) else ()
        chunks.append((*embedding, *range(start + 1, end + 1), *head))
    return tuple(chunks)


def _blocks(plan: Plan) -> list[tuple[Place, ...]]:
    """Return the tensor-parallel groups in the order in which they are given machines. Megatron-LM's default order
    has equal stages of all copies side by side; in a mixed plan a copy's stages are kept together."""
    blocks = []
    sample = 0
    for index, replica in enumerate(plan.replicas):
        for copy in range(replica.count):
            first = sample + copy * replica.micro_batches * plan.micro_batch
            for number, stage in enumerate(replica.stages):
                chunks = units_of(plan, replica, number)
                for part in range(stage.context_parallel):
                    blocks.append(_block(stage, chunks, replica, (index, copy, number, part), first))
        sample += replica.count * replica.micro_batches * plan.micro_batch
    if plan.uniform and plan.rank_order == "tp-cp-ep-dp-pp":
        blocks.sort(key=lambda block: (block[0].stage, block[0].copy))
    return blocks


def _block(
    stage: Stage, chunks: tuple[tuple[int, ...], ...], replica: Replica, where: tuple[int, int, int, int], first: int
) -> tuple[Place, ...]:
    return tuple(
        Place(
            rank=-1,
            gpu=stage.gpu,
            replica=where[0],
            copy=where[1],
            stage=where[2],
            depth=len(replica.stages),
            context_rank=where[3],
            context_parallel=stage.context_parallel,
            tensor_rank=tensor_rank,
            tensor_parallel=stage.tensor_parallel,
            expert_parallel=stage.expert_parallel,
            expert_tensor_parallel=stage.expert_tensor_parallel,
            chunks=chunks,
            micro_batches=replica.micro_batches,
            first_sample=first,
        )
        for tensor_rank in range(stage.tensor_parallel)
    )


def _slots(plan: Plan, blocks: Sequence[tuple[Place, ...]]) -> list[tuple[int, int]]:
    """Return (machine, slot) of every member of every block: the first machine of its type with room for the block, or
    the next free slots of any where none has."""
    machines = [(pool.gpu.name, pool.gpus_per_node) for pool in plan.cluster.pools for _ in range(pool.nodes)]
    used = [0] * len(machines)
    slots = []
    for block in blocks:
        whole = _machine(machines, used, block[0].gpu, len(block))
        for place in block:
            machine = _machine(machines, used, place.gpu, 1) if whole is None else whole
            assert machine is not None, "a legal plan uses no more GPUs than there are"
            slots.append((machine, used[machine]))
            used[machine] += 1
    return slots


def _machine(machines: Sequence[tuple[str, int]], used: Sequence[int], gpu: str, room: int) -> int | None:
    """Return the first machine with `room` free GPUs of a type."""
    found = enumerate(zip(machines, used, strict=True))
    return next((m for m, ((name, size), taken) in found if name == gpu and size - taken >= room), None)
