"""Who runs a plan, a model or an option, as a matrix too, and the files for those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

from shardwright.errors import Problem, bad, merged, reject, suggestion
from shardwright.exporters.exported import Exported
from shardwright.exporters.support.matrix import Fact, Runs, Trainer, facts, trainers
from shardwright.exporters.targets import LAUNCHING, TARGETS, Limits, limits_of
from shardwright.exporters.targets import export as files_for
from shardwright.plans.check import check
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.records import record
from shardwright.runtime.layout.limits import unrunnable
from shardwright.spec.catalog.frameworks import OWN, framework_names
from shardwright.spec.cluster import Cluster
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.spec.read.presets import preset_model, preset_names

NO_RECOMPUTATION, NOT_SHARDED = Recompute(), OptimizerPlan()
PLAIN = "1x8xH100-SXM"  # machines that lack nothing, on which only the model is in question


def limits_of_trainer(name: str) -> Limits:
    """Return what says why a trainer cannot run a legal plan."""
    limits = unrunnable if name == OWN else limits_of(name)
    assert limits is not None, "trainers have limits"
    return limits


def frameworks_with_trainers() -> Mapping[str, tuple[str, ...]]:
    """Return the trainers of each framework that plans are searched for."""
    names = dict.fromkeys(trainer.framework for trainer in trainers().values() if trainer.framework)
    return {name: tuple(each.name for each in trainers().values() if each.framework == name) for name in names}


def runners(plan: Plan) -> tuple[str, ...]:
    """Return the trainers that run a legal plan, of those of the framework that it is priced for; of one whose replicas
    are no mesh of equal ranks `train`, which alone runs such plans."""
    return tuple(_runners(plan))


def somebody_runs(plan: Plan) -> bool:
    """Return whether any trainer runs a legal plan (`runners`), which the first that does says."""
    return any(_runners(plan))


def _runners(plan: Plan) -> Iterator[str]:
    framework = plan.job.framework if plan.uniform or is_mesh(plan) else OWN
    names = frameworks_with_trainers().get(framework, ())
    return (name for name in names if not tuple(limits_of_trainer(name)(plan)))


def model_refusals(trainer: str, model: Model, cluster: Cluster, job: Job) -> tuple[Problem, ...]:
    """Return why a trainer runs no plan for a model and a job whatsoever, as far as that hangs on these two and on what
    GPUs there are; nothing where it runs some."""
    fused = job.framework == OWN
    plans = [one_gpu_replicas(model, cluster, job, pool.gpu.name, flash_attention=fused) for pool in cluster.pools]
    refused = [tuple(_of_the_question(limits_of_trainer(trainer)(plan))) for plan in plans]
    return min(refused, key=len)


def what_lacks(job: Job, model: Model, cluster: Cluster, names: Sequence[str] | None = None) -> dict[str, str]:
    """Return what each trainer of the job's framework, or of `names`, lacks of model or job, empty for those that run
    them."""
    names = frameworks_with_trainers()[job.framework] if names is None else names
    refused = {name: model_refusals(name, model, cluster, job) for name in names}
    return {name: problems[0].wrong if problems else "" for name, problems in refused.items()}


def _of_the_question(problems: Iterable[Problem]) -> Iterable[Problem]:
    return (problem for problem in problems if problem.path.split(".")[0] in ("model", "job", "cluster"))


def one_gpu_replicas(
    model: Model,
    cluster: Cluster,
    job: Job,
    gpu: str,
    *,
    count: int = 1,
    micro_batch: int = 1,
    recompute: Recompute = NO_RECOMPUTATION,
    optimizer: OptimizerPlan = NOT_SHARDED,
    flash_attention: bool = False,
) -> Plan:
    """Return the plan of `count` replicas of one GPU each, every other setting at its least, which asks nothing more of
    a trainer than the model and the job do."""
    stage = Stage(
        gpu=gpu,
        tensor_parallel=1,
        context_parallel=1,
        expert_parallel=1,
        expert_tensor_parallel=1,
        layers=((0, len(model.layers)),),
        recompute=recompute,
    )
    micro_batches = job.global_batch // (count * micro_batch)
    return Plan(
        model=model,
        job=job,
        cluster=cluster,
        micro_batch=micro_batch,
        schedule=Schedule(),
        replicas=(Replica(count=count, micro_batches=micro_batches, stages=(stage,)),),
        optimizer=optimizer,
        overlap=Overlap(),
        sequence_parallel=False,
        flash_attention=flash_attention,
    )


@record
class ModelAnswer:
    """Whether a trainer runs a model, and why not."""

    trainer: Trainer
    refusals: tuple[Problem, ...]


@record
class FamilyAnswer:
    """Whether a trainer runs models of a family: `limit` where it runs some of those that it was asked about. `words`
    are why not."""

    family: str
    target: str
    runs: Runs
    words: str


@record
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
        answer.trainer.name: tuple(problem.wrong for problem in answer.refusals)
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
        towers = "".join(f" with {tower.noun}" for tower in model.towers if tower.projector)
        members.setdefault(f"{model.family}{towers}", []).append(model)
    return tuple(answer for family, belonging in sorted(members.items()) for answer in _of_family(family, belonging))


def _of_family(family: str, models: Sequence[Model]) -> Iterable[FamilyAnswer]:
    answers = [model_answers(model) for model in models]
    for number, trainer in enumerate(searched_trainers()):
        refusals = [row[number].refusals for row in answers]
        refused = [problems for problems in refusals if problems]
        runs: Runs = "yes" if not refused else "no" if len(refused) == len(models) else "limit"
        words = refused[0][0].wrong if refused else ""
        yield FamilyAnswer(family=family, target=trainer.name, runs=runs, words=words)


def chosen_facts(names: Iterable[str]) -> tuple[Fact, ...]:
    """Return the facts of some trainers, subject by subject."""
    rows = [row for name in names for row in facts(name)]
    subjects = {row.subject: place for place, row in reversed(list(enumerate(facts())))}
    return tuple(sorted(rows, key=lambda row: subjects[row.subject]))


def under(plan: Plan, to: str) -> Plan | None:
    """Return a plan as the trainer of target `to` runs it, where it is priced for another framework: not yet costed.
    None where it is priced for that one, and for targets that are no trainers. Raises SpecError where that framework
    has not what the job asks."""
    framework = TARGETS[to].framework if to in TARGETS else ""
    if framework in ("", plan.job.framework):
        return None
    other = replace(plan, job=replace(plan.job, framework=framework), prediction=None)
    reject(check(other))
    return other


def export(plan: Plan, to: str, *, launcher: str = "torchrun") -> Exported:
    """Return the files that make target `to` run a plan, or show it (`exporters.targets.export`).

    Raises SpecError as there, and for a target that only brings machines together where the trainer that they start,
    `shardwright train`, does not run the plan.
    """
    from shardwright.exporters.runner import runner_of

    exported = files_for(plan, to, launcher=launcher)
    if to in LAUNCHING and runner_of(plan).name == "shardwright":
        reject(merged(unrunnable(plan)))
    return exported
