"""Plans of models whose layers share blocks: one stage alone, the weights of a block once, and who runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden.plans import uniform_plan

import shardwright
from shardwright import Job, SpecError, load_cluster, load_model, make_job
from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.exporters.accelerate import config
from shardwright.exporters.targets import export
from shardwright.plans.check import check
from shardwright.plans.findings import NoLegalLayout, Unpin
from shardwright.plans.plan import OptimizerPlan, Plan
from shardwright.search.space.axes import parse_pins

MODEL = load_model("zamba2-1.2b")


def plan_of(pp: int, counts: tuple[int, ...]) -> Plan:
    job = Job(global_batch=16, seq_len=4096, framework="fsdp")
    return uniform_plan(MODEL, nodes=1, job=job, micro_batch=1, tp=1, pp=pp, counts=counts)


def test_stages_of_layers_that_share_blocks_are_refused_with_the_reason() -> None:
    assert not check(plan_of(1, (38,)))
    (problem,) = [problem for problem in check(plan_of(2, (19, 19))) if problem.path.endswith("stages")]
    assert problem.message == "2 stages of layers that share blocks, which read the embedding too"
    assert problem.hint == "use one stage"


@pytest.mark.parametrize("machines", ["2x8xH100-SXM", "1x8xH100-SXM+1x8xA100-SXM-80"])
def test_a_search_finds_plans_of_one_stage_alone(machines: str) -> None:
    """On machines of one type and of several, for `train` too."""
    cluster = load_cluster(machines)
    for framework in ("fsdp", "train"):
        ranking = shardwright.plan(MODEL, cluster, make_job(global_batch=32, seq_len=4096, framework=framework))
        assert ranking.plans
        assert all(len(replica.stages) == 1 for plan in ranking.plans for replica in plan.replicas)
        assert all(not check(plan) for plan in ranking.plans)


def test_stages_that_are_asked_for_are_no_legal_layout() -> None:
    job, space = make_job(global_batch=32, seq_len=4096, framework="fsdp"), parse_pins(["pp=2"])
    ranking = shardwright.plan(MODEL, load_cluster("1x8xH100-SXM"), job, space=space)
    assert ranking.infeasible is not None
    assert isinstance(ranking.infeasible.reason, NoLegalLayout)
    assert ranking.infeasible.remedies == (Unpin("pp", legal=("1",)),)


@pytest.mark.parametrize(("sharding", "ranks"), [("none", 1), ("zero1", 1), ("zero3", 8)])
def test_a_gpu_has_the_weights_of_a_block_once(sharding: str, ranks: int) -> None:
    """Whole ones of 2 bytes; of parts every GPU has its own, and gathers two layers and the shared blocks."""
    plan = replace(plan_of(1, (38,)), optimizer=OptimizerPlan(sharding=sharding))  # type: ignore[arg-type]
    memory = predict(plan, default_efficiency()).memory[0][0]
    layer = max(MODEL.layer_parameters(kind) for kind in MODEL.kinds)
    if ranks == 1:
        assert memory.weights_bytes == pytest.approx(2.0 * MODEL.parameters, rel=1e-3)
        return
    open_at_once = 2.0 * layer + MODEL.shared_parameters
    masters = 4.0 * MODEL.parameters / ranks  # FSDP keeps its parts in fp32
    assert memory.weights_bytes >= 2.0 * open_at_once * (1.0 - 1.0 / ranks)
    assert memory.weights_bytes <= 2.0 * open_at_once + masters


def test_who_runs_them() -> None:
    plan = replace(plan_of(1, (38,)), optimizer=OptimizerPlan(sharding="zero3"))
    wrapped = config(plan)["fsdp_config"]
    assert isinstance(wrapped, dict)
    assert wrapped["fsdp_transformer_layer_cls_to_wrap"] == "Zamba2MambaDecoderLayer"
    megatron = replace(plan_of(1, (38,)), job=replace(plan.job, framework="megatron"))
    with pytest.raises(SpecError, match="whose weights several layers share"):
        export(megatron, "megatron")
