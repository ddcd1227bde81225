"""Configurations of other trainers: what their exporters write is read back, and what people write by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shardwright
from shardwright import SpecError, load_cluster, load_model
from shardwright.importers.launch import plan_from_launch
from shardwright.plans.plan import Plan, Recompute
from shardwright.spec.adapter import parse_adapter
from shardwright.spec.options import Options
from tests.golden.plans import LLAMA_3_1_8B, PLANS, cluster_of
from tests.importers.test_round_trip import came_back
from tests.targets.plans import torchtitan_plans, trainer_plans

TARGETS: dict[str, Callable[[], dict[str, Plan]]] = {
    "bridge": lambda: {**PLANS, **torchtitan_plans()},
    "torchtitan": torchtitan_plans,
    "accelerate": trainer_plans,
    "deepspeed": trainer_plans,
}


def shape(plan: Plan) -> dict[str, Any]:
    """What a plan decides that every trainer says."""
    (replica,) = plan.replicas
    stage = replica.stages[0]
    return {
        "degrees": [plan.gpus, stage.tensor_parallel, stage.context_parallel, len(replica.stages), replica.count],
        "layers": [each.layers for each in replica.stages],
        "experts": [stage.expert_parallel, stage.expert_tensor_parallel],
        "sequence_parallel": plan.sequence_parallel and stage.tensor_parallel > 1,
        "precision": plan.job.precision,
        "batch": [plan.micro_batch, plan.job.global_batch, plan.job.seq_len],
        "sharding": plan.optimizer.sharding,
        "offload": plan.optimizer.offload,
        "recompute": stage.recompute.granularity,
    }


def exported(target: str) -> dict[str, Plan]:
    found = {}
    for name, plan in TARGETS[target]().items():
        try:
            shardwright.export(plan, target)
        except SpecError:
            continue
        found[name] = plan
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_exported_is_read_back(target: str) -> None:
    plans = exported(target)
    assert len(plans) >= 12
    for name, plan in plans.items():
        read = came_back(plan, target)
        assert shape(read) == shape(plan), name
        assert read.job.framework == {"accelerate": "fsdp", "bridge": "megatron"}.get(target, target)


@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
@pytest.mark.parametrize("adapter", ["lora:8", "qdora:64", "lora8bit:16"])
def test_adapters_and_options_are_read_back_from_the_files_beside_the_arguments(target: str, adapter: str) -> None:
    """PEFT's own file and bitsandbytes' decide what is trained, not the arguments."""
    fsdp = trainer_plans()[f"llama-3.1-8b {'none' if target == 'accelerate' else 'zero2'} tp 1 cp 1 bf16 kept"]
    beside, framework = parse_adapter(adapter, "q_proj+v_proj+up_proj"), {"accelerate": "fsdp"}.get(target, target)
    options = Options(loss="chunked", activation_offload="inputs")
    full = replace(fsdp.stages[0], recompute=Recompute(granularity="full", method="uniform", layers=1))
    replica = replace(fsdp.replicas[0], stages=(full,))
    plan = replace(
        fsdp, job=replace(fsdp.job, framework=framework, adapter=beside, options=options), replicas=(replica,)
    )
    read = came_back(plan, target)
    assert (read.job.adapter, read.job.options) == (beside, options)


def test_hybrid_sharding_under_accelerate_is_refused(tmp_path: Path) -> None:
    degrees = "  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4\n"
    file = tmp_path / "accelerate.yaml"
    file.write_text(f"distributed_type: FSDP\nnum_processes: 8\nparallelism_config:\n{degrees}")
    (tmp_path / "launch.sh").write_text(
        "accelerate launch --config_file accelerate.yaml train.py --per_device_train_batch_size 1 --max_seq_length 2048\n"
    )
    with pytest.raises(SpecError, match="hybrid sharding is not described"):
        plan_from_launch(tmp_path / "launch.sh", cluster=cluster_of(1), model=LLAMA_3_1_8B)


ZERO3 = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(
    "options",
    [
        "--config_file accelerate.yaml",
        "--use_deepspeed --deepspeed_config_file ds.json",
        "--use_deepspeed --zero_stage 3 --mixed_precision bf16",
    ],
)
def test_deepspeed_under_accelerate_is_read_from_wherever_it_is_told(options: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(ZERO3)
    (tmp_path / "accelerate.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    )
    file = tmp_path / "launch.sh"
    words = "--per_device_train_batch_size 2 --max_seq_length 2048"
    file.write_text(f"accelerate launch --num_processes 8 {options} train.py {words}\n")
    plan = plan_from_launch(file, cluster=cluster_of(1), model=LLAMA_3_1_8B).plan
    assert (plan.optimizer.sharding, plan.micro_batch, plan.job.precision) == ("zero3", 2, "bf16")
    assert plan.job.framework == "deepspeed"


RECIPE = '''
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common

def llama3_8b_pretrain_config(tp: int = 2, seq_length: int = 8192) -> ConfigContainer:
    """Returns a configuration."""
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = seq_length
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.pipeline_model_parallel_size = 2 * 1
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.sequence_parallel = True
    cfg.model.cross_entropy_loss_fusion = True
    cfg.model.cross_entropy_fusion_impl = "te"
    cfg.optimizer.use_precision_aware_optimizer = True
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.optimizer.main_params_dtype = torch.float16
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.train.train_iters = 1000
    cfg.train.global_batch_size = 512
    cfg.train.micro_batch_size = 1
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.overlap_grad_reduce = True
    cfg.mixed_precision = "bf16_mixed"
    cfg.model.unheard_of_switch = True
    return cfg
'''


def test_a_megatron_bridge_recipe(tmp_path: Path) -> None:
    file = tmp_path / "llama3.py"
    file.write_text(RECIPE)
    read = plan_from_launch(
        file, cluster=cluster_of(2), arguments=("llama3_8b_pretrain_config", "model.tensor_model_parallel_size=4")
    )
    stage = read.plan.stages[0]
    assert (stage.tensor_parallel, len(read.plan.replicas[0].stages), read.plan.job.global_batch) == (4, 2, 512)
    assert read.plan.sequence_parallel and read.plan.optimizer.sharding == "zero1" and read.plan.job.precision == "bf16"
    assert read.plan.model.hidden == 4096
    assert any("unheard_of_switch" in words for words in read.uncounted)
    assert read.plan.job.options == Options(main_grads="fp32", main_params="fp16", exp_avg="bf16", exp_avg_sq="fp32")


def test_a_recipe_leaves_the_rest_to_megatron_bridge(tmp_path: Path) -> None:
    """Its models fuse the loss; experts of models from Hugging Face are reached by an all-to-all."""
    file = tmp_path / "experts.py"
    recipe = RECIPE.replace("    cfg.model.cross_entropy_loss_fusion = True\n", "")
    file.write_text(recipe.replace("cfg.model.unheard_of_switch = True", "cfg.model.expert_model_parallel_size = 16"))
    changes = ("llama3_8b_pretrain_config", "model.pipeline_model_parallel_size=1")
    model = load_model("qwen3-30b-a3b")
    assert plan_from_launch(file, cluster=cluster_of(4), arguments=changes, model=model).plan.job.options == Options(
        dispatcher="alltoall", main_grads="fp32", main_params="fp16", exp_avg="bf16", exp_avg_sq="fp32"
    )


def test_what_a_recipe_computes_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(RECIPE.replace("2 * 1", "best_depth(tp)").replace("import AutoBridge", "import AutoBridge, os"))
    with pytest.raises(SpecError, match="pipeline_model_parallel_size: is computed"):
        plan_from_launch(file, cluster=cluster_of(2))


RECIPES_OF_ONE = """
from megatron.bridge.recipes.common import _pretrain_common
SEQUENCE_LENGTH_16K: int = 16384

