"""Measured layers stand in place of predictions: times, weights, activations and links are those of the profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.measured import EXCERPT, real_document, small_document

from shardwright import SpecError, evaluate, make_job, measured_layers, predict
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.cost.network.collectives import MessageTimes, transfer_seconds
from shardwright.cost.network.curves import between_machines, inside_machine
from shardwright.plans.findings import Cause, Rejection, SmallerMicroBatch
from shardwright.plans.plan import Recompute
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import settings
from shardwright.search.planner import plan as search
from shardwright.search.space.axes import Space, parse_pins
from shardwright.spec.preference import LOSSES
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.layer_profile import layer_profile, load_layer_profile, stand_in_model

NODE = {"count": 2, "gpu": "A100-SXM-40", "gpus": 4, "inter_node_gbps": 50}


def planned(profile, job, pins=(), nodes=(NODE,)):
    """Return the best plan with the profile alone."""
    model, cluster = stand_in_model(profile, "fp32"), build_cluster({"nodes": list(nodes)}, "test")
    efficiency = measured_layers(Analytic(), profile, model, cluster, job)
    ranking = search(model, cluster, job, space=parse_pins(pins), efficiency=efficiency, top=1, gap=0.3)
    return ranking.best, efficiency


def test_one_stage_takes_the_sum_of_its_layers() -> None:
    profile = layer_profile(small_document())
    job = make_job(global_batch=16, seq_len=1024, precision="fp32")
    pins = ["pp=1", "dp=2", "gpus=2", "recompute=none", "sharding=none", "overlap_grad=off", "offload=0"]
    plan, _ = planned(profile, job, pins)
    time = plan.prediction.time
    assert time.forward_seconds == pytest.approx(8 * 0.35)
    assert time.backward_seconds == pytest.approx(8 * 0.65)
    assert time.optimizer_seconds == pytest.approx(0.008, rel=1e-3)  # and the norm of the gradients
    assert time.framework_seconds == time.tensor_parallel_seconds == 0.0
    memory = plan.prediction.memory[0][0]
    assert memory.weights_bytes == pytest.approx(32e6)
    assert memory.gradients_bytes == pytest.approx(32e6)
    assert memory.optimizer_bytes == pytest.approx(64e6)


def test_stages_take_the_sums_of_their_layers() -> None:
    """Two stages whose passes take f and b each: 1F1B of K micro-batches takes (K + 1)(f + b) and its transfers."""
    fast = [{"from": "A100-SXM-40", "to": "A100-SXM-40", "scope": scope, "bytes": [1e3, 1e9], "seconds": [1e-9, 1e-9]}
            for scope in ("intra_node", "inter_node")]  # fmt: skip
    profile = layer_profile(
        small_document(forward_seconds=[0, 0.1, 0.1, 0.1, 0.1], backward_seconds=[0, 0.2, 0.2, 0.2, 0.2])
        | {"links": fast}
    )
    job = make_job(global_batch=8, seq_len=1024, precision="fp32")
    plan, _ = planned(profile, job, ["pp=2", "dp=1", "vpp=1", "recompute=none", "first_layers=2"])
    time = plan.prediction.time
    assert [stage.layers for stage in plan.replicas[0].stages] == [((0, 2),), ((2, 3),)]
    assert time.total_seconds - time.optimizer_seconds == pytest.approx(9 * 0.6, rel=1e-4)


def test_recomputation_adds_the_measured_forward_pass() -> None:
    profile = layer_profile(small_document())
    job = make_job(global_batch=2, seq_len=1024, precision="fp32")
    plan, _ = planned(profile, job, ["pp=1", "dp=2", "recompute=block", "recompute_layers=3"])
    assert plan.prediction.time.recompute_seconds == pytest.approx(0.3)


def test_only_what_was_measured_is_planned() -> None:
    profile = load_layer_profile(EXCERPT)
    job = make_job(global_batch=64, seq_len=2048, precision="fp32")
    slow = NODE | {"gpu": "V100-SXM2", "memory_gb": 16}
    plan, efficiency = planned(profile, job, ["sharding=zero1"], nodes=(NODE, slow))
    assert plan.micro_batch in (1, 4)
    assert {stage.tensor_parallel for stage in plan.stages} <= {1, 2}
    assert not plan.sequence_parallel
    assert plan.prediction.evidence == ()
    with pytest.raises(SpecError, match=r"no times of .* with tensor parallel 1, micro-batch 2"):
        predict(replace(plan, micro_batch=2), efficiency=efficiency)


def test_types_measured_with_other_degrees_are_planned_and_no_size_is_negative() -> None:
    """A type without times of a degree has none of its units, nor GPUs of uneven FSDP."""
    document = small_document(weight_bytes=[4e4, 8e4, 8e4, 8e4, 4e4])
    (entry,) = document["entries"]
    document["entries"].append(entry | {"gpu": "H100-SXM", "tensor_parallel": 4})
    profile = layer_profile(document)
    job = make_job(global_batch=32, seq_len=1024, precision="fp32")
    nodes = (NODE, NODE | {"gpu": "H100-SXM"})
    model = replace(stand_in_model(profile, "fp32"), vocab=50304, tied_embeddings=True)
    cluster = build_cluster({"nodes": list(nodes)}, "test")
    efficiency = measured_layers(Analytic(), profile, model, cluster, job)
    degrees = {
        (stage.gpu, stage.tensor_parallel)
        for plan in search(model, cluster, job, efficiency=efficiency, top=3, gap=0.3).plans
        for stage in plan.stages
    }
    assert degrees and degrees <= {("A100-SXM-40", 1), ("H100-SXM", 4)}
    contexts = [Context(model=model, pool=each, job=job, efficiency=efficiency) for each in cluster.pools]
    for table in tables(contexts, settings(contexts, Space())):
        ends = np.diff(table.dense)[:, [0, -1]].sum(axis=1)
        assert (ends >= table.tied_parameters).all()


def test_a_pin_to_what_was_not_measured_leaves_nothing() -> None:
    profile = load_layer_profile(EXCERPT)
    model, job = stand_in_model(profile, "fp32"), make_job(global_batch=64, seq_len=2048, precision="fp32")
    cluster = build_cluster({"nodes": [NODE]}, "test")
    efficiency = measured_layers(Analytic(), profile, model, cluster, job)
    ranking = search(model, cluster, job, space=parse_pins(["tp=4"]), efficiency=efficiency)
    assert ranking.plans == ()
    assert dict(ranking.search.rejected)[Rejection(Cause.UNMEASURED)] == ranking.search.candidates


def test_the_optimum_is_that_of_every_measured_row() -> None:
    """The search's bounds hold with unequal layers: no strategy that it dropped is faster than its best."""
    document = real_document()
    rng = np.random.default_rng(7)
    for entry in document["entries"]:
        for key in ("forward_seconds", "backward_seconds"):
            entry[key] = [value * rng.uniform(0.3, 3.0) for value in entry[key]]
    profile = layer_profile(document)
    job = make_job(global_batch=32, seq_len=2048, precision="fp32")
    best, _ = planned(profile, job)
    singles = [
        planned(profile, job, [f"pp={pp}", f"tp={tp}", f"micro_batch={size}"])[0]
        for pp in (1, 2, 4)
        for tp in (1, 2)
        for size in (1, 4)
    ]
    least = min(plan.prediction.iteration_seconds for plan in singles)
    assert best.prediction.iteration_seconds <= least * (1 + 1e-9)


