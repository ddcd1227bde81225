"""The doubt of what hardly any published run has: its counts are those of the runs that ship, its formula by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.strategies import ZERO2, plan_of_row, strategies
from shardwright.cost.trust.rarity import doubt, doubt_of_gpus, doubts, least_doubt_of_several, rare_in, rare_switches
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.validation.published import published_runs


def test_counts_are_those_of_the_published_runs() -> None:
    runs = published_runs()
    offloaded = [run for run in runs if "offload" in run.notes.casefold()]
    zero2 = [run for run in runs if run.zero_or_fsdp_stage == 2]
    interleaved = [run for run in runs if (run.vpp or 1) > 1]
    mixed = [run for run in runs if run.hetero == "yes"]
    deep = [run for run in interleaved if (run.vpp or 1) > 12]
    counted = {switch.axis: (switch.runs, switch.of) for switch in rare_switches()}
    assert counted == {
        "offload": (len(offloaded), len(runs)),
        "sharding": (len(zero2), len(runs)),
        "vpp": (len(deep), len(interleaved)),
        "gpu_types": (len(mixed), len(runs)),
        "unreported_types": (0, len(runs)),
    }


def test_each_factor_of_ten_is_two_percent_and_parts_add_up() -> None:
    rows = strategies([{}, {"offload": 0.25}, {"sharding": ZERO2}, {"vpp": 12}, {"vpp": 13, "offload": 1.0}])
    rare, deep = 0.02 * math.log10(3103 / 5), 0.02 * math.log10(134 / 9)
    np.testing.assert_allclose(doubts(rows), [0.0, rare, rare, 0.0, rare + deep], rtol=1e-9)
    assert rare == pytest.approx(0.0559, abs=1e-4)


def test_what_a_plan_has_is_named_and_doubted() -> None:
    cluster = load_cluster("1x4xH100-SXM+1x4xA100-SXM-80")
    model, job = load_model("llama-2-70b"), make_job(global_batch=32, seq_len=4096)
    row = {"pp": 4, "vpp": 20, "offload": 0.5, "micro_batch": 1}
    alone = plan_of_row(strategies([row]), model, job, cluster, "H100-SXM")
    assert [switch.name for switch in rare_in(alone)] == ["optimizer offload", "more than 12 virtual stages"]
    assert doubt(alone) == pytest.approx(0.02 * math.log10(3103 / 5) + 0.02 * math.log10(134 / 9))
    plain = plan_of_row(strategies([{"pp": 4, "micro_batch": 1}]), model, job, cluster, "H100-SXM")
    assert rare_in(plain) == () and doubt(plain) == 0.0
    replica = plain.replicas[0]
    through = replace(replica, stages=(replace(replica.stages[0], gpu="A100-SXM-80"), *replica.stages[1:]))
    mixed = replace(plain, replicas=(through,))
    assert [switch.name for switch in rare_in(mixed)] == ["several GPU types"]
    assert doubt(mixed) == pytest.approx(0.02 * math.log10(3103 / 23)) == pytest.approx(0.0426, abs=1e-4)


def test_gpus_that_nobody_reports_on_count_as_half_a_run() -> None:
    half, several = 0.02 * math.log10(3103 / 0.5), 0.02 * math.log10(3103 / 23)
    assert half == pytest.approx(0.0759, abs=1e-4)
    assert doubt_of_gpus(["H100-SXM"]) == 0.0 and doubt_of_gpus(["RTX3090"]) == pytest.approx(half)
    assert doubt_of_gpus(["RTX3090", "RTX4090"]) == pytest.approx(half + several), "once, however many"
    assert least_doubt_of_several(["H100-SXM", "A100-SXM-80", "RTX3090"]) == pytest.approx(several)
    assert least_doubt_of_several(["H100-SXM", "RTX3090"]) == pytest.approx(half + several)
    assert least_doubt_of_several(["H100-SXM"]) == 0.0
