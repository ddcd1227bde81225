"""One call from offers to the Pareto front of training time, dollars and risk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from shardwright.cost.compute.efficiency import Efficiency, computes, peak_flops
from shardwright.cost.context import Context
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.errors import bad, reject
from shardwright.plans.abilities import job_problems
from shardwright.plans.check import position_problems
from shardwright.plans.findings import (
    Change,
    MixesLeft,
    NeverEnds,
    NoLegalOffer,
    NotCovered,
    NoTrainer,
    OffersTooSmall,
    UnableGpus,
    Uncovered,
)
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import NoPlan
from shardwright.plans.trainer_options import option_problems
from shardwright.progress import within
from shardwright.search.market.mixes import Mix, apart, cluster_of, machine_seconds, promising
from shardwright.search.market.result import Front, Limits, Shopping, ShopReport, infeasible, limits_of, picks, steps
from shardwright.search.market.sweep import Find, Sweep, finish, least_dollars, probe, sweep
from shardwright.search.objective import INDIFFERENCE, require_fit, require_indifference, require_sure
from shardwright.search.planner import plan as plan_on
from shardwright.search.ranked import costed_plan
from shardwright.search.renting import FrontPoint, Rental, Tariff, choice_of, tariff
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import Rule
from shardwright.search.space.axes import Space, only_job
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offer, Offers

MIX_GPUS = 256  # in a mix that is searched unasked
MIX_GAP = 0.05  # above the bound, at which the search of a mix ends


def shop(
    model: Model,
    offers: Offers,
    job: Job,
    *,
    space: Space | None = None,
    fit: float = 0.9,
    mixes: int | None = None,
    efficiency: Efficiency | None = None,
    rules: Sequence[Rule] = (),
    exportable_to: str | None = None,
    indifference: float = INDIFFERENCE,
    sure: float | None = None,
) -> Shopping:
    """Return the whole front of hours, dollars and expected preemptions of training `model` for the tokens of `job` on
    any number of machines of any one offer: exact under the cost model, whatever bounds dropped unseen. Of mixes of two
    offers the `mixes` most promising are searched as well (None: one, of all machines of two offers, if these have no
    more than `MIX_GPUS` GPUs).

    The job's deadline and budget choose among the front; they do not narrow it. Picks keep them with probability
    `sure`; where nobody says, with 80 % if some choice does, else as expected. `space` pins parameters, `rules` drop
    candidates; plans of mixes are for `exportable_to` as those of `planner.plan`, whose `indifference` this is, too.
    Raises SpecError for input that makes no sense.
    """
    require_tokens(job)
    require_fit(fit)
    require_indifference(indifference)
    require_sure(sure, job)
    if mixes is not None and mixes < 0:
        raise bad("`mixes=`", f"{mixes} mixes cannot be searched", "0 searches none")
    clock = [("start", time.perf_counter())]
    limits = Limits(deadline_hours=job.deadline_hours, budget_dollars=job.budget_dollars, sure=sure)
    job = replace(job, deadline_hours=None, budget_dollars=None, objective="time")
    space, model_of_time = space or Space(), efficiency or default_efficiency()
    job = only_job(job, space.options)
    reject([*position_problems(model, job), *option_problems(model, job)])
    space = replace(space, options={})
    lots, room = _lots(offers, job), headroom(fit, job)
    front: Front[Find] = Front()
    runs = [
        sweep(place, replace(context, headroom=room), space, Filters(rules=tuple(rules)), tariffs, indifference)
        for place, lot in enumerate(lots)
        for context, tariffs in _parts(lot, model, job, offers, model_of_time)
    ]
    clock.append(("bounds", time.perf_counter()))
    for run in runs:
        probe(run, front)
    for number, run in enumerate(sorted(runs, key=least_dollars)):
        with within(number / len(runs), (number + 1) / len(runs)):
            finish(run, front)
    clock.append(("search", time.perf_counter()))
    choices = [_choice(runs[0].context, find, offers) for _, find in front.sorted()]
    clock.append(("plans", time.perf_counter()))
    worth = promising(model, job, offers, machine_seconds(runs, front), front)
    small = [mix for mix in worth if mix.whole and mix.gpus <= MIX_GPUS]
    chosen = small[:1] if mixes is None else worth[:mixes]
    asked = {"space": space, "fit": fit, "efficiency": efficiency, "rules": rules, "exportable_to": exportable_to}
    asked["indifference"] = indifference
    mixed = [_mixed(mix, model, job, offers, asked) for mix in chosen]
    distinct = _distinct([*choices, *(choice for choice in mixed if choice is not None)])
    clock.append(("mixes", time.perf_counter()))
    report = ShopReport(
        counts=sum(offer.pool.nodes for lot in lots for offer in lot),
        layouts=sum(run.candidates for run in runs),
        costed=sum(run.costed for run in runs),
        mixes=len(chosen),
        seconds=clock[-1][1] - clock[0][1],
        phases=tuple((name, end - begin) for (_, begin), (name, end) in pairwise(clock)),
        not_covered=(*_not_covered(worth, chosen), *apart(offers), *_unable(offers, job)),
    )
    return Shopping(
        front=distinct,
        steps=steps(distinct),
        picks=picks(distinct, limits),
        offers=offers,
        deadline_hours=limits.deadline_hours,
        budget_dollars=limits.budget_dollars,
        report=report,
        infeasible=infeasible(distinct, limits) if distinct else _nothing(runs, model),
        sure=sure,
    )


def require_tokens(job: Job) -> None:
    """Raise SpecError for a run of no length."""
    if job.tokens is None:
        raise bad("`tokens=`", "is missing", "say how many tokens the run has: `tokens=1T`")


def keeping(result: Shopping, accepted: Callable[[Plan], bool]) -> Shopping:
    """Return what is left where only plans that are `accepted` count, one at least."""
    limits = limits_of(result)
    front = tuple(choice for choice in result.front if accepted(choice.plan))
    return replace(
        result, front=front, steps=steps(front), picks=picks(front, limits), infeasible=infeasible(front, limits)
    )


def nothing(offers: Offers, job: Job, reason: NoTrainer) -> Shopping:
    """Return a front without a choice, where none was searched for."""
    return Shopping(
        front=(),
        steps=(),
        picks=picks((), Limits()),
        offers=offers,
        deadline_hours=job.deadline_hours,
        budget_dollars=job.budget_dollars,
        report=ShopReport(counts=0, layouts=0, costed=0, mixes=0, seconds=0.0, phases=()),
        infeasible=NoPlan(reason=reason, remedies=()),
    )


Lot = tuple[Offer, ...]  # offers of equal machines


def _lots(offers: Offers, job: Job) -> list[Lot]:
    """Return offers by what machines they are of, without those that do not run the job where others do. Raises
    SpecError where none computes in the job's precision."""
    able = [offer for offer in offers.offers if computes(offer.pool.gpu, job.precision)]
    if not able:
        peak_flops(offers.offers[0].pool.gpu, job.precision)
    able = [offer for offer in able if not any(job_problems(offer.pool.gpu, job))] or able
    offers_of: dict[NodePool, list[Offer]] = {}
    for offer in able:
        terms = {"nodes": 1, "price": None, "preemptions_per_hour": None, "spot": False, "site": "", "assumed": ()}
        offers_of.setdefault(replace(offer.pool, **terms), []).append(offer)  # type: ignore[arg-type]
    return [tuple(same) for same in offers_of.values()]


