"""Every command and every kind of file, clumsy in any way: no traceback, no wrong exit code, nothing that hangs.

An input is a command as it is typed, with words dropped, doubled or replaced, and files with values replaced, lines taken
out or bytes turned over. `python -m tests.cli.test_fuzz_commands 2000 7` runs 2,000 of seed 7 and lists what went wrong.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.cli.running import Outcome, run
from tests.measured import small_document

LONGEST_SECONDS = 20  # after which an input hangs
EACH, SEEDS = 1000, 10
CODES = (0, 2, 3)

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 128, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
FILES = {
    "config.json": json.dumps(CONFIG, indent=1),
    "model.yaml": "name: tiny\nlayers: 4\nhidden: 64\nheads: 4\nffn: 128\nvocab: 512\n",
    "cluster.yaml": "nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 2, price_per_hour: 5}\n"
    "  - {count: 1, gpu: L4, gpus: 2, memory_gb: 24, inter_node_gbps: 25}\n",
    "rules.txt": "big: $tp > 8\n$dp == 1 and $pp == 1\n",
    "prices.csv": "gpu,gpus,on_demand_per_hour,spot_per_hour\nA100-SXM-80,8,20,9\nL4,1,0.7,0.3\n",
    "layers.json": json.dumps(small_document(), indent=1),
    "offers.yaml": "offers:\n  - {gpu: L4, gpus: 1, price_per_hour: 0.7, available: 4}\n",
    "runs.csv": "model,gpu,n_gpus,gpus_per_node,precision,framework,tp,pp,dp,seq_len,micro_batch,global_batch,"
    "measured_tokens_per_s_per_gpu\nllama-2-7b,A100-SXM-80GB,8,8,bf16,megatron-lm,1,1,8,4096,1,64,3000\n",
}
JOB = "--global-batch 8 --seq-len 128"
COMMANDS = (
    f"plan --model config.json --cluster 1x2xA100-SXM-80 {JOB}",
    f"plan --model model.yaml --cluster cluster.yaml {JOB} --precision fp16 --top 2 --details",
    f"plan --model config.json --cluster 1x2xL4 {JOB} --rules rules.txt --prices prices.csv --tokens 1M --budget 9",
    f"plan --model config.json --cluster 1x2xRTX3090 {JOB} --set tp=2 --set recompute=full --json",
    f"plan --model config.json --cluster 1x2xH100-SXM {JOB} --objective cost --tokens 1M --deadline 2d --fit 0.5",
    "plan --profile layers.json --cluster 1x2xA100-SXM-40 --global-batch 8 --top 1",
    f"plan --model config.json --cluster 1x1xT4 {JOB} --precision fp16 -o out.json",
    "evaluate plan.json",
    "evaluate plan.json --json",
    "evaluate --megatron-args run.sh --cluster 1x2xA100-SXM-80",
    "check plan.json",
    "check plan.json --json",
    "export plan.json --to megatron",
    "export plan.json --to torchtitan",
    "export plan.json --to deepspeed",
    "export plan.json --to accelerate",
    "export plan.json --to skypilot",
    "export plan.json --to kubernetes",
    "export plan.json --to perfetto -o trace.json",
    "draw plan.json -o plan.svg",
    "report plan.json -o report.html",
    "fit config.json --gpu RTX3090",
    "fit model.yaml --gpu L4 --gpus 2 --json --micro-batch 1",
    "shop --model config.json --gpu L4 --max-gpus 2 --tokens 1M --mixes 0 --global-batch 8 --seq-len 128",
    "shop --model config.json --offers offers.yaml --tokens 1M --mixes 0 --global-batch 8 --seq-len 128 --json",
    "validate runs.csv",
    "validate runs.csv --json",
    "gpus L4",
    "gpus --json",
    "models llama-2-7b",
    "models config.json",
    "prices --gpu L4",
    "prices --gpu A100-SXM-80 --provider aws --json",
    "train plan.json --dry-run",
)
WORDS = (
    "", "-", "--", "0", "-1", "1", "3", "1e9", "9" * 30, "nan", "inf", "1%", "5d", "2M", "tp", "tp=", "=2", "tp=2,", "fp8", "bf16",
    "mxfp8", "sgd", "megatron", "train", "cost", "config.json", "plan.json", "cluster.yaml", "layers.json", "runs.csv", "/nowhere",
    ".", "1x2xL4", "0x8xL4", "1x0xL4", "1x8x", "1x2xL4+1x2xT4", "llama-2-7b", "L4", "ärger", "\x1b[31m", "a" * 300, "--json",
    "--details", "--help", "--top", "--set", "--tokens", "--out",
)  # fmt: skip
VALUES = (
    "0", "-1", "1", "2", "1e300", "9" * 25, "0.5", "null", "true", '""', "[]", "{}", "[[0]]", '"tp"', '"zero3"', "nan", "inf", "L4",
    "'", '"', "$X", "\u0000", "é", ",", ":", "{", "}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrong:
    """An input that went wrong, and how."""

    arguments: tuple[str, ...]
    how: str


def prepared(folder: Path) -> dict[str, bytes]:
    """Write the files into `folder`, which is the working directory, with a plan and its export. Return them all."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    assert run([*shlex.split(COMMANDS[0]), "--set", "pp=2", "-o", "plan.json"]).code == 0
    assert run(["export", "plan.json", "--to", "megatron", "-o", "run.sh"]).code == 0
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def typed(pick: random.Random) -> list[str]:
    """Return a command with up to three words changed."""
    words = shlex.split(pick.choice(COMMANDS))
    for _ in range(pick.choice((0, 0, 1, 1, 2, 3))):
        place = pick.randrange(1, len(words) + 1)
        change = pick.randrange(4)
        if change == 0 and place < len(words):
            del words[place]
        elif change == 1 and place < len(words):
            words.insert(place, words[place])
        elif change == 2:
            words.insert(place, pick.choice(WORDS))
        else:
            words[place:] = [pick.choice(WORDS), *words[place + 1 :]]
    return words


