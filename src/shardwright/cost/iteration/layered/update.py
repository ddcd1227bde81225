"""The update of a layered plan: every GPU updates its part of the state."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.context import Context
from shardwright.cost.iteration.layered.network import Everyone
from shardwright.cost.iteration.layered.shares import ends_total, state_total
from shardwright.cost.iteration.layered.units import Units
from shardwright.cost.iteration.orthogonalisation import layered_orthogonalisation_seconds
from shardwright.cost.iteration.step import update_seconds


def updating_seconds(
    context: Context, units: Units, everyone: Everyone, state: Floats, largest_state: Floats
) -> Floats:
    """Return the seconds of the update on GPUs with `state` [N] of the state, where the largest of all parts is
    `largest_state` [N]: of all its weights, and of Muon's steps, of which embedding and head have none."""
    total, expert = state_total(context, units), float(units.expert.sum())
    dense = total - ends_total(context, units) - expert
    turned = layered_orthogonalisation_seconds(context, everyone.links, everyone.gpus, dense, expert, largest_state)
    return np.asarray(update_seconds(context, state * total) + turned)
