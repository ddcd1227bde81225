"""What a run does when machines come and go: local state first, and what that is compared with.

* `local first`: decides as a run of `shardwright train --elastic` does (`ways.choose`), and reads what survives from
  memory, its own and that of others.
* `reload from the cloud`: a new plan at every change, all of its state read from the object store, work since the last
  upload done anew, as Varuna (Athlur et al., EuroSys '22) does.
* `restart without a new plan`: waits until the first plan's machines are there again, and then reloads too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwright.plans.plan import Plan
from shardwright.recovery.outlook import Outlook
from shardwright.recovery.quorum import Machine
from shardwright.recovery.rates import Rates
from shardwright.recovery.seats import fits, seated
from shardwright.recovery.simulation.shards import from_cloud, kept_bytes, moved, survival
from shardwright.recovery.ways import REFORM_SECONDS, NextPlan, RunPlans, Templates, choose, template_of

NOW, SNAPSHOT, UPLOAD = "now", "the last snapshot", "the last upload"
"""From which point of the work a recovery goes on."""
RESTART_SECONDS = 33.0
"""torchrun's own restart with its defaults, as measured with torch 2.13 on CPUs; the start of CUDA is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A run with its machines before, those that are there now, what is expected of them, and how fast bytes move."""

    run: RunPlans
    machines: tuple[Machine, ...]
    outlook: Outlook
    templates: Templates
    rates: Rates

    @property
    def used(self) -> tuple[Machine, ...]:
        """The machines that the plan before had ranks on."""
        return self.run.seated[: sum(pool.nodes for pool in self.run.now.cluster.pools)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """How a run goes on: the machines in the order of their seats, from which point, after how long, having moved which
    bytes."""

    seated: tuple[Machine, ...]
    since: str
    reform_seconds: float
    move_seconds: float
    moved_bytes: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """`decide` returns the plan to go on with, None to wait; `recover` how the run comes there."""

    name: str
    decide: Callable[[Situation], NextPlan]
    recover: Callable[[Situation, Plan], Recovered]


def cheapest(situation: Situation) -> NextPlan:
    """Return what a run decides."""
    s = situation
    return choose(s.run, s.machines, s.outlook, s.templates, s.rates)


def newest(situation: Situation) -> NextPlan:
    """Return the best plan for the machines that are there."""
    first, machines = situation.run.first, situation.machines
    plan = first if fits(first, machines) else template_of(first, machines, situation.templates)
    return NextPlan(plan=plan, reason="the best plan for these machines")


def first_or_none(situation: Situation) -> NextPlan:
    """Return the first plan, where it fits."""
    first = situation.run.first
    return NextPlan(plan=first if fits(first, situation.machines) else None, reason="the first plan")


def local_first(situation: Situation, plan: Plan) -> Recovered:
    """Return a recovery from what survives on the machines."""
    run, there = situation.run, situation.machines
    if not run.seated:  # nothing has been trained on machines that are left
        return reloaded(situation, plan, REFORM_SECONDS)
    left = survival(run.now, run.seated, there)
    since = NOW if left.now else SNAPSHOT if left.in_snapshots else UPLOAD
    chairs = seated(plan, there, kept_bytes(run.now, run.seated, plan, there))
    move = moved(run.now, run.seated, plan, chairs, situation.rates)
    return Recovered(
        seated=chairs,
        since=since,
        reform_seconds=REFORM_SECONDS,
        move_seconds=move.seconds,
        moved_bytes=move.bytes,
    )


def reloaded(situation: Situation, plan: Plan, restart_seconds: float = RESTART_SECONDS) -> Recovered:
    """Return a recovery from the object store. Where nothing was lost, the work so far was uploaded before."""
    kept = bool(situation.used) and set(situation.used) <= set(situation.machines)
    move = from_cloud(plan, situation.machines, situation.rates)
    return Recovered(
        seated=situation.machines,
        since=NOW if kept else UPLOAD,
        reform_seconds=restart_seconds,
        move_seconds=move.seconds,
        moved_bytes=move.bytes,
    )


LOCAL_FIRST = Strategy(name="local first", decide=cheapest, recover=local_first)
STRATEGIES: Sequence[Strategy] = (
    LOCAL_FIRST,
    Strategy(name="reload from the cloud", decide=newest, recover=reloaded),
    Strategy(name="restart without a new plan", decide=first_or_none, recover=reloaded),
)