def _unable(offers: Offers, job: Job) -> Iterator[UnableGpus]:
    """Yield the GPU types on offer that cannot compute in the job's precision."""
    names = dict.fromkeys(offer.pool.gpu.name for offer in offers.offers if not computes(offer.pool.gpu, job.precision))
    if names:
        yield UnableGpus(job.precision, tuple(names))


def _parts(
    lot: Lot, model: Model, job: Job, offers: Offers, efficiency: Efficiency
) -> Iterator[tuple[Context, list[Tariff]]]:
    """Yield ranges of numbers of machines whose links are alike, as the context of the most and what each offer costs:
    one range but for fast links that join several machines, and for networks of racks."""
    largest = max(lot, key=lambda offer: offer.pool.nodes)
    pool, joined = largest.pool, largest.pool.domain_gpus // largest.pool.gpus_per_node
    racks = [pool.rack_nodes] if 0 < pool.rack_nodes < pool.nodes else []
    ends = sorted({*range(1, min(joined, pool.nodes)), *racks, pool.nodes})
    for low, high in zip([1, *(end + 1 for end in ends)], ends, strict=False):
        counts = np.arange(low, high + 1)
        tariffs = [
            tariff(model, job, offer, offers.terms, within)
            for offer in lot
            if len(within := counts[counts <= offer.pool.nodes])
        ]
        yield Context(model=model, pool=largest.pool.resized(high), job=job, efficiency=efficiency), tariffs


def _choice(context: Context, find: Find, offers: Offers) -> FrontPoint:
    """Return a point of the front with its plan, predicted on just the machines that it rents."""
    pool = find.tariff.offer.pool.resized(find.machines)
    plan = costed_plan(replace(context, pool=pool), Cluster(pools=(pool,)), find.row)
    return choice_of(plan, (Rental(offer=find.tariff.offer, machines=find.machines),), offers.terms)


def _mixed(mix: Mix, model: Model, job: Job, offers: Offers, asked: Mapping[str, Any]) -> FrontPoint | None:
    """Return the best plan of a mix as a point, or None where none fits or the best leaves one of the offers idle."""
    cluster = cluster_of(mix.rentals, offers.site_links)
    ranking = plan_on(model, cluster, job, top=1, gap=MIX_GAP, **asked)
    if not ranking.plans:
        return None
    used = {stage.gpu for stage in ranking.best.stages}
    return choice_of(ranking.best, mix.rentals, offers.terms) if len(used) == len(mix.rentals) else None


def _distinct(choices: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    """Return the choices, fastest first, that no other is as good as."""
    front: Front[FrontPoint] = Front()
    for choice in choices:
        front.offer(choice.point, choice)
    return tuple(choice for _, choice in front.sorted())


def _not_covered(worth: Sequence[Mix], chosen: Sequence[Mix]) -> Iterator[Uncovered]:
    yield NotCovered.UNEQUAL_REPLICAS_OF_A_TYPE
    yield NotCovered.OTHER_MIXES
    left = [mix for mix in worth if mix not in chosen]
    if left:
        best = tuple((rental.gpus, rental.offer.name) for rental in left[0].rentals)
        yield MixesLeft(len(left), left[0].gain, best)


def _nothing(runs: Sequence[Sweep], model: Model) -> NoPlan:
    """Return why there is no choice at all."""
    tariffs = [tariff for run in runs for tariff in run.tariffs]
    names = tuple(dict.fromkeys(tariff.offer.pool.gpu.name for tariff in tariffs))
    if not any(np.isfinite(tariff.slopes).all(axis=1).any() for tariff in tariffs):
        return NoPlan(reason=NeverEnds(names), remedies=(Change.CALMER_OFFERS,))
    if not any(run.candidates for run in runs):
        return NoPlan(reason=NoLegalOffer(names), remedies=(Change.FEWER_PINS_OR_OTHER_DEGREES,))
    return NoPlan(reason=OffersTooSmall(model.name, names), remedies=(Change.LARGER_OFFERS,))
