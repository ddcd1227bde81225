"""Random plans come back from the files that are written for a target, by the script that starts them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwright
from shardwright import Job, SpecError, check, load_cluster
from shardwright.exporters.evaluation import evaluation_of
from shardwright.exporters.targets import TARGETS, TRAINERS
from shardwright.importers.launch import plan_from_launch
from shardwright.plans.plan import OptimizerPlan, Overlap, Plan, Recompute
from shardwright.spec.catalog.frameworks import MEGATRON
from shardwright.spec.options import Options, said
from shardwright.spec.read.presets import preset_names
from shardwright.trainers.runs import limits_of_trainer, one_gpu_replicas
from tests.golden.plans import uniform_plan
from tests.nightly import nightly

FULL, SELECTIVE = Recompute(granularity="full", method="uniform", layers=1), Recompute(granularity="selective")
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b")
FRAMEWORKS = {"accelerate": "fsdp", "deepspeed": "deepspeed", "torchtitan": "torchtitan", "bridge": "megatron"}
ENVIRONMENT = {"TRAIN_SCRIPT": "train.py", "MASTER_ADDR": "a", "HF_ASSETS_PATH": "a"}
USERS = ("LEARNING_RATE", "DATA_PATH", "TOKENIZER_MODEL", "CHECKPOINT_DIR", "TRAIN_ITERS")
OPTIONS: dict[str, tuple[dict[str, str], ...]] = {  # that a target writes by words which are read back
    "accelerate": (
        {}, {"master_weights": "none"}, {"loss": "chunked"}, {"loss": "tiled"}, {"activation_offload": "inputs"},
    ),
    "deepspeed": (
        {}, {"weight_offload": "host"}, {"loss": "chunked"}, {"loss": "tiled"}, {"activation_offload": "inputs"},
    ),
    "torchtitan": ({}, {"loss": "chunked"}),
    "bridge": ({},),
}  # fmt: skip
FEW, MANY = 40, 400  # of which a target runs a part: at least a tenth


@st.composite
def plans(draw: Any, target: str) -> Plan | None:
    """Plans of every degree that a target may run; None where it cannot run the one that is drawn."""
    model = shardwright.load_model(draw(st.sampled_from(MODELS)))
    pipelined = target in ("torchtitan", "bridge")
    tp, cp, nodes = (draw(st.sampled_from([1, 1, 2, 4])) for _ in range(3))
    cp = 1 if target == "deepspeed" else cp
    pp, chunks = (draw(st.sampled_from([1, 2])) if pipelined else 1 for _ in range(2))
    experts = model.has_experts
    ep = draw(st.sampled_from([1, 2, 4])) if experts and pipelined else 1
    micro, steps = draw(st.sampled_from([1, 2, 3])), pp * draw(st.sampled_from([1, 2, 4]))
    replicas = 8 * nodes // (tp * cp * pp)
    if replicas == 0 or 8 * nodes % (tp * cp * pp):
        return None
    batch = replicas * micro * steps
    length = draw(st.sampled_from([1024, 4096, 8192]))
    iterations = draw(st.sampled_from([None, 10, 1000]))
    job = Job(
        global_batch=batch,
        seq_len=length,
        precision=draw(st.sampled_from(["bf16", "fp16", "fp32"])),
        framework=FRAMEWORKS[target],
        options=Options(**draw(st.sampled_from(OPTIONS[target]))),
        tokens=None if iterations is None else float(iterations * batch * length),
    )
    plan = uniform_plan(
        model,
        nodes=nodes,
        job=job,
        micro_batch=micro,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        etp=tp if experts and ep == 1 and target != "bridge" else 1,
        counts=_split(len(model.layers), pp * (chunks if pp > 1 else 1), draw(st.integers(0, 2))),
        sharding=draw(st.sampled_from(["none", "zero1", "zero2", "zero3"])),
        recompute=draw(st.sampled_from([None, FULL, SELECTIVE])),
        overlap=Overlap(grad_reduce=draw(st.booleans())),
    )
    plan = on_known_machines(plan)
    whole = draw(st.sampled_from([0.0, 0.0, 1.0])) if plan.optimizer.distributed else 0.0
    plan = replace(plan, optimizer=replace(plan.optimizer, offload=whole))
    plan = plan if pipelined else replace(plan, sequence_parallel=False)
    try:
        shardwright.export(plan, target)
    except SpecError:
        return None
    return None if check(plan) else plan


def on_known_machines(plan: Plan) -> Plan:
    """Return a plan on machines of the catalogue, which have a short form."""
    return replace(plan, cluster=shardwright.load_cluster(f"{plan.gpus // 8}x8xH100-SXM"))


def _split(layers: int, stages: int, less: int) -> tuple[int, ...]:
    """Return the layers of stages of which the first has some fewer than the last."""
    usual, more = divmod(layers, stages)
    counts = [usual + (place < more) for place in range(stages)]
    if stages > 1:
        counts[0], counts[-1] = counts[0] - less, counts[-1] + less
    return tuple(counts)


def came_back(plan: Plan, target: str, main: str = "run.sh") -> Plan:
    """Return the plan that is read off the files of a target, with nothing beside them but what is the user's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in shardwright.export(plan, target).files.items():
            (folder / file).write_text(text, encoding="utf-8")
        return plan_from_launch(folder / main, environment=named_in(folder / main)).plan


