"""Questions drawn from all that can be asked of a trainer, and candidates of the spaces that are searched for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import gcd
from random import Random
from typing import get_args

import numpy as np
from tests.runtime.families import first_of_each
from tests.spec.count_with_transformers import CASES

import shardwright
from shardwright import Cluster, Model, SpecError
from shardwright.arrays import Bools, Ints
from shardwright.cost.context import Context
from shardwright.cost.strategies import BLOCK, NONE, SELECTIVE, SHARDING, UNIFORM, Layouts, Strategies, plan_of_row
from shardwright.exporters.support.matrix import limits_in_rules, trainers
from shardwright.plans.check import position_problems
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute, Replica, Schedule, Stage
from shardwright.plans.trainable import own_job_problems, untrainable_sizes
from shardwright.plans.trainer_options import option_problems
from shardwright.records import record
from shardwright.search.kinds import largest_pools, looks_at_unequal, of_each_maker
from shardwright.search.mixed.entry import run_by_train
from shardwright.search.mixed.tables.settings import Setting, settings, units
from shardwright.search.planner import contexts_for
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, as_needed, searched
from shardwright.search.space.expand import SOLVED_AXES, arrangements, axes, states
from shardwright.search.space.layouts import candidate_counts, layouts, splits
from shardwright.spec.adapter import Adapter, parse_adapter
from shardwright.spec.catalog.frameworks import OWN, framework_options
from shardwright.spec.job import Fp8Recipe, Job, Optimizer
from shardwright.spec.options import VALUES, Options
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.trainers.runs import model_refusals

ONE_TYPE = (
    "1x8xH100-SXM", "1x6xA100-SXM-80", "2x8xA100-SXM-40", "3x4xL40S", "1x4xRTX4090", "2x8xMI300X", "1x8xB200", "3x8xH100-SXM", "2x8xV100-SXM2",
)  # fmt: skip
NUMBERS = (0.5, 1.0, 1.3, 2.0)  # of options that take any above 0
SEVERAL = (
    "1x8xH100-SXM+1x8xB200", "1x8xH100-SXM+1x8xV100-SXM2", "2x8xA100-SXM-80+1x8xH100-SXM", "1x8xH100-SXM+1x8xMI300X",
    "1x4xRTX4090+1x4xRTX3090", "1x6xA100-SXM-80+1x8xA100-SXM-40",
)  # fmt: skip
LENGTHS, BATCHES = (40, 64, 96, 128, 512, 1000, 2048, 4096), (8, 12, 16, 32, 48)
SMALL = ", small"
ADAPTERS = ("lora:16", "qlora:16", "dora:8", "lora8bit:16")


@record(kw_only=False)
class Question:
    """What is asked of a trainer."""

    trainer: str
    model: Model
    cluster: Cluster
    job: Job

    @property
    def contexts(self) -> list[Context]:
        """The machines that are searched."""
        return contexts_for(self.model, self.cluster, self.job, 0.9, None)

    @property
    def name(self) -> str:
        job = self.job
        words = (job.precision, job.fp8_recipe, job.optimizer, job.adapter, job.options, job.seq_len, job.global_batch)
        return f"{self.trainer}, {self.model.name}, {self.cluster.name}, {words}"


def questions(seed: int, count: int, clusters: Sequence[str], targets: Sequence[str]) -> Iterator[Question]:
    """Yield so many questions that are none of bad input, on models that the trainer runs."""
    chance = Random(seed)
    while count:
        question = _drawn(chance, chance.choice(targets), chance.choice(clusters))
        if question is not None and not model_refusals(
            question.trainer, question.model, question.cluster, question.job
        ):
            count -= 1
            yield question


def _drawn(chance: Random, trainer: str, cluster: str) -> Question | None:
    model, framework = _model(chance.choice(_names())), trainers()[trainer].framework
    precision = chance.choice(("bf16", "bf16", "fp8", "fp8", "fp16", "fp32"))
    recipes = (None, None, *get_args(Fp8Recipe)) if precision == "fp8" else (None,)
    optimizers = ("adam",) * 6 + get_args(Optimizer)
    job = Job(
        global_batch=chance.choice(BATCHES),
        seq_len=min(chance.choice(LENGTHS), model.max_position or LENGTHS[-1]),
        precision=precision,  # type: ignore[arg-type]
        fp8_recipe=chance.choice(recipes),
        optimizer=chance.choice(optimizers),
        framework=framework,
        adapter=_adapter(chance),
        options=_options(chance, framework),
        document_tokens=chance.choice((None,) * 9 + (16.0,)),
    )
    untrainable = (*own_job_problems(model, job), *untrainable_sizes(model, job))
    problems = (*position_problems(model, job), *option_problems(model, job), *untrainable)
    question = Question(trainer, model, shardwright.load_cluster(cluster), job)
    try:
        return question if question.contexts and not problems else None
    except SpecError:  # no GPU computes in the precision
        return None


def _adapter(chance: Random) -> Adapter | None:
    return parse_adapter(chance.choice(ADAPTERS)) if chance.random() < 0.2 else None


def _options(chance: Random, framework: str) -> Options:
    able = framework_options(framework)
    if not able or chance.random() < 0.6:
        return Options()
    name = chance.choice(able)
    word = chance.choice(VALUES[name] or NUMBERS)
    return replace(Options(), **{name: (word,) if name == "recompute_modules" else word})  # type: ignore[arg-type]


@cache
def _names() -> tuple[str, ...]:
    """The presets, and the configs that are small or unusual."""
    return (*preset_names(), *_configs())


@cache
def _configs() -> dict[str, dict[str, object]]:
    cases = {f"{family} as transformers has it {number}": {"model_type": family, **fields} for number, (family, fields) in enumerate(CASES)}  # fmt: skip
    return {f"{name}{SMALL}": config for name, config in first_of_each().items()} | cases


@cache
def _model(name: str) -> Model:
    return model_of_config(_configs()[name], name) if name in _configs() else preset_model(name)


def small_models() -> tuple[Model, ...]:
    """Return a small model of each family that `train` runs, and the further ones."""
    return tuple(_model(name) for name in _configs() if name.endswith(SMALL))


def candidates(question: Question, chance: Random, most: int) -> Iterator[Plan]:
    """Yield plans of the space of each type of machines that the trainer's rules leave, one of up to `most` of the ways
    to cut the model, with switches as they come. `train` has no rules that its search is given."""
    own = question.trainer == OWN
    found = () if own else limits_in_rules(question.trainer, question.model, question.job)
    filters = Filters(rules=tuple(rule for _, rule in found))
    for context in question.contexts:
        for row in _rows(context, filters, chance, most):
            yield plan_of_row(row, question.model, question.job, question.cluster, context.pool.gpu.name)


def _rows(context: Context, filters: Filters, chance: Random, most: int) -> Iterator[Strategies]:
    space = searched(context, as_needed(Space(), context.model, context.job))
    rows = layouts(context, space)
    for _, mask in filters.layout_masks(context, rows):
        rows = rows.take(~mask)
    rows = rows.take(candidate_counts(context, space, rows, splits(context, space, rows.pp * rows.vpp)) > 0)
    cut = defaultdict[tuple[int, ...], list[int]](list)
    for place, degrees in enumerate(np.stack([rows.tp, rows.cp, rows.ep, rows.etp], axis=1).tolist()):
        cut[tuple(degrees)].append(place)
    for degrees in chance.sample(sorted(cut), min(most, len(cut))):
        layout = rows.take(np.array([chance.choice(cut[degrees])]))
        expanded = _expanded(context, space, layout, chance)
        for _, mask in filters.masks(context, expanded):
            expanded = expanded.take(~mask)
        yield from (expanded.take(slice(place, place + 1)) for place in range(min(len(expanded), 1)))


def _expanded(context: Context, space: Space, layout: Layouts, chance: Random) -> Strategies:
    """Return some candidates of a layout."""

    def every(rows: Strategies, index: Ints) -> Bools:
        return np.ones(len(rows), dtype=bool)

    def some(count: int, most: int) -> Ints:
        return np.array(sorted(chance.sample(range(count), min(count, most))), dtype=np.int64)

    how = axes(space, frozenset(SOLVED_AXES))
    arranged = arrangements(context, how, layout, splits(context, space, layout.pp * layout.vpp), every)
    rows = states(context, how, arranged.take(some(len(arranged.strategies), 4))).strategies
    rows = rows.take(some(len(rows), 6))
    modes = space.allowed("recompute", (NONE, SELECTIVE, UNIFORM, BLOCK))
    recompute = np.array([NONE if apart else int(chance.choice(modes)) for apart in rows.zero_bubble], dtype=np.int64)
    return replace(rows, recompute=recompute, recompute_layers=np.isin(recompute, (UNIFORM, BLOCK)).astype(np.int64))


def over_several_types(question: Question, chance: Random, most: int) -> Iterator[tuple[str, Plan]]:
    """Yield plans over all types that can run a setting of pipelines, for up to `most` settings, with the trainer that
    is to run them: meshes of equal replicas of stages on all types, and replicas on each type."""
    job, space = question.job, as_needed(Space(), question.model, question.job)
    for contexts in of_each_maker(largest_pools(question.contexts)):
        ways = [(question.trainer, contexts, _mesh)]
        refused = model_refusals(OWN, question.model, question.cluster, replace(job, framework=OWN))
        if looks_at_unequal(contexts, space, Filters()) and not refused:
            ways.append((OWN, run_by_train(contexts, 0.9), _unequal))
        for trainer, able, planned in ways:
            some = settings(able, space)
            for setting in chance.sample(some, min(most, len(some))):
                plan = planned(question, able, setting)
                if plan is not None and setting.sharing.within(space, sum(item.count for item in plan.replicas)):
                    yield trainer, replace(plan, job=able[0].job)


def _mesh(question: Question, contexts: Sequence[Context], setting: Setting) -> Plan | None:
    stages, space = _stages(question, contexts, setting), as_needed(Space(), question.model, question.job)
    if not stages or not setting.symmetric or not space.allowed("pp", (len(stages),)):
        return None
    first, layers = stages[0], np.linspace(0, len(question.model.layers), len(stages) + 1).astype(int).tolist()
    able = (
        copies
        for copies in range(1, min(context.pool.gpus for context in contexts) // first.gpus + 1)
        if not question.job.global_batch % (copies * setting.micro_batch)
        and not copies * first.gpus % (first.expert_parallel * first.expert_tensor_parallel)
    )
    copies = next(able, None)
    if copies is None:
        return None
    pipeline = tuple(replace(stage, layers=((layers[place], layers[place + 1]),)) for place, stage in enumerate(stages))
    count = question.job.global_batch // (copies * setting.micro_batch)
    return _plan(question, setting, (Replica(count=copies, micro_batches=count, stages=pipeline),))


def _unequal(question: Question, contexts: Sequence[Context], setting: Setting) -> Plan | None:
    stages = _stages(question, contexts, setting)
    if not stages:
        return None
    whole, gpus = stages[0].expert_parallel * stages[0].expert_tensor_parallel, stages[0].gpus
    copies = whole // gcd(whole, gpus)  # over which experts are spread together
    count, odd = divmod(question.job.global_batch // setting.micro_batch, copies)
    there = {context.pool.gpu.name: context.pool.gpus for context in contexts}
    if odd or count < len(stages) or any(copies * stage.gpus > there[stage.gpu] for stage in stages):
        return None
    shares = [count - len(stages) + 1, *[1] * (len(stages) - 1)]
    replicas = (
        Replica(count=copies, micro_batches=share, stages=(stage,)) for stage, share in zip(stages, shares, strict=True)
    )
    return _plan(question, setting, tuple(replicas))


def _stages(question: Question, contexts: Sequence[Context], setting: Setting) -> list[Stage]:
    """Return a stage of all layers on each type that can run a setting."""
    experts = question.model.has_experts
    return [
        Stage(
            gpu=context.pool.gpu.name,
            tensor_parallel=setting.tp[place],
            context_parallel=setting.cp,
            expert_parallel=setting.ep,
            expert_tensor_parallel=setting.etp(place, experts=experts),
            layers=((0, len(question.model.layers)),),
            recompute=Recompute(),
        )
        for place, context in enumerate(contexts)
        if units(context, setting.on(place))
    ]


def _plan(question: Question, setting: Setting, replicas: tuple[Replica, ...]) -> Plan:
    sharing = setting.sharing.of(sum(replica.count for replica in replicas))
    split = any(stage.tensor_parallel > 1 for replica in replicas for stage in replica.stages)
    return Plan(
        model=question.model,
        job=question.job,
        cluster=question.cluster,
        micro_batch=setting.micro_batch,
        schedule=Schedule(),
        replicas=replicas,
        optimizer=OptimizerPlan(sharding=SHARDING[sharing.sharding], offload=sharing.offload),
        overlap=Overlap(
            grad_reduce=sharing.overlap_grad,
            param_gather=sharing.overlap_param,
            tensor_parallel=setting.overlap_tp,
        ),
        sequence_parallel=setting.sequence_parallel and split,
        flash_attention=setting.flash,
    )
