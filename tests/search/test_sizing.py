"""Whether training fits: the terms against the cost model and against formulas, the advice against sizing it again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product

import pytest
from tests.cli.running import answered, refused, run, succeeded
from tests.nightly import nightly

import shardwright.search.sizing as module
from shardwright import Cluster, Job, SpecError, load_cluster, load_model, make_job, plan
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.reports.text.sizing import next_command
from shardwright.search.sizing import Size, Sizing, TrainingWay, fit, way_with, ways
from shardwright.spec.adapter import FROZEN_BYTES, parse_adapter
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.options import Options
from shardwright.trainers.fit import fit as trained
from shardwright.trainers.fit import plan_of_way
from shardwright.trainers.runs import runners

UNASKED = Options()


def sized(
    model: str = "llama-3.1-8b",
    cluster: str = "1x1xRTX3090",
    each: int = 1,
    options: Options = UNASKED,
    **changes: object,
) -> Sizing:
    machines = load_cluster(cluster)
    asked = {"seq_len": 2048, "framework": "fsdp", "global_batch": machines.gpus * each} | changes
    return fit(load_model(model), machines, replace(make_job(**asked), options=options))


def size_of(sizing: Sizing, name: str) -> Size:
    return next(size for size in sizing.sizes if size.way.name == name)


def test_full_training_takes_16_bytes_a_parameter_when_it_updates() -> None:
    """Weights, gradients and two moments in fp32; copies of the weights in 16 bits are gone by then, and gradients are
    not there before."""
    memory = size_of(sized(), "full").memory
    tensors = memory.total_bytes - memory.context_bytes
    assert 16.0 < tensors / load_model("llama-3.1-8b").parameters < 17.0
    assert memory.weights_bytes + memory.optimizer_bytes == pytest.approx(14 * load_model("llama-3.1-8b").parameters)


def test_sharding_divides_the_state_by_the_gpus_that_share_it() -> None:
    eight = sized(cluster="1x8xRTX3090")
    alone, shared = size_of(eight, "full").memory, size_of(eight, "ZeRO-1").memory
    assert shared.optimizer_bytes == pytest.approx(alone.optimizer_bytes / 8)
    assert shared.weights_bytes == alone.weights_bytes
    fully = size_of(eight, "ZeRO-3 (FSDP)").memory
    assert fully.weights_bytes < alone.weights_bytes / 4


def test_sharding_of_everything_is_called_as_the_framework_calls_it() -> None:
    names = {
        framework: {way.name for way in ways(8, Job(global_batch=8, seq_len=1024, framework=framework))}
        for framework in ("fsdp", "deepspeed")
    }
    assert "ZeRO-3 (FSDP)" in names["fsdp"] and "ZeRO-3" in names["deepspeed"]
    assert not any("FSDP" in name for name in names["deepspeed"])


def test_adapters_leave_the_weights_and_take_the_state() -> None:
    sizing = sized()
    lora, full = size_of(sizing, "LoRA").memory, size_of(sizing, "full, recomputation").memory
    assert lora.weights_bytes == pytest.approx(full.weights_bytes, rel=0.01)
    assert lora.optimizer_bytes < 0.02 * full.optimizer_bytes
    assert full.total_bytes / lora.total_bytes > 2.0


def test_masters_are_of_what_is_trained_in_full() -> None:
    """Without them adapters fit as they do with them, and full training has a hint where it fits so alone."""
    cluster, job = load_cluster("1x1xA100-SXM-80"), make_job(global_batch=1, seq_len=2048, framework="fsdp")
    plain, bare = (
        trained(load_model("llama-3.1-8b"), cluster, replace(job, options=Options(master_weights=masters)))
        for masters in (None, "none")
    )
    beside = [{size.way: size.memory for size in found.sizes if size.way.adapter} for found in (plain, bare)]
    assert beside[0] == beside[1] and len(beside[0]) >= 3
    full = next(size for size in plain.sizes if size.way.name == "full, recomputation")
    assert not full.fits and full.options == Options(master_weights="none")
    assert next(size for size in bare.sizes if size.way == full.way).fits


def test_quantized_weights_are_those_of_the_paper() -> None:
    assert pytest.approx(4.127, abs=1e-3) == FROZEN_BYTES["nf4"] * 8
    model = load_model("llama-2-70b")
    weights = size_of(sized("llama-2-70b", "1x1xA100-SXM-80"), "QLoRA").memory.weights_bytes
    embeddings = 2 * model.vocab * model.hidden
    assert weights == pytest.approx(FROZEN_BYTES["nf4"] * (model.parameters - embeddings) + 2 * embeddings, rel=0.02)


@pytest.mark.parametrize("limit", [77, 200, 448, 1026, 2047])
def test_a_sequence_may_be_as_long_as_the_model_takes(limit: int) -> None:
    """Whatever the limit: lengths are tried in steps."""
    cluster = load_cluster("1x1xA100-SXM-80")
    short = replace(load_model("llama-3.2-1b"), max_position=limit)
    sizing = fit(short, cluster, make_job(global_batch=1, seq_len=min(limit, 64), framework="fsdp"))
    fitting = [size for size in sizing.sizes if size.fits]
    assert len(fitting) > 2 and {size.longest_sequence for size in fitting} == {limit}
    longer = fit(short, cluster, make_job(global_batch=1, seq_len=4 * limit, framework="fsdp"))
    assert all((size.longest_sequence or 0) >= 4 * limit for size in longer.sizes if size.fits), "as long as asked for"


@pytest.mark.parametrize(
    ("model", "cluster", "each"),
    [("llama-3.1-8b", "1x1xRTX3090", 1), ("llama-3.1-8b", "1x8xRTX3090", 4), *nightly([("llama-3.2-1b", "1x2xT4", 2)])],
)
def test_the_advice_makes_it_fit_and_nothing_less_does(
    model: str, cluster: str, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = "fp16" if "T4" in cluster else "bf16"
    sizing = sized(model, cluster, each, seq_len=8192, precision=precision)
    advised = 0
    for size in sizing.sizes:
        monkeypatch.setattr(module, "ways", lambda *_, way=size.way: (way,))  # the others are not asked about
        pools = sizing.cluster.pools

        def fits(
            samples: int = each, cluster: Cluster = sizing.cluster, *, way: str = size.way.name, **changes: int
        ) -> bool:
            asked = replace(sizing.job, global_batch=samples * cluster.gpus, **changes)
            return size_of(fit(sizing.model, cluster, asked), way).fits

        if size.longest_sequence is not None:
            assert fits(1, seq_len=size.longest_sequence)
            assert size.longest_sequence == sizing.model.max_position or not fits(
                1, seq_len=size.longest_sequence + 256
            )
            advised += 1
        if size.largest_micro_batch is not None:
            assert fits(size.largest_micro_batch) and not fits(size.largest_micro_batch + 1)
            advised += 1
        if size.fewest_gpus is not None and size.fewest_gpus > 2:
            many, fewer = (
                replace(sizing.cluster, pools=(replace(pools[0], nodes=count, gpus_per_node=1),))
                for count in (size.fewest_gpus, size.fewest_gpus - 1)
            )
            assert size.way.offload or (fits(cluster=many) and not fits(cluster=fewer))
            advised += 1
        if size.smallest_gpu is not None:
            assert gpus()[size.smallest_gpu].memory_bytes > size.memory.capacity_bytes
            advised += 1
    assert advised


def test_one_gpu_shares_nothing() -> None:
    for framework in ("fsdp", "deepspeed", "megatron"):
        job = make_job(global_batch=2, seq_len=64, framework=framework)
        assert all(way.sharding == "none" or way.offload for way in ways(1, job))
        assert any(way.sharding != "none" and not way.offload for way in ways(2, job))


def test_the_optimizer_must_fit_in_the_host() -> None:
    cluster = load_cluster("1x1xH200")
    tiny = replace(cluster, pools=(replace(cluster.pools[0], host_memory_bytes=1e9),))
    job = make_job(global_batch=1, seq_len=2048, framework="fsdp")
    roomy, poor = (
        size_of(fit(load_model("llama-3.1-8b"), c, job), "full, optimizer in host memory") for c in (cluster, tiny)
    )
    assert roomy.fits and not poor.fits


def test_of_several_types_the_least_decides_and_all_must_compute() -> None:
    mixed, alike = sized(cluster="1x1xRTX4090+1x2xA100-SXM-80"), sized(cluster="3x1xRTX4090")
    assert mixed.pool.gpu.name == "RTX4090"
    assert [size.memory for size in mixed.sizes] == [size.memory for size in alike.sizes]
    with pytest.raises(SpecError, match="bf16"):
        fit(load_model("gpt2"), load_cluster("1x1xT4+1x1xL4"), make_job(global_batch=2, seq_len=128))


@pytest.mark.parametrize("cluster", ["1x1xRTX3090", "1x8xA100-SXM-80"])
@pytest.mark.parametrize(
    ("model", "options", "framework"),
    [
        *((model, Options(), "fsdp") for model in ("llama-3.1-8b", "qwen3-30b-a3b", "gpt2")),
        ("llama-3.1-8b", Options(weight_offload="host"), "deepspeed"),
    ],
)
def test_memory_is_that_of_the_plan(model: str, options: Options, framework: str, cluster: str) -> None:
    """Sizes are vectorised; `predict` costs a plan by itself."""
    sizing = sized(model, cluster, 2, seq_len=1024, options=options, framework=framework)
    for size in sizing.sizes:
        plan = replace(plan_of_way(sizing, size.way, sizing.job.options), cluster=sizing.cluster)
        memory = predict(plan, default_efficiency()).memory[0][0]
        assert asdict(size.memory) == pytest.approx(asdict(memory), rel=1e-9)


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        ("llama-2-13b", "RTX4090"), ("llama-3.1-70b", "RTX3090"), ("qwen3-32b", "L4"), ("llama-3.1-8b", "RTX4060Ti"),
        *nightly(product(("llama-3.1-8b", "qwen3-30b-a3b", "mistral-7b"), ("RTX4090", "T4", "A100-SXM-40"))),
    ],
)  # fmt: skip
def test_on_one_gpu_it_fits_or_is_said_to_where_a_plan_is_found(model: str, gpu: str, framework: str) -> None:
    """What one GPU shards is what it moves to its host: `fit` knows every such plan of LoRA that the search finds."""
    precision = "fp16" if gpu == "T4" else "bf16"
    machine, lora = load_cluster(f"1x1x{gpu}"), parse_adapter("lora:16")
    for options in (Options(), Options(weight_offload="host")) if framework == "deepspeed" else (Options(),):
        job = replace(make_job(global_batch=1, seq_len=512, precision=precision, framework=framework), options=options)
        sizes = [size for size in trained(load_model(model), machine, job).sizes if size.way.training == "lora"]
        plain = [size for size in sizes if size.way.adapter and not size.way.adapter.quantised]
        found = plan(load_model(model), machine, replace(job, adapter=lora), frameworks=(framework,), top=1)
        assert any(size.fits for size in plain) == bool(found.plans), (options, plain)


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("cluster", ["1x1xRTX3090", "1x2xRTX3090", "1x4xA100-SXM-40"])
def test_what_would_make_it_fit_does(framework: str, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, a larger GPU and more host memory are advice that holds, alone or together, as they are said."""
    machines, advised = load_cluster(cluster), 0
    sizing = sized("llama-3.1-70b", cluster, seq_len=512, framework=framework)
    for size in trained(sizing.model, machines, sizing.job).sizes:
        if size.options is not None:
            way, job = way_with(size.way, size.options, machines.gpus), replace(sizing.job, options=size.options)
            lighter = size_of(trained(sizing.model, machines, job), way_name(way, machines.gpus, job))
            assert lighter.fits
        if size.fits or not (size.has_room or size.smallest_gpu):
            continue
        pool = machines.pools[0]
        memory = gpus()[size.smallest_gpu].memory_bytes if size.smallest_gpu else pool.memory_bytes
        host = max(pool.host_memory_bytes, size.host_bytes * pool.gpus_per_node * (1.0 + 1e-12))
        larger = replace(machines, pools=(replace(pool, memory_bytes=memory, host_memory_bytes=host),))
        with monkeypatch.context() as patch:
            patch.setattr(module, "ways", lambda *_, way=size.way: (way,))  # the others are not asked about
            assert size_of(fit(sizing.model, larger, sizing.job), size.way.name).fits, size.way.name
        advised += 1
    assert advised


