"""The first hour of a user: commands as they are typed from five starting points, each with what it must answer.

Eight consumer GPUs; money and a deadline; a mixed cluster; a shop; clumsy hands. Every command is one line of the table:
what is typed, the exit code, words that must be in the answer (or must not, after a "!"). Files are made beforehand.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from tests.cli.running import Outcome, run

SMALL = "--global-batch 8 --seq-len 512"
A100 = f"plan --model llama-3.2-1b --cluster 1x2xA100-SXM-80 {SMALL}"
TWO = f"plan --model llama-3.2-1b --cluster 1x2xA100-SXM-80+1x2xV100-SXM2 {SMALL} --precision fp16"
COMMANDS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    # Eight RTX 3090s
    (
        "fit llama-3.1-8b --gpu RTX3090",
        0,
        (
            "90% or more: LoRA, 8-bit weights; QLoRA",
            "May fit or not: LoRA, recomputation (87%)",
            "What would make the rest fit",
            "Next",
        ),
    ),
    ("fit llama-3.1-8b --gpu RTX3090 --gpus 8", 0, ("ZeRO-3, optimizer in host memory", "shardwright plan --model")),
    ("fit llama-3.1-405b --gpu T4 --precision fp16", 3, ("90% or more: nothing", "What would make the rest fit")),
    ("fit llama-3.2-1b --gpu RTX3091", 2, ("did you mean",)),
    ("fit llama-3.2-1b --gpu RTX3090 --micro-batch 0", 2, ("--micro-batch",)),
    ("fit model.yaml --gpu L4 --json", 0, ('"fits": true', '"next"')),
    ("fit llama-3.2-1b --gpu T4", 2, ("--precision: T4 cannot compute in bf16", "fp16")),
    (
        f"plan --model llama-3.2-1b --cluster 1x8xRTX3090 {SMALL}",
        0,
        ("no published run has the RTX3090", "MFU"),
    ),
    (f"plan --model llama-3.2-1b --cluster 1x8xRTX3090 {SMALL} --set overlap_tp=on", 3, ("No plan",)),
    ("plan --model gpt2 --cluster 1x1xT4 --global-batch 8 --seq-len 4096 --precision fp16", 2, ("--seq-len: 4096",)),
    (f"plan --model llama-3.2-1b --cluster 1x8xRTX3090 {SMALL} --deadline 3d", 2, ("give --tokens (or --steps)",)),
    (
        "plan --model gpt2 --cluster 1x8xH100-SXM --global-batch 7 --seq-len 512",
        0,
        ("1 H100-SXM: left idle", "with it"),
    ),
    (f"plan --model gpt2-124m --cluster 1x8xRTX3090 {SMALL}", 2, ("did you mean gpt2", "!opt-125m")),
    (
        f"plan --model gpt2 --cluster 1x2xRTX3090 {SMALL} --set pp=2",
        0,
        ("then gradient/weight communication", "!data-parallel", "!unreported GPU types"),
    ),
    (f"plan --model llama-3.2-1b --cluster 1x8xRTX3090 {SMALL} --set sharding=zero3", 0, ("ZeRO-3", "priced for")),
    (f"plan --model qwen2.5-32b --cluster 1x2xRTX3090 {SMALL}", 3, ("GiB a GPU of 24.0 GiB", "!GiB of 21.4")),
    (f"plan --model llama-3.2-1b --cluster 1x1xRTX4090 {SMALL} --details", 0, ("Memory of one GPU", "Assumed", "!GB)")),
    (f"plan --model qwen2.5-7b --cluster 1x1xH100-SXM {SMALL}", 0, ("!No plan",)),
    (f"plan --model qwen2.5-7b --cluster 1x2xA100-SXM-40 {SMALL}", 0, ("!No plan",)),
    (f"plan --model qwen2.5-7b --cluster 1x1xA100-SXM-40 {SMALL}", 3, ("No plan",)),
    # Money and a deadline
    (f"{A100} --tokens 1B", 0, ("whole run", "80% sure", "including failures and restarts", "$")),
    (f"{A100} --tokens 1B --details", 0, ("All tokens in", "80% sure", "median of", "commit")),
    (f"{A100} --tokens 1B --budget 1", 3, ("budget",)),
    (f"{A100} --tokens 1B --deadline 1", 3, ("deadline",)),
    (f"{A100} --tokens 1B --deadline 30d", 0, ("within 30.0 days", "!720 h")),
    (f"{A100} --tokens 1B --objective cost", 0, ("$",)),
    (f"{A100} --budget 100", 2, ("tokens",)),
    ("prices --gpu H100-SXM", 0, ("commit", "!undated")),
    ("prices --gpu A100-SXM-80 --provider aws --json", 0, ("on_demand_per_hour",)),
    ("prices --gpu H100-SXN", 2, ("did you mean",)),
    ("prices --provider nobody", 2, ("nobody",)),
    ("gpus H100-SXM", 0, ("providers",)),
    ("gpus", 0, ("RTX3090",)),
    ("gpus --json", 0, ('"name"',)),
    # What to rent
    (
        "shop --model llama-3.2-1b --gpu A100-SXM-40 --max-gpus 16 --tokens 20B --deadline 30d --mixes 0",
        0,
        ("Cheapest within 30.0 days", "The same on demand", "sure to keep the deadline"),
    ),
    ("shop --model llama-3.2-1b --gpu L4 --tokens 20B --mixes 0 --max-gpus 0", 2, ("max-gpus",)),
    ("shop --model llama-3.2-1b --gpu RTX3090 --tokens 1B", 2, ("no price",)),
    ("shop --model llama-3.2-1b --gpu A100-SXM-40 --max-gpus 8 --tokens 1B --deadline 1h --mixes 0", 3, ("fastest",)),
    ("shop --model llama-3.2-1b --offers offers.yaml --tokens 1B --mixes 0 --json", 0, ('"chances"', '"front"')),
    ("shop --model llama-3.2-1b --offers offers.yaml --provider aws --tokens 1B", 2, ("--provider",)),
    # A plan and what follows
    (f"{A100} -o plan2.json", 0, ("shardwright export plan2.json",)),
    (f"{A100} -o plan2.json", 0, ("plan2.json: overwritten",)),
    ("check plan.json", 0, ("legal",)),
    ("check plan.json --json", 0, ('"legal": true',)),
    ("check illegal.json", 2, ("micro_batch",)),
    ("check illegal.json --json", 2, ('"legal": false',)),
    ("check flash.json", 2, ("FlashAttention", "V100-SXM2")),
    ("evaluate flash.json", 2, ("FlashAttention",)),
    ("export flash.json --to megatron", 2, ("FlashAttention",)),
    ("evaluate plan.json", 0, ("Against the best", "no plan of the space is better")),
    ("evaluate illegal.json", 2, ("Not legal",)),
    ("evaluate illegal.json --json", 2, ('"legal": false',)),
    ("export plan.json --to megatron", 0, ("--tensor-model-parallel-size",)),
    ("export plan.json --to megatron -o -", 0, ("--tensor-model-parallel-size",)),
    ("export plan.json --to megatron -o plan.json", 2, ("is an input",)),
    ("export plan.json --to megatron -o .", 2, ("folder",)),
    ("export plan.json --to megatrom", 2, ("megatron",)),
    ("draw plan.json", 0, ("<svg",)),
    ("draw plan.json -o plan.json", 2, ("is an input",)),
    ("draw plan.json -o nowhere/plan.svg", 2, ("nowhere",)),
    # Two GPU types
    (f"{TWO} --set tp=1 --set micro_batch=1", 0, ("V100-SXM2", "run")),
    (f"plan --model llama-3.2-1b --cluster racks.yaml {SMALL}", 0, ("racks of 2 machines",)),
    (
        f"plan --model llama-3.2-1b --cluster 1x2xV100-SXM2 {SMALL} --precision fp16 --details",
        0,
        ("FlashAttention off",),
    ),
    (
        f"plan --model llama-3.2-1b --cluster 1x2xA100-SXM-80 {SMALL} --precision fp32 --details",
        0,
        ("FlashAttention off",),
    ),
    # Clumsy hands
    (f"{A100} --json -o -", 2, ("--json",)),
    (f"{A100} --rules rules.txt -o rules.txt", 2, ("is an input",)),
    (f"{A100} --top 1000", 0, ("run",)),
    (f"{A100} --fit 2", 2, ("probability",)),
    ("plan --model gpt2 --cluster 1x1xT4 --global-batch 1 --seq-len 4096 --precision fp16", 2, ("positions",)),
    ("plan --model llama-2-7b --cluster 1x8xA100-SXM-80 --global-batch 8 --seq-len 8192", 0, ("4,096 tokens",)),
    ("models llama-3.1-8b", 0, ("parameters",)),
    ("models nothing.json", 2, ("nothing.json",)),
    ("models zero.yaml", 2, ("hidden",)),
    ("validate long.csv", 2, ("line 2",)),
    ("evaluate --megatron-args doubling.sh --cluster 1x8xA100-SXM-80", 2, ("more than",)),
    ("discover --from nobody", 2, ("--from nobody",)),
    ("frobnicate", 2, ("frobnicate",)),
    ("plan", 2, ("--cluster",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands name."""
    path = tmp_path_factory.mktemp("first-hour")
    assert run([*shlex.split(A100), "-o", str(path / "plan.json")]).code == 0
    plan = json.loads((path / "plan.json").read_text())
    (path / "illegal.json").write_text(json.dumps(plan | {"micro_batch": 3}))
    old = json.loads((path / "plan.json").read_text().replace("A100-SXM-80", "V100-SXM2"))
    old["cluster"]["pools"][0]["gpu"]["compute_capability"] = "7.0"
    (path / "flash.json").write_text(json.dumps(old | {"flash_attention": True}))
    (path / "model.yaml").write_text("{hidden: 256, layers: 4, heads: 4, ffn: 1024, vocab: 1000, max_position: 2048}\n")
    (path / "zero.yaml").write_text("{hidden: 0, layers: 4, heads: 4, ffn: 1024, vocab: 1000}\n")
    (path / "offers.yaml").write_text("offers:\n  - {gpu: L4, gpus: 8, price_per_hour: 6, at_most: 2}\n")
    (path / "racks.yaml").write_text(
        "nodes:\n  - {count: 4, gpu: A100-SXM-80, gpus: 2, rack_nodes: 2, rack_gbps: 50, site: north}\n"
    )
    (path / "rules.txt").write_text("r: $tp > 1\n")
    (path / "long.csv").write_text(
        "model,gpu,n_gpus,global_batch,seq_len,iteration_seconds\n" + "x" * 200_000 + ",,,,,\n"
    )
    (path / "doubling.sh").write_text("A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "train ${A[@]}\n")
    return path


def typed(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    monkeypatch.chdir(folder)
    return run(shlex.split(command))


def test_there_are_sixty_commands() -> None:
    assert len(COMMANDS) >= 60


@pytest.mark.parametrize(
    ("command", "code", "words"), COMMANDS, ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_a_command_answers(
    command: str, code: int, words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = typed(command, folder, monkeypatch)
    said = " ".join((outcome.out + outcome.err).split())
    assert outcome.code == code, said[:2000]
    assert "Traceback" not in said and "Warning" not in said
    for word in words:
        assert (word[1:] not in said) if word.startswith("!") else (word in said), (word, said[:3000])


def test_the_first_screen_is_at_most_twenty_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (
        A100,
        f"{A100} --tokens 1B",
        f"plan --model llama-3.2-1b --cluster 1x8xRTX3090 {SMALL} --tokens 1B",
    ):
        assert len(typed(command, folder, monkeypatch).out.splitlines()) <= 20
