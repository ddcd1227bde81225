"""What GPUs with given shares take: seconds of each unit's passes by the size of the micro-batch, and bytes.

A GPU with r rows in k micro-batches runs each unit k times forward and k times backward, with ⌈r/k⌉ or ⌊r/k⌋ rows. It
keeps for the backward pass what the rows of a wave leave in every layer, or the layers' inputs where these run again;
of the head, which goes forward and backward at once, one micro-batch. Memory of a GPU with share s of the state
(Cephalo, arXiv 2411.01075 §2.3, with the terms of `cost.memory`):

    M = s · state + two units gathered + their gradients + activations of a wave + one micro-batch's working set
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.footprint import Footprint
from shardwright.cost.memory.ends import head_passes
from shardwright.cost.memory.sizes import HeldParameters, StateSplit, copied_bytes, reserved_bytes, state_bytes
from shardwright.cost.stage.exact import live_bytes
from shardwright.cost.stage.terms import AGAIN, REST
from shardwright.cost.strategies import BLOCK, SELECTIVE, UNIFORM, ZERO3, Strategies, strategies
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model

EQUAL = 1e-9  # numeric: shares that differ by less are equal but for rounding


@record
class RowShares(Columns):
    """Rows of the batch on one GPU, the micro-batches that they go in, a multiple of the waves, and recomputation
    (codes of `cost.strategies`), columns [N]."""

    rows: Ints
    micro_batches: Ints
    waves: Ints
    recompute: Ints
    recompute_layers: Ints

    @property
    def largest(self) -> Ints:
        """The rows of the largest micro-batch, [N]."""
        return -(-self.rows // self.micro_batches)

    @property
    def rows_at_once(self) -> Ints:
        """The rows of the largest wave, the first, [N]."""
        fewest, more = np.divmod(self.rows, self.micro_batches)
        return np.asarray(fewest * (self.micro_batches // self.waves) + -(-more // self.waves))


@record
class Passes:
    """Seconds of each unit's passes of one GPU, [N, U]: `backward` has what it computes again, which is `recompute`.
    The head's passes are in `forward` and `backward` of the last unit."""

    forward: Floats
    backward: Floats
    recompute: Floats

    @property
    def total(self) -> Floats:
        """All passes of a GPU, [N]."""
        return np.asarray((self.forward + self.backward).sum(axis=1))


def passes(context: Context, units: Units, shares: RowShares, wave: int | None = None) -> Passes:
    """Return the seconds of the passes of GPUs of one type, of all waves or of one of them; infinite where a size of
    micro-batch was not measured."""
    larger, others = _sizes(shares, wave)

    def total(values: Floats) -> Floats:
        return _over_sizes(units, values, shares, larger, others)

    forward, core = total(units.forward), total(units.core_seconds)
    again = np.where(_again(units, shares), forward, np.where((shares.recompute == SELECTIVE)[:, None], core, 0.0))
    starts = (larger + others)[:, None] * context.software.pass_seconds / units.count
    return Passes(forward=forward + starts, backward=total(units.backward) + again + starts, recompute=again)


