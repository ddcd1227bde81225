"""The matrix of who runs what: the facts of `exporters.support`, and what the trainers themselves say of models.

Facts on families are kept nowhere: each trainer is asked about models of the family, `shardwright train` by the list of
the runtime.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shardwright.errors import Problem, bad, suggestion
from shardwright.exporters.support.matrix import Fact, Runs, Trainer, facts, trainers
from shardwright.spec.catalog.frameworks import framework_names
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.trainers.runs import model_refusals

PLAIN = "1x8xH100-SXM"  # machines that lack nothing, on which only the model is in question


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """Whether a trainer runs a model, and why not."""

    trainer: Trainer
    refusals: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyAnswer:
    """Whether a trainer runs models of a family: `limit` where it runs some of those that it was asked about. `words`
    are why not."""

    family: str
    target: str
    runs: Runs
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Who runs what, of the trainers named: facts and families, or what each lacks to train a model in bf16 with
    Adam."""

    trainers: tuple[str, ...]
    model: Model | None = None
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    families: tuple[FamilyAnswer, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        if self.model is None:
            facts = [asdict(fact) | {"version": fact.version} for fact in self.facts]
            return {"facts": facts, "families": [asdict(answer) for answer in self.families]}
        rows = [{"trainer": name, "runs": not words, "lacks": list(words)} for name, words in self.lacks.items()]
        return {"model": self.model.name, "family": self.model.family, "trainers": rows}


def support(model: Model | str | None = None, *, framework: str | None = None) -> Support:
    """Return who runs a model, or without one who runs what: of all trainers, or of those of a framework. Raises
    SpecError for a framework that is not known, and as `load_model` does."""
    every = trainers()
    names = tuple(name for name, trainer in every.items() if framework in (None, trainer.framework))
    if not names and framework not in framework_names():
        raise bad("`framework=`", f"{framework!r} is not known", suggestion(str(framework), framework_names()))
    if model is None:
        families = family_answers(map(preset_model, preset_names()))
        answers = tuple(answer for answer in families if answer.target in names)
        return Support(trainers=names, facts=chosen_facts(names), families=answers)
    chosen = load_model(model) if isinstance(model, str) else model
    lacks = {
        answer.trainer.name: tuple(f"{problem.path} {problem.message}" for problem in answer.refusals)
        for answer in model_answers(chosen)
        if answer.trainer.name in names
    }
    return Support(trainers=names, model=chosen, lacks=lacks)


def searched_trainers() -> tuple[Trainer, ...]:
    """Return the trainers that plans are searched for."""
    return tuple(trainer for trainer in trainers().values() if trainer.framework)


def model_answers(model: Model) -> tuple[ModelAnswer, ...]:
    """Return what every trainer that plans are searched for says of a model, trained in bf16 with Adam."""
    cluster, job = _plain(model)
    return tuple(
        ModelAnswer(trainer=trainer, refusals=model_refusals(trainer.name, model, cluster, job))
        for trainer in searched_trainers()
    )


def _plain(model: Model) -> tuple[Cluster, Job]:
    return load_cluster(PLAIN), make_job(global_batch=8, seq_len=min(model.max_position or 2048, 2048))


def family_answers(models: Iterable[Model]) -> tuple[FamilyAnswer, ...]:
    """Return what every trainer says of the families of some models."""
    members: dict[str, list[Model]] = {}
    for model in models:
        members.setdefault(model.family, []).append(model)
    return tuple(answer for family, belonging in sorted(members.items()) for answer in _of_family(family, belonging))


def _of_family(family: str, models: Sequence[Model]) -> Iterable[FamilyAnswer]:
    answers = [model_answers(model) for model in models]
    for number, trainer in enumerate(searched_trainers()):
        refusals = [row[number].refusals for row in answers]
        refused = [problems for problems in refusals if problems]
        runs: Runs = "yes" if not refused else "no" if len(refused) == len(models) else "limit"
        words = f"{refused[0][0].path} {refused[0][0].message}" if refused else ""
        yield FamilyAnswer(family=family, target=trainer.name, runs=runs, words=words)


def chosen_facts(names: Iterable[str]) -> tuple[Fact, ...]:
    """Return the facts of some trainers, subject by subject."""
    rows = [row for name in names for row in facts(name)]
    subjects = {row.subject: place for place, row in reversed(list(enumerate(facts())))}
    return tuple(sorted(rows, key=lambda row: subjects[row.subject]))
