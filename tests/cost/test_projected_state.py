"""State of GaLore and APOLLO: what their own packages keep, on every GPU whole, and refused where it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

import shardwright
from shardwright import Job, SpecError, check
from shardwright.cost.frameworks.optimizer import ends_width, optimizer_widths, state_width
from shardwright.exporters.hugging_face import trainer_arguments
from shardwright.plans.plan import OptimizerPlan
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.huggingface import model_of_config

MODEL = model_of_config(
    {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "hidden_act": "silu",
    },
    "small",
)  # fmt: skip
# Bytes of the tensors of state after one step of GaLoreAdamW (galore_torch 1.0) and of APOLLOAdamW (apollo_torch 1.0.3,
# without the norm of a step that it keeps of each of 21 matrices) on transformers' model of these sizes in fp32.
KEPT = {
    ("galore", 16): 5_591_040, ("galore", 128): 15_955_968, ("galore", 1000): 25_835_520,
    ("apollo", 16): 5_591_040, ("apollo", 128): 15_955_968, ("apollo", 1000): 96_654_336,
}  # fmt: skip


def job_of(optimizer: str, masters: str = "fp32") -> Job:
    return shardwright.make_job(
        global_batch=8, seq_len=128, optimizer=optimizer, framework="eager", master_weights=masters
    )


@pytest.mark.parametrize(("name", "rank"), KEPT)
@pytest.mark.parametrize("masters", ["fp32", "none"])
def test_state_is_what_the_packages_keep(name: str, rank: int, masters: str) -> None:
    job = job_of(f"{name}:{rank}", masters)
    ends = MODEL.embedding_parameters + MODEL.head_parameters
    kept = state_width(MODEL, job) * MODEL.parameters + ends_width(MODEL, job) * ends
    master = optimizer_widths()[name].state * MODEL.parameters * job.masters
    assert kept - master == pytest.approx(KEPT[name, rank] / (1 if masters == "fp32" else 2), rel=1e-9)


def test_a_plan_keeps_it_whole_and_says_so_to_the_trainer() -> None:
    cluster, space = shardwright.load_cluster("1x8xH100-SXM"), parse_pins(["tp=1", "pp=1", "cp=1"])
    job = replace(job_of("galore:16"), framework="fsdp")
    plan = shardwright.plan(MODEL, cluster, job, space=space, top=1).best
    assert plan.optimizer.sharding == "none" and not tuple(check(plan))
    said = trainer_arguments(plan)
    assert (said["optim"], said["optim_args"], said["optim_target_modules"]) == (
        "galore_adamw", "rank=16", ["attn", "mlp"],
    )  # fmt: skip
    (memory,) = plan.predicted.memory[0]
    assert memory.optimizer_bytes == pytest.approx(KEPT["galore", 16] + 4.0 * MODEL.parameters, rel=1e-9)
    cut = replace(plan, optimizer=OptimizerPlan(sharding="zero1"))
    assert any("projects whole matrices" in problem.message for problem in check(cut))


@pytest.mark.parametrize("words", ["galore:0", "galore:x", "adam:8", "galor"])
def test_wrong_ranks_are_told(words: str) -> None:
    with pytest.raises(SpecError, match="optimizer"):
        job_of(words)