def way_name(way: TrainingWay, count: int, job: Job) -> str:
    """Return the name of a way under options, which another row of the table may have."""
    alike = (other for other in ways(count, job) if replace(other, name=way.name) == way)
    return next(alike).name


@pytest.mark.parametrize("framework", ["megatron", "train", "torchtitan", "deepspeed", "fsdp"])
def test_every_way_is_one_that_a_trainer_has(framework: str) -> None:
    """Megatron-LM quantises no frozen weights, `train` none to 8 bits, and torchtitan has no adapters."""
    eight = load_cluster("1x8xH100-SXM")
    sizing = trained(load_model("llama-3.1-8b"), eight, make_job(global_batch=8, seq_len=1024, framework=framework))
    assert sizing.sizes and all(runners(plan_of_way(sizing, size.way, sizing.job.options)) for size in sizing.sizes)
    assert {size.way for size in sizing.sizes} | set(sizing.lacking) <= set(ways(8, sizing.job))
    frozen = {size.way.adapter.frozen for size in sizing.sizes if size.way.adapter is not None}
    assert frozen - {"16-bit"} == {"deepspeed": {"nf4", "int8"}, "fsdp": {"nf4", "int8"}, "train": {"nf4"}}.get(
        framework, set()
    )


def test_a_model_that_no_trainer_of_the_framework_runs_is_refused_with_those_that_do() -> None:
    outcome = run(["fit", "bamba-9b", "--gpu", "H100-SXM", "--gpus", "8", "--framework", "torchtitan"])
    assert outcome.code == 2 and "use fsdp, deepspeed, train" in outcome.err


