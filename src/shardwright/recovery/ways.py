"""The ways in which a run can go on with the machines that are there, and the one that is taken: in a run after every
loss and arrival, and in a simulation of one (`simulation`), by the same function.

Some plans are quick to repair to: the copies of the model that nothing was lost of keep their layers and places.

* The copies that are left take over the micro-batches of the broken ones: nothing moves, and longer rows of
  micro-batches leave a smaller part of a pipeline idle (compare ReCycle, SOSP '24, which routes around single stages).
* What is left of the broken copies becomes new, smaller ones, made from the template of so many machines: only their
  layers move (Oobleck, SOSP '23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from shardwright.cost.money import checkpoint_bytes
from shardwright.errors import SpecError
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Replica
from shardwright.records import record
from shardwright.recovery.decide import Phase, RecoveryOption, decide
from shardwright.recovery.outlook import Outlook, Rates
from shardwright.recovery.quorum import Machine
from shardwright.recovery.seats import Copy, cluster_of, copies_on, fits, share_after_a_loss
from shardwright.search.planner import predict
from shardwright.search.replan import replan
from shardwright.spec.cluster import Cluster

REFORM_SECONDS = 10.0
"""From a loss until training goes on where nothing has to move: noticed, halted, groups made again."""
Counts = tuple[tuple[str, int], ...]
Templates = dict[Counts, Plan | None]
"""New plans by the machines of each GPU type, as far as they were made: the same from loss to loss, and made ahead."""


@record
class RunPlans:
    """A run as far as decisions go: the plan now, the machines it was seated on, in its order, and its first plan."""

    now: Plan
    seated: tuple[Machine, ...]
    first: Plan


@record
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
    plans = {STAY: run.now} if fits(run.now, machines) else {}
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
    if STAY not in plans or sum(pool.nodes for pool in run.now.cluster.pools) != len(machines):
        candidates[REPLAN] = template_of(run.first, machines, templates)
    for name, plan in candidates.items():
        if plan is not None and plan not in plans.values():
            plans[name] = plan
    return plans


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
    return frozenset[Copy]().union(*(of_machine for name, of_machine in copies.items() if name not in there))


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
    rates = [prices.get(machine.gpu) for machine in machines]
    known = [price for price in rates if price is not None]
    return sum(known) if len(known) == len(rates) else float(sum(machine.gpus for machine in machines))


def without(plan: Plan, broken: Collection[Copy], cluster: Cluster) -> Plan | None:
    """Return the plan whose copies that are not broken take all micro-batches, on the machines of `cluster`; None
    where there is no such copy, or none that fits. Predicted, if the plan was."""
    return _among(plan, _kept(plan, broken), cluster)


def refilled(plan: Plan, broken: Collection[Copy], template: Plan, cluster: Cluster) -> Plan | None:
    """Return the plan in which the copies of a template for the machines that are left over stand for the broken
    ones; None where that is illegal or does not fit."""
    kept = _kept(plan, broken)
    if not kept:
        return None
    share = sum(item.count * item.micro_batches for item in kept) / sum(item.gpus for item in kept)
    added = [replace(item, micro_batches=max(round(share * item.gpus / item.count), 1)) for item in template.replicas]
    return _among(plan, [*kept, *added], cluster)


def _kept(plan: Plan, broken: Collection[Copy]) -> list[Replica]:
    lost = Counter(replica for replica, _ in broken)
    counts = [item.count - lost[number] for number, item in enumerate(plan.replicas)]
    return [replace(item, count=count) for item, count in zip(plan.replicas, counts, strict=True) if count]


def _among(plan: Plan, replicas: Sequence[Replica], cluster: Cluster) -> Plan | None:
    """Return the plan of these copies, each with its part of the micro-batches of a step."""
    if not replicas:
        return None
    total = sum(item.count * item.micro_batches for item in plan.replicas)
    repaired = replace(plan, cluster=cluster, replicas=_shared(replicas, total), prediction=None)
    if check(repaired):
        return None
    try:
        return predict(repaired)
    except SpecError:
        return None


def _shared(replicas: Sequence[Replica], total: int) -> tuple[Replica, ...]:
    """Return copies with `total` micro-batches in all, in proportion to those that they have; equal copies differ by
    one at most."""
    have = sum(item.count * item.micro_batches for item in replicas)
    wanted = [item.count * item.micro_batches * total / have for item in replicas]
    whole = [int(amount) for amount in wanted]
    order = sorted(range(len(replicas)), key=lambda number: (whole[number] - wanted[number], number))
    for number in order[: total - sum(whole)]:
        whole[number] += 1
    shared: list[Replica] = []
    for item, amount in zip(replicas, whole, strict=True):
        fewest, more = divmod(amount, item.count)
        parts = ((more, fewest + 1), (item.count - more, fewest))
        shared += [
            replace(item, count=count, micro_batches=micro_batches)
            for count, micro_batches in parts
            if count and micro_batches
        ]
    return tuple(shared)