def context_of(profile, **node) -> Context:
    model, job = stand_in_model(profile, "fp32"), make_job(global_batch=64, seq_len=2048, precision="fp32")
    cluster = build_cluster({"nodes": [NODE | node]}, "test")
    efficiency = measured_layers(Analytic(), profile, model, cluster, job)
    return Context(model=model, pool=cluster.pools[0], job=job, efficiency=efficiency)


def test_messages_take_what_was_measured() -> None:
    """One message at a time fills a network of 50 Gbit/s: each of 4 GPUs has a quarter of it."""
    profile = load_layer_profile(EXCERPT)
    context = context_of(profile)
    inside = next(each for each in profile.links if each.scope == "intra_node" and each.source == "A100-SXM-40")
    between = next(
        each for each in profile.links if each.scope == "inter_node" and each.source == each.target == "A100-SXM-40"
    )
    sizes, no = np.array(inside.bytes[2:]), np.zeros(len(inside.bytes) - 2, dtype=bool)
    assert transfer_seconds(context.links, sizes, no) == pytest.approx(inside.seconds[2:])
    sizes, yes = np.array(between.bytes) / 4, np.ones(len(between.bytes), dtype=bool)
    assert transfer_seconds(context.links, sizes, yes) == pytest.approx(between.seconds)
    four_ports = context_of(profile, inter_node_gbps=200)
    assert transfer_seconds(four_ports.links, 4 * sizes, yes) == pytest.approx(between.seconds)