def test_adapters_are_sharded_and_the_command_plans_them() -> None:
    outcome = run(
        ["fit", "llama-3.1-70b", "--gpu", "RTX3090", "--gpus", "4", "--seq-len", "512", "--adapter", "lora:8"]
    )
    assert outcome.code == 0 and "or more: QLoRA, ZeRO-3 (FSDP); " in outcome.out
    command = outcome.out.split("\nNext\n  shardwright ")[1].split()
    assert command[-4:] == ["--adapter", "qlora:8", "--framework", "fsdp"]
    assert run([*command, "--json"]).code == 0


@pytest.mark.parametrize("model", ["glm-4.5-air", "deepseek-v2-lite", *nightly(("glm-4.5", "deepseek-v3", "glm-5"))])
def test_where_no_adapters_have_a_trainer_it_is_said_why_and_what_helps_finds_a_plan(model: str) -> None:
    """Beside shared experts PEFT takes the routed ones too: beside attention alone a trainer has adapters, and the
    command to type next says so."""
    machines = ["--gpu", "H200-SXM", "--gpus", "8", "--nodes", "1" if "lite" in model else "8", "--seq-len", "512"]
    beside = answered(["fit", model, *machines, "--json"])["without_adapters"]
    assert "--adapter lora:16" in beside and "--adapter-targets attention" in beside
    able = answered(["fit", model, *machines, "--adapter", "lora:16", "--adapter-targets", "attention", "--json"])
    assert able["without_adapters"] == "" and any(way["training"] == "lora" for way in able["ways"])
    sizing = trained(
        load_model(model), load_cluster("1x1xH200-SXM"),
        make_job(global_batch=1, seq_len=512, framework="fsdp", adapter="lora:16", adapter_targets="attention"),
    )  # fmt: skip
    adapted = replace(sizing, sizes=tuple(size for size in sizing.sizes if size.way.training == "lora"))
    command = next_command(adapted, model)
    assert not command or "--adapter-targets q_proj+k_proj+v_proj+o_proj" in command


