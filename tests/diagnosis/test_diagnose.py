"""`shardwright diagnose` as a user meets it: a step time alone, logs, launch lines, full memory, what cannot be told."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import yaml

from shardwright.cli.inputs import read_launch
from shardwright.cli.options import LaunchOptions
from shardwright.cost.learned import default_efficiency
from shardwright.diagnosis.case import padding_of, signs_of
from shardwright.diagnosis.causes import CAUSES, findings
from shardwright.diagnosis.diagnose import read_case
from shardwright.diagnosis.words import record_advice, record_of
from shardwright.files import shipped_file
from shardwright.trainers.runs import runners
from tests.cli.running import answered, refused, run, succeeded
from tests.cli.schemas import holds
from tests.traces.test_memory import NEW, snapshot

FAULTS = Path(__file__).parent / "faults"
LAUNCH = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu \\
  --untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope \\
  --disable-bias-linear --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --bf16 \\
  --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 \\
  --sequence-parallel --use-distributed-optimizer --use-flash-attn --recompute-granularity full \\
  --recompute-method uniform --recompute-num-layers 1 {more}
"""
CLUSTER = ("--cluster", "4x8xH100-SXM")


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(LAUNCH.format(more=""))
    return path


def log(path: Path, milliseconds: list[float], batch: int = 128) -> Path:
    lines = [
        f" [2026-03-01 10:{number:02d}:00] iteration {number + 1:8d}/ 500000 | consumed samples: {128 * number:12d} | "
        f"elapsed time per iteration (ms): {value:.1f} | throughput per GPU (TFLOP/s/GPU): 200.0 | "
        f"learning rate: 1.0E-05 | global batch size: {batch:5d} | lm loss: 9.1E+00 | loss scale: 1.0 | "
        "grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        for number, value in enumerate(milliseconds)
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_cause_has_words_and_every_record_a_command() -> None:
    words = shipped_file("shardwright.diagnosis", "causes.yaml").decode()
    assert set(yaml.safe_load(words)) == set(CAUSES)
    for cause in CAUSES:
        for framework in ("megatron", "torchtitan", "fsdp", "deepspeed", "train", "jax"):
            assert record_advice(record_of(cause), framework).command


def test_a_step_time_alone(launch: Path) -> None:
    outcome = succeeded(["diagnose", "--measured", "30s", "--launch", str(launch), *CLUSTER])
    assert outcome.out.startswith("Slower than it should be. A step takes 30 s; expected are ")
    assert "--recompute-granularity" in outcome.out  # to leave out
    assert "Cannot be told from this" in outcome.out and "--use-pytorch-profiler" in outcome.out
    assert "The best plan for the same machines" in outcome.out.splitlines()[-1] or "less:" in outcome.out


def test_a_log_line_as_expected_and_one_that_stalls(launch: Path, tmp_path: Path) -> None:
    arguments = ["--launch", str(launch), *CLUSTER, "--no-best", "--json"]
    first = answered(["diagnose", *arguments])
    assert first["verdict"] == "not measured" and first["records"][0]["name"] == "log"
    expected = 1e3 * first["expected_seconds"]
    healthy = [expected * (1.0 + 0.01 * (number % 3)) for number in range(40)]
    document = json.loads(run(["diagnose", str(log(tmp_path / "a.log", healthy)), *arguments]).out)
    holds("diagnosis", document)
    assert document["verdict"] == "as expected"
    assert [cause for cause in document["causes"] if cause["basis"] == "measured"] == []
    stalled = [value * (4.0 if number % 10 == 9 else 1.0) for number, value in enumerate(healthy)]
    document = json.loads(run(["diagnose", str(log(tmp_path / "b.log", stalled)), *arguments]).out)
    (cause,) = [cause for cause in document["causes"] if cause["basis"] == "measured"]
    assert cause["name"] == "stalls" and cause["saving_seconds"] == pytest.approx(0.3e-3 * expected, rel=0.05)


@pytest.mark.parametrize("stalls", [False, True])
@pytest.mark.parametrize("pace", [0.5, 0.7, 1.0, 1.6])
def test_the_verdict_is_that_of_the_figures_beside_it(launch: Path, tmp_path: Path, pace: float, stalls: bool) -> None:
    arguments = ["--launch", str(launch), *CLUSTER, "--no-best", "--json"]
    expected = answered(["diagnose", *arguments])
    low, high = expected["interval_seconds"]
    steps = [1e3 * pace * expected["expected_seconds"]] * 40
    written = log(
        tmp_path / "a.log", [step * (4.0 if stalls and at % 10 == 9 else 1.0) for at, step in enumerate(steps)]
    )
    document = answered(["diagnose", str(written), *arguments])
    whole = sum(steps) / 40e3 * (1.3 if stalls else 1.0)
    verdict = "faster" if whole < low else "slower" if stalls or whole > high else "as expected"
    assert document["verdict"] == verdict
    opening = {"faster": "Faster than expected", "slower": "Slower than", "as expected": "As expected"}[verdict]
    assert document["words"].startswith(opening) and ("stands still" in document["words"]) is stalls


def test_a_log_of_another_launch_is_named(launch: Path, tmp_path: Path) -> None:
    path = log(tmp_path / "a.log", [5000.0] * 20, batch=512)
    problem = refused(run(["diagnose", str(path), "--launch", str(launch), *CLUSTER]))
    assert "global_batch 512" in problem and "128" in problem


def test_nccl_over_sockets_is_seen_in_the_log(launch: Path, tmp_path: Path) -> None:
    path = tmp_path / "err.txt"
    path.write_text("node1:7:7 [0] NCCL INFO NET/IB : No device found.\nnode1:7:7 [0] NCCL INFO Using network Socket\n")
    arguments = ["diagnose", str(path), "--measured", "30", "--launch", str(launch), *CLUSTER, "--no-best", "--json"]
    document = answered(arguments)
    first = document["causes"][0]
    assert first["name"] == "slow-network" and first["basis"] == "measured"
    assert any("err.txt, line 1" in line for line in first["evidence"])
    assert "TCP" in first["detail"] or "Ethernet" in first["detail"]


def test_full_memory_is_told_beside_the_account(tmp_path: Path) -> None:
    launch = tmp_path / "run.sh"
    text = LAUNCH.format(more="").replace("--recompute-granularity full", "").replace("--recompute-method uniform", "")
    launch.write_text(
        text.replace("--recompute-num-layers 1", "").replace("--micro-batch-size 1", "--micro-batch-size 8")
    )
    message = tmp_path / "error.txt"
    message.write_text(NEW)
    outcome = succeeded(["diagnose", str(message), "--launch", str(launch), *CLUSTER, "--no-best"])
    assert "Out of memory." in outcome.out and "activations" in outcome.out and "70.0 GiB" in outcome.out
    assert "micro-batch" in outcome.out.partition("Single changes")[2] or "recomputation" in outcome.out
    assert "3.0 GiB of the GPU belong to other processes" in outcome.out


def test_a_snapshot_is_told_beside_the_account(launch: Path, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot()))
    document = answered(["diagnose", str(path), "--launch", str(launch), *CLUSTER, "--no-best", "--json"])
    holds("diagnosis", document)
    assert document["memory"]["allocated_bytes"] == 7 * 1024**3
    assert any(cause["name"] == "allocator-retries" for cause in document["causes"])


