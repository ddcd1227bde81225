"""One strategy over the spans of a trace, and what came of it: useful tokens, dollars, and the hours lost to each
cause.

Work is counted in tokens. Training adds to it; a recovery goes back to where its state is from, and what is lost so is
done anew. Snapshots are taken at the interval that costs least (Daly) for how often this trace loses machines, uploads
as often as the link to the object store allows, but no more often than snapshots. An upload has the work of when it
began, and counts once it is whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from shardwright.cost.money import (
    Exposure,
    checkpoint_bytes,
    egress_dollars,
    optimal_interval_seconds,
    stretch,
    together,
)
from shardwright.errors import bad
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.recovery.outlook import FleetChange, Rates, outlook_of
from shardwright.recovery.quorum import Machine, require_machines
from shardwright.recovery.simulation.strategies import NOW, SNAPSHOT, STRATEGIES, Situation, Strategy
from shardwright.recovery.simulation.traces import PresenceSpan, Trace, spans
from shardwright.recovery.ways import RunPlans, Templates
from shardwright.spec.offers import Terms
from shardwright.units import MEGA, SECONDS_PER_HOUR

USEFUL = "useful work"
CAUSES = (USEFUL, "fewer machines", "waiting", "re-forming", "moving state", "work done anew", "snapshots")
ON_DEMAND = "on demand only"


@record
class Saving:
    """The part of the time that snapshots stop training for, the seconds between two snapshots and two uploads, and
    those that an upload takes."""

    stalled: float
    snapshot_seconds: float
    upload_seconds: float
    uploading_seconds: float


@dataclass(kw_only=True)
class _Course:
    """Where a run is: its plan (None: it waits), its machines by seat, tokens done, those in the last snapshot and
    upload, seconds trained since then, dollars of traffic between sites, and what was counted on the way."""

    run: RunPlans
    plan: Plan | None = None
    tokens: float = 0.0
    in_snapshot: float = 0.0
    in_upload: float = 0.0
    since_snapshot: float = 0.0
    since_upload: float = 0.0
    egress: float = 0.0
    changes: list[FleetChange] = field(default_factory=list)
    pauses: list[tuple[str, float]] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    moved: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    rates: list[tuple[float, float]] = field(default_factory=list)
    recoveries: int = 0
    decide_at: float = inf


def simulate(trace: Trace, plan: Plan, *, seed: int = 0, rates: Rates | None = None) -> list[TraceOutcome]:
    """Return what comes of each strategy, and of machines on demand where their price is known. Raises SpecError for a
    plan that is not predicted, or a trace of other GPUs."""
    if plan.prediction is None:
        raise bad("plan", "has no prediction", "use a plan file that a search wrote")
    require_machines(plan)
    present, templates = spans(trace, plan, seed), Templates()
    speed = rates or Rates(link=plan.cluster.pools[0].inter_bytes_per_second)
    saving = saving_of(plan, present, speed)
    outcomes = [replay(strategy, plan, present, templates, speed, saving) for strategy in STRATEGIES]
    reference = on_demand(plan, trace.hours)
    return [*outcomes, reference] if reference else outcomes


def saving_of(plan: Plan, spans: Sequence[PresenceSpan], rates: Rates) -> Saving:
    """Return how often a run on a trace should save. A snapshot stops training while a machine copies its part."""
    part = checkpoint_bytes(plan.model, plan.job) / sum(pool.nodes for pool in plan.cluster.pools)
    seconds = sum(span.length for span in spans)
    rate = max(sum(span.lost > 0 for span in spans), 1) / seconds
    stall = part / rates.memory
    interval = float(optimal_interval_seconds(np.array([rate]), np.array([stall]))[0])
    return Saving(
        stalled=stall / (interval + stall),
        snapshot_seconds=interval + stall,
        upload_seconds=max(part / rates.cloud, interval + stall),
        uploading_seconds=part / rates.cloud,
    )


def replay(
    strategy: Strategy, plan: Plan, spans: Sequence[PresenceSpan], templates: Templates, rates: Rates, saving: Saving
) -> TraceOutcome:
    course = _Course(run=RunPlans(now=plan, seated=(), first=plan))
    before: tuple[Machine, ...] = ()
    for number, span in enumerate(spans):
        if span.machines != before or number == 0:
            came = len({m.name for m in span.machines} - {m.name for m in before})
            there = len(span.machines)
            course.changes.append(FleetChange(seconds=span.seconds, machines=there, lost=span.lost, came=came))
            before, course.decide_at = span.machines, span.seconds
        now, end = span.seconds, span.seconds + span.length
        while course.decide_at < end:
            _trained(course, now, course.decide_at, saving)
            now = course.decide_at
            _decided(course, strategy, span.machines, now, templates, rates)
        _trained(course, now, end, saving)
    prediction, end = plan.predicted, spans[-1].seconds + spans[-1].length
    hours = {cause: course.seconds[cause] / SECONDS_PER_HOUR for cause in CAUSES}
    hours[USEFUL] = course.tokens / prediction.tokens_per_second / SECONDS_PER_HOUR
    return TraceOutcome(
        strategy=strategy.name,
        tokens=course.tokens,
        dollars=course.egress + sum(span.dollars_per_hour * span.length for span in spans) / SECONDS_PER_HOUR,
        hours=hours,
        losses=sum(span.lost for span in spans),
        recoveries=course.recoveries,
        moved_bytes=dict(course.moved),
        rates=(*course.rates, (end, 0.0)),
    )


def _decided(
    course: _Course, strategy: Strategy, machines: tuple[Machine, ...], now: float, templates: Templates, rates: Rates
) -> None:
    situation = Situation(
        run=course.run,
        machines=machines,
        outlook=outlook_of(course.changes, sum(pool.nodes for pool in course.run.first.cluster.pools), now),
        templates=templates,
        rates=rates,
    )
    choice = strategy.decide(situation)
    chosen = choice.plan
    course.decide_at = now + choice.again_seconds if chosen is None else inf
    used = {machine.name for machine in situation.used}
    if chosen is not None and chosen == course.plan and used <= {machine.name for machine in machines}:
        return  # a machine more that the plan has no use for
    course.plan, course.pauses = chosen, []
    if chosen is None:
        return
    done = strategy.recover(situation, chosen)
    _gone_back(course, done.since)
    course.run = replace(course.run, now=chosen, seated=done.seated)
    for source, size in done.moved_bytes.items():
        course.moved[source] += size
    course.recoveries += 1
    course.pauses = [("re-forming", done.reform_seconds), ("moving state", done.move_seconds)]


def _gone_back(course: _Course, since: str) -> None:
    """Go on from where the state is from: what was done after it is lost."""
    if since == NOW:
        return
    point = course.in_snapshot if since == SNAPSHOT else course.in_upload
    prediction = course.run.first.predicted
    course.seconds["work done anew"] += (course.tokens - point) / prediction.tokens_per_second
    course.tokens = course.in_snapshot = point
    course.since_snapshot = 0.0
    if since != SNAPSHOT:
        course.since_upload = 0.0


def _trained(course: _Course, begin: float, end: float, saving: Saving) -> None:
    """Train from `begin` to `end` for what pauses leave of it."""
    first, plan = course.run.first.prediction, course.plan
    if end <= begin:
        return
    if plan is None or plan.prediction is None or first is None:
        course.seconds["waiting"] += end - begin
        course.rates.append((begin, 0.0))
        return
    left = _paused(course, end - begin)
    share = plan.prediction.tokens_per_second / first.tokens_per_second
    course.rates += [(begin, 0.0), (end - left, plan.prediction.tokens_per_second)]
    course.seconds["snapshots"] += left * share * saving.stalled
    course.seconds["fewer machines"] += left * (1.0 - share)
    rate = plan.prediction.tokens_per_second * (1.0 - saving.stalled)
    course.tokens += rate * left
    course.egress += egress_dollars(plan) * rate * left / plan.job.tokens_per_iteration
    course.since_snapshot += left
    course.since_upload += left
    if course.since_snapshot >= saving.snapshot_seconds:
        course.since_snapshot %= saving.snapshot_seconds
        course.in_snapshot = course.tokens - rate * course.since_snapshot
    if course.since_upload >= saving.upload_seconds:
        course.since_upload %= saving.upload_seconds
        began = course.tokens - rate * (course.since_upload + saving.uploading_seconds)
        course.in_upload = max(course.in_upload, began)


def _paused(course: _Course, seconds: float) -> float:
    """Pause for what is left of the pauses, and return what that leaves of so many seconds."""
    rest = []
    for cause, wanted in course.pauses:
        taken = min(wanted, seconds)
        course.seconds[cause] += taken
        seconds -= taken
        rest.append((cause, wanted - taken))
    course.pauses = rest
    return seconds


@record
class TraceOutcome:
    """One strategy on one trace. `hours` has all of them by cause: an hour of useful work is one at the first plan's
    speed, and what a slower plan trains less is lost to fewer machines. `rates` are the tokens per second from which
    second on."""

    strategy: str
    tokens: float
    dollars: float
    hours: Mapping[str, float]
    losses: int
    recoveries: int
    moved_bytes: Mapping[str, float]
    rates: tuple[tuple[float, float], ...]

    @property
    def dollars_per_million_tokens(self) -> float:
        return self.dollars / self.tokens * MEGA if self.tokens else float("inf")


def on_demand(plan: Plan, hours: float) -> TraceOutcome | None:
    """Return what a run of so many hours on machines that nobody takes back comes to: failures alone lengthen it. None
    where a price is not known."""
    prediction, used = plan.prediction, plan.cluster.pools
    prices = [pool.price.on_demand_per_hour if pool.price else None for pool in used]
    if prediction is None or any(price is None for price in prices):
        return None
    machines, gpus = np.array([[pool.nodes for pool in used]]), np.array([pool.gpus_per_node for pool in used])
    exposed: Exposure = together(plan.model, plan.job, Terms(), machines, gpus, np.zeros(len(used)))
    useful = hours / float(stretch(exposed).factor[0])
    per_hour = sum(pool.nodes * (price or 0.0) for pool, price in zip(used, prices, strict=True))
    per_hour += egress_dollars(plan) * SECONDS_PER_HOUR / prediction.iteration_seconds
    rate = prediction.tokens_per_second
    return TraceOutcome(
        strategy=ON_DEMAND,
        tokens=useful * SECONDS_PER_HOUR * rate,
        dollars=per_hour * hours,
        hours=dict.fromkeys(CAUSES, 0.0) | {USEFUL: useful, "work done anew": hours - useful},
        losses=0,
        recoveries=0,
        moved_bytes={},
        rates=((0.0, rate), (hours * SECONDS_PER_HOUR, 0.0)),
    )
