"""`shardwright plan --profile` with measured layers: alone, for GPUs that nobody knows, and as a run writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import answered, refused, run, succeeded
from tests.measured import EXCERPT, real_document

from shardwright.plans.document import load_plan

CLUSTER = """
nodes:
  - {{count: 1, gpu: {fast}, gpus: 4, memory_gb: 40, inter_node_gbps: 50}}
  - {{count: 2, gpu: {slow}, gpus: 4, memory_gb: 16, inter_node_gbps: 50}}
"""
GAP = ["--gap", "20%"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return a profile and a cluster of GPUs that the catalogue does not have."""
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.yaml"
    profile.write_text(json.dumps(real_document({"A100-SXM-40": "Fast", "V100-SXM2": "Slow"})))
    cluster.write_text(CLUSTER.format(fast="Fast", slow="Slow"))
    return str(profile), str(cluster)


def test_a_profile_alone_is_enough(files: tuple[str, str], tmp_path: Path) -> None:
    profile, cluster = files
    plan_file = tmp_path / "plan.json"
    arguments = ["plan", "--profile", profile, "--cluster", cluster, "--global-batch", "64", *GAP]
    succeeded([*arguments, "--json", "--out", str(plan_file)])
    plan = load_plan(plan_file)
    assert (plan.job.seq_len, plan.job.precision, plan.model.name) == (2048, "fp32", "OPT-350")
    assert {stage.gpu for stage in plan.stages} == {"Fast", "Slow"}


def test_the_report_says_what_stands_in(files: tuple[str, str]) -> None:
    profile, cluster = files
    outcome = succeeded(["plan", "--profile", profile, "--cluster", cluster, "--global-batch", "64", "--details", *GAP])
    for words in ("a GPT of the sizes in the profile: hidden 1024", "not in the layer profile", "Fast", "Slow"):
        assert words in outcome.out


def test_evaluate_takes_the_profile_too(tmp_path: Path) -> None:
    plan_file, profile = tmp_path / "plan.json", ["--profile", str(EXCERPT), "--json"]
    cluster = ["--cluster", "1x4xA100-SXM-40", "--global-batch", "64"]
    made, again = (
        run(arguments)
        for arguments in (
            ["plan", *cluster, *profile, "--out", str(plan_file)],
            ["evaluate", str(plan_file), *profile],
        )
    )
    assert made.code == again.code == 0, made.err + again.err
    best, same = json.loads(made.out)["plans"][0], json.loads(again.out)["plan"]
    assert same["prediction"]["iteration_seconds"] == best["prediction"]["iteration_seconds"]


def test_measured_layers_beside_a_named_model(tmp_path: Path) -> None:
    cluster = "1x4xA100-SXM-40"
    arguments = ["plan", "--profile", str(EXCERPT), "--cluster", cluster, "--global-batch", "64", "--json"]
    arguments += ["--framework", "fsdp"]  # which runs both
    alone, named = run(arguments), run([*arguments, "--model", "opt-350m"])
    assert alone.code == named.code == 0, named.err
    first, second = (json.loads(each.out)["plans"][0]["prediction"] for each in (alone, named))
    assert first["time"]["forward_seconds"] == pytest.approx(second["time"]["forward_seconds"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "1x4xA100-SXM-40", "--seq-len", "2048"], "--model: is missing"),
        (["--cluster", "1x4xA100-SXM-40", "--model", "opt-350m"], "--seq-len: is missing"),
        (["--profile", str(EXCERPT), "--cluster", "1x4xH100-SXM"], "has no times of H100-SXM"),
        (["--profile", str(EXCERPT), "--cluster", "1x4xA100-SXM-40", "--model", "opt-13b"], "opt-13b has 40"),
        (
            ["--profile", str(EXCERPT), "--profile", str(EXCERPT), "--cluster", "1x4xA100-SXM-40"],
            "two files have layers",
        ),
        (["--profile", "none.json", "--cluster", "1x4xA100-SXM-40"], "none.json: no such file"),
    ],
)
def test_what_is_missing_is_one_clear_message(arguments: list[str], words: str) -> None:
    assert words in refused(run(["plan", "--global-batch", "64", *arguments]))


def test_unknown_gpus_need_their_memory_and_the_pace_of_their_update(files: tuple[str, str], tmp_path: Path) -> None:
    profile, cluster = files
    bare = tmp_path / "bare.yaml"
    bare.write_text(CLUSTER.format(fast="Fast", slow="Slow").replace(", memory_gb: 16", ""))
    arguments = ["plan", "--profile", profile, "--global-batch", "64"]
    assert "nodes[1].memory_gb: is missing" in refused(run([*arguments, "--cluster", str(bare)]))
    document = json.loads(Path(profile).read_text())
    for entry in document["entries"]:
        del entry["optimizer_seconds"]
    Path(profile).write_text(json.dumps(document))
    message = refused(run([*arguments, "--cluster", cluster]))
    assert "has no optimizer_seconds of Fast" in message
    assert "memory_gb_per_second" in message


def test_the_profile_that_a_run_writes_plans_the_next(tmp_path: Path) -> None:
    """`train` measures what its ranks ran; the next plan takes these times, for devices of its own."""
    model, cluster = tmp_path / "model.yaml", tmp_path / "cluster.yaml"
    model.write_text("{hidden: 64, layers: 4, heads: 4, vocab: 512, ffn: 256, name: tiny}")
    chip = "{{name: {}, fp32_tflops: 0.05, memory_gb: 4, memory_gb_per_second: 10}}"
    cluster.write_text(
        "nodes:\n" + "".join(f"  - {{count: 2, gpus: 1, gpu: {chip.format(name)}}}\n" for name in ("quick", "lame"))
    )
    job = ["--model", str(model), "--cluster", str(cluster), "--precision", "fp32", "--seq-len", "128"]
    job += ["--global-batch", "16", *GAP]
    profile = tmp_path / "run.json"
    entries = [
        {
            "gpu": gpu,
            "tensor_parallel": 1,
            "micro_batch": 1,
            "forward_seconds": [factor * 0.01] * 6,
            "backward_seconds": [factor * 0.02] * 6,
            "optimizer_seconds": [factor * 1e-4] * 6,
            "weight_bytes": [131072.0, *[196608.0] * 4, 131072.0],
        }
        for gpu, factor in (("lame", 3.0), ("quick", 1.0))
    ]
    document = {"version": 1, "model": "tiny", "seq_len": 128, "precision": "fp32"}
    document |= {"sequence_parallel": False, "entries": entries}
    profile.write_text(json.dumps(document))
    best = answered(["plan", *job, "--profile", str(profile), "--json"])["plans"][0]
    work = {"quick": 6 * 0.03, "lame": 6 * 0.09}
    ideal = 16 / sum(2 / seconds for seconds in work.values())
    assert ideal < best["prediction"]["iteration_seconds"] < 1.3 * ideal