def changed(content: bytes, pick: random.Random) -> bytes:
    """Return a file with a value, a line or some bytes changed."""
    way = pick.randrange(5)
    if way == 0:
        place = pick.randrange(len(content) + 1)
        return content[:place] + pick.randbytes(pick.choice((1, 4))) + content[place + pick.randrange(3) :]
    if way == 1:
        return content[: pick.randrange(len(content) + 1)]
    lines = content.decode().splitlines(keepends=True)
    place = pick.randrange(len(lines))
    if way == 2:
        del lines[place]
    elif way == 3:
        lines.insert(place, lines[pick.randrange(len(lines))])
    else:
        words = lines[place].split(" ")
        words[pick.randrange(len(words))] = pick.choice(VALUES)
        lines[place] = " ".join(words)
    return "".join(lines).encode()


def went_wrong(arguments: list[str]) -> str:
    """Run a command. Return what is wrong with how it ended, nothing if all is well."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_SECONDS)
    try:
        return wrong_outcome(arguments, run(arguments))
    except TimeoutError:
        return f"more than {LONGEST_SECONDS} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wrong_outcome(arguments: list[str], outcome: Outcome) -> str:
    if "Traceback" in outcome.err and "--debug" not in arguments:
        return "traceback: " + outcome.err[-400:]
    if outcome.code not in CODES:
        return f"exit {outcome.code}: {outcome.err[-300:]}"
    silent = outcome.code == 2 and not (outcome.err + outcome.out).strip()
    return "exit 2 without a word" if silent else ""


def fuzzed(count: int, seed: int, folder: Path) -> Iterator[Wrong]:
    """Yield the inputs that went wrong of `count`."""
    pick, files = random.Random(seed), prepared(folder)
    for _ in range(count):
        arguments = typed(pick)
        used = [name for name in files if name in arguments]
        for name in used:
            content = files[name]
            (folder / name).write_bytes(changed(content, pick) if pick.random() < 0.6 else content)
        how = went_wrong(arguments)
        for name in used:
            (folder / name).write_bytes(files[name])
        if how:
            yield Wrong(tuple(arguments), how)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_clumsy_input_is_answered(folder: Path) -> None:
    assert list(fuzzed(40, 0, folder)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_ten_thousand_clumsy_inputs_are_answered(seed: int, folder: Path) -> None:
    assert list(fuzzed(EACH, seed, folder)) == []


def main(arguments: list[Any]) -> None:
    count, seed = int(arguments[0]), int(arguments[1])
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for wrong in fuzzed(count, seed, Path(name)):
            print(shlex.join(wrong.arguments), "\n   ", wrong.how, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