def named_in(path: Path) -> dict[str, str]:
    """Return the user's own variables that a script names."""
    text = path.read_text(encoding="utf-8")
    values = ENVIRONMENT | dict.fromkeys(USERS, "1")
    return {name: value for name, value in values.items() if name in text}


def expected(plan: Plan, read: Plan, target: str) -> Plan:
    """Return a plan as its target runs it: what it has no word for is its own."""
    options = replace(read.job.options, **said(plan.job.options))
    if plan.stages[0].recompute != FULL:  # no inputs of layers are kept for them to run again
        options = replace(options, activation_offload=None)
    job = replace(plan.job, framework=FRAMEWORKS[target], options=options, tokens=read.job.tokens)
    own = {} if target == "bridge" else {"overlap": read.overlap}
    (replica,) = plan.replicas
    stages = replica.stages
    if target == "torchtitan" and read.stages[0].recompute == FULL:
        stages = tuple(replace(stage, recompute=FULL) for stage in stages)
    alone = target == "torchtitan" and plan.data_parallel * stages[0].context_parallel == 1
    return replace(
        plan,
        optimizer=OptimizerPlan() if alone else plan.optimizer,  # a single rank shards nothing
        model=replace(read.model, name=plan.model.name, family=plan.model.family) if target == "bridge" else read.model,
        job=job,
        replicas=(replace(replica, stages=stages),),
        sequence_parallel=plan.sequence_parallel and stages[0].tensor_parallel > 1,
        **own,
    )


@pytest.mark.parametrize(("target", "main"), [("megatron", "run.sh"), ("skypilot", "task.yaml"), ("kubernetes", "jobset.yaml")])  # fmt: skip
def test_what_brings_machines_together_comes_back(target: str, main: str) -> None:
    model = shardwright.load_model("llama-3.1-8b")
    job = Job(global_batch=64, seq_len=4096, framework="megatron")
    plan = uniform_plan(model, nodes=2, job=job, micro_batch=1, tp=2, pp=2, counts=(15, 17), sharding="zero1")
    plan = on_known_machines(plan)
    read = came_back(plan, target, main)
    own = replace(read.model, name=plan.model.name, family=plan.model.family)
    assert replace(read, model=own) == expected(plan, replace(read, model=own), "bridge")


PRESETS = sorted(((name, target) for name in preset_names() for target in TRAINERS), key=lambda pair: crc32(repr(pair).encode()))  # fmt: skip


