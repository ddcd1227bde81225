"""How the parameters of a rank are laid out in flat buffers, one for each group of ranks that sums their gradients.

A bucket belongs to a shard of one unit, or of several units in a row that the same ranks hold in the same virtual
stages; experts have buckets of their own, one for each block of experts and part of their width. All holders lay a
bucket out alike, so one collective sums it. What its parameters are is computed from the plan alone. Frozen weights
have buckets of their own, which no collective sums.

ZeRO-2 cuts the gradients of a bucket over its holders, too, ZeRO-3 its weights. Their parts are gathered and summed
within passes, by all holders together. So these must run the same passes of the same units in the same order, as the
copies of equal replicas do. Buckets of other holders, and embeddings tied to the head of another stage, are held whole,
as under ZeRO-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import prod

from shardwright.plans.shares import cuts
from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place, vocabulary
from shardwright.runtime.model.parameters import ModelParameter, Summed, frozen_parameters, trained_parameters
from shardwright.spec.adapter import Adapter
from shardwright.spec.model import Model

LARGEST_MERGED_ELEMENTS = 2_000_000  # sums of one bucket travel while the next one's units still compute
ALIGNMENT_ELEMENTS = 256  # of matrices and of the parts of ranks: blocks of 8-bit state straddle neither

UnitParameters = Callable[[Model, Adapter | None, int, int], tuple[ModelParameter, ...]]


@record
class Piece:
    """A part of a parameter in a bucket, at `offset`. Along the parameter's cut dimension it is [start, stop) of the
    whole and begins at `local` of what the rank holds. `counted` is true in one bucket of those that have it."""

    parameter: ModelParameter
    unit: int
    offset: int
    shape: tuple[int, ...]
    start: int
    stop: int
    local: int
    counted: bool

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def summed(self) -> Summed:
        return self.parameter.summed


@record
class Segment:
    """Elements [start, stop) of a bucket that are treated alike: whether they are matrices of layers (`hidden`), decay,
    and count for norms. What no piece has in between stays zero."""

    start: int
    stop: int
    hidden: bool
    decayed: bool
    counted: bool


@record
class Bucket:
    """One flat buffer: `ranks` hold it, `elements` is a multiple of their number. It has the `shard`-th of `shards` of
    what it holds of the units: of their experts in a `block`, else (None) of all but experts. `alone` says whether the
    rank has no other shard of the same, so that its parameters lie in this buffer as they are. The part of each rank
    begins at its entry of `bounds` and ends at the next; without, all parts are equal."""

    units: tuple[int, ...]
    block: int | None
    shard: int
    shards: int
    ranks: tuple[int, ...]
    pieces: tuple[Piece, ...]
    segments: tuple[Segment, ...]
    elements: int
    alone: bool
    bounds: tuple[int, ...] = ()

    @property
    def in_bytes(self) -> bool:
        """Whether its elements are bytes, of matrices that are kept so."""
        return self.pieces[0].parameter.matrix is not None

    @property
    def key(self) -> tuple[tuple[int, ...], int | None, int]:
        """What tells it from all others of a layout, whoever holds it."""
        return self.units, self.block, self.shard

    def own(self, rank: int, *, sharded: bool) -> tuple[int, int]:
        """Return [start, stop) of the elements that `rank` updates: its part of them, or all."""
        if not sharded:
            return 0, self.elements
        return self.parts[self.ranks.index(rank)]

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """[start, stop) of the part of each of the ranks."""
        elements_each = self.elements // len(self.ranks)
        return tuple(pairwise(self.bounds or range(0, self.elements + 1, elements_each)))


def buckets_of(layout: Layout, place: Place) -> tuple[Bucket, ...]:
    """Return the buckets of what a rank trains, in the order in which all holders sum them: last units first."""
    return _buckets(layout, place, trained_parameters)


def frozen_buckets_of(layout: Layout, place: Place) -> tuple[Bucket, ...]:
    """Return the buckets of what a rank holds beside its adapters, last units first."""
    return _buckets(layout, place, frozen_parameters)


def _buckets(layout: Layout, place: Place, parameters_of: UnitParameters) -> tuple[Bucket, ...]:
    plan, rows, held = layout.plan, vocabulary(layout.plan), layout.unit_numbers(place)
    units = [parameters_of(plan.model, plan.job.adapter, unit, rows) for unit in range(layout.head + 1)]
    return tuple(
        _shared(layout, bucket)
        for run in _unit_runs(layout, units)
        if run[0] in held
        for bucket in _run_buckets(layout, place, run, [(item, unit) for unit in run for item in units[unit]])
    )


def _shared(layout: Layout, bucket: Bucket) -> Bucket:
    """Return a bucket in parts by the shares of its ranks, under uneven FSDP."""
    parts = layout.plan.optimizer.parts
    if parts is None:
        return bucket
    states = [layout.plan.replicas[layout.places[rank].replica].state or 0 for rank in bucket.ranks]
    return replace(bucket, bounds=cuts(bucket.elements, states, parts, ALIGNMENT_ELEMENTS))


def _run_buckets(
    layout: Layout, place: Place, units: tuple[int, ...], found: Sequence[tuple[ModelParameter, int]]
) -> Iterator[Bucket]:
    model, unit = layout.plan.model, layout.units[units[0]]
    dense = [(parameter, number) for parameter, number in found if parameter.expert is None]
    kept_alike = [[item for item in dense if (item[0].matrix is not None) == in_bytes] for in_bytes in (False, True)]
    held = layout.held(place, unit.index)
    for shard in held:
        for alike in filter(None, kept_alike):  # a head without a norm, tied to the embedding, has nothing
            yield _bucket(units, alike, unit.holders, shard, held)
    blocks, parts = layout.held_experts(place, unit.index)
    for block in blocks:
        inside = [item for item in found if _block(model, *item, len(unit.experts)) == block]
        inside.sort(key=lambda item: (item[1], matrix_of(item[0])))  # one matrix of all experts, then the next
        for part in parts if inside else ():
            yield replace(_bucket(units, inside, unit.experts[block], part, parts), block=block)


def matrix_of(parameter: ModelParameter) -> str:
    """Return which matrix of an expert a parameter is, the same name for all experts of a layer."""
    return parameter.name.replace(f".experts.{parameter.expert}.", ".experts.")


def _block(model: Model, parameter: ModelParameter, unit: int, blocks: int) -> int | None:
    """Return the block of experts that a parameter belongs to, None for one of no expert."""
    if parameter.expert is None:
        return None
    moe = model.layers[unit - 1].moe
    assert moe is not None, "experts are in layers with a mixture of them"
    return parameter.expert * blocks // moe.experts


def _unit_runs(layout: Layout, units: Sequence[Sequence[ModelParameter]]) -> tuple[tuple[int, ...], ...]:
    """Return the units, last first, in runs that share buckets."""
    sizes = [sum(prod(parameter.shape) for parameter in unit) for unit in units]
    runs: list[list[int]] = []
    size = 0
    for unit in range(layout.head, -1, -1):
        last = runs[-1][-1] if runs else None
        if last is not None and _alike(layout, last, unit) and size + sizes[unit] <= LARGEST_MERGED_ELEMENTS:
            runs[-1].append(unit)
            size += sizes[unit]
        else:
            runs.append([unit])
            size = sizes[unit]
    return tuple(tuple(run) for run in runs)


def _alike(layout: Layout, unit: int, other: int) -> bool:
    """Return whether the same ranks hold two units in the same virtual stages, and not layer by layer. A tied embedding
    stands alone: its gradient is complete only when the first and the last stage are done. So do blocks that layers
    share, which are there for all of them. Under Muon both ends do, as they have more state than layers: parts of ranks
    would be unequal in bytes."""
    model = layout.plan.model
    apart = layout.plan.layered or (other == 0 and (model.tied_embeddings or bool(model.sharing)))
    apart |= layout.plan.job.optimizer == "muon" and (other == 0 or unit == layout.head)
    if apart or layout.units[unit].holders != layout.units[other].holders:
        return False
    holders = {rank for ranks in layout.units[unit].holders for rank in ranks}
    return all((unit in chunk) == (other in chunk) for rank in holders for chunk in layout.places[rank].chunks)


def _bucket(
    units: tuple[int, ...],
    found: Sequence[tuple[ModelParameter, int]],
    holders: tuple[tuple[int, ...], ...],
    shard: int,
    held: range,
) -> Bucket:
    shards = len(holders)
    keyed = [((not _counted(p, shard, shards), not p.hidden, not p.decayed), p, unit) for p, unit in found]
    keyed.sort(key=lambda item: item[0])
    pieces: list[Piece] = []
    segments: list[Segment] = []
    offset = 0
    for (_, alike), run in groupby(keyed, lambda item: (matrix_of(item[1]) if item[1].decayed else "", item[0])):
        offset = -(-offset // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        uncounted, plain, vector = alike
        start = offset
        for _, parameter, unit in run:
            pieces.append(_piece(parameter, unit, offset, shard, shards, held, counted=not uncounted))
            offset += pieces[-1].elements
        treated = {"hidden": not plain, "decayed": not vector, "counted": not uncounted}
        last = segments[-1] if segments else None
        if last is not None and (last.hidden, last.decayed, last.counted) == tuple(treated.values()):
            start = segments.pop().start
        segments.append(Segment(start=start, stop=offset, **treated))
    ranks = holders[shard]
    unit_elements = ALIGNMENT_ELEMENTS * len(ranks)
    return Bucket(
        units=units,
        block=None,
        shard=shard,
        shards=shards,
        ranks=ranks,
        pieces=tuple(pieces),
        segments=tuple(segments),
        elements=-(-offset // unit_elements) * unit_elements,
        alone=len(held) == 1,
    )


def _piece(
    parameter: ModelParameter, unit: int, offset: int, shard: int, shards: int, held: range, *, counted: bool
) -> Piece:
    start, stop, local = 0, 0, 0
    if parameter.dim is not None:
        start, stop = parameter.bounds(shard, shard, shards)
        local = start - parameter.bounds(held[0], held[-1], shards)[0]
    return Piece(
        parameter=parameter,
        unit=unit,
        offset=offset,
        shape=parameter.local_shape(shard, shard, shards),
        start=start,
        stop=stop,
        local=local,
        counted=counted,
    )


def _counted(parameter: ModelParameter, shard: int, shards: int) -> bool:
    """Return whether this shard is the first with its piece of the parameter."""
    return shard == 0 or (
        parameter.dim is not None and parameter.piece(shard, shards) != parameter.piece(shard - 1, shards)
    )


def kept_apart(layout: Layout, bucket: Bucket) -> tuple[bool, bool]:
    """Return whether a holder of a bucket keeps its own part alone of the weights, and of the gradients."""
    sharding = layout.plan.optimizer.sharding
    cut = sharding in ("zero2", "zero3") and bucket.alone and len(bucket.ranks) > 1 and in_step(layout, bucket.ranks)
    return cut and sharding == "zero3", cut


def in_step(layout: Layout, ranks: Sequence[int]) -> bool:
    """Return whether ranks run the same passes of the same units in the same order. Layer by layer all do, whatever
    their micro-batches."""
    if layout.plan.layered:
        return True
    courses = set()
    for rank in ranks:
        place = layout.places[rank]
        stage = layout.plan.replicas[place.replica].stages[place.stage]
        courses.add((place.chunks, place.stage, place.depth, place.micro_batches, replace(stage, gpu="")))
    return len(courses) == 1


def held_whole(layout: Layout, place: Place) -> str:
    """Return what a rank holds whole though the plan shards it, in words; nothing where there is no such thing."""
    sharding = layout.plan.optimizer.sharding
    if sharding not in ("zero2", "zero3"):
        return ""
    buckets = (*buckets_of(layout, place), *frozen_buckets_of(layout, place))
    shared = [bucket for bucket in buckets if len(bucket.ranks) > 1]
    whole = sorted({unit for bucket in shared if not kept_apart(layout, bucket)[1] for unit in bucket.units})
    if not whole:
        return ""
    what = "gradients" if sharding == "zero2" else "weights and gradients"
    units = {unit for bucket in shared for unit in bucket.units}
    return what if len(whole) == len(units) else f"{what} of {len(whole)} of {len(units)} units"
