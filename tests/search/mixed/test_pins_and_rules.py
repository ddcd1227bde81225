"""A pin and a rule mean the same thing in every search, and what the mixed search cannot obey is said."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.nightly import nightly
from tests.search.mixed.oracle import keeps

from shardwright.cost.compute.efficiency import Analytic
from shardwright.plans.check import check
from shardwright.plans.findings import Lack, Lacking, MixedPlans, Mixing
from shardwright.plans.mesh import is_mesh
from shardwright.plans.plan import Plan
from shardwright.plans.ranking import Ranking
from shardwright.reports.text.mixed import idle_sentence
from shardwright.runtime.layout.limits import unrunnable
from shardwright.search.planner import plan, predict
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins, pin_words
from shardwright.spec.read.cluster import load_cluster
from shardwright.spec.read.job import make_job
from shardwright.spec.read.model import load_model
from shardwright.spec.read.model_yaml import model_of_dimensions


@cache
def planned(pin: str = "", rule: str = "") -> Ranking:
    return plan(
        load_model("llama-2-7b"),
        load_cluster("1x4xH100-SXM+1x8xA100-SXM-80"),
        make_job(global_batch=48, seq_len=4096),
        space=parse_pins([pin] if pin else []),
        rules=parse_rules(rule, "r") if rule else (),
        efficiency=Analytic(),
    )


def seconds(found: Ranking) -> float:
    return found.best.iteration_seconds


def test_the_best_plan_mixes_types() -> None:
    assert len(planned().best.gpus_by_type) == 2


# Pins that plans which mix types obey, each with a rule that means the same, and how many times the free plan's seconds
# they may cost.
OBEYED = (
    ("overlap_grad_reduce=off", "$overlap_grad_reduce", 1.2),
    ("sharding=none", "$use_distributed_optimizer", 1.3),
    ("vpp=1", "$virtual_stages > 1", 1.05),
)
OBEYED_TOO = (
    ("rank_order=tp-cp-ep-pp-dp", "$rank_order != 'tp-cp-ep-pp-dp'", 1.1),
    ("overlap_param_gather=off", "$overlap_param_gather", 1.2),
    ("gpus=10", "$num_gpus != 10", 1.5),
    ("flash=off", "$use_flash_attn", 1.7),
    ("first_layers=2", "$first_stage_layers != 2", 1.5),
    ("overlap_grad_reduce=on", "not $overlap_grad_reduce", 1.05),
    ("sharding=zero1", "$sharding != zero1", 1.05),
    ("offload=1", "$optimizer_offload_fraction < 1", 1.2),
    ("recompute=selective", "$recompute_granularity != selective", 1.2),
    ("recompute=uniform", "$recompute_method != uniform", 1.5),
    ("dp=2", "$dp != 2", 1.5),
    ("pp=3", "$pp != 3", 1.5),
    ("etp=1", "$expert_tensor_parallel_size > 1", 1.05),
    ("tp_comm_overlap=off", "$tp_comm_overlap", 1.05),
    ("tp=2", "$tp != 2", 1.3),
    ("micro_batch=1", "$mbs > 1", 1.3),
)
# Pins that none has, each with a rule that means the same, and why there is none.
REFUSED = (("vpp=2", "$vpp == 1", Lack.VIRTUAL_STAGES),)
REFUSED_TOO = (("overlap_p2p_comm=on", "not $overlap_p2p_comm", Lack.OVERLAPPED_MESSAGES),)


def mixed_plans(found: Ranking) -> list[Plan]:
    return [each for each in found.plans if not each.uniform and not each.layered]


@pytest.mark.parametrize(("pin", "rule", "times"), [*OBEYED, *nightly(OBEYED_TOO)])
def test_a_plan_over_types_obeys_a_pin_and_the_rule_that_means_it(pin: str, rule: str, times: float) -> None:
    found, ruled = planned(pin), planned(rule=rule)
    assert len(found.best.gpus_by_type) == 2
    assert seconds(found) <= times * seconds(planned())
    assert seconds(ruled) == pytest.approx(seconds(found), rel=0.02)
    for each in (*mixed_plans(found), *mixed_plans(ruled)):
        assert keeps(each, parse_pins([pin]))


@pytest.mark.parametrize("pin", ["overlap_grad_reduce=off", "sharding=none", *nightly(["first_layers=2"])])
def test_what_was_searched_is_what_is_evaluated(pin: str) -> None:
    found = planned(pin).best
    again = predict(replace(found, prediction=None), efficiency=Analytic())
    assert again.iteration_seconds == found.iteration_seconds
    assert not check(found)
    assert not unrunnable(found)


@pytest.mark.parametrize(("pin", "rule", "lack"), [*REFUSED, *nightly(REFUSED_TOO)])
def test_what_no_plan_over_types_has_is_named(pin: str, rule: str, lack: Lack) -> None:
    for found, written in ((planned(pin), parse_pins([pin])), (planned(rule=rule), f"rule {rule}")):
        (unsearched,) = [kind for kind in found.search.not_covered if isinstance(kind, MixedPlans)]
        words = written if isinstance(written, str) else next(pin_words(*each) for each in written.pins.items())
        assert unsearched.lacking == (Lacking(lack, words),)
        assert "were not searched" in idle_sentence(found)
        assert "no faster plan" not in idle_sentence(found)


EXPERTS = {"moe": {"experts": 8, "top_k": 2, "expert_width": 8192}}
SIZES = {"hidden": 2048, "layers": 6, "heads": 16, "vocab": 32000}


@cache
def spread(pin: str = "", rule: str = "") -> Ranking:
    return plan(
        model_of_dimensions(SIZES | EXPERTS, "m"),
        load_cluster("1x4xA100-SXM-80+1x4xA800-SXM-80"),
        make_job(global_batch=64, seq_len=2048),
        space=parse_pins([pin] if pin else []),
        rules=parse_rules(rule, "r") if rule else (),
        efficiency=Analytic(),
    )


@pytest.mark.parametrize(
    ("pin", "rule", "lack"),
    [("ep=4", "$ep != 4", Lack.EXPERT_PARALLEL), ("cp=2", "$cp < 2", Lack.CONTEXT_PARALLEL)],
)
def test_degrees_that_spread_context_and_experts_are_left_to_meshes(pin: str, rule: str, lack: Lack) -> None:
    for found in (spread(pin), spread(rule=rule)):
        over_types = [each for each in found.plans if len(each.gpus_by_type) > 1]
        assert over_types and all(is_mesh(each) and each.job.framework == "megatron" for each in over_types)
        assert all(keeps(each, parse_pins([pin])) for each in found.plans)
        assert seconds(found) >= seconds(spread())
        (unsearched,) = [kind for kind in found.search.not_covered if isinstance(kind, MixedPlans)]
        assert unsearched.of is Mixing.UNEQUAL
        assert [lacking.of for lacking in unsearched.lacking] == [lack]


def test_tensor_parallel_communication_beside_computation_is_left_to_meshes_of_megatron() -> None:
    for found in (planned("tp_comm_overlap=on"), planned(rule="not $tp_comm_overlap")):
        assert len(found.best.gpus_by_type) == 2 and is_mesh(found.best)
        assert found.best.overlap.tensor_parallel and found.best.job.framework == "megatron"
        (unsearched,) = [kind for kind in found.search.not_covered if isinstance(kind, MixedPlans)]
        assert unsearched.of is Mixing.UNEQUAL
        assert [lacking.of for lacking in unsearched.lacking] == [Lack.OVERLAPPED_TENSOR_PARALLEL]


def test_a_wide_gap_is_told_beside_what_stands_idle() -> None:
    found = planned("vpp=2")
    wide = replace(found.search, gap=0.25, not_covered=())
    assert "there may be one that is better by up to 20%" in idle_sentence(replace(found, search=wide))
    assert "may be one" not in idle_sentence(replace(found, search=replace(wide, gap=0.01)))


@pytest.mark.parametrize("cluster", ["1x8xH100-SXM", "1x8xH100-SXM+1x8xA100-SXM-80"])
@pytest.mark.parametrize(
    ("model", "framework", "pins"),
    [
        ("zamba2-1.2b", "train", ["pp=2"]),
        ("zamba2-1.2b", "fsdp", ["pp=2"]),
        ("llama-3.2-1b", "megatron", ["offload=0.5", "exp_avg=bf16"]),
        ("llama-3.2-1b", "megatron", ["sharding=none", "exp_avg=bf16"]),
    ],
)
def test_pins_that_model_or_options_rule_out_leave_no_plan(
    cluster: str, model: str, framework: str, pins: list[str]
) -> None:
    job = make_job(global_batch=32, seq_len=1024, framework=framework)
    found = plan(load_model(model), load_cluster(cluster), job, space=parse_pins(pins))
    assert not found.plans and found.infeasible is not None