@pytest.mark.parametrize(("name", "target"), [*PRESETS[:20], *nightly(PRESETS[20:])])
def test_every_preset_that_a_target_takes_comes_back(name: str, target: str) -> None:
    model, sharding = shardwright.load_model(name), "none" if TARGETS[target].framework == MEGATRON else "zero3"
    length = min(4096, model.max_position or 4096)
    job = Job(global_batch=64, seq_len=length, framework=TARGETS[target].framework)
    spread = OptimizerPlan(sharding=sharding)  # type: ignore[arg-type]
    plan = one_gpu_replicas(model, load_cluster("1x8xH100-SXM"), job, "H100-SXM", count=8, optimizer=spread)
    if any(limits_of_trainer(target)(plan)):
        return
    read = came_back(plan, target)
    assert (read.model.parameters, read.replicas) == (model.parameters, plan.replicas)


UNEVEN = (("3x8xH100-SXM", 20), ("2x8xA100-SXM-80", 12))


@pytest.mark.parametrize("target", [target for target in TRAINERS if target != "accelerate"])
@pytest.mark.parametrize(("cluster", "gpus"), UNEVEN)
def test_machines_that_give_unlike_numbers_of_gpus_come_back(target: str, cluster: str, gpus: int) -> None:
    model, there = shardwright.load_model("llama-3.1-8b"), load_cluster(cluster)
    job = Job(global_batch=gpus * 4, seq_len=1024, framework=TARGETS[target].framework)
    plan = one_gpu_replicas(model, there, job, there.pools[0].gpu.name, count=gpus)
    assert came_back(plan, target).replicas == plan.replicas


SEVERAL = ("1x(2xRTX4090+1xRTX3090)", "1x2xA10G+1x1xRTX3090", "2x(4xL4+4xA10G)", "1x8xH100-SXM+1x6xH100-SXM")


