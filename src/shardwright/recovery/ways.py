"""The ways in which a run can go on with the machines that are there, and the one that is taken: in a run after every
loss and arrival, and in a simulation of one (`simulation`), by the same function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwright.cost.money import checkpoint_bytes
from shardwright.plans.plan import Plan
from shardwright.recovery.decide import Phase, RecoveryOption, decide
from shardwright.recovery.outlook import Outlook
from shardwright.recovery.quorum import Machine
from shardwright.recovery.rates import Rates
from shardwright.recovery.repairs import refilled, without
from shardwright.recovery.seats import Copy, cluster_of, copies_on, fits, share_after_a_loss
from shardwright.search.replan import replan

REFORM_SECONDS = 10.0
"""From a loss until training goes on where nothing has to move: noticed, halted, groups made again."""

Counts = tuple[tuple[str, int], ...]
Templates = dict[Counts, Plan | None]
"""New plans by the machines of each GPU type, as far as they were made: the same from loss to loss, and made ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlans:
    """A run as far as decisions go: the plan now, the machines it was seated on, in its order, and its first plan."""

    now: Plan
    seated: tuple[Machine, ...]
    first: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPlan:
    """The plan to go on with, None to wait, and why in a line. Who waits decides anew when something changes, and after
    `again_seconds`: the longer nothing comes, the less is expected."""

    plan: Plan | None
    reason: str
    again_seconds: float = inf


def choose(
    run: RunPlans, machines: Sequence[Machine], outlook: Outlook, templates: Templates, rates: Rates | None = None
) -> NextPlan:
    """Return the plan to go on with on these machines, or None to wait for more, and why.

    The plan before, repairs of it, the first plan and a new one are compared, each until as many machines have come as
    the first plan has, and where some are missing also to wait for them. `templates` are used and added to.
    """
    plans = _plans(run, machines, templates)
    if not plans:
        return NextPlan(plan=None, reason=f"wait: no plan fits {len(machines)} machines")
    known = all(plan.prediction for plan in (*plans.values(), run.first))
    price, moving = dollars_per_hour(run.first, machines), move_seconds(run.first, len(machines), rates or Rates())
    missing = sum(pool.nodes for pool in run.first.cluster.pools) - len(machines)
    arrival = outlook.arrival_seconds(missing) if missing > 0 else inf
    pauses = {name: REFORM_SECONDS + (moving if name in MOVING else 0.0) for name in plans}
    later = _phase(run.first, known, outlook, REFORM_SECONDS + moving, begin_seconds=arrival)
    ways = [
        RecoveryOption(name=name, dollars_per_hour=price, phases=(_phase(plan, known, outlook, pauses[name]), later))
        for name, plan in plans.items()
    ]
    if missing > 0:
        waiting = replace(later, begin_seconds=arrival, pause_seconds=REFORM_SECONDS)
        ways.append(RecoveryOption(name="wait", dollars_per_hour=price, phases=(waiting,)))
    decision = decide(ways, outlook.horizon_seconds)
    plan = [*plans.values(), None][decision.chosen]
    return NextPlan(plan=plan, reason=decision.reason, again_seconds=max(arrival, REFORM_SECONDS))


STAY, FIRST, REPLAN = "stay", "take back the first plan", "replan"
COPIES_LEFT, REFILL = "the copies left take over", "smaller copies for the broken"
MOVING = (FIRST, REPLAN, REFILL)


def _plans(run: RunPlans, machines: Sequence[Machine], templates: Templates) -> dict[str, Plan]:
    """Return the plans that can be gone on with, by what they are; of equal ones the first."""
    found = {STAY: run.now} if fits(run.now, machines) else {}
    broken = broken_copies(run, machines)
    candidates: dict[str, Plan | None] = {}
    if broken:
        cluster = cluster_of(run.first, machines)
        candidates[COPIES_LEFT] = without(run.now, broken, cluster) if cluster.pools else None
        left = _left_over(run, machines, broken)
        template = template_of(run.first, left, templates) if left and candidates[COPIES_LEFT] else None
        candidates[REFILL] = refilled(run.now, broken, template, cluster) if template else None
    if fits(run.first, machines):
        candidates[FIRST] = run.first
    if STAY not in found or sum(pool.nodes for pool in run.now.cluster.pools) != len(machines):
        candidates[REPLAN] = template_of(run.first, machines, templates)
    for name, plan in candidates.items():
        if plan is not None and plan not in found.values():
            found[name] = plan
    return found


def template_of(first: Plan, machines: Sequence[Machine], templates: Templates) -> Plan | None:
    """Return the new plan for machines, made from the first plan, so that it does not hang on what came between."""
    cluster = cluster_of(first, machines)
    counts = tuple((pool.gpu.name, pool.nodes) for pool in cluster.pools)
    if counts not in templates:
        templates[counts] = replan(first, cluster) if cluster.pools else None
    return templates[counts]


def broken_copies(run: RunPlans, machines: Sequence[Machine]) -> frozenset[Copy]:
    """Return the copies of the model that had a rank on a machine that is not there any more."""
    there = {machine.name for machine in machines}
    copies = copies_on(run.now, run.seated) if run.seated else {}
    return frozenset[Copy]().union(*(own for name, own in copies.items() if name not in there))


def _left_over(run: RunPlans, machines: Sequence[Machine], broken: frozenset[Copy]) -> list[Machine]:
    """Return the machines that no whole copy has a rank on."""
    copies = copies_on(run.now, run.seated)
    return [machine for machine in machines if copies.get(machine.name, frozenset()) <= broken]


def _phase(plan: Plan, known: bool, outlook: Outlook, pause: float, begin_seconds: float = 0.0) -> Phase:
    rate = plan.prediction.tokens_per_second if known and plan.prediction else float(plan.gpus)
    machines = sum(pool.nodes for pool in plan.cluster.pools)
    return Phase(
        tokens_per_second=rate,
        begin_seconds=begin_seconds,
        pause_seconds=pause,
        losses_per_hour=outlook.losses_per_machine_hour * machines,
        then_tokens_per_second=rate * share_after_a_loss(plan),
        then_pause_seconds=REFORM_SECONDS,
    )


def move_seconds(first: Plan, machines: int, rates: Rates) -> float:
    """Return about how long a machine takes to read what it shall hold of the state from others."""
    copies = 1 if first.optimizer.distributed else first.data_parallel
    return checkpoint_bytes(first.model, first.job) * copies / machines / rates.link


def dollars_per_hour(first: Plan, machines: Sequence[Machine]) -> float:
    """Return the price of the machines that are there: paid whatever they do. Without prices, one for each GPU."""
    prices = {pool.gpu.name: pool.dollars_per_node_hour for pool in first.cluster.pools}
    found = [prices.get(machine.gpu) for machine in machines]
    known = [price for price in found if price is not None]
    return sum(known) if len(known) == len(found) else float(sum(machine.gpus for machine in machines))