def test_a_run_of_train_needs_no_more_than_its_folder_and_a_page_shows_it(tmp_path: Path) -> None:
    folder = FAULTS / "data-of-line"
    arguments = ["diagnose", str(folder), "--profile", str(FAULTS / "layers.json"), "--no-best", "--json"]
    succeeded([*arguments, "-o", str(tmp_path / "d.json")])
    document = json.loads((tmp_path / "d.json").read_text())
    holds("diagnosis", document)
    assert document["causes"][0]["name"] == "data-loading"
    assert run(["report", str(tmp_path / "d.json"), "-o", str(tmp_path / "d.html")]).code == 0
    page = (tmp_path / "d.html").read_text()
    assert "the step waits for data" in page and "Expected and measured" in page


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
sample_packing: true
flash_attention: true
gradient_checkpointing: true
bf16: true
lora_mlp_kernel: true
"""
DEEPSPEED = """deepspeed --num_gpus 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B --deepspeed ds.json --bf16
"""
ZERO3 = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "zero_optimization": {"stage": 3}}


@pytest.fixture(params=["axolotl.yaml", "deepspeed.sh", "megatron.sh"])
def question(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the launch of a trainer, and its machines, as arguments."""
    (tmp_path / "ds.json").write_text(json.dumps(ZERO3 | {"bf16": {"enabled": True}}))
    texts = {"axolotl.yaml": AXOLOTL, "deepspeed.sh": DEEPSPEED, "megatron.sh": LAUNCH.format(more="")}
    machines = {"axolotl.yaml": "1x1xRTX4090", "deepspeed.sh": "1x8xA100-SXM-80", "megatron.sh": CLUSTER[1]}
    (tmp_path / request.param).write_text(texts[request.param])
    more = ["--seq-len", "2048"] if request.param == "deepspeed.sh" else []
    return ["--launch", str(tmp_path / request.param), "--cluster", machines[request.param], *more]