@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
@pytest.mark.parametrize("cluster", SEVERAL)
def test_equal_shares_over_several_types_come_back(target: str, cluster: str) -> None:
    """All of the GPUs, those of each type alone, and on a cluster that no short form says."""
    model, there = shardwright.load_model("llama-3.2-1b"), load_cluster(cluster)
    other = replace(there, pools=tuple(replace(pool, host_memory_bytes=9e10) for pool in there.pools))
    for machines in (there, other):
        job = Job(global_batch=there.gpus * 4, seq_len=1024, framework=TARGETS[target].framework)
        alone = [one_gpu_replicas(model, machines, job, pool.gpu.name, count=pool.gpus) for pool in machines.pools]
        together = replace(alone[0], replicas=tuple(replica for plan in alone for replica in plan.replicas))
        total, counts = machines.gpus, [replica.count for replica in together.replicas]
        shared = [replace(replica, micro_batches=job.global_batch // total) for replica in together.replicas]
        for plan in (replace(together, replicas=tuple(shared)), *(plan for plan, n in zip(alone, counts, strict=True) if job.global_batch % n == 0)):  # fmt: skip
            if not any(limits_of_trainer(target)(plan)):
                read = came_back(plan, target)
                assert (read.cluster, read.replicas) == (machines, plan.replicas)


def test_a_model_of_a_file_comes_back_from_a_script_that_leaves_it_to_the_user() -> None:
    model = replace(shardwright.load_model("llama-3.2-1b"), name="mine", vocab=32000)
    plan = uniform_plan(model, nodes=1, job=Job(global_batch=64, seq_len=4096, framework="fsdp"), micro_batch=1, tp=1, counts=(16,), sharding="zero3")  # fmt: skip
    assert came_back(on_known_machines(plan), "accelerate").model == model


BROUGHT_TOGETHER = [("2x8xH100-SXM", name) for name in ("torchtitan", "fsdp", "deepspeed", "train")]
BROUGHT_TOGETHER += [("1x8xH100-SXM+1x8xA100-SXM-80", name) for name in ("megatron", "fsdp", "deepspeed", "train")]


@pytest.mark.parametrize(("target", "main"), [("skypilot", "task.yaml"), ("kubernetes", "jobset.yaml")])
@pytest.mark.parametrize(("cluster", "framework"), BROUGHT_TOGETHER)
def test_whatever_machines_start_comes_back(cluster: str, framework: str, target: str, main: str) -> None:
    job = shardwright.make_job(global_batch=48, seq_len=1024)
    pins = {"pp": 2} if framework == "train" else {}
    best = shardwright.plan("llama-3.1-8b", cluster, job, framework=framework, pins=pins, top=1).best
    read = came_back(best, target, main)
    assert (read.replicas, read.cluster, read.optimizer.sharding) == (
        best.replicas,
        best.cluster,
        best.optimizer.sharding,
    )


@pytest.mark.parametrize("text", ["4x8xH100-SXM", "1x8xH100-SXM+2x8xA100-SXM-80"])
def test_a_script_is_read_on_other_machines_where_they_are_given(text: str) -> None:
    line = "# shardwright evaluate --launch run.sh --cluster {} --model llama-3.1-8b --seq-len 2048\n"
    assert evaluation_of(line.format(text)).cluster == text
    plan = uniform_plan(
        shardwright.load_model("llama-3.1-8b"), nodes=1, job=Job(global_batch=64, seq_len=4096, framework="deepspeed"),
        micro_batch=1, tp=1, counts=(32,), sharding="zero2",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        for file, said in shardwright.export(plan, "deepspeed").files.items():
            (Path(name) / file).write_text(said, encoding="utf-8")
        cluster = shardwright.load_cluster("1x8xA100-SXM-80")
        read = plan_from_launch(
            Path(name) / "run.sh", cluster=cluster, seq_len=1024, environment=named_in(Path(name) / "run.sh")
        )
    assert (read.plan.cluster, read.plan.job.seq_len) == (cluster, 1024)
    assert read.notes[0] == "taken from the file's own words to `evaluate`: llama-3.1-8b"


@pytest.mark.parametrize(("target", "count"), [*((target, FEW) for target in FRAMEWORKS), *nightly((target, MANY) for target in FRAMEWORKS)])  # fmt: skip
def test_random_plans_come_back(target: str, count: int) -> None:
    ran = 0

    @settings(
        max_examples=count, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(plans(target))
    def comes_back(plan: Plan | None) -> None:
        nonlocal ran
        if plan is None:
            return
        ran += 1
        read = came_back(plan, target)
        model = replace(read.model, name=plan.model.name, family=plan.model.family)
        assert replace(read, model=model) == expected(plan, replace(read, model=model), target)
        if plan.job.tokens is not None:
            assert read.job.iterations == plan.job.iterations

    comes_back()
    assert ran >= count / 10


@pytest.mark.parametrize(
    ("target", "options"),
    [(target, options) for target, rows in OPTIONS.items() if target != "bridge" for options in rows],
)
def test_every_option_that_a_target_writes_comes_back(target: str, options: dict[str, str]) -> None:
    job = Job(global_batch=16, seq_len=1024, framework=FRAMEWORKS[target], options=Options(**options))
    model = shardwright.load_model("llama-3.2-1b")
    plan = uniform_plan(model, nodes=1, job=job, micro_batch=2, tp=1, counts=(16,), sharding="zero3", recompute=FULL)
    plan = plan if target == "torchtitan" else replace(plan, sequence_parallel=False)
    read = came_back(on_known_machines(plan), target).job
    assert (read.precision, said(read.options).items() >= options.items()) == ("bf16", True)


@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
@pytest.mark.parametrize("loss", ["dpo", "dpo:precomputed", "kto", "kto:precomputed", "orpo", "cpo"])
@pytest.mark.parametrize("adapter", [None, "lora:16"])
def test_losses_over_preferences_come_back(target: str, loss: str, adapter: str | None) -> None:
    job = shardwright.make_job(
        global_batch=64, seq_len=1024, framework=FRAMEWORKS[target], preference=loss, adapter=adapter
    )
    model = shardwright.load_model("llama-3.2-1b")
    plan = uniform_plan(model, nodes=1, job=job, micro_batch=2, tp=1, counts=(16,), sharding="zero3", recompute=FULL)
    plan = on_known_machines(replace(plan, sequence_parallel=False))
    read = came_back(plan, target)
    assert (read.job.preference, read.job.adapter, read.job.loss) == (job.preference, job.adapter, job.loss)
    assert (read.job.global_batch, read.job.seq_len, read.micro_batch) == (64, 1024, 2)
