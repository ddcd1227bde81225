"""What must be the same on all machines of a run, and when it goes on: its model, its batch, its seed. No PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.plans.plan import Plan
from shardwright.runtime.job.settings import Settings
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.recovery.inventory import Kinds, Shapes
from shardwright.runtime.recovery.options import KeeperOptions
from shardwright.runtime.state.holdings import parameter_shapes, state_kinds
from shardwright.runtime.storage.manifest import hash_of
from shardwright.runtime.storage.model_hash import model_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """A run: its name, which is a hash of all that its state depends on beside the step, the kinds of its state, and
    the shapes of its parameters."""

    name: str
    settings: Mapping[str, Any]
    kinds: Kinds
    shapes: Shapes


def run_of(options: KeeperOptions) -> RunIdentity:
    """Return the run that a keeper takes part in."""
    told, layout = settings_of(options.plan, options.settings), layout_of(options.plan)
    return RunIdentity(
        name=hash_of(json.dumps(told, sort_keys=True).encode())[:16],
        settings=told,
        kinds=state_kinds(layout, options.settings.recipe.method),
        shapes=parameter_shapes(layout),
    )


def settings_of(plan: Plan, settings: Settings) -> dict[str, Any]:
    """Return what a run must go on with: it may have another plan, but not another course."""
    recipe = settings.recipe
    return {
        "model": model_hash(plan.model),
        "global_batch": plan.job.global_batch,
        "seq_len": plan.job.seq_len,
        "precision": settings.precision,
        "seed": settings.seed,
        "optimizer": recipe.method,
        "learning_rate": recipe.learning_rate,
        **({"mask_documents": True} if settings.mask_documents else {}),
    }
