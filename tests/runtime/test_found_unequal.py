"""A plan that the search finds with tensor-parallel degrees that differ by GPU type trains like a single process, and
keeps as much twice as the cost model says."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests import nightly
from tests.runtime.equal import ADAM, SGD, require_equal
from tests.runtime.reference import reference_run
from tests.runtime.samples import SEQ_LEN, STEPS, tiny_model
from tests.runtime.workers import Case, run_cases

from shardwright import Plan, Space, check, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.iteration.mixed import mixed_iteration
from shardwright.plans.document import from_document, to_document
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.state.store import make_store
from shardwright.search.mixed.branch_and_bound.fastest import search
from shardwright.search.mixed.branch_and_bound.run import Effort, MixedProblem
from shardwright.search.mixed.heuristics.unequal_counts import unequal_counts
from shardwright.search.mixed.heuristics.unequal_spread import unequal_spread
from shardwright.search.mixed.tables.model_tables import tables
from shardwright.search.mixed.tables.settings import settings
from shardwright.search.rules.filters import Filters
from shardwright.spec.read.cluster import build_cluster, load_cluster

EFFICIENCY = Analytic()
MODEL = tiny_model(6)


CASES = {
    f"{name}, sequence parallelism {'on' if sequence else 'off'}": (*machines, pins, sequence)
    for name, machines, pins in (("one pipeline", (4, 1), {"pp": (3,)}), ("two replicas", (2, 2), {"dp": (2,)}))
    for sequence in (False, True)
}


@cache
def found(name: str) -> Plan:
    """Return the best plan with pairs of H100s and with T4s that are each alone in a machine."""
    fast, slow, pins, sequence_parallel = CASES[name]
    nodes = [{"count": 1, "gpu": "H100-SXM", "gpus": fast}, {"count": slow, "gpu": "T4", "gpus": 1}]
    job = make_job(global_batch=6, seq_len=SEQ_LEN, precision="fp32")
    cluster = build_cluster({"nodes": nodes}, "test")
    contexts = tuple(Context(model=MODEL, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools)
    space = Space(pins={**pins, "sequence_parallel": (int(sequence_parallel),), "micro_batch": (1,)}, tp_per_type=True)
    chosen = tuple(setting for setting in settings(contexts, space) if setting.tp == (2, 1))
    made, effort = tuple(tables(contexts, chosen)), Effort(regions=20, patience=20, idle=20, near=0.0)
    problem = MixedProblem(contexts, cluster, space, 0.0, chosen, made, {}, effort)
    depths = pins.get("pp", range(1, 9))
    deep = search(problem, 1e9, lambda plan: all(len(replica.stages) in depths for replica in plan.replicas))
    return deep.plans[0][1]


def test_found_plans_train_like_one_process():
    names = list(CASES)
    plans = {name: found(name) for name in (names if nightly.wanted else (names[1], names[2]))}
    outcomes = run_cases([Case(name, plan, ADAM, steps=STEPS) for name, plan in plans.items()], processes=5)
    for name, plan in plans.items():
        assert {stage.tensor_parallel for stage in plan.stages} == {1, 2}
        assert check(plan) == () and unrunnable(plan) == ()
        assert from_document(to_document(plan)) == plan
        require_equal(outcomes[name], reference_run(plan, ADAM, steps=STEPS, seed=7))


@pytest.mark.parametrize("name", CASES)
def test_weights_that_are_kept_twice_are_counted(name):
    plan = found(name)
    layout, replicas = layout_of(plan), mixed_iteration(plan, EFFICIENCY).replicas
    for place in layout.places:
        store = make_store(layout, place, torch.float32, torch.device("cpu"))
        buffers = {buffer.weights.whole.untyped_storage().data_ptr() for buffer in store.buffers}
        tensors = {parameter.untyped_storage().data_ptr(): parameter for parameter in store.parameters.values()}
        kept = 4 * sum(piece.elements for buffer in store.buffers for piece in buffer.bucket.pieces)
        kept += sum(parameter.nbytes for where, parameter in tensors.items() if where not in buffers)
        counted = float(replicas[place.replica].memory.weights[place.stage])
        alike = len({buffer.bucket.alone for buffer in store.buffers}) == 1
        assert kept == pytest.approx(counted, rel=0.05) if alike else kept < counted, place.name


def test_replicas_with_unequal_counts_and_experts_spread_train_like_one_process() -> None:
    job = make_job(global_batch=8, seq_len=SEQ_LEN, precision="fp32", framework="train", optimizer="sgd")
    cluster = build_cluster({"nodes": [{"count": 1, "gpu": "H100-SXM", "gpus": 6}]}, "test")
    context = Context(model=tiny_model(2, experts=4), pool=cluster.pools[0], job=job, efficiency=EFFICIENCY)
    pins = {"pp": (1,), "tp": (1,), "ep": (2,), "micro_batch": (1,)}
    (plan,) = unequal_counts(context, cluster, Space(pins=pins), Filters(), float("inf"))
    assert [(replica.count, replica.micro_batches) for replica in plan.replicas] == [(2, 2), (4, 1)]
    outcome = run_cases([Case("unequal counts", plan, SGD, steps=STEPS)], processes=6)["unequal counts"]
    require_equal(outcome, reference_run(plan, SGD, steps=STEPS, seed=Case.seed))


SPREAD = {  # experts, what is pinned, machines, batch
    "experts, counts unequal": (4, {"ep": (2,)}, "1x2xH100-SXM+1x4xL4", 8),
    "experts, depths unequal, machines of both types": (4, {"ep": (2,)}, "2x(2xH100-SXM+1xL4)", 8),
    "sequences": (0, {"cp": (2,)}, "1x4xH100-SXM+1x2xL4", 5),
}


def test_replicas_over_several_types_with_experts_or_sequences_spread_train_like_one_process() -> None:
    plans = {}
    for name, (experts, spread, machines, batch) in SPREAD.items():
        job = make_job(global_batch=batch, seq_len=SEQ_LEN, precision="fp32", framework="train", optimizer="sgd")
        cluster, model = load_cluster(machines), tiny_model(4, experts=experts)
        contexts = [Context(model=model, pool=pool, job=job, efficiency=EFFICIENCY) for pool in cluster.pools]
        space = Space(pins={"tp": (1,), "micro_batch": (1,), "cp": (1,), "ep": (1,), **spread})
        hint = (1, *(space.pins[axis][0] for axis in ("cp", "ep")), 1)
        (plans[name],) = unequal_spread(contexts, cluster, space, Filters(), [hint], float("inf"))
    shapes = [[(item.count, item.micro_batches, len(item.stages)) for item in plan.replicas] for plan in plans.values()]
    assert shapes == [[(2, 2, 1), (4, 1, 1)], [(2, 2, 2), (2, 2, 1)], [(2, 2, 1), (1, 1, 1)]]
    outcomes = run_cases([Case(name, plan, SGD, steps=STEPS) for name, plan in plans.items()], processes=6)
    for name, plan in plans.items():
        assert check(plan) == () and unrunnable(plan) == () and len(plan.gpus_by_type) == 2
        require_equal(outcomes[name], reference_run(plan, SGD, steps=STEPS, seed=Case.seed))
