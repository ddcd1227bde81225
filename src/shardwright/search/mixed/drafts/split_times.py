"""What the stages of given pipelines take: seconds, recomputation and memory, for many layer splits at once."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Bools, Columns, Floats, Ints, distinct
from shardwright.cost.frameworks.overheads import BACKWARD_LAUNCHES, launched_seconds
from shardwright.cost.network.collectives import Fabric, Group, gather_seconds
from shardwright.cost.pipeline.in_flight import in_flight
from shardwright.cost.pipeline.schedule import one_f_one_b
from shardwright.cost.pipeline.simulate import simulate
from shardwright.cost.stage.exact import fitting_recomputation, left_over, of_stages
from shardwright.records import record
from shardwright.search.mixed.tables.columns import Table


@record
class SplitTimes(Columns):
    """N splits of a pipeline of P stages, [N, P] each: seconds of a micro-batch (`own_backward` without recomputation),
    the recomputation (code and layers) that fits and is fastest, weights held, `dense` ones and those of an `expert`,
    seconds that Muon's products take one copy, and whether all of a split fits."""

    forward: Floats
    backward: Floats
    own_backward: Floats
    recompute: Ints
    recompute_layers: Ints
    dense: Floats
    expert: Floats
    orthogonal: Floats
    fits: Bools

    @property
    def weights(self) -> Floats:
        """Dense weights and experts', [2, N, P]."""
        return np.stack([self.dense, self.expert])


def stages(
    table: Table, kinds: Ints, starts: Ints, *, micro_batches: int, copies: int, modes: tuple[int, ...]
) -> SplitTimes:
    """Return the stages of splits `starts` [N, P + 1] on types `kinds`, [P] or [N, P]."""
    shape = starts.shape[0], starts.shape[1] - 1
    flight = in_flight(shape[1], 1, micro_batches, np.arange(shape[1]))
    lone = lone_stages(
        table,
        np.broadcast_to(kinds, shape).ravel(),
        starts[:, :-1].ravel(),
        starts[:, 1:].ravel(),
        np.broadcast_to(flight, shape).ravel(),
        staged=shape[1] > 1,
        copies=copies,
        modes=modes,
    )
    columns = {name: getattr(lone, name).reshape(shape) for name in SplitTimes.__dataclass_fields__}
    return SplitTimes(**columns | {"fits": columns["fits"].all(axis=1)})


def lone_stages(
    table: Table,
    kinds: Ints,
    begin: Ints,
    end: Ints,
    flight: Ints,
    *,
    staged: bool,
    copies: int,
    modes: tuple[int, ...],
) -> SplitTimes:
    """Return stages of whatever pipelines, [R] each: on types `kinds`, with layers `begin` to `end` and `flight`
    micro-batches in flight; `staged` says that each has neighbours."""
    of, last = of_stages(kinds, begin, end, table.layers)
    per_pass = table.each[kinds]
    host = (end - begin) * (table.host[kinds] if staged else 0.0)
    forward = launched_seconds(of.total(table.forward), host)
    dense, expert, ends = of.total(table.dense), of.total(table.expert), of.total(table.ends)
    if not staged:
        dense, ends = (held - table.tied_parameters[kinds] for held in (dense, ends))
    else:
        dense, ends = (held + last * table.again_parameters[kinds] for held in (dense, ends))
    weights = np.stack([dense, expert])

    at_end = staged * ((begin == 0) | last)

    def left(room: Floats, kept: tuple[Floats, Floats], elsewhere: Floats) -> Floats:
        per_weight, more = kept
        held = (per_weight[:, kinds] * weights).sum(axis=0) + more[kinds] * ends
        return np.asarray(room - (held - at_end * elsewhere[kinds]))

    on_gpu, in_host = table.elsewhere_bytes(copies)
    room = left(table.rooms(staged=staged)[kinds], table.kept_bytes(copies), on_gpu)
    room = room - np.where(begin == 0, table.frozen_bytes[kinds], 0.0) - np.where(last, table.output_bytes[kinds], 0.0)
    host_room = left(table.host_room[kinds], table.host_bytes(copies), in_host)
    logits = np.where(last, table.logit_bytes[kinds], 0.0)
    first = np.where(begin == 0, table.embedding_bytes[kinds], 0.0)
    bare = (table.copy_bytes(copies)[:, kinds] * weights).sum(axis=0)
    again, code, count = fitting_recomputation(
        table, of, logits, flight, room, host_room, modes, alone=table.alone, first=first, bare=bare
    )
    fits = np.isfinite(again)
    again = np.where(fits, again, 0.0)
    backward = launched_seconds(of.total(table.backward) + again, BACKWARD_LAUNCHES * host) + per_pass
    return SplitTimes(
        forward=forward + per_pass,
        backward=backward,
        own_backward=backward - again,
        recompute=code,
        recompute_layers=count,
        dense=dense,
        expert=expert,
        orthogonal=of.total(table.orthogonal),
        fits=fits,
    )