def test_what_mends_a_plan_is_run_by_a_trainer_that_runs_the_plan(question: list[str]) -> None:
    length = int(question[5]) if "--seq-len" in question else None
    reading = read_launch(Path(question[1]), (), LaunchOptions(cluster=question[3], seq_len=length))
    case = read_case(reading.plan, [], 3600.0, None, default_efficiency())
    able = runners(case.plan)
    mended = [finding.plan for finding in findings(case) if finding.plan is not None]
    assert able and all(set(able) & set(runners(plan)) for plan in mended)


def test_how_a_launch_was_read_is_said_as_evaluate_says_it(question: list[str]) -> None:
    plain, asked = run(["evaluate", *question, "--json"]), ["diagnose", "--measured", "30s", "--no-best", *question]
    evaluation, document = json.loads(plain.out), answered([*asked, "--json"])
    holds("diagnosis", document)
    origin = [evaluation["notes"], evaluation["not_counted"]]
    assert any(origin) and [document["notes"], document["not_counted"]] == origin
    shown = " ".join(run(asked).out.split())
    assert all(f"- {' '.join(line.split())}" in shown for lines in origin for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs what ran"),
        (["nowhere.log", "--plan", str(FAULTS / "pair" / "plan.json")], "no such file"),
        (["--plan", "a.json", "--launch", "b.sh"], "so does --launch"),
        (["--plan", str(FAULTS / "pair" / "plan.json"), "--cluster", "1x8xH100-SXM"], "goes with --launch"),
        (["--plan", str(FAULTS / "pair" / "plan.json"), "--measured", "fast"], "no number of seconds"),
        ([str(FAULTS / "pair"), str(FAULTS / "four")], "second run"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], words: str) -> None:
    assert words in refused(run(["diagnose", *arguments])).replace("not a number", "no number")


def test_padding_is_the_run_of_one_token_at_the_end(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).integers(1, 100, size=(50, 20))
    samples[:, 15:] = 0
    (tmp_path / "a.bin").write_bytes(samples.astype("<u2").tobytes())
    (tmp_path / "a.json").write_text(json.dumps({"dtype": "uint16", "tokens": 1000, "vocab": 100}))
    padding = padding_of(tmp_path / "a.bin", 20)
    assert padding.share == pytest.approx(0.25)
    assert (padding.token, padding.samples) == (0, 50)
    samples = np.random.default_rng(0).integers(1, 100, size=(50, 20))
    (tmp_path / "a.bin").write_bytes(samples.astype("<u2").tobytes())
    assert padding_of(tmp_path / "a.bin", 20).share == 0.0


def test_signs_tell_their_first_line_and_how_many() -> None:
    lines = ["x", "[Rank 0] 3 pytorch allocator cache flushes since last step. this happens", "y"] * 3
    (sign,) = signs_of(lines, "a.log")
    assert (sign.cause, sign.place, sign.count) == ("allocator-retries", "a.log, line 2", 3)


def test_a_text_that_tells_nothing_is_refused_beside_a_step_time_too(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{count: 4, gpu: A100-SXM-80, gpus: 8}]\n")
    where = ["--launch", "examples/slow-run.sh", "--cluster", "4x8xH100-SXM", "--measured", "5s", "--no-best"]
    outcome = run(["diagnose", str(tmp_path / "cluster.yaml"), *where])
    assert outcome.code == 2 and "no line tells of a step" in outcome.err
