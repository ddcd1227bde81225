"""The ways in which a run can go on with the machines that are there, and the cheapest of them by useful tokens.

Some plans are quick to repair to: the copies of the model that nothing was lost of keep their layers and places.

* The copies that are left take over the micro-batches of the broken ones: nothing moves, and longer rows of
  micro-batches leave a smaller part of a pipeline idle (compare ReCycle, SOSP '24, which routes around single stages).
* What is left of the broken copies becomes new, smaller ones, made from the template of so many machines: only their
  layers move (Oobleck, SOSP '23).

A way to go on has phases: fewer machines now, for example, and all of them once others have come. In a phase of l
seconds that begins with a pause of p seconds and then trains r tokens a second, machines are lost λ times a second;
after the first loss it pauses for q seconds and goes on with s tokens a second. The useful tokens expected of it are,
with L = max(l - p, 0) and L' = max(L - q, 0),

    r (1 - exp(-λ L)) / λ  +  s (L' - (1 - exp(-λ L')) / λ)

the liveput of Parcae (Duan et al., NSDI '24) for one loss. Over the H seconds that a decision looks ahead, a way costs
the price of all machines that are kept:

    dollars per token = price_per_hour H / 3600 / expected tokens

The rates and prices are those that plans are chosen by, so what happens in a run and what planning expects agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import expm1, inf

from shardwright.cost.money import checkpoint_bytes
from shardwright.errors import SpecError
from shardwright.plans.check import check
from shardwright.plans.plan import Plan, Replica
from shardwright.records import record
from shardwright.recovery.outlook import Outlook, Rates
from shardwright.recovery.quorum import Copy, Machine, cluster_of, copies_on, fits, share_after_a_loss
from shardwright.search.planner import predict
from shardwright.search.replan import replan
from shardwright.spec.cluster import Cluster
from shardwright.units import SECONDS_PER_HOUR


@record
class Phase:
    """From `begin_seconds` on: a pause, then so many tokens a second; how often an hour a machine in use is lost, and
    what is trained after the first such loss and another pause."""

    tokens_per_second: float
    pause_seconds: float
    begin_seconds: float = 0.0
    losses_per_hour: float = 0.0
    then_tokens_per_second: float = 0.0
    then_pause_seconds: float = 0.0


@record
class RecoveryOption:
    """A way to go on: what it is, in words, what it costs, and its phases in order of time."""

    name: str
    dollars_per_hour: float
    phases: tuple[Phase, ...]


@record
class RecoveryDecision:
    """The way chosen, by its number, and why, in a line for the log."""

    chosen: int
    reason: str


def expected_tokens(way: RecoveryOption, horizon_seconds: float) -> float:
    ends = [min(phase.begin_seconds, horizon_seconds) for phase in way.phases[1:]] + [horizon_seconds]
    return sum(_of_phase(phase, end - phase.begin_seconds) for phase, end in zip(way.phases, ends, strict=True))


def _of_phase(phase: Phase, seconds: float) -> float:
    left = max(seconds - phase.pause_seconds, 0.0)
    after = max(left - phase.then_pause_seconds, 0.0)
    rate = phase.losses_per_hour / SECONDS_PER_HOUR
    if not rate:
        return phase.tokens_per_second * left
    lost = after - _before_loss(rate, after)
    return phase.tokens_per_second * _before_loss(rate, left) + phase.then_tokens_per_second * lost


def dollars_per_token(way: RecoveryOption, horizon_seconds: float) -> float:
    tokens = expected_tokens(way, horizon_seconds)
    return way.dollars_per_hour * horizon_seconds / SECONDS_PER_HOUR / tokens if tokens else inf


def decide(ways: Sequence[RecoveryOption], horizon_seconds: float) -> RecoveryDecision:
    """Return the cheapest way by useful tokens; of equal ones the first. There must be one."""
    costs = [dollars_per_token(way, horizon_seconds) for way in ways]
    chosen = min(range(len(ways)), key=lambda number: (costs[number], number))
    shown = [f"{way.name} {_words(cost)}" for way, cost in zip(ways, costs, strict=True)]
    return RecoveryDecision(
        chosen=chosen, reason=f"{ways[chosen].name}: dollars per million tokens are {', '.join(shown)}"
    )


def _before_loss(rate: float, seconds: float) -> float:
    """Return the expected seconds until the first loss, or until `seconds` are over."""
    return -expm1(-rate * seconds) / rate


def _words(cost: float) -> str:
    return "infinite" if cost == inf else f"{cost * 1e6:.4g}"


# From a loss until training goes on where nothing has to move: noticed, halted, groups made again.
REFORM_SECONDS = 10.0
Counts = tuple[tuple[str, int], ...]
# New plans by the machines of each GPU type, as far as they were made: the same from loss to loss, and made ahead.
Templates = dict[Counts, Plan | None]


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
    return Phase(
        tokens_per_second=rate,
        begin_seconds=begin_seconds,
        pause_seconds=pause,
        losses_per_hour=outlook.losses_per_machine_hour * sum(pool.nodes for pool in plan.cluster.pools),
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