def pipeline_seconds(times: SplitTimes, moves: Floats, micro_batches: int) -> Floats:
    """Return the exact seconds of all micro-batches through each split, [N]; messages, [P - 1] or [N, P - 1],
    block their senders."""
    depth = times.forward.shape[1]
    if depth == 1:
        return np.asarray(micro_batches * (times.forward + times.backward)[:, 0])
    order = one_f_one_b(depth, micro_batches)
    waits = np.broadcast_to(moves, (len(times.forward), depth - 1))
    return simulate(order, times.forward, times.backward, waits, blocking=True).makespan_seconds


def update_seconds(table: Table, kinds: Ints, times: SplitTimes, copies: int) -> Floats:
    """Return the seconds of the optimizer step of each stage, [N, P]."""
    dense, expert = table.updates(copies)
    return np.asarray(times.dense * dense[kinds] + times.expert * expert[kinds] + times.orthogonal / copies)


def after_seconds(table: Table, kinds: Ints, times: SplitTimes, copies: int, slowest: int | None) -> Floats:
    """Return an estimate of what gradients, weights and the optimizer add after the pipeline, [N], where the stages are
    on types `kinds`, [P] or [N, P]: the links of the type `slowest` join all copies of a stage (None: those of its own
    type), as many in a domain as can be."""
    update = update_seconds(table, kinds, times, copies).max(axis=1)
    update = update + table.tied_between(kinds, kinds.shape[-1])
    if copies == 1 and (table.holders <= 1.0).all():
        return np.asarray(update)
    once, places = np.zeros_like(times.dense), np.broadcast_to(kinds, times.dense.shape)
    for kind in distinct(kinds):
        here = places == kind
        links = table.links_seen(kind, () if slowest is None else (slowest,))
        groups = table.unit[kind].groups(np.array(copies), np.array(min(int(table.local[kind]), copies)))
        once[here] = weights_gather_seconds(links, groups, times.weights[:, here])
    reduce, gather = tails(table, times, once)
    return np.asarray(reduce.max(axis=1) + gather.max(axis=1) + update)


def weights_gather_seconds(links: Fabric, groups: tuple[Group, Group], weights: Floats) -> Floats:
    """Return the seconds to gather a byte of dense weights and of experts', [2, …], each in its `groups`, [...]."""
    seconds, experts = gather_seconds(links, groups[0], weights[0]), weights[1] > 0.0
    if experts.any():
        seconds = seconds + np.where(experts, gather_seconds(links, groups[1], weights[1]), 0.0)
    return seconds


def tails(table: Table, times: SplitTimes, once: Floats) -> tuple[Floats, Floats]:
    """Return what reducing gradients and gathering weights leave after the pipeline at each stage, [N, P], where a byte
    of each of its parameters is gathered in `once` seconds [N, P]."""
    return (
        left_over(table.reduced_bytes * once, times.own_backward, table.reduced_beside, times.own_backward),
        left_over(table.gathered_bytes * once, times.forward, table.gathered_beside, times.forward),
    )
