"""Bad input: exit 2, one clear message that names place and remedy, no traceback; known cases, then a little fuzz, of which
test_fuzz_commands has ten thousand inputs at night."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.running import refused, run
from tests.golden.plans import PLANS
from tests.nightly import examples

from shardwright.plans.document import dumps
from shardwright.plans.plan import Plan

BASE = {"--model": "llama-3.2-1b", "--cluster": "1x2xA100-SXM-80", "--global-batch": "2", "--seq-len": "256"}
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 172, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
}  # fmt: skip
CLUSTER = "nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 2, price_per_hour: 4.0}\n"
RULES = "r: $tp > 1 && $pp == 2 || !($recompute_granularity == full)\n"


def plan(**changes: str) -> list[str]:
    given = {**BASE, **{"--" + name.replace("_", "-"): value for name, value in changes.items()}}
    return ["plan", *(word for pair in given.items() for word in pair)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (plan(model="llama-3.2-1c"), ["llama-3.2-1b"]),
        (plan(model="missing/config.json"), ["missing/config.json"]),
        (plan(cluster="1x8xH100-SXN"), ["H100-SXM"]),
        (plan(cluster="0x8xH100-SXM"), ["0"]),
        (plan(cluster="8 of H100"), ["NODESxGPUSxTYPE"]),
        (plan(global_batch="0"), ["--global-batch"]),
        (plan(global_batch="-4"), ["--global-batch"]),
        (plan(seq_len="0"), ["--seq-len"]),
        (plan(seq_len="x"), ["seq-len"]),
        (plan(tokens="many"), ["--tokens"]),
        (plan(tokens="-1B"), ["--tokens"]),
        (plan(tokens="nan"), ["--tokens"]),
        (plan(precision="int8"), ["--precision", "bf16"]),
        (plan(precision="fp8", cluster="1x8xA100-SXM-80"), ["fp8", "A100"]),
        (plan(optimizer="adamw9"), ["--optimizer"]),
        (plan(objective="speed"), ["--objective"]),
        (plan(budget="100"), ["--budget", "tokens"]),
        (plan(deadline="-1", tokens="1B"), ["deadline"]),
        (plan(top="0"), ["top"]),
        (plan(fit="2"), ["fit"]),
        (plan(set="tp"), ["name=value"]),
        (plan(set="tensor=8"), ["tensor_parallel"]),
        (plan(set="tp=0"), ["tp"]),
        (plan(set="recompute=half"), ["selective"]),
        (plan(set="offload=1.5"), ["offload"]),
        (plan(exportable_to="megatron-2"), ["megatron"]),
        ([*plan(), "--fewer"], ["--fewer", "--json"]),
        (plan(rules="nowhere.txt"), ["nowhere.txt"]),
        (plan(objective="cost", cluster="1x8xA800-SXM-80"), ["price"]),
        (["evaluate"], ["plan file"]),
        (["evaluate", "nowhere.json"], ["nowhere.json"]),
        (["export", "nowhere.json", "--to", "megatron"], ["nowhere.json"]),
        (["gpus", "H1000"], ["H100"]),
        (["validate", "--kind", "pretraining"], ["kind pretraining", "did you mean pretrain"]),
        (["validate", "--quality", "Z"], ["quality Z"]),
        (["validate", "--row", "zzz"], ["row zzz"]),
        (["models", "gpt-5"], ["gpt"]),
        (["frobnicate"], ["frobnicate"]),
        ([*plan(), "--unknown"], ["--unknown"]),
    ],
)
def test_a_known_mistake_is_named(arguments: list[str], words: list[str]) -> None:
    message = refused(run(arguments))
    for word in words:
        assert word.casefold() in message.casefold()
    assert len(message.splitlines()) <= 12


FILES: dict[str, tuple[str, str | bytes, str]] = {
    "wrong field": ("cluster.yaml", "nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 8, memry_gb: 80}\n", "memory_gb"),
    "unknown GPU": ("cluster.yaml", "nodes:\n  - {count: 1, gpu: A100-SXM-81, gpus: 8}\n", "A100-SXM-80"),
    "negative price": ("cluster.yaml", "nodes:\n  - {count: 1, gpu: L4, gpus: 8, price_per_hour: -3}\n", "price"),
    "NaN": ("cluster.yaml", "nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 8, memory_gb: .nan}\n", "memory_gb"),
    "zero GPUs": ("cluster.yaml", "nodes:\n  - {count: 1, gpu: A100-SXM-80, gpus: 0}\n", "gpus"),
    "no machines": ("cluster.yaml", "nodes: []\n", "nodes"),
    "cyclic YAML": ("cluster.yaml", "nodes: &a\n  - *a\n", "cluster.yaml"),
    "YAML tag": ("cluster.yaml", "nodes: !!python/object/apply:os.system ['true']\n", "cluster.yaml"),
    "truncated JSON": ("config.json", json.dumps(CONFIG)[:70], "line 1"),
    "not a config": ("config.json", "[1, 2, 3]", "config.json"),
    "deep JSON": ("config.json", "[" * 100_000, "config.json"),
    "10 MB of noise": ("config.json", random.Random(0).randbytes(10_000_000), "config.json"),
    "noise for a cluster": ("cluster.yaml", random.Random(1).randbytes(100_000), "cluster.yaml"),
    "broken rule": ("rules.txt", "r: $tp >> 1\n", "rules.txt"),
    "unknown variable": ("rules.txt", "r: $tpp > 1\n", "tp"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_is_named(case: str, tmp_path: Path) -> None:
    name, content, word = FILES[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    option = {"cluster.yaml": "cluster", "config.json": "model", "rules.txt": "rules"}[name]
    message = refused(run(plan(**{option: str(path)})))
    assert word in message
    assert name in message


def test_no_tokens_are_not_the_usual_ones(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc-per-node 2 train.py --fsdp full_shard --per_device_train_batch_size 1\n")
    for words in (
        ["fit", "llama-3.2-1b", "--gpu", "L4"],
        ["shop", "--model", "llama-3.2-1b", "--tokens", "1B"],
        ["evaluate", "--launch", str(script), "--cluster", "1x2xL4", "--model", "llama-3.2-1b"],
    ):
        assert "--seq-len: must be more than zero, got 0" in refused(run([*words, "--seq-len", "0"]))


@pytest.mark.parametrize("option", ["model", "cluster", "rules"])
def test_a_folder_is_not_a_file(option: str, tmp_path: Path) -> None:
    assert str(tmp_path) in refused(run(plan(**{option: str(tmp_path)})))


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    assert "nowhere" in refused(run([*plan(), "--out", str(tmp_path / "nowhere" / "plan.json")]))


# ------------------------------------------------------------------------------------------------- fuzz

FUZZ = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@st.composite
def mutated(draw: st.DrawFn, text: str) -> bytes:
    """A text with a few characters changed, cut out or put in, or cut off."""
    raw = bytearray(text.encode())
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(raw) - 1, 0)))
        piece = draw(
            st.sampled_from(
                [b"", b"-", b"0", b"9", b"nan", b"1e999", b"[", b"}", b"null", b"\xff", b": ", b"&a *a", b"'"]
            )
        )
        raw[place : place + draw(st.integers(0, 6))] = piece
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


def assert_sane(arguments: list[str]) -> None:
    outcome = run(arguments)
    assert outcome.code in (0, 2, 3), outcome
    assert "Traceback" not in outcome.err
    if outcome.code == 2:
        refused(outcome)


@FUZZ
@given(mutated(json.dumps(CONFIG)))
def test_any_config(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert_sane(["models", str(path)])


@FUZZ
@given(mutated(CLUSTER))
def test_any_cluster(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(content)
    assert_sane(plan(cluster=str(path), model="gpt2", set="gpus=1"))


@FUZZ
@given(mutated(RULES))
def test_any_rules(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rules.txt"
    path.write_bytes(content)
    assert_sane(plan(rules=str(path), model="gpt2", set="gpus=1"))


@pytest.fixture(scope="module")
def plan_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fuzz") / "plan.json"
    assert run([*plan(), "--out", str(path)]).code == 0
    return path.read_text()


@FUZZ
@given(data=st.data())
def test_any_plan(tmp_path: Path, plan_text: str, data: st.DataObject) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(data.draw(mutated(plan_text)))
    assert_sane(["check", str(path)])


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["0", "-1", "1", "1e9", "nan", "inf", "1T", "0.5"]),
    st.sampled_from(["tp=1", "tp=2,4", "vpp=9", "x=1", "recompute=full", "=", "sharding=zero3"]),
)
OPTIONS = [
    "global_batch",
    "seq_len",
    "tokens",
    "steps",
    "precision",
    "optimizer",
    "objective",
    "budget",
    "deadline",
    "top",
    "fit",
    "set",
]


@FUZZ
@given(st.dictionaries(st.sampled_from(OPTIONS), WORDS, min_size=1, max_size=3))
def test_any_arguments(changes: dict[str, str]) -> None:
    small = {"model": "gpt2", "cluster": "1x1xA100-SXM-80"}
    assert_sane(plan(**{**small, **{name: value.replace("\x00", "") for name, value in changes.items()}}))


def broken(plan: Plan, fault: str) -> Plan:
    (replica,), (pool,) = plan.replicas, plan.cluster.pools
    if fault == "cluster.pools[0].nodes":  # as many copies as machines for them, a million times over
        many, times = replace(pool, nodes=pool.nodes * 10**10), 10**10
        job = replace(plan.job, global_batch=plan.job.global_batch * times)
        copies = replace(replica, count=replica.count * times)
        return replace(plan, cluster=replace(plan.cluster, pools=(many,)), replicas=(copies,), job=job)
    if fault == "replicas":
        return replace(plan, replicas=(replace(replica, count=replica.count * 3),))
    return replace(plan, micro_batch=0)


@pytest.mark.parametrize("fault", ["cluster.pools[0].nodes", "replicas", "micro_batch"])
@pytest.mark.parametrize(
    "command",
    [
        "check", "evaluate", "draw", "report", "export --to megatron", "export --to kubernetes", "export --to perfetto",
        "train --dry-run", "rehearse", "simulate-spot --market calm",
    ],
)  # fmt: skip
def test_a_plan_that_is_not_legal_is_refused_by_all_that_read_it(tmp_path: Path, command: str, fault: str) -> None:
    """And before anything is made of it: a plan of 10^11 machines has no room in memory."""
    file = tmp_path / "plan.json"
    file.write_text(dumps(broken(PLANS["llama-2-70b-interleaved"], fault)))
    name, *options = command.split()
    assert fault in refused(run([name, str(file), *options]))
