"""Every document that a command writes is as its schema says, and what is not is refused by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.cli.running import answered, refused, run
from tests.cli.schemas import holds, schema
from tests.discovery.test_discover import SCONTROL
from tests.golden.plans import PLANS
from tests.measured import real_document, small_document
from tests.spec.test_machine_profile import PROFILE

from shardwright.discovery.discover import discover, discovery_document
from shardwright.plans.document import save, to_document
from shardwright.reports.documents.schemas import document_names
from shardwright.spec.read import machine_profile

EXAMPLES = Path(__file__).parents[2] / "examples"

JOB = ["--model", "llama-3.2-1b", "--global-batch", "8", "--seq-len", "512"]
TWO = "1x2xA100-SXM-80+1x2xV100-SXM2"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert run(["plan", *JOB, "--cluster", TWO, "--precision", "fp16", "--tokens", "1B", "-o", str(path)]).code == 0
    return path


def test_schemas_are_schemas() -> None:
    """Parts that several schemas have alike, plans above all, are looked at once."""
    seen: set[str] = set()

    def unseen(part: Any) -> Any:
        if isinstance(part, list):
            return [unseen(item) for item in part]
        if not isinstance(part, dict):
            return part
        if isinstance(part.get("type"), str):
            if (text := json.dumps(part)) in seen:
                return True
            seen.add(text)
        return {key: unseen(value) for key, value in part.items()}

    for name in document_names():
        jsonschema.Draft202012Validator.check_schema(unseen(schema(name)))


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_as_they_should_be(name: str) -> None:
    holds("plan", json.loads(json.dumps(to_document(PLANS[name]))))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("ranking", ["plan", *JOB, "--cluster", TWO, "--precision", "fp16", "--tokens", "1B"]),
        ("ranking", ["plan", "--model", "gpt2", *JOB[2:], "--cluster", "1x2xL4", "--programs"]),
        ("ranking", ["plan", *JOB, "--cluster", "1x1xT4", "--precision", "fp32"]),
        ("ranking", ["plan", *JOB, "--cluster", "3x1xL4"]),
        ("fit", ["fit", "llama-3.2-1b", "--gpu", "L4"]),
        ("fit", ["fit", "llama-3.1-405b", "--gpu", "L4"]),
        (
            "shop",
            [
                "shop",
                "--model",
                "llama-3.2-1b",
                "--gpu",
                "A100-SXM-40",
                "--max-gpus",
                "8",
                "--tokens",
                "1B",
                "--mixes",
                "0",
                "--deadline",
                "9d",
            ],
        ),
    ],
)
def test_what_commands_print_is_as_it_should_be(name: str, command: list[str]) -> None:
    outcome = run([*command, "--json"])
    assert outcome.code in (0, 3), outcome.err
    holds(name, json.loads(outcome.out))


def test_the_plan_of_a_user_is_as_it_should_be(plan_file: Path) -> None:
    holds("plan", json.loads(plan_file.read_text()))
    holds("evaluation", answered(["evaluate", str(plan_file), "--json"]))
    holds("check", answered(["check", str(plan_file), "--json"]))
    holds("layout", answered(["train", str(plan_file), "--dry-run", "--json"]))


@pytest.mark.parametrize("target", ["megatron", "perfetto", "skypilot"])
def test_exports_are_as_they_should_be(target: str, tmp_path: Path) -> None:
    save(PLANS["llama-2-70b-interleaved"], tmp_path / "plan.json")
    holds("export", answered(["export", str(tmp_path / "plan.json"), "--to", target, "--json"]))


@pytest.mark.parametrize(
    ("name", "command"),
    [("gpus", ["gpus"]), ("models", ["models"]), ("prices", ["prices", "--gpu", "L4"])],
)
def test_the_catalogue_is_as_it_should_be(name: str, command: list[str]) -> None:
    holds(name, answered([*command, "--json"]))


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.glob("*[0-9].yaml")), EXAMPLES / "mixed.yaml"])
def test_cluster_files_are_as_they_should_be(path: Path) -> None:
    holds("cluster", yaml.safe_load(path.read_text()))


def test_offers_are_as_they_should_be() -> None:
    holds("offers", yaml.safe_load((EXAMPLES / "offers.yaml").read_text()))


def test_what_was_discovered_is_as_it_should_be() -> None:
    found = discover("slurm", ask=lambda command: SCONTROL if command[0] == "scontrol" else None)
    holds("cluster", yaml.safe_load(found.text))
    holds("discovery", json.loads(json.dumps(discovery_document(found))))


def test_profiles_are_as_they_should_be() -> None:
    holds("profile", json.loads(json.dumps(machine_profile.to_document(PROFILE))))
    holds("layers", real_document())
    holds("layers", small_document())


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("cluster", {}),
        ("cluster", {"nodes": [{"count": 4, "gpu": "H100-SXM", "gpu_count": 8}]}),
        ("cluster", {"nodes": [{"count": 0, "gpu": "H100-SXM", "gpus": 8}]}),
        ("cluster", {"nodes": [{"count": 1, "gpu": {"name": "mine", "memory_gb": 24}}]}),
        ("offers", {"offers": []}),
        ("offers", {"offers": [{"gpu": "H100-SXM", "market": "auction"}]}),
        ("offers", {"offers": [{"gpu": "H100-SXM", "count": 4}]}),
        ("layers", small_document() | {"entries": []}),
        ("layers", small_document(forward_seconds=["0.1"])),
        ("profile", machine_profile.to_document(PROFILE) | {"version": 2}),
        ("profile", machine_profile.to_document(PROFILE) | {"operators": [{"kind": "gemm"}]}),
    ],
)
def test_a_wrong_file_is_refused(name: str, document: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        holds(name, json.loads(json.dumps(document)))


@pytest.mark.parametrize("change", [{"micro_batch": "1"}, {"replicas": 3}, {"extra": 1}, {"version": 99}])
def test_a_wrong_plan_is_refused(plan_file: Path, change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        holds("plan", json.loads(plan_file.read_text()) | change)


def test_an_unknown_document_is_named() -> None:
    assert "did you mean ranking" in refused(run(["schema", "rankin"]))
