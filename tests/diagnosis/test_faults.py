"""Runs of the project's own runtime with injected faults: what was injected is named first, with what it costs.

Real runs, recorded by `record_faults.py` on devices and links of known speed; what a fault cost was measured against a
run without it, never computed.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path

import pytest

from shardwright import load_layer_profile, load_plan, measured_layers
from shardwright.cost.learned import default_efficiency
from shardwright.diagnosis.diagnose import Diagnosis, diagnose

FOLDER = Path(__file__).parent / "faults"
SAVING = 0.3  # part of the measured cost of a fault, by which the saving that is told may miss it
BUSY = ("pair", "four", "line", "square", "line-4")  # runs of healthy devices, twice each


def facts() -> dict[str, dict[str, str]]:
    with (FOLDER / "facts.csv").open(newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


FACTS = facts()
HEALTHY = [f"{name}{again}" for name in BUSY for again in ("", "-again")]
SINGLE = [name for name, row in FACTS.items() if len(row["causes"].split()) == 1]
DOUBLE = [name for name, row in FACTS.items() if len(row["causes"].split()) == 2]


@cache
def diagnosed(name: str, *files: str) -> Diagnosis:
    folder = FOLDER / name
    plan = load_plan(folder / "plan.json")
    profile = load_layer_profile(FOLDER / "layers.json")
    efficiency = measured_layers(default_efficiency(), profile, plan.model, plan.cluster, plan.job)
    data = folder / "data.bin"
    sources = [folder / file for file in files] or [folder]
    return diagnose(plan, sources, efficiency=efficiency, data=data if data.exists() else None, best=False)


def test_there_are_sixteen_faults_six_double_ones_and_ten_healthy_runs() -> None:
    assert (len(SINGLE), len(DOUBLE), len(HEALTHY)) == (16, 6, 10)


@pytest.mark.parametrize("name", SINGLE)
def test_a_fault_is_named_first_with_its_saving(name: str) -> None:
    first = diagnosed(name).findings[0]
    assert first.cause == FACTS[name]["causes"]
    assert first.seconds == pytest.approx(float(FACTS[name]["saving_seconds"]), rel=SAVING)


@pytest.mark.parametrize("name", DOUBLE)
def test_two_faults_at_once_are_the_first_two(name: str) -> None:
    causes = [finding.cause for finding in diagnosed(name).findings[:2]]
    assert set(causes) == set(FACTS[name]["causes"].split())


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_on_a_busy_machine_is_as_expected(name: str) -> None:
    result = diagnosed(name)
    assert result.verdict == "as expected"
    assert [finding for finding in result.findings if finding.basis == "measured"] == []


TRACED = {
    "slow-rank-of-four": "slow-rank",
    "host-of-pair": "host-bound",
    "data-of-pair": "data-loading",
    "slow-link-messages": "slow-network",
    "unequal-line": "unequal-stages",
}


@pytest.mark.parametrize(("name", "cause"), TRACED.items())
def test_the_trace_of_one_step_tells_it_too(name: str, cause: str) -> None:
    assert diagnosed(name, "trace.json.gz").findings[0].cause == cause


@pytest.mark.parametrize("name", ["square", "pair-again", "line-again"])
def test_the_trace_of_a_healthy_step_tells_nothing(name: str) -> None:
    result = diagnosed(name, "trace.json.gz")
    assert [finding.cause for finding in result.findings if finding.basis == "measured"] == []


def test_a_rank_that_swaps_is_slow_at_times() -> None:
    assert diagnosed("swapping-of-pair").findings[0].detail == "irregular"
    assert diagnosed("slow-rank-of-four").findings[0].detail == "steady"


def test_a_slow_step_alone_leaves_the_cause_untold_and_says_what_would_tell() -> None:
    plan = load_plan(FOLDER / "slow-rank-of-square" / "plan.json")
    profile = load_layer_profile(FOLDER / "layers.json")
    efficiency = measured_layers(default_efficiency(), profile, plan.model, plan.cluster, plan.job)
    result = diagnose(plan, step_seconds=2.3, efficiency=efficiency, best=False)
    assert result.verdict == "slower" and result.untold
    assert [finding for finding in result.findings if finding.basis == "measured"] == []
    assert "trace" in result.records


def test_facts_are_those_of_the_files() -> None:
    for name, row in FACTS.items():
        status = json.loads((FOLDER / name / "status.json").read_text())
        with (FOLDER / name / "metrics.csv").open(newline="") as file:
            seconds = [float(line["seconds"]) for line in csv.DictReader(file)][2:]
        mean = sum(seconds) / len(seconds) + status["saving_seconds"]
        assert float(row["mean_seconds"]) == pytest.approx(mean, abs=1e-4)
