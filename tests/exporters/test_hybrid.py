"""Blocks other than a transformer's in Megatron-LM's words: patterns, variants of attention, and what is refused."""

from __future__ import annotations

import pytest
from tests.golden.plans import uniform_plan

from shardwright import Job, SpecError, load_model
from shardwright.exporters.megatron.export import MegatronExport, to_megatron
from shardwright.exporters.megatron.launch import launch_script
from shardwright.plans.plan import Overlap, Plan


def plan_of(name: str, counts: tuple[int, ...], pp: int) -> Plan:
    job = Job(global_batch=64, seq_len=4096)
    overlap = Overlap(pipeline=len(counts) > pp)
    return uniform_plan(load_model(name), nodes=2, job=job, micro_batch=1, tp=2, pp=pp, counts=counts, overlap=overlap)


def after(export: MegatronExport, flag: str) -> str:
    return export.arguments[export.arguments.index(flag) + 1]


def test_the_pattern_has_a_letter_for_each_block_and_ends_virtual_stages() -> None:
    """The letters are those of the published `hybrid_override_pattern`."""
    published = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
    export = to_megatron(plan_of("nemotron-nano-9b-v2", (15, 14, 14, 13), pp=2))
    pattern = after(export, "--hybrid-layer-pattern")
    assert [len(stage) for stage in pattern.split("|")] == [15, 14, 14, 13]
    assert pattern.replace("|", "") == published
    sizes = [after(export, f"--mamba-{name}") for name in ("num-heads", "head-dim", "num-groups", "state-dim")]
    assert sizes == ["128", "80", "8", "128"]
    assert export.program == "pretrain_hybrid.py"
    assert "--pipeline-model-parallel-layout" not in export.arguments


def test_experts_are_told_by_the_pattern_alone() -> None:
    export = to_megatron(plan_of("nemotron-3-super-120b-a12b", (88,), pp=1))
    assert after(export, "--hybrid-layer-pattern").count("E") == 40
    assert after(export, "--moe-latent-size") == "1024"
    assert "--moe-layer-freq" not in export.arguments
    assert "--squared-relu" in export.arguments


def test_the_gated_delta_rule_is_a_variant_of_attention() -> None:
    export = to_megatron(plan_of("qwen3-next-80b-a3b", (24, 24), pp=2))
    assert after(export, "--experimental-attention-variant") == "gated_delta_net"
    assert after(export, "--linear-attention-freq") == "([1]*3+[0])*12"
    assert "--attention-output-gate" in export.arguments
    assert after(export, "--pipeline-model-parallel-layout") == "Et*24|t*24L"
    assert export.program == "pretrain_gpt.py"


def test_the_script_starts_the_program_of_the_model() -> None:
    plan = plan_of("nemotron-nano-9b-v2", (56,), pp=1)
    script = launch_script(plan, to_megatron(plan))
    assert '"${MEGATRON_PATH}/pretrain_hybrid.py"' in script


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jamba-v0.1", "has Mamba of 8,192 channels"),
        ("bamba-9b", "has Mamba-2 of 128 heads of 64"),
        ("falcon-h1-7b", "has a mixer beside attention in one layer"),
        ("kimi-linear-48b-a3b", "has Kimi delta attention"),
        ("lfm2-1.2b", "has short convolution"),
        ("minimax-text-01", "has lightning attention"),
        ("rwkv-7-1.5b", "has RWKV-7"),
        ("recurrentgemma-2b", "has gated linear recurrence"),
        ("mamba2-2.7b", "no attention in any layer"),
        ("deepseek-v3.2", "has sparse attention with an indexer"),
    ],
)
def test_other_blocks_are_refused_by_name(name: str, words: str) -> None:
    model = load_model(name)
    tp = 1 if any(kind.mixer and min(size for _, size in kind.mixer.splits) == 1 for kind in model.kinds) else 2
    job = Job(global_batch=64, seq_len=4096)
    plan = uniform_plan(model, nodes=2, job=job, micro_batch=1, tp=tp, counts=(len(model.layers),))
    with pytest.raises(SpecError) as caught:
        to_megatron(plan)
    assert words in str(caught.value)
