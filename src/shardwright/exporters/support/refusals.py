"""What of a plan a target does not run, as the matrix has it: refusals by name, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.cost.context import Context
from shardwright.cost.learned import default_efficiency
from shardwright.cost.strategies import stage_rows
from shardwright.errors import Problem
from shardwright.exporters.exported import limit
from shardwright.exporters.support.matrix import Fact, fact, facts, limits_in_rules
from shardwright.exporters.support.traits import options_of, traits
from shardwright.plans.placement import machine_sizes
from shardwright.plans.plan import Plan
from shardwright.search.rules.evaluation import Column
from shardwright.search.rules.filters import number, strategy_columns
from shardwright.spec.job import Job
from shardwright.spec.model import Model

SETTING = "--set "
PARTLY = ("chunked", "tiled")  # losses that never have all logits


def refusals(plan: Plan, target: str) -> Iterator[Problem]:
    """Yield why a target does not run a legal plan, whose GPUs and replicas it takes: facts on job, model and
    parameters, in this order."""
    yield from layer_refusals(plan.model, target)
    for subject, value, word in job_values(plan):
        row = fact(target, subject, value)
        if row is not None and row.runs == "no":
            yield _problem(row, {"value": word})
    limits = limits_in_rules(target, plan.model, plan.job)
    variables = list(_variables(plan)) if limits else []
    for row, rule in limits:
        if any(rule.holds(columns).any() for columns in variables):
            yield _problem(row, _words(plan))


def several_types(target: str) -> Iterator[Problem]:
    """Yield why a target does not run plans whose replicas or GPU types differ: none, or but where shares are equal."""
    row = fact(target, "GPU types", "several")
    if row is not None and row.runs != "yes":
        yield _problem(row, {})


def layer_refusals(model: Model, target: str) -> Iterator[Problem]:
    """Yield what of a model's layers a target does not run."""
    lacking = {row.value: row for row in facts(target) if row.subject == "layer" and row.runs == "no"}
    for trait in traits(model):
        if trait.name in lacking:
            yield Problem(trait.path, trait.words, lacking[trait.name].remedy)


def runs_as_program(model: Model, job: Job) -> bool:
    """Return whether `shardwright spmd` has a program for such layers, and trains it in the precision of a job, all
    weights of it."""
    precision = fact("spmd", "precision", job.precision)
    able = precision is not None and precision.runs == "yes" and job.adapter is None
    return able and not any(layer_refusals(model, "spmd"))


def job_values(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield what a plan's job asks of a trainer, as subject and value of the matrix and in words."""
    job = plan.job
    yield "precision", job.precision, job.precision
    if job.precision == "fp8":
        yield "fp8 recipe", job.fp8_recipe or "default", str(job.fp8_recipe)
    yield "optimizer", job.optimizer, job.optimizer
    if job.adapter is not None:
        yield "adapter", job.adapter.form, job.adapter.name
    if job.preference is not None:
        yield "preference", job.preference.loss, job.preference.name
    there = {
        ("loss", "linear and fused"): job.fused_loss,
        ("documents", "attention inside them"): job.document_tokens is not None,
    }
    yield from ((subject, value, value) for (subject, value), asked in there.items() if asked)
    for name, word in options_of(plan).items():
        yield "option", f"loss={word}" if name == "loss" and word in PARTLY else name, word


def _words(plan: Plan) -> Mapping[str, object]:
    stage = plan.stages[0]
    tp, ep = stage.tensor_parallel, stage.expert_parallel
    return {
        "tp": tp,
        "etp": stage.expert_tensor_parallel,
        "split": tp if ep == 1 else 1,
        "gpus": plan.gpus,
        "machines": len(machine_sizes(plan)),
        "group": tp * stage.context_parallel,
        "optimizer": plan.job.optimizer,
        **options_of(plan),
    }


def _problem(row: Fact, words: Mapping[str, object]) -> Problem:
    message, remedy = row.message.format_map(words), row.remedy.format_map(words)
    if remedy.startswith(SETTING):
        return limit(row.path, message, remedy.removeprefix(SETTING))
    return Problem(row.path, message, remedy)


def _variables(plan: Plan) -> Iterator[Mapping[str, Column]]:
    """Yield the variables of rules for the stages of each replica."""
    sizes = () if plan.uniform else machine_sizes(plan)
    there = {"num_gpus": plan.gpus, "num_nodes": len(sizes), "gpus_per_node": max(sizes)} if sizes else {}
    for replica in plan.replicas:
        pool = plan.cluster.pool_of[replica.stages[0].gpu]
        context = Context(model=plan.model, pool=pool, job=plan.job, efficiency=default_efficiency())
        columns = strategy_columns(context, stage_rows(plan, replica))
        counts = {"num_micro_batches": replica.micro_batches, **there}
        yield {**columns, **{name: number(count) for name, count in counts.items()}}
