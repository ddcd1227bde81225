"""A plan's predicted iteration as a trace in the Chrome trace format, which https://ui.perfetto.dev and chrome://tracing
open: a process for each kind of replica, a thread for each stage.

The format: "Trace Event Format" (Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
Complete events ("X") have start and length in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from shardwright.cost.compute.efficiency import Efficiency
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.iteration.timeline import Event, events
from shardwright.cost.learned import default_efficiency
from shardwright.errors import SpecError
from shardwright.exporters.exported import Exported
from shardwright.plans.check import check
from shardwright.plans.plan import Plan

FORMAT = "Chrome trace event format"
NAMES = {"synchronise": "gradients and weights between replicas"}
MICROSECONDS = 1e6
DIGITS = 3  # of a microsecond


def export_trace(plan: Plan, efficiency: Efficiency | None = None) -> Exported:
    """Return the trace of one predicted iteration of a plan. Raises SpecError where the plan is not legal."""
    if problems := check(plan):
        raise SpecError(*problems)
    found = mixed_iteration(plan, efficiency or default_efficiency())
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"model": plan.model.name, "iteration_seconds": found.seconds},
        "traceEvents": [*_names(plan), *_events(events(plan, found))],
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    return Exported(target="perfetto", version=FORMAT, files={"trace.json": text}, document={"trace": document})


def _names(plan: Plan) -> Iterator[dict[str, object]]:
    """Yield what processes and threads are called."""
    for number, replica in enumerate(plan.replicas):
        words = f"predicted: replica {number + 1} ({replica.count} ×)"
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": words}}
        for place, stage in enumerate(replica.stages):
            name = f"stage {place}: {stage.gpus} {stage.gpu}, {stage.layer_count} layers"
            yield {"ph": "M", "pid": number, "tid": place, "name": "thread_name", "args": {"name": name}}
            yield {"ph": "M", "pid": number, "tid": place, "name": "thread_sort_index", "args": {"sort_index": place}}


def _events(found: Iterable[Event]) -> Iterator[dict[str, object]]:
    for each in found:
        of_pass = {} if each.micro_batch < 0 else {"micro_batch": each.micro_batch, "virtual_stage": each.virtual_stage}
        yield {
            "ph": "X",
            "pid": each.replica,
            "tid": each.stage,
            "name": NAMES.get(each.kind, each.kind) + (f" {each.micro_batch}" if of_pass else ""),
            "cat": each.kind,
            "ts": round(each.start_seconds * MICROSECONDS, DIGITS),
            "dur": round((each.end_seconds - each.start_seconds) * MICROSECONDS, DIGITS),
            "args": of_pass,
        }