def _sizes(shares: RowShares, wave: int | None) -> tuple[Ints, Ints]:
    """Return how many larger and how many other micro-batches there are, in all or in one wave, [N] each. Waves take
    micro-batches in turn, larger ones first."""
    more = shares.rows % shares.micro_batches
    if wave is None:
        return more, shares.micro_batches - more
    larger = np.maximum(-(-(more - wave) // shares.waves), 0)
    return larger, shares.micro_batches // shares.waves - larger


def _over_sizes(units: Units, values: Floats, shares: RowShares, larger: Ints, others: Ints) -> Floats:
    """Return the sum of `values` [M, U] over so many micro-batches of either size, [N, U]."""
    samples = shares.rows // shares.micro_batches
    totals = np.zeros((len(shares), units.count))
    for size, count in ((samples + 1, larger), (samples, others)):
        row, known = units.at(size)
        totals += count[:, None] * values[row]
        totals[(count > 0) & ~known] = np.inf
    return totals


def _again(units: Units, shares: RowShares) -> Floats:
    """Return which units run forward again in the backward pass, [N, U]."""
    layer = np.arange(units.count)
    inside = (layer > 0) & (layer < units.count - 1)
    last = np.where(shares.recompute == UNIFORM, units.count, shares.recompute_layers)[:, None]
    full = ((shares.recompute == UNIFORM) | (shares.recompute == BLOCK))[:, None]
    return np.asarray(full & inside & (layer <= last))


def activation_bytes(units: Units, shares: RowShares) -> tuple[Floats, Floats]:
    """Return what a GPU keeps of the rows of a wave with the working set of one micro-batch, and the logits beyond
    that, [N]. Between two units every row has an activation, or its gradient."""
    row, _ = units.at(shares.largest)
    scale = shares.rows_at_once / units.sizes[row]
    again = _again(units, shares)
    states = np.where(again, AGAIN, REST[shares.recompute][:, None])
    kept = np.take_along_axis(units.kept[row], states[:, None], axis=1)[:, 0]
    inside = kept[:, :-1].sum(axis=1) + units.boundary[row]
    working = live_bytes(units.live, units.group, row, shares.recompute, 1, 1)
    head = np.maximum(kept[:, -1] + units.logits[row] - working, 0.0)
    return scale * inside + working, head


def state_total(context: Context, units: Units) -> float:
    """Return the parameters of the model, a tied embedding once."""
    tied = context.model.token_table_parameters if context.model.tied_embeddings else 0.0
    return float(units.parameters.sum() - tied)


def ends_total(context: Context, units: Units) -> float:
    """Return the parameters of embedding and output projection, of one where they are tied."""
    inside = float(units.parameters[1:-1].sum())
    return state_total(context, units) - inside


def _all_parameters(context: Context, units: Units) -> HeldParameters:
    expert = np.full(1, units.expert.sum())
    dense, ends = state_total(context, units) - expert, np.full(1, ends_total(context, units))
    return HeldParameters(
        dense=dense, expert=expert, ends=ends, adapters=np.full(1, units.adapters), frozen=units.frozen
    )


def memory(
    context: Context, units: Units, shares: RowShares, state: Floats, largest_state: Floats, gpus: int
) -> Footprint:
    """Return the bytes on GPUs with `state` [N] of the state, [N] each term. Where the largest of all `gpus` parts is
    above an equal one, gathers and scatters go through buffers of `gpus` parts as large as it."""
    job = context.job
    ranks, everywhere = 1.0 / np.maximum(state, 1e-12), np.full(len(shares), ZERO3)
    split = StateSplit(sharding=everywhere, dense_ranks=ranks, expert_ranks=ranks, working=gathered_parameters(units))
    sharded = state_bytes(context.model, job, _all_parameters(context, units), split)
    padded = padded_bytes(context.model, job, units, largest_state, gpus)
    activations, logits = activation_bytes(units, shares)
    terms = {
        "weights": sharded.weights,
        "gradients": sharded.gradients,
        "optimizer": sharded.optimizer,
        "activations": activations,
        "logits": logits,
        "buffers": np.broadcast_to(padded, ranks.shape),
    }
    return Footprint(**terms, context=reserved_bytes(job, np.asarray(sum(terms.values()))), in_host=sharded.in_host)


def share_bytes(context: Context, units: Units) -> float:
    """Return the bytes of the whole state, of which each GPU keeps its share."""
    split = StateSplit(sharding=np.full(1, ZERO3))
    state = state_bytes(context.model, context.job, _all_parameters(context, units), split)
    return float((state.weights + state.gradients + state.optimizer)[0])


def padded_bytes(model: Model, job: Job, units: Units, largest_state: Floats, gpus: int) -> Floats:
    """Return the bytes of the buffers through which a unit's weights and gradients go, of `gpus` parts of the largest
    size and of this GPU's own, which is padded too; where all parts are equal, of its own part of the gradients."""
    parts = np.where(largest_state * gpus > 1.0 + EQUAL, gpus + 1.0, 0.0)
    per_gpu = largest_state * float(units.parameters.max())
    weight, gradient = copied_bytes(model, job)
    return np.asarray(per_gpu * (parts * weight + np.maximum(parts, 1.0) * gradient))


def gathered_parameters(units: Units) -> float:
    """Return the most parameters that are gathered at a time: those of a unit and of the next."""
    return float((units.parameters[:-1] + units.parameters[1:]).max())


@record
class Units:
    """For micro-batches of each of `sizes` [M], ascending: forward and backward seconds of each unit and, of these,
    those of core attention [M, U]; bytes that a unit keeps for its backward pass, by state [M, 3, U]; what lives
    while the largest layer runs backward, by state [M, 3], and what one that runs again adds, an activation between
    layers and the logits [M]. `parameters` [U] are those gathered for a unit, `expert` [U] part of them; all
    `adapters` and the weights of a `frozen` tower are kept in shares, too."""

    sizes: Ints
    forward: Floats
    backward: Floats
    core_seconds: Floats
    kept: Floats
    live: Floats
    group: Floats
    boundary: Floats
    logits: Floats
    parameters: Floats
    expert: Floats
    adapters: float
    frozen: float

    @property
    def count(self) -> int:
        return len(self.parameters)

    def at(self, size: Ints) -> tuple[Ints, Bools]:
        """Return the row of each size, and whether it is there."""
        row = np.minimum(np.searchsorted(self.sizes, size), len(self.sizes) - 1)
        return row, np.asarray(self.sizes[row] == size)


def layered_rows(sizes: Sequence[int], gpus: int, *, flash: bool) -> Strategies:
    """Return micro-batches of given sizes on `gpus` GPUs as strategies."""
    fixed = {"dp": gpus, "flash": flash, "first_layers": 1, "last_layers": 1}
    fixed |= {"sharding": ZERO3, "overlap_grad": True, "overlap_param": True}
    return strategies([{**fixed, "micro_batch": size} for size in sizes])


def units_of(context: Context, sizes: Sequence[int], gpus: int, *, flash: bool) -> Units:
    """Return the units on one GPU type for micro-batches of `sizes`, ascending, those left out of which a layer profile
    has no times. Raises SpecError where it has none."""
    rows = layered_rows(sizes, gpus, flash=flash)
    known = context.timed(rows)
    rows = rows.take(np.flatnonzero(known)) if known.any() else rows
    costed = layer_rows(context, rows)
    table = costed.table.take(costed.row)

    def each(running: Floats) -> Floats:
        return np.diff(running, axis=-1)

    return Units(
        sizes=rows.micro_batch,
        forward=each(table.forward),
        backward=each(table.backward),
        core_seconds=each(table.core_seconds),
        kept=each(table.kept),
        live=table.live,
        group=table.group,
        boundary=table.boundary,
        logits=table.before_logits + head_passes(context.model, context.job, rows.micro_batch, rows.cp, rows.tp)[0],
        parameters=each(table.dense)[0] + each(table.expert)[0],
        expert=each(table.expert)[0],
        adapters=float(table.adapters[0, -1] + table.expert_adapters[0, -1]),
        frozen=float(table.frozen[0]),
    )
