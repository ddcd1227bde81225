"""Configurations of torchtitan as people write them: TOML to 0.2, Python from 0.3 on."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import SpecError
from shardwright.importers.launch import plan_from_launch
from shardwright.importers.megatron.read import Reading
from tests.golden.plans import LLAMA_3_1_8B, cluster_of


def test_torchtitan_toml(tmp_path: Path) -> None:
    (tmp_path / "llama3_8b.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\nsteps = 1000\n'
        "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
        '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "op"\n'
    )
    (tmp_path / "run.sh").write_text(
        "CONFIG=${CONFIG:-./llama3_8b.toml}\n"
        "torchrun --nproc_per_node=8 --nnodes 2 -m torchtitan.train --job.config_file $CONFIG "
        "--parallelism.tensor_parallel_degree 4\n"
    )
    for file, tensor in (("llama3_8b.toml", 2), ("run.sh", 4)):
        plan = plan_from_launch(tmp_path / file, cluster=cluster_of(2)).plan
        assert plan.model.parameters == LLAMA_3_1_8B.parameters
        stage = plan.stages[0]
        assert (plan.gpus, stage.tensor_parallel, plan.micro_batch, plan.job.seq_len) == (16, tensor, 2, 8192)
        assert plan.optimizer.sharding == "zero3" and stage.recompute.granularity == "selective"


def test_parts_of_a_sequence_share_the_state_under_torchtitan(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    degrees = "data_parallel_shard_degree = -1\ncontext_parallel_degree = 8\n"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 65536\n'
        f"[parallelism]\n{degrees}"
    )
    plan = plan_from_launch(file, cluster=cluster_of(1)).plan
    assert plan.data_parallel == 1 and plan.optimizer.sharding == "zero3"
    file.write_text(file.read_text() + "data_parallel_replicate_degree = 2\n")
    with pytest.raises(SpecError, match="hybrid sharding"):
        plan_from_launch(file, cluster=cluster_of(2))


def read(folder: Path, parallelism: str = "", training: str = "", rest: str = "", nodes: int = 1) -> Reading:
    """Read a TOML for Llama 3 8B."""
    (folder / "train.toml").write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n{training}\n'
        f"[parallelism]\n{parallelism}\n{rest}\n"
    )
    return plan_from_launch(folder / "train.toml", cluster=cluster_of(nodes))


def test_layers_are_spread_as_torchtitan_spreads_them(tmp_path: Path) -> None:
    """Embedding and output count as a layer each, and a schedule of several stages has two on each rank."""
    plan = read(tmp_path, "pipeline_parallel_degree = 4").plan
    assert [stage.layers for stage in plan.replicas[0].stages] == [((0, 8),), ((8, 17),), ((17, 25),), ((25, 32),)]
    several = 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"'
    plan = read(tmp_path, several).plan
    assert [stage.layers for stage in plan.replicas[0].stages] == [((0, 8), (17, 25)), ((8, 17), (25, 32))]
    plan = read(tmp_path, several + "\npipeline_parallel_layers_per_stage = 6").plan
    assert plan.schedule.virtual_stages == 3 and sum(stage.layer_count for stage in plan.replicas[0].stages) == 32
    listed = [
        ["tok_embeddings", *(f"layers.{n}" for n in range(20))],
        [*(f"layers.{n}" for n in range(20, 32)), "norm"],
    ]
    plan = read(tmp_path, f"pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {listed}").plan
    assert [stage.layers for stage in plan.replicas[0].stages] == [((0, 20),), ((20, 32),)]


def test_precision_and_what_is_recomputed(tmp_path: Path) -> None:
    converted = (
        '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["quantize.linear.float8"]\n[training]\nseq_len = 4096\n'
    )
    (tmp_path / "eight.toml").write_text(converted)
    plan = plan_from_launch(tmp_path / "eight.toml", cluster=cluster_of(1)).plan
    assert (plan.job.precision, plan.job.fp8_recipe, plan.micro_batch) == ("fp8", "tensorwise", 8)  # its usual batch
    assert read(tmp_path, training='mixed_precision_param = "float32"').plan.job.precision == "fp32"
    reading = read(tmp_path, rest='[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"')
    recompute = reading.plan.stages[0].recompute
    assert (recompute.granularity, recompute.method, recompute.layers) == ("full", "block", 16)


def test_experts_are_split_by_tensor_parallelism_alone_where_they_are_not_spread(tmp_path: Path) -> None:
    text = (
        '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[training]\nlocal_batch_size = 1\nseq_len = 4096\n[parallelism]\n'
    )
    for degrees, expected in (("", (1, 2)), ("expert_parallel_degree = 4\n", (4, 1))):
        (tmp_path / "moe.toml").write_text(f"{text}tensor_parallel_degree = 2\n{degrees}")
        stage = plan_from_launch(tmp_path / "moe.toml", cluster=cluster_of(1)).plan.stages[0]
        assert (stage.expert_parallel, stage.expert_tensor_parallel) == expected


@pytest.mark.parametrize(
    ("parallelism", "rest", "message"),
    [
        ('tensor_parallel_degree = "8"', "", "tensor_parallel_degree: is '8'"),
        (
            'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"',
            "",
            "is ZBVZeroBubble, which is not",
        ),
        ("", '[activation_checkpoint]\nmode = "memory_budget"', "is memory_budget, which is not described"),
    ],
)
def test_what_is_not_described_is_named(parallelism: str, rest: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        read(tmp_path, parallelism, rest=rest)
    assert all(problem.hint for problem in caught.value.problems)


def test_a_misspelt_degree_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tensor_parallel_degre: .*did you mean tensor_parallel_degree"):
        read(tmp_path, "tensor_parallel_degre = 8")
    assert "parallelism.unheard_of (not known here)" in read(tmp_path, "unheard_of = 8").uncounted