def _low_precision(mixed_precision_recipe: str) -> ConfigContainer:
    precision_config = get_mixed_precision_config(mixed_precision_recipe)
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = SEQUENCE_LENGTH_16K
    cfg.mixed_precision = precision_config
    return cfg

def of_eight_bits() -> ConfigContainer:
    cfg = _low_precision("bf16_with_fp8_current_scaling_mixed")
    cfg.model.tensor_model_parallel_size = 2
    return cfg

def of_four_bits() -> ConfigContainer:
    return _low_precision("bf16_with_nvfp4_mixed")
"""


def test_recipes_build_on_functions_of_their_file_and_on_the_common_one(tmp_path: Path) -> None:
    file = tmp_path / "llama3.py"
    file.write_text(RECIPES_OF_ONE)
    plan = plan_from_launch(file, cluster=cluster_of(1), arguments=("of_eight_bits",)).plan
    assert (plan.job.precision, plan.job.fp8_recipe, plan.job.seq_len) == ("fp8", "tensorwise", 16384)
    assert (plan.micro_batch, plan.job.global_batch, plan.replicas[0].count) == (2, 32, 4)  # _pretrain_common's
    assert plan.overlap.grad_reduce and plan.overlap.param_gather and plan.optimizer.sharding == "zero1"
    with pytest.raises(SpecError, match="four bits, which are not described"):
        plan_from_launch(file, cluster=cluster_of(1), arguments=("of_four_bits",))


def test_a_precision_that_is_not_known_is_no_fp32(tmp_path: Path) -> None:
    file = tmp_path / "llama3.py"
    for told, expected in (('"fp16_mixed"', "fp16"), ('"nanov2_bf16_with_fp8_current_scaling_mixed"', "fp8")):
        file.write_text(RECIPE.replace('"bf16_mixed"', told))
        assert plan_from_launch(file, cluster=cluster_of(2)).plan.job.precision == expected
    file.write_text(RECIPE.replace('"bf16_mixed"', "own_precision()"))
    with pytest.raises(SpecError, match="mixed_precision: is computed when the file runs"):
        plan_from_launch(file, cluster=cluster_of(2))


def test_a_nemo_yaml(tmp_path: Path) -> None:
    file = tmp_path / "gpt.yaml"
    file.write_text(
        "trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: 100}\n"
        "model:\n  micro_batch_size: 1\n  global_batch_size: 64\n  tensor_model_parallel_size: 4\n"
        "  pipeline_model_parallel_size: 2\n  encoder_seq_length: 4096\n  num_layers: 32\n  hidden_size: 4096\n"
        "  ffn_hidden_size: 11008\n  num_attention_heads: 32\n  activation: fast-swiglu\n  bias: false\n"
        "  normalization: rmsnorm\n  position_embedding_type: rope\n  share_embeddings_and_output_weights: false\n"
        "  hidden_dropout: 0.0\n  attention_dropout: 0.0\n  sequence_parallel: true\n"
        "  activations_checkpoint_granularity: selective\n  tokenizer: {model: /models/llama2.model}\n  vocab_size: 32000\n"
    )
    plan = plan_from_launch(file, cluster=cluster_of(2)).plan
    assert plan.model.parameters == 6_738_415_616
    assert (plan.gpus, len(plan.replicas[0].stages), plan.replicas[0].count) == (16, 2, 2)
    assert plan.stages[0].recompute.granularity == "selective"
    wide = plan_from_launch(file, cluster=cluster_of(2), arguments=("model.tensor_model_parallel_size=8",)).plan
    assert wide.stages[0].tensor_parallel == 8


@pytest.mark.parametrize("started", ["run.sh", "deep/configs/train.yaml"])
@pytest.mark.parametrize(
    ("where", "said"),
    [("deep/configs/ds.json", "ds.json"), ("deep/configs/ds.json", "deep/configs/ds.json"), ("ds/3.json", "ds/3.json")],
)
def test_a_file_that_a_file_names_is_beside_it_or_below_the_folder_that_all_are_in(
    started: str, where: str, said: str, tmp_path: Path
) -> None:
    for folder in ("deep/configs", "ds"):
        (tmp_path / folder).mkdir(parents=True)
    config = f"per_device_train_batch_size: 2\nbf16: true\ndeepspeed: {said}\n"
    (tmp_path / "deep/configs/train.yaml").write_text(config)
    (tmp_path / where).write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    (tmp_path / "run.sh").write_text("torchrun --nproc_per_node 8 train.py deep/configs/train.yaml\n")
    cluster = load_cluster("1x8xH100-SXM")
    plan = plan_from_launch(tmp_path / started, cluster=cluster, model=LLAMA_3_1_8B, seq_len=2048).plan
    assert (plan.job.framework, plan.optimizer.sharding) == ("deepspeed", "zero3")


def test_accelerate_from_slurm(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "scripts" / "accelerate-fsdp.sh", tmp_path / "submit.sh")
    (tmp_path / "fsdp_config.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_activation_checkpointing: true\n"
    )
    plan = plan_from_launch(tmp_path / "submit.sh", cluster=load_cluster("4x4xA100-SXM-80"), model=LLAMA_3_1_8B).plan
    assert (plan.gpus, plan.data_parallel, plan.micro_batch, plan.optimizer.sharding) == (16, 16, 2, "zero3")
    assert plan.job.precision == "fp16" and plan.stages[0].recompute.granularity == "full"
    (tmp_path / "fsdp_config.yaml").unlink()
    with pytest.raises(SpecError, match="is not beside it"):
        plan_from_launch(tmp_path / "submit.sh", cluster=load_cluster("4x4xA100-SXM-80"), model=LLAMA_3_1_8B)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 3}}', "train_micro_batch_size_per_gpu: is missing"),
        ("ds.json", '{"train_batch_size": 64, "zero_optimization": {"stage": 2}}', "does not describe the model"),
        (
            "a.yaml",
            "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true, fsdp_reshard_after_forward: false}\n",
            "fsdp_offload_params",
        ),
        ("a.toml", "[parallelism\n", "is no TOML"),
        ("a.py", "def f(:\n", "is no Python"),
        ("a.py", "x = 1\n", "is no configuration of a trainer"),
        ("job.yaml", "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", "is no configuration of a trainer"),
    ],
)
def test_faults_are_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        plan_from_launch(tmp_path / name, cluster=cluster_of(1))
    assert all(problem.hint for problem in caught.value.problems)


def test_nothing_is_executed(tmp_path: Path) -> None:
    """A file that would leave a trace if it ran."""
    trace = tmp_path / "trace"
    for name, text in (
        (
            "run.sh",
            f"touch {trace}; X=$(touch {trace}); eval 'touch {trace}'; torchrun pretrain_gpt.py --num-layers 2\n",
        ),
        (
            "recipe.py",
            f"open({str(trace)!r}, 'w')\ndef f(x=open({str(trace)!r}, 'w')):\n    return g(micro_batch_size=1)\n",
        ),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError):
            plan_from_launch(tmp_path / name, cluster=cluster_of(1))
    assert not trace.exists()
