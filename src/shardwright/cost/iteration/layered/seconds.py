"""The time of a layered iteration, and when each GPU runs each unit.

At each unit u all GPUs wait for its gathered weights, so the slowest one sets the pace, C_u = max_i c_iu. While unit u
computes, the weights of the next one are gathered (g) and, backward, the gradients of the one before are scattered (s):

    T = g_0 + Σ_u φ(C_u, g_{u+1})  +  Σ_u φ(C'_u, g_{u-1} + s_{u+1})  +  s_0  +  max_i optimizer_i + T_norm

    φ(C, x) = max(C, x) + δ min(C, x)        δ: what computation loses beside communication (OVERLAP_SLOWDOWN)

The head's forward and backward passes are one. Without overlap φ(C, x) = C + x. Columns are [N, U].

The runtime pads: every rank sends a part as large as the largest, so a gather of P parameters among n GPUs, of which
the largest keeps a share s, moves n·s·P. With equal shares that is P.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.layered.shares import Passes, Units, ends_total, layered_rows, state_total
from shardwright.cost.iteration.links import Contexts, agreement_delay, holder_links, ring_delays
from shardwright.cost.iteration.orthogonalisation import layered_orthogonalisation_seconds
from shardwright.cost.iteration.places import places_of
from shardwright.cost.iteration.replica_time import UnitPasses
from shardwright.cost.iteration.step import norm_seconds, update_seconds
from shardwright.cost.memory.sizes import trained_share
from shardwright.cost.network.collectives import Fabric, Group, exposed_seconds, gather_seconds
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model


@record
class Slots:
    """The slots of an iteration in order: forward passes of all units but the head, those of the head both ways, and
    backward passes. Seconds of computing and of the communication beside it, [N, 2 U - 1] each, and of what nothing
    hides, [N]."""

    compute: Floats
    traffic: Floats
    alone: Floats


def slots(forward: Floats, backward: Floats, gather: Floats, scatter: Floats) -> Slots:
    """Return the slots where the slowest GPU takes `forward` and `backward` at each unit. The head's weights are there
    when its backward pass begins."""
    head = forward[:, -1:] + backward[:, -1:]
    back, before, after = (values[:, ::-1] for values in (backward[:, :-1], gather[:, :-1], scatter[:, 1:]))
    none = np.zeros_like(gather[:, :1])
    return Slots(
        compute=np.concatenate([forward[:, :-1], head, back], axis=1),
        traffic=np.concatenate([gather[:, 1:], before[:, :1], np.concatenate([before[:, 1:], none], 1) + after], 1),
        alone=gather[:, 0] + scatter[:, 0],
    )


def slot_seconds(slots: Slots, *, overlap: bool = True) -> Floats:
    """Return the seconds of each slot, φ(C, x), [N, 2 U - 1]."""
    hidden = slots.traffic
    if overlap:
        hidden = exposed_seconds(slots.traffic, slots.compute)
    return np.asarray(slots.compute + hidden)


def pass_seconds(slots: Slots, *, overlap: bool = True) -> Floats:
    """Return the seconds of all passes, [N]."""
    return np.asarray(slot_seconds(slots, overlap=overlap).sum(axis=1) + slots.alone)


def unit_passes(
    waves: Sequence[Sequence[Passes]], moved: tuple[Floats, Floats], *, overlap: bool
) -> tuple[UnitPasses, ...]:
    """Return the passes of GPUs of each kind; `waves` has what each kind computes in each wave, `moved` gathers and
    scatters of each unit, [1, U]. A pass begins when the unit's weights are there and ends when the GPU has computed;
    then it waits for the slowest."""
    columns: list[list[tuple[Floats, ...]]] = [[] for _ in waves[0]]
    begin = 0.0
    for wave, taken in enumerate(waves):
        forward, backward = (
            np.max([getattr(part, name) for part in taken], axis=0) for name in ("forward", "backward")
        )
        unit_slots = slots(forward, backward, *moved)
        lengths = slot_seconds(unit_slots, overlap=overlap)[0]
        starts = begin + moved[0][0, 0] + np.cumsum(lengths) - lengths
        for part, kind in zip(taken, columns, strict=True):
            kind.append(_wave(part, starts, wave))
        begin += float(pass_seconds(unit_slots, overlap=overlap)[0])
    return tuple(UnitPasses(*(np.concatenate(parts) for parts in zip(*kind, strict=True))) for kind in columns)


def _wave(passes: Passes, starts: Floats, wave: int) -> tuple[Floats, ...]:
    """Return unit, wave, whether it is a backward pass, start, end and what is computed again, for each pass in order:
    forward up to the head, whose backward pass follows at once, and back."""
    units = passes.forward.shape[1]
    up, down = np.arange(units), np.arange(units)[::-1]
    unit, backward = np.concatenate([up, down]), np.repeat([False, True], units)
    begin = np.concatenate([starts[:units], starts[units - 1 :]])
    begin[units] += passes.forward[0, -1]
    seconds = np.concatenate([passes.forward[0], passes.backward[0, ::-1]])
    again = np.concatenate([np.zeros(units), passes.recompute[0, ::-1]])
    return unit, np.full(2 * units, wave), backward, begin, begin + seconds, again


@record
class Everyone:
    """All GPUs of a plan as one group: its links as each GPU type finds them, what each collective waits for links
    between sites, and the seconds of the gradient norm."""

    gpus: int
    links: tuple[tuple[Fabric, Group], ...]
    delay_seconds: float
    norm_seconds: float


def everyone_of(plan: Plan, contexts: Contexts) -> Everyone:
    """Return the group of all GPUs of a plan whose replicas are single GPUs."""
    rows = layered_rows([1], plan.gpus, flash=plan.flash_attention)
    norm = max(float(norm_seconds(contexts[name], rows)[0]) for name in plan.gpus_by_type)
    places = places_of(plan)
    return Everyone(
        gpus=plan.gpus,
        links=holder_links(plan, places, contexts),
        delay_seconds=float(ring_delays(plan, places).max()),
        norm_seconds=norm + agreement_delay(plan, places),
    )


def moved_seconds(
    everyone: Everyone, model: Model, job: Job, parameters: Floats, largest_state: Floats
) -> tuple[Floats, Floats]:
    """Return the seconds of gathering each unit's weights and of scattering its gradients, [N, U], where the largest
    shares of the state are `largest_state` [N]."""
    padded = np.maximum(largest_state[:, None] * everyone.gpus, 1.0) * parameters[None, :]
    widths = widths_of(job)
    return (
        _slowest(everyone, widths.weight_gather * padded),
        _slowest(everyone, widths.gradient_reduction * trained_share(model, job) * padded),
    )


def _slowest(everyone: Everyone, size_bytes: Floats) -> Floats:
    slowest = np.max([gather_seconds(links, group, size_bytes) for links, group in everyone.links], axis=0)
    return np.asarray(slowest + everyone.delay_seconds)


def updating_seconds(
    context: Context, units: Units, everyone: Everyone, state: Floats, largest_state: Floats
) -> Floats:
    """Return the seconds of the update on GPUs with `state` [N] of the state, where the largest of all parts is
    `largest_state` [N]: of all its weights, and of Muon's steps, of which embedding and head have none."""
    total, expert = state_total(context, units), float(units.expert.sum())
    dense = total - ends_total(context, units) - expert
    turned = layered_orthogonalisation_seconds(context, everyone.links, everyone.gpus, dense, expert, largest_state)
    return np.asarray(update_seconds(context, state * total) + turned)
