"""The ladder: one change a step, each a gain, all legal, within the user's pins and rules, and ready to paste."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from tests.golden.plans import LLAMA_2_70B, cluster_of
from tests.importers.texts import plan_from_megatron

from shardwright import Plan, check, evaluate, predict
from shardwright.exporters.megatron.export import difference, to_megatron
from shardwright.exporters.megatron.limits import unsupported
from shardwright.search.ladder import Improvement, ladder
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins

LINE = (
    "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 128 "
    "--seq-length 4096 --bf16 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8 "
)
SLOW = LINE + "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def mine(line: str) -> Plan:
    return predict(plan_from_megatron(line, cluster=cluster_of(8), model=LLAMA_2_70B).plan)


@pytest.fixture(scope="module")
def steps() -> tuple[Improvement, ...]:
    return ladder(mine(SLOW), accepted=lambda plan: not unsupported(plan))


@pytest.fixture(scope="module")
def best() -> Plan:
    return evaluate(mine(SLOW)).best.best


def test_every_step_gains_and_is_legal(steps: tuple[Improvement, ...]) -> None:
    assert len(steps) >= 3
    before = mine(SLOW)
    for step in steps:
        assert not check(step.plan) and not unsupported(step.plan)
        assert step.plan.iteration_seconds < before.iteration_seconds
        before = step.plan


def test_free_steps_come_first_and_the_end_is_near_the_best(steps: tuple[Improvement, ...], best: Plan) -> None:
    assert steps[0].free
    assert best.iteration_seconds <= steps[-1].plan.iteration_seconds * (1 + 1e-9) <= 1.1 * best.iteration_seconds


def test_arguments_pasted_at_the_end_of_the_line_make_the_step(steps: tuple[Improvement, ...]) -> None:
    plan = mine(SLOW)
    words = list(to_megatron(plan).arguments)
    for step in steps:
        change = difference(plan, step.plan)
        assert change is not None and (change.added or change.removed)
        for flag in change.removed:
            start = words.index(flag)
            end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
            del words[start:end]
        words += [word for argument in change.added for word in shlex.split(argument)]
        line = "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py " + shlex.join(words)
        read = plan_from_megatron(line, cluster=cluster_of(8), model=LLAMA_2_70B).plan
        assert read.costed(step.plan.prediction) == step.plan  # type: ignore[arg-type]
        plan = step.plan


def test_pins_and_rules_hold_at_every_step() -> None:
    space = parse_pins(["tp=8", "recompute=uniform"])
    filters = Filters(rules=parse_rules("$pipeline_model_parallel_size < 4", "rules"))
    steps = ladder(mine(SLOW), space=space, filters=filters)
    assert steps
    for step in steps:
        stages = step.plan.replicas[0].stages
        assert stages[0].tensor_parallel == 8 and len(stages) >= 4
        assert stages[0].recompute.method == "uniform"


def test_of_two_stages_the_one_with_the_logits_gives_layers_away() -> None:
    line = LINE.replace("pipeline-model-parallel-size 8", "pipeline-model-parallel-size 2")
    even = replace(mine(line), model=replace(LLAMA_2_70B, vocab=256_000), prediction=None)
    kept = ["vpp=1", "pp=2", "tp=8", "cp=1", "micro_batch=1", "recompute=none"]
    steps = ladder(predict(even), space=parse_pins(kept))
    assert any(step.plan.stages[0].layer_count > 40 for step in steps)


def test_a_plan_that_does_not_fit_is_made_to_fit_first() -> None:
    plan = mine(LINE.replace("pipeline-model-parallel-size 8", "pipeline-model-parallel-size 1"))
    assert plan.predicted.fit_probability < 0.5
    steps = ladder(plan)
    assert any(step.plan.predicted.fit_probability >= 0.9 for step in steps[:3])


def test_the_best_plan_has_no_ladder(best: Plan) -> None:
    assert all(step.plan.iteration_seconds >= best.iteration_seconds * (1 - 1e-9) for step in ladder(best))
