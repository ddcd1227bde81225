"""The two shares of every GPU under uneven FSDP, in words."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.plans.plan import Plan, Replica
from shardwright.reports.text import strategy
from shardwright.reports.text.mixed import gpu_words
from shardwright.units import counted


def settings(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the strategy of uneven FSDP in labelled lines."""
    yield "GPUs", f"{plan.gpus}: {gpu_words(plan)}, each with the whole model, layer by layer"
    waves = counted(plan.schedule.waves or 1, "wave")
    yield "batch", f"{plan.job.global_batch} rows in {waves}; in each a layer's weights are gathered once a pass"
    for place, replica in enumerate(plan.replicas):
        yield "shares" if place == 0 else "", shares_words(plan, replica)
    yield from strategy.shared_settings(plan)


def shares_words(plan: Plan, replica: Replica) -> str:
    """Return the shares of one kind of GPU: 4 × A100: 11 rows in 6 micro-batches, 12.5% of the state."""
    stage = replica.stages[0]
    rows = f"{counted(replica.samples(plan.micro_batch), 'row')} in "
    words = rows + counted(replica.micro_batches, "micro-batch")
    words += f", {(replica.state or 0) / (plan.optimizer.parts or 1):.3g} of the state"
    if stage.recompute.granularity != "none":
        count = stage.recompute.layers if stage.recompute.method == "block" else len(plan.model.layers)
        words += f", {count} layers recomputed"
    return f"{replica.count} × {stage.gpu}: {words}"