def test_what_sometimes_fits_is_said_as_such() -> None:
    outcome = run(
        ["fit", "llama-3.1-70b", "--gpu", "RTX3090", "--gpus", "2", "--seq-len", "512", "--adapter", "lora:8"]
    )
    assert "May fit or not: QLoRA, ZeRO-3 (FSDP) (" in outcome.out
    assert outcome.code == 0 and "or more: QLoRA, ZeRO-3, weights on host." in outcome.out


def test_the_command_says_what_fits_and_what_to_type_next() -> None:
    outcome = succeeded(["fit", "llama-3.1-8b", "--gpu", "RTX3090"])
    assert "or more: LoRA, 8-bit weights; QLoRA; LoRA, ZeRO-3, weights on host; " in outcome.out
    assert "What would make the rest fit" in outcome.out and "\nNext\n  " in outcome.out
    eight = run(["fit", "llama-3.1-8b", "--gpu", "H100-SXM", "--gpus", "8"])
    command = eight.out.split("\nNext\n  shardwright ")[1].split()
    assert command[:5] == ["plan", "--model", "llama-3.1-8b", "--cluster", "1x8xH100-SXM"]


@pytest.mark.parametrize(
    ("model", "gpu", "count"),
    [
        *[("llama-3.1-8b", "RTX4090", 2), ("llama-3.1-8b", "H100-SXM", 8), ("llama-3.2-1b", "RTX3090", 1)],
        *nightly(product(("llama-3.1-8b", "qwen3-30b-a3b", "mistral-7b"), ("RTX4090", "A100-SXM-40", "L4"), (1, 2, 8))),
    ],
)
def test_what_to_type_next_finds_a_plan(model: str, gpu: str, count: int) -> None:
    document = answered(["fit", model, "--gpu", gpu, "--gpus", str(count), "--json"])
    if document["next"]:
        assert run([*document["next"].split()[1:], "--json"]).code == 0, document["next"]


def test_the_command_has_one_document_and_exit_3_where_nothing_fits() -> None:
    outcome = run(["fit", "llama-3.1-405b", "--gpu", "T4", "--precision", "fp16", "--json"])
    document = json.loads(outcome.out)
    assert outcome.code == 3 and not any(way["fits"] for way in document["ways"])
    assert document["ways"][0]["memory_bytes"]["total_bytes"] > 16 * 405e9
    assert "did you mean" in refused(run(["fit", "llama-3.1-8b", "--gpu", "RTX3091"]))
    assert "--gpus" in refused(run(["fit", "gpt2", "--gpu", "T4", "--gpus", "0"]))
    assert "--cluster" in refused(run(["fit", "gpt2"]))
    assert "--recipe" in refused(run(["fit", "gpt2", "--gpu", "T4", "--out", "recipe.yaml"]))
    assert "bf16" in refused(run(["fit", "gpt2", "--gpu", "T4", "--seq-len", "128"]))
