"""Every value that an exporter writes stems from the plan, its job or its cluster, or stands in `constants.csv`."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden.plans import LLAMA_3_1_8B, PLANS, uniform_plan
from tests.plans.meshes import mesh
from tests.plans.random_plans import collected
from tests.targets.plans import option_plans, torchtitan_plans, trainer_plans

import shardwright
from shardwright import Job, SpecError
from shardwright.plans.plan import OptimizerPlan, Plan
from shardwright.spec.options import Options

TARGETS = ("megatron", "bridge", "torchtitan", "accelerate", "deepspeed", "skypilot", "kubernetes")
CONSTANTS = Path(__file__).parent / "constants.csv"
FEWEST, RANDOM = 12, 30
SWITCHES = {"megatron": "", "bridge": "True", "torchtitan": "True"}  # how a target writes that a switch is on
WIDTHS = Options(main_grads="fp32", main_params="fp16", exp_avg="fp8", exp_avg_sq="bf16")
JOB = Job(global_batch=64, seq_len=4096)


@functools.cache
def plans() -> tuple[Plan, ...]:
    """Plans of every kind, and each at another length, batch, price of machines and number of steps."""
    narrow = option_plans()["narrow state"]
    trainers = list(trainer_plans().values())
    offloaded = replace(trainer_plans()["offloaded"], optimizer=OptimizerPlan(sharding="zero3", offload=1.0))
    larger = trainer_plans()["llama-2-70b zero3 tp 1 cp 1 bf16 kept"]
    split = uniform_plan(LLAMA_3_1_8B, nodes=1, job=JOB, micro_batch=1, tp=4, counts=(32,), sharding="zero2")
    small = replace(split, cluster=shardwright.load_cluster("2x4xH100-SXM"))
    fixed = [*PLANS.values(), *option_plans().values(), *torchtitan_plans().values(), *trainers[::3]]
    fixed += [
        trainer_plans()["offloaded"],
        offloaded,
        replace(larger, optimizer=OptimizerPlan(sharding="zero3", offload=0.25)),
        *(replace(plan, sequence_parallel=False) for plan in (split, small)),
    ]
    fixed += [replace(narrow, job=replace(narrow.job, options=WIDTHS))]
    fixed += [mesh((4, "AH")), *collected(RANDOM)]
    return (*fixed, *(varied(plan) for plan in fixed if plan.uniform))


def varied(plan: Plan) -> Plan:
    """Return a plan of twice the micro-batch and windows, on spot machines, with half of the length, an end, and gradients
    that are reduced beside the backward pass or not."""
    job = replace(plan.job, global_batch=2 * plan.job.global_batch, seq_len=plan.job.seq_len // 2, tokens=7e9)
    layers = (
        replace(
            layer,
            attention=replace(
                layer.self_attention, window=layer.self_attention.window and 2 * layer.self_attention.window
            ),
        )
        for layer in plan.model.layers
    )
    model = replace(plan.model, layers=tuple(layers), mtp_layers=2 * plan.model.mtp_layers)
    overlap = replace(plan.overlap, grad_reduce=not plan.overlap.grad_reduce, param_gather=False)
    pools = tuple(replace(pool, spot=True) for pool in plan.cluster.pools)
    cluster = replace(plan.cluster, pools=pools)
    return replace(plan, model=model, job=job, cluster=cluster, micro_batch=2 * plan.micro_batch, overlap=overlap)


def leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a document says by place; elements of a list have one place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, path if path.endswith("accelerators") else f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, str(value)


def told(plan: Plan, target: str) -> Iterator[tuple[str, str]]:
    """Yield what the export of a plan says, its scripts and tables of files aside."""
    document = dict(shardwright.export(plan, target).document)
    for part in ("script", "files", "documents"):
        if part in document and not isinstance(document[part], list | tuple):
            del document[part]
    if target == "megatron":
        words = [str(word) for word in document.pop("arguments")]  # type: ignore[attr-defined]
        places = [place for place, word in enumerate(words) if word.startswith("--")]
        for place, end in zip(places, [*places[1:], len(words)], strict=True):
            yield words[place], " ".join(words[place + 1 : end])
        document = {"environment": document.get("environment", {})}
    yield from leaves(document)


@functools.cache
def written(target: str) -> tuple[dict[str, list[str]], int]:
    """Return the values that a target's exports have at each place, and how many plans it runs."""
    found: dict[str, list[str]] = {}
    count = 0
    for plan in plans():
        try:
            pairs = tuple(told(plan, target))
        except SpecError:
            continue
        count += 1
        for place, value in pairs:
            found.setdefault(place, []).append(value)
    return found, count


@pytest.mark.parametrize("target", TARGETS)
def test_what_no_plan_decides_stands_in_a_table_with_its_reason(target: str) -> None:
    found, count = written(target)
    assert count >= FEWEST
    with CONSTANTS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["target"] == target]
    assert all(row["why"] for row in rows)
    # A switch that some plans have and others not stems from the plan.
    constant = {
        place: values[0]
        for place, values in found.items()
        if len(set(values)) == 1 and (len(values) >= count or values[0] != SWITCHES.get(target))
    }
    assert constant == {row["place"]: row["value"] for row in rows}