def test_links_without_a_curve_are_predicted() -> None:
    profile = load_layer_profile(EXCERPT)
    bare = context_of(layer_profile(real_document() | {"links": []}))
    assert bare.links.inter_messages is None
    assert inside_machine(profile, bare.pool) is not None
    assert between_machines(profile, bare.pool, "H100-SXM") is None


def test_times_of_messages_between_and_beyond_the_measured() -> None:
    times = MessageTimes(bytes=(10.0, 20.0, 40.0), seconds=(1.0, 2.0, 3.0))
    assert times.of(np.array([1.0, 10.0, 15.0, 40.0, 80.0])).tolist() == [1.0, 1.0, 1.5, 3.0, 6.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq_len": 1024}, "sequences of 2048 tokens, not 1024"),
        ({"precision": "bf16"}, "was measured in fp32, not bf16"),
        *(({"preference": loss}, f"none of {loss}") for loss in LOSSES),
    ],
)
def test_another_job_is_refused(changes, words) -> None:
    profile = load_layer_profile(EXCERPT)
    job = make_job(**({"global_batch": 8, "seq_len": 2048, "precision": "fp32"} | changes))
    with pytest.raises(SpecError, match=words):
        measured_layers(
            Analytic(), profile, stand_in_model(profile, "fp32"), build_cluster({"nodes": [NODE]}, "c"), job
        )


def test_gpus_and_layers_that_were_not_measured_are_named_together() -> None:
    profile = load_layer_profile(EXCERPT)
    other = stand_in_model(layer_profile(small_document()), "fp32")
    job = make_job(global_batch=8, seq_len=2048, precision="fp32")
    cluster = build_cluster({"nodes": [NODE | {"gpu": "H100-SXM"}, NODE]}, "c")
    with pytest.raises(SpecError) as caught:
        measured_layers(Analytic(), profile, other, cluster, job)
    assert "has 24 layers (and embedding and head), three has 3" in str(caught.value)
    assert "has no times of H100-SXM (it has V100-SXM2, A100-SXM-40)" in str(caught.value)


def test_a_slow_link_between_two_types_counts_and_a_fast_one_does_not_speed_up_either() -> None:
    job = make_job(global_batch=64, seq_len=2048, precision="fp32")
    nodes = (NODE, NODE | {"gpu": "V100-SXM2", "memory_gb": 16})
    plan, _ = planned(load_layer_profile(EXCERPT), job, ["sharding=zero1"], nodes=nodes)
    ends = [replace(stage, layers=(part,)) for stage, part in zip(_two_types(plan), ((0, 12), (12, 24)), strict=True)]
    plan = replace(
        plan, micro_batch=1, replicas=(replace(plan.replicas[0], count=1, micro_batches=64, stages=tuple(ends)),)
    )

    def seconds(factor: float) -> float:
        document = real_document()
        for link in document["links"]:
            if link["from"] != link["to"]:
                link["seconds"] = [factor * value for value in link["seconds"]]
        profile = layer_profile(document)
        efficiency = measured_layers(Analytic(), profile, plan.model, plan.cluster, job)
        return mixed_iteration(plan, efficiency).seconds

    assert seconds(20.0) > seconds(1.0)
    assert seconds(0.05) == seconds(1.0)


def _two_types(plan):
    """Return a stage on each type, without tensor parallelism."""
    any_stage = plan.stages[0]
    return [
        replace(any_stage, gpu=pool.gpu.name, tensor_parallel=1, recompute=Recompute()) for pool in plan.cluster.pools
    ]


def test_what_would_make_a_plan_fit_is_told_of_measured_layers_alone() -> None:
    """A smaller micro-batch was not measured."""
    job = make_job(global_batch=16, seq_len=1024, precision="fp32")
    plan, efficiency = planned(layer_profile(small_document(micro_batch=2)), job, ["pp=1", "dp=2", "recompute=none"])
    node = NODE | {"memory_gb": 1.4}
    small = replace(plan, cluster=build_cluster({"nodes": [node]}, "test"), prediction=None)
    found = evaluate(small, efficiency=efficiency)
    assert found.plan.predicted.fit_probability < 0.9
    assert not any(isinstance(change, SmallerMicroBatch) for change in found.remedies)
