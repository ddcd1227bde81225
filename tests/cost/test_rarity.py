"""The doubt of what hardly any published run has: its counts are those of the runs that ship, its formula by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tools.refit.rare import rows_of
from tools.refit.training import timed_cases

from shardwright import load_cluster, load_model, make_job
from shardwright.cost.strategies import ZERO2, plan_of_row, strategies
from shardwright.cost.trust.interval import doubted
from shardwright.cost.trust.rarity import (
    doubt,
    rare_count_of_gpus,
    rare_counts,
    rare_in,
    rare_switches,
    strategy_switches,
)
from shardwright.files import shipped_table
from shardwright.spec.model import training_kind
from shardwright.validation.case import Case
from shardwright.validation.runs import published_runs


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return timed_cases(published_runs())


def test_the_table_is_what_is_counted(cases: list[Case]) -> None:
    assert list(rows_of(cases)) == [dict(row) for row in shipped_table("shardwright.cost.trust", "rare_switches.csv")]


def test_counts_are_those_of_the_published_runs(cases: list[Case]) -> None:
    runs = [case.run for case in cases]
    offloaded = [run for run in runs if "offload" in run.notes.casefold()]
    zero2 = [run for run in runs if run.zero_or_fsdp_stage == 2]
    mixed = [run for run in runs if run.hetero == "yes"]
    counted = {switch.axis: (switch.runs, switch.of) for switch in rare_switches() if not switch.architecture}
    assert counted.pop("vpp")[0] == len([run for run in runs if (run.vpp or 1) > 12])
    assert counted == {
        "offload": (len(offloaded), len(runs)),
        "sharding": (len(zero2), len(runs)),
        "zero_bubble": (0, len(runs)),
        "gpu_types": (len(mixed), len(runs)),
        "unreported_types": (0, len(runs)),
    }


def test_no_run_of_the_kind_on_the_architecture_has_what_is_rare_there(cases: list[Case]) -> None:
    places = {(switch.architecture, switch.model_kind) for switch in rare_switches()} - {(None, None)}
    assert ("Ampere", "dense") in places and ("Hopper", "moe") in places
    for architecture, kind in places:
        here = [
            case
            for case in cases
            if case.plan is None
            and case.pool.gpu.architecture == architecture
            and training_kind(case.model, adapters=bool(case.job.adapters)) == kind
        ]
        switches = [switch for switch in strategy_switches(architecture, kind) if switch.architecture]
        rows = strategies([case.row for case in here])
        assert switches and {switch.of for switch in switches} == {len(here)}
        assert not rare_counts(rows, switches).any()


def test_rare_switches_of_strategies_are_counted() -> None:
    rows = strategies([{}, {"offload": 0.25}, {"sharding": ZERO2}, {"vpp": 12}, {"vpp": 13, "offload": 1.0}])
    np.testing.assert_array_equal(rare_counts(rows, strategy_switches("Hopper", "dense")), [0, 1, 1, 0, 2])


def test_what_is_common_on_one_architecture_is_rare_on_another() -> None:
    rows = strategies([{"tp": 2, "overlap_tp": True}, {"micro_batch": 8}, {"cp": 2}])
    np.testing.assert_array_equal(rare_counts(rows, strategy_switches("Hopper", "dense")), [0, 0, 0])
    np.testing.assert_array_equal(rare_counts(rows, strategy_switches("Ampere", "dense")), [1, 0, 1])
    np.testing.assert_array_equal(rare_counts(rows, strategy_switches("Hopper", "moe")), [1, 2, 2])


def test_what_a_plan_has_is_named_and_doubted() -> None:
    cluster = load_cluster("1x4xH100-SXM+1x4xA100-SXM-80")
    model, job = load_model("llama-2-70b"), make_job(global_batch=32, seq_len=4096)
    row = {"pp": 4, "vpp": 20, "offload": 0.5, "micro_batch": 1}
    alone = plan_of_row(strategies([row]), model, job, cluster, "H100-SXM")
    assert [switch.name for switch in rare_in(alone)] == ["optimizer offload", "more than 12 virtual stages"]
    assert doubt(alone) == pytest.approx(0.02 * math.log10(3228 / 11) + 0.02 * math.log10(164 / 11))
    plain = plan_of_row(strategies([{"pp": 4, "micro_batch": 1}]), model, job, cluster, "H100-SXM")
    assert rare_in(plain) == () and doubt(plain) == 0.0
    replica = plain.replicas[0]
    through = replace(replica, stages=(replace(replica.stages[0], gpu="A100-SXM-80"), *replica.stages[1:]))
    mixed = replace(plain, replicas=(through,))
    assert [switch.name for switch in rare_in(mixed)] == ["several GPU types"]
    assert doubt(mixed) == pytest.approx(0.02 * math.log10(3228 / 23)) == pytest.approx(0.0429, abs=1e-4)


def test_gpus_that_nobody_reports_on_are_rare_and_have_an_interval_of_their_own() -> None:
    assert rare_count_of_gpus(["H100-SXM"]) == 0 and rare_count_of_gpus(["RTX3090"]) == 1
    assert rare_count_of_gpus(["RTX3090", "RTX4090"]) == 2, "once, however many, and that they are several"
    cluster = load_cluster("1x4xRTX3090")
    plan = plan_of_row(
        strategies([{"pp": 4}]), load_model("llama-2-7b"), make_job(global_batch=8, seq_len=512), cluster, "RTX3090"
    )
    assert [switch.name for switch in rare_in(plan)] == ["unreported GPU types"] and doubt(plan) == 0.0


def test_a_doubt_widens_the_interval_upwards_alone() -> None:
    low, high = doubted((0.8, 1.25), 1.0, 0.0559)
    assert low == 0.8 and math.log(high) == pytest.approx(math.hypot(math.log(1.25), 0.0559))
    assert doubted((0.8, 1.25), 1.0, 0.0) == (0.8, 1.25)
