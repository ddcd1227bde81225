"""State in host memory under every sharding and framework: what is priced as fitting is searched, and nothing that is
priced beats what the search finds or its bound; the recipe of DeepSpeed and FSDP2 is found, told and written."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from tests.nightly import nightly
from tests.search.test_host_memory import with_host

from shardwright import Cluster, check, load_cluster, load_model, make_job, plan
from shardwright.cost.context import Context
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import headroom
from shardwright.cost.strategies import NONE, UNIFORM, ZERO2, plan_of_row, settled, strategies
from shardwright.exporters import accelerate, deepspeed
from shardwright.plans.abilities import flash_attention_runs, framework_problems
from shardwright.plans.findings import NoLegalLayout, RulesDropAll, Unpin
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import Space, divisors, searched, tensor_parallel_degrees
from shardwright.search.space.layouts import even_split
from shardwright.search.uniform.search import search
from shardwright.spec.catalog.frameworks import framework_names

CLUSTERS = ("1x1xRTX4090", "1x2xRTX4090", "1x4xRTX3090", "1x8xA100-SXM-40", "2x4xA100-SXM-80", "2x1xH100-SXM")
MODELS = ("llama-3.2-1b", "qwen3-4b", "llama-2-7b", "llama-2-13b")
HOSTS = (20e9, 80e9, 400e9)  # bytes for each GPU
ROWS = 60  # priced for each draw


def drawn(pick: np.random.Generator) -> tuple[Context, Cluster]:
    """Return a model, a framework and machines whose memory is short more often than not."""
    cluster = with_host(load_cluster(str(pick.choice(CLUSTERS))), float(pick.choice(HOSTS)))
    job = make_job(
        global_batch=int(pick.choice([8, 16, 48])),
        seq_len=int(pick.choice([512, 2048])),
        framework=str(pick.choice(framework_names())),
    )
    (pool,), model = cluster.pools, load_model(str(pick.choice(MODELS)))
    room = headroom(0.9, job)
    return Context(model=model, pool=pool, job=job, efficiency=default_efficiency(), headroom=room), cluster


def priced(where: Context, pick: np.random.Generator, sharding: int, offload: float) -> list[dict[str, object]]:
    """Return random strategies of a sharding with so much of the state in host memory."""
    rows, pool = [], where.pool
    for _ in range(ROWS):
        tp = int(pick.choice(tensor_parallel_degrees(where)))
        depths = [depth for depth in (1, 2) if depth * tp <= pool.gpus and (depth == 1 or sharding < ZERO2)]
        pp = int(pick.choice(depths))
        dp = int(pick.choice(divisors(where.job.global_batch, pool.gpus // (tp * pp))))
        first, last = even_split(where, pp)
        rows.append(
            settled(
                {
                    "tp": tp,
                    "pp": pp,
                    "dp": dp,
                    "micro_batch": int(pick.choice(divisors(where.job.global_batch // dp, 16))),
                    "flash": flash_attention_runs(pool.gpu, where.job),
                    "first_layers": first,
                    "last_layers": last,
                    "recompute": (mode := int(pick.choice([NONE, UNIFORM]))),
                    "recompute_layers": int(mode == UNIFORM),
                    "sharding": sharding,
                    "offload": offload,
                    "overlap_grad": bool(beside := pick.random() < 0.7),
                    "overlap_param": beside,
                }
            )
        )
    return rows


@pytest.mark.parametrize("seed", [*range(4), *nightly(range(4, 400))])
def test_what_is_priced_as_fitting_is_searched_and_never_beats_the_search(seed: int) -> None:
    pick = np.random.default_rng(seed)
    where, cluster = drawn(pick)
    sharding, offload = int(pick.integers(4)), float(pick.choice([0.0, 0.25, 0.3, 1.0, 1.0]))
    offload *= sharding > 0
    rows = strategies(priced(where, pick, sharding, offload))
    verdict = evaluate(where, rows)
    objective = Objective(model=where.model, job=where.job, pool=where.pool)
    pins = {"sharding": (sharding,), "offload": (offload,)}
    pinned, free = (
        search(where, searched(where, Space(pins=MappingProxyType(kept))), Filters(), objective, top=1, indifference=0)
        for kept in (pins, {})
    )
    follows = where.job.framework in ("deepspeed", "fsdp", "torchtitan")
    renamed = (rows.dp == 1) & (sharding >= ZERO2) & (not follows)  # ZeRO-1 by another name
    for place in np.flatnonzero(verdict.fits & (rows.sharding == sharding) & ~renamed):
        row, seconds = rows.take(np.array([place])), verdict.seconds[place] * (1.0 + 1e-9)
        made = plan_of_row(row, where.model, where.job, cluster, where.pool.gpu.name)
        assert not check(made) and not tuple(framework_problems(made))
        assert pinned.candidates > 0 and pinned.least is not None, "priced as fitting, and not searched"
        assert pinned.least[0] <= seconds
        assert (free.least is not None and min(free.least[0], free.unseen) <= seconds) or offload == 0.3
    for found in (pinned, free):
        for value, row in found.ranked:
            again = evaluate(where, row)
            assert again.fits.all() and again.seconds[0] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "machines", "framework", "sharding"),
    [
        ("llama-2-13b", "1x4xRTX3090", "deepspeed", "zero3"),
        ("qwen2.5-32b", "1x8xL40S", "deepspeed", "zero2"),
        ("llama-3.1-8b", "1x2xRTX4090", "fsdp", "zero3"),
    ],
)
def test_where_nothing_else_fits_the_recipe_is_found_and_written(
    name: str, machines: str, framework: str, sharding: str
) -> None:
    job = make_job(global_batch=16, seq_len=2048)
    best = plan(name, machines, job, framework=framework, top=1).best
    assert (best.optimizer.sharding, best.optimizer.offload) == (sharding, 1.0)
    if framework == "deepspeed":
        zero = deepspeed.config(best)["zero_optimization"]
        assert isinstance(zero, dict) and zero["stage"] == int(sharding[-1])
        assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 1.0}
        assert "sub_group_size" not in zero
    else:
        sharded = accelerate.config(best)["fsdp_config"]
        assert isinstance(sharded, dict) and sharded["fsdp_offload_params"] and sharded["fsdp_reshard_after_forward"]
    less = plan(name, machines, job, framework=framework, top=1, pins={"offload": 0})
    assert less.infeasible is not None and any(isinstance(remedy, Unpin) for remedy in less.infeasible.remedies)


def test_of_a_part_on_the_host_whole_groups_are_updated_there() -> None:
    job = make_job(global_batch=16, seq_len=2048)
    pins = {"offload": 0.75, "sharding": "zero3"}
    best = plan("llama-2-13b", "1x8xA100-SXM-80", job, framework="deepspeed", top=1, pins=pins).best
    zero = deepspeed.config(best)["zero_optimization"]
    assert isinstance(zero, dict) and zero["stage"] == 3
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 0.75}
    assert best.model.parameters / best.data_parallel / zero["sub_group_size"] > 30


@pytest.mark.parametrize(
    ("framework", "pins", "barred"),
    [
        ("deepspeed", {"sharding": "zero2", "offload": 0.5}, "DeepSpeed.*: offload optimizer, a part"),
        ("fsdp", {"offload": 0.5}, "Accelerate.*: offload optimizer, a part"),
        ("fsdp", {"sharding": "zero2", "offload": 1}, "Accelerate.*: offload optimizer, whole"),
    ],
)
def test_what_bars_a_pinned_combination_is_named_with_the_pin_to_leave_out(framework, pins, barred) -> None:
    none = plan(
        "llama-3.2-1b", "1x2xA100-SXM-80", make_job(global_batch=8, seq_len=512), framework=framework, pins=pins
    )
    assert none.infeasible is not None and isinstance(none.infeasible.reason, RulesDropAll)
    (rule,) = none.infeasible.reason.rules
    assert re.fullmatch(barred, rule)
    assert Unpin("offload") in [replace(remedy, seconds=None) for remedy in none.infeasible.remedies]  # type: ignore[type-var]


def test_state_that_is_not_sharded_has_no_part_in_host_memory() -> None:
    pins = {"sharding": "none", "offload": 1}
    none = plan(
        "llama-3.2-1b", "1x2xA100-SXM-80", make_job(global_batch=8, seq_len=512), framework="deepspeed", pins=pins
    )
    assert none.infeasible is not None and isinstance(none.infeasible.reason, NoLegalLayout)
    assert none.infeasible.remedies == (Unpin("sharding", legal=("zero1", "zero2", "zero3")), Unpin("offload"))
