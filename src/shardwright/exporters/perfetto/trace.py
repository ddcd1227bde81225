"""A plan's iteration as a trace, which https://ui.perfetto.dev and chrome://tracing open: the predicted one, a process
for each kind of replica and a thread for each stage, and beside it a measured one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.timeline import TimelineEvent, events
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError
from shardwright.exporters.exported import Exported
from shardwright.exporters.perfetto.format import FORMAT, MICROSECONDS, complete, named, ordered, trace_text
from shardwright.exporters.perfetto.measured import RankTrace, measured_events
from shardwright.plans.check import check
from shardwright.plans.plan import Plan

PASS = ("micro_batch", "virtual_stage", "unit", "wave")  # the first that an event has is in its name
NAMES = {"communicate": "communication inside the pass", "synchronise": "gradients and weights between replicas"}


def export_trace(plan: Plan, efficiency: Efficiency | None = None) -> Exported:
    """Return the trace of one predicted iteration of a plan. Raises SpecError where the plan is not legal."""
    if problems := check(plan):
        raise SpecError(*problems)
    found = mixed_iteration(plan, efficiency or default_efficiency())
    about = {"model": plan.model.name, "iteration_seconds": found.seconds}
    text, document = trace_text(about, [*_names(plan), *_events(events(plan, found))])
    return Exported(target="perfetto", version=FORMAT, files={"trace.json": text}, document={"trace": document})


def measured_trace(plan: Plan, ranks: Sequence[RankTrace], efficiency: Efficiency | None = None) -> str:
    """Return the trace of a measured step as text, with the predicted one beside it unless a GPU of the plan is one of
    which nothing is known without a profile."""
    try:
        found = mixed_iteration(plan, efficiency or default_efficiency())
    except SpecError:
        predicted: list[dict[str, object]] = []
    else:
        predicted = [*_names(plan), *_events(events(plan, found))]
    return trace_text({"model": plan.model.name}, [*predicted, *measured_events(ranks)])[0]


def _names(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield what processes and threads are called."""
    for number, replica in enumerate(plan.replicas):
        yield named("process", number, f"predicted: replica {number + 1} ({replica.count} ×)")
        for place, stage in enumerate(replica.stages):
            words = f"stage {place}: {stage.gpus} {stage.gpu}, {stage.layer_count} layers"
            yield named("thread", number, words, thread=place)
            yield ordered("thread", number, place, thread=place)


def _events(found: Iterable[TimelineEvent]) -> Iterator[dict[str, object]]:
    for each in found:
        of_pass = {name: getattr(each, name) for name in PASS if getattr(each, name) >= 0}
        name = " ".join([NAMES.get(each.kind, each.kind), *map(str, [*of_pass.values()][:1])])
        start, length = each.start_seconds * MICROSECONDS, (each.end_seconds - each.start_seconds) * MICROSECONDS
        yield complete(each.replica, each.stage, name, each.kind, start, length, of_pass)
