"""What pins and rules leave of the plans that mix GPU types, and what of them no such plan can obey."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.strategies import UNSHARDED, ZERO1, stage_rows, strategies
from shardwright.plans.findings import Lack, Lacking
from shardwright.plans.plan import Plan
from shardwright.plans.trainer_options import beyond_own
from shardwright.search.mixed.tables.settings import Setting, rows_of
from shardwright.search.rules.filters import Filters, rules_as_pins, strategy_columns
from shardwright.search.space.axes import Space, pin_words
from shardwright.search.space.parameters import AXIS_OF
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import machines_used

# What all plans of the search have, whatever runs them; what unequal ones have, too; and what `shardwright train` does
# not run otherwise.
ALWAYS = {"vpp": 1, "overlap_pp": 0, "zero_bubble": 0}
UNEQUAL = {"cp": 1, "ep": 1}
BY_TRAIN = {"flash": 1, "overlap_tp": 0}
LACKS = {
    "cp": Lack.CONTEXT_PARALLEL,
    "ep": Lack.EXPERT_PARALLEL,
    "vpp": Lack.VIRTUAL_STAGES,
    "overlap_pp": Lack.OVERLAPPED_MESSAGES,
    "zero_bubble": Lack.ZERO_BUBBLE,
    "flash": Lack.PLAIN_ATTENTION,
    "overlap_tp": Lack.OVERLAPPED_TENSOR_PARALLEL,
    "sharding": Lack.MORE_SHARDING,
}
# Variables of rules that a setting decides.
SETTING_VARIABLES = frozenset(
    {
        "tensor_model_parallel_size",
        "micro_batch_size",
        "sequence_parallel",
        "tp_comm_overlap",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "virtual_stages",
        "use_flash_attn",
        "overlap_p2p_comm",
        "zero_bubble",
        "optimizer_offload_fraction",
    }
)
# Axes that drafts decide, or the number of replicas; settings keep the pins of the others.
PLAN_AXES = (
    *("pp", "dp", "rank_order", "first_layers", "last_layers", "recompute"),
    *("sharding", "offload", "overlap_grad", "overlap_param", "overlap_tp"),
)


def narrowed(contexts: Sequence[Context], space: Space, filters: Filters) -> tuple[Space, Filters]:
    """Return the space with the rules that speak of one axis as pins, and the rules that are left."""
    gpus, layers = sum(context.pool.gpus for context in contexts), len(contexts[0].model.layers)
    counts = {axis: range(1, gpus + 1) for axis in ("tp", "cp", "dp", "ep", "etp", "gpus")}
    counts |= {axis: range(1, layers + 1) for axis in ("pp", "vpp")}
    counts |= {axis: range(layers + 1) for axis in ("first_layers", "last_layers")}
    return rules_as_pins(contexts, space, filters, counts)


def lacking(contexts: Sequence[Context], space: Space, filters: Filters, *, one_mesh: bool) -> tuple[Lacking, ...]:
    """Return the pins and rules that leave no plan that mixes GPU types; nothing if there may be some. Those of
    `one_mesh` are run by the job's framework, all others by `shardwright train`."""
    job = contexts[0].job
    by_others = one_mesh and job.framework != OWN
    fixed = ALWAYS | ({} if one_mesh else UNEQUAL) | ({} if by_others else BY_TRAIN)
    options = () if one_mesh else tuple(Lacking(Lack.TRAINER_OPTION, word) for word in beyond_own(job))
    return (*_pins(space, fixed), *_rules(contexts, filters, fixed), *options)


def _pins(space: Space, fixed: Mapping[str, int]) -> Iterator[Lacking]:
    for axis, values in space.pins.items():
        known = (UNSHARDED, ZERO1) if axis == "sharding" else (fixed[axis],) if axis in fixed else values
        if values and not set(known) & set(values):
            yield Lacking(LACKS[axis], pin_words(axis, values))


def _rules(contexts: Sequence[Context], filters: Filters, fixed: Mapping[str, int]) -> Iterator[Lacking]:
    columns = strategy_columns(contexts[0], strategies([fixed]))
    for rule in filters.rules:
        axes = {AXIS_OF.get(name, name) for name in rule.variables}
        if axes <= fixed.keys() and rule.holds(columns).all():
            yield Lacking(LACKS[min(axes)], f"rule {rule.name}")


def unruled(chosen: Sequence[Setting], contexts: Sequence[Context], filters: Filters) -> list[Setting]:
    """Return the settings without those that rules drop on every GPU type, whatever the plan."""
    rules = tuple(rule for rule in filters.rules if SETTING_VARIABLES.issuperset(rule.variables))
    if not rules or not chosen:
        return list(chosen)
    of_settings, model = Filters(rules=rules), contexts[0].model
    dropped = [
        of_settings.mask(context, rows_of([setting.on(place) for setting in chosen], model, stages=1, copies=1))
        for place, context in enumerate(contexts)
    ]
    return [setting for setting, gone in zip(chosen, np.all(dropped, axis=0).tolist(), strict=True) if not gone]


def keeps_pins(plan: Plan, space: Space) -> bool:
    """Return whether a plan has what is pinned of whole plans; settings have the rest."""
    pins = [(axis, space.pins[axis]) for axis in PLAN_AXES if axis in space.pins]
    rows = [stage_rows(plan, replica) for replica in plan.replicas] if pins else []
    numbers = {row for replica in plan.replicas for stage in replica.stages if (row := stage.recompute.layers)}
    return (
        plan.gpus in space.pins.get("gpus", (plan.gpus,))
        and numbers <= set(space.pins.get("recompute_layers", numbers))
        and all(bool(np.isin(getattr(row, axis), values).all()) for axis, values in pins for row in rows)
    )


def dropped(plan: Plan, contexts: Sequence[Context], filters: Filters) -> bool:
    """Return whether a rule drops any stage of a plan."""
    if not filters.rules:
        return False
    of, gpus = {context.pool.gpu.name: context for context in contexts}, plan.gpus_by_type
    nodes = sum(count for _, count in machines_used(plan.cluster, gpus))
    counts = {"num_gpus": plan.gpus, "num_nodes": nodes}
    for replica in plan.replicas:
        rows, of_plan = stage_rows(plan, replica), counts | {"num_micro_batches": replica.micro_batches}
        for place, stage in enumerate(replica.stages):
            if np.any(filters.mask(of[stage.gpu], rows.take(slice(place, place + 1)), of_plan)):
                return True
    return False
