"""Whether training fits: the terms against the cost model and against formulas, the advice against sizing it again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product

import pytest
from tests.cli.running import refused, run
from tests.nightly import nightly

import shardwright.search.sizing as module
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.errors import SpecError
from shardwright.search.sizing import Size, Sizing, fit, ways
from shardwright.spec.adapter import FROZEN_BYTES
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.cluster import Cluster
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.trainers.fit import fit as trained
from shardwright.trainers.fit import plan_of_way
from shardwright.trainers.runs import runners


def sized(model: str = "llama-3.1-8b", cluster: str = "1x1xRTX3090", each: int = 1, **job: object) -> Sizing:
    found = load_cluster(cluster)
    options = {"seq_len": 2048, "framework": "fsdp", "global_batch": found.gpus * each} | job
    return fit(load_model(model), found, make_job(**options))


def size_of(sizing: Sizing, name: str) -> Size:
    return next(size for size in sizing.sizes if size.way.name == name)


def test_full_training_takes_18_bytes_a_parameter_before_activations() -> None:
    memory = size_of(sized(), "full").memory
    states = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert states == pytest.approx(18 * load_model("llama-3.1-8b").parameters)


def test_sharding_divides_the_state_by_the_gpus_that_share_it() -> None:
    eight = sized(cluster="1x8xRTX3090")
    alone, shared = size_of(eight, "full").memory, size_of(eight, "ZeRO-1").memory
    assert shared.optimizer_bytes == pytest.approx(alone.optimizer_bytes / 8)
    assert shared.weights_bytes == alone.weights_bytes
    fully = size_of(eight, "ZeRO-3 (FSDP)").memory
    assert fully.weights_bytes < alone.weights_bytes / 4


def test_adapters_leave_the_weights_and_take_the_state() -> None:
    sizing = sized()
    lora, full = size_of(sizing, "LoRA").memory, size_of(sizing, "full, recomputation").memory
    assert lora.weights_bytes == pytest.approx(full.weights_bytes, rel=0.01)
    assert lora.optimizer_bytes < 0.02 * full.optimizer_bytes
    assert full.total_bytes / lora.total_bytes > 2.0


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
    assert not {"zero3"} & {way.sharding for way in ways(1)}
    assert {"zero3"} & {way.sharding for way in ways(2)}


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
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt2"])
def test_memory_is_that_of_the_plan(model: str, cluster: str) -> None:
    """Sizes are vectorised; `predict` costs a plan by itself."""
    sizing = sized(model, cluster, 2, seq_len=1024)
    for size in sizing.sizes:
        plan = replace(plan_of_way(sizing, size.way), cluster=sizing.cluster)
        memory = predict(plan, default_efficiency()).memory[0][0]
        assert asdict(size.memory) == pytest.approx(asdict(memory), rel=1e-9)


@pytest.mark.parametrize("framework", ["megatron", "train", "torchtitan", "deepspeed", "fsdp"])
def test_every_way_is_one_that_a_trainer_has(framework: str) -> None:
    """QLoRA is none of Megatron-LM's, and torchtitan has no adapters."""
    eight = load_cluster("1x8xH100-SXM")
    sizing = trained(load_model("llama-3.1-8b"), eight, make_job(global_batch=8, seq_len=1024, framework=framework))
    assert sizing.sizes and all(runners(plan_of_way(sizing, size.way)) for size in sizing.sizes)
    assert {size.way for size in sizing.sizes} | set(sizing.lacking) <= set(ways(8))
    quantised = {way.adapter.quantised for way in (size.way for size in sizing.sizes) if way.adapter is not None}
    assert (True in quantised) == (framework in ("deepspeed", "fsdp"))


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


def test_what_sometimes_fits_is_said_as_such() -> None:
    outcome = run(
        ["fit", "llama-3.1-70b", "--gpu", "RTX3090", "--gpus", "2", "--seq-len", "512", "--adapter", "lora:8"]
    )
    assert "May fit or not: QLoRA, ZeRO-3 (FSDP) (" in outcome.out
    assert outcome.code == 0 and "or more: QLoRA, ZeRO-3, weights on host." in outcome.out


def test_the_command_says_what_fits_and_what_to_type_next() -> None:
    outcome = run(["fit", "llama-3.1-8b", "--gpu", "RTX3090"])
    assert outcome.code == 0
    assert "or more: LoRA, 8-bit weights; QLoRA." in outcome.out
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
    document = json.loads(run(["fit", model, "--gpu", gpu, "--gpus", str(count), "--json"]).out)
    if document["next"]:
        assert run([*document["next"].split()[1:], "--json"]).code == 0, document["next"]


def test_the_command_has_one_document_and_exit_3_where_nothing_fits() -> None:
    outcome = run(["fit", "llama-3.1-405b", "--gpu", "T4", "--precision", "fp16", "--json"])
    document = json.loads(outcome.out)
    assert outcome.code == 3 and not any(way["fits"] for way in document["ways"])
    assert document["ways"][0]["memory_bytes"]["total_bytes"] > 7e12
    assert "did you mean" in refused(run(["fit", "llama-3.1-8b", "--gpu", "RTX3091"]))
    assert "--gpus" in refused(run(["fit", "gpt2", "--gpu", "T4", "--gpus", "0"]))
    assert "--cluster" in refused(run(["fit", "gpt2"]))
    assert "--recipe" in refused(run(["fit", "gpt2", "--gpu", "T4", "--out", "recipe.yaml"]))
    assert "bf16" in refused(run(["fit", "gpt2", "--gpu", "T4", "--seq-len", "128"]))
