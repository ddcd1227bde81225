"""What to rent, for plans that some trainer runs."""

from __future__ import annotations

from typing import Any

from shardwright.calls import require_kinds
from shardwright.exporters.nearest import SEARCHES, narrowed
from shardwright.exporters.support.matrix import limits_in_rules
from shardwright.exporters.support.refusals import runs_as_program
from shardwright.plans.findings import NoTrainer
from shardwright.search.market.result import Shopping
from shardwright.search.market.shop import keeping, nothing, require_tokens
from shardwright.search.market.shop import shop as search
from shardwright.search.space.axes import Space
from shardwright.spec.catalog.frameworks import OWN
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Offers
from shardwright.spec.preference import as_trained
from shardwright.trainers.arguments import rules_of
from shardwright.trainers.plan import NO_PLAN_OF_THESE, USUAL, Question
from shardwright.trainers.runs import frameworks_with_trainers, limits_of_trainer, runners


def shop(model: Model, offers: Offers, job: Job, *, space: Space | None = None, **asked: Any) -> Shopping:
    """Return the front of hours, dollars and preemptions as `search.market.shop.shop` does, of plans that a trainer of
    the job's framework runs. Where none of Megatron-LM, the usual one, runs the model, they are for the first framework
    whose trainers do. `asked` are further arguments of that search.

    Raises SpecError for input that makes no sense."""
    require_tokens(job)
    model = as_trained(model, job.preference)
    cluster = Cluster(pools=tuple(offer.pool for offer in offers.offers))
    asked = require_kinds(search, {**asked, "rules": rules_of(asked.get("rules"), cluster)})
    known = frameworks_with_trainers()
    if job.framework not in known:
        return search(model, offers, job, space=space, **asked)
    question = Question(model=model, cluster=cluster, job=job, space=space or Space(), exportable_to=None, asked=asked)
    others = tuple(name for name in known if name != job.framework)
    lacks: dict[str, dict[str, str]] = {}
    for framework in (job.framework, *(others if job.framework == USUAL else ())):
        lacks[framework] = question.lacks(framework)
        able = [name for name, lacking in lacks[framework].items() if not lacking]
        if not able:
            continue
        front = _for_trainer(question, offers, framework, able[0])
        if front is not None:
            return front
    nobody = NoTrainer(
        family=model.family,
        frameworks=tuple(lacks),
        lacks=tuple((name, why or NO_PLAN_OF_THESE) for by in lacks.values() for name, why in by.items()),
        able=tuple(name for name in others if name not in lacks and not all(question.lacks(name).values())),
        as_program=runs_as_program(model, job),
    )
    return nothing(offers, job, nobody)


def _for_trainer(question: Question, offers: Offers, framework: str, name: str) -> Shopping | None:
    """Return the front of a framework, searched again within what a trainer takes where it has a plan that none of the
    framework's runs; None where there are plans and nobody runs any."""
    job, space, asked = question.on(framework), question.space, dict(question.asked)
    if framework == USUAL and any(question.lacks(OWN).values()):
        asked["exportable_to"] = USUAL
    rules = asked.pop("rules")
    for attempt in range(SEARCHES):
        front = search(question.model, offers, job, space=space, rules=rules, **asked)
        refused = next((choice.plan for choice in front.front if not runners(choice.plan)), None)
        if refused is None:
            return front
        if not attempt:
            rules += tuple(rule for _, rule in limits_in_rules(name, question.model, job))
            continue
        narrower = narrowed(space, limits_of_trainer(name)(refused))
        if narrower is None or narrower == space:
            break
        space = narrower
    return keeping(front, lambda plan: bool(runners(plan))) if any(runners(c.plan) for c in front.front) else None
