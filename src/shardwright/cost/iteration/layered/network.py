"""Gathers and scatters of uneven shards among all GPUs, and the update of every GPU's part of the state.

The runtime pads: every rank sends a part as large as the largest, so a gather of P parameters among n GPUs, of which
the largest keeps a share s, moves n·s·P. With equal shares that is P.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.layered.shares import Units, ends_total, layered_rows, state_total
from shardwright.cost.iteration.links import Contexts, agreement_delay, holder_links, ring_delays
from shardwright.cost.iteration.orthogonalisation import layered_orthogonalisation_seconds
from shardwright.cost.iteration.places import places_of
from shardwright.cost.iteration.step import norm_seconds, update_seconds
from shardwright.cost.memory.sizes import trained_share
from shardwright.cost.network.collectives import Fabric, Group, gather_seconds
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.spec.job import Job
from shardwright.spec.model import Model


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
