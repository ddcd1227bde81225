"""Muon's price: its products against a plain count, its exchanges against collectives, its memory against a count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.samples import context, llama, mixtral, pool, row

from shardwright.cost.compute.efficiency import SATURATED
from shardwright.cost.compute.orthogonalisation import orthogonalisation_flops, work_of
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.moments import held_parameters, states
from shardwright.cost.iteration.orthogonalisation import orthogonalisation_seconds, running_product_seconds
from shardwright.cost.memory.sizes import HeldParameters
from shardwright.cost.network.collectives import exchange_seconds, group
from shardwright.cost.strategies import UNSHARDED, ZERO1, Strategies, boundaries, strategies
from shardwright.spec.job import Job

JOB = Job(global_batch=64, seq_len=4096, optimizer="muon")
DENSE = llama(4, 2048, 16, 16, 8192, 32000)
MIXTURE = mixtral(4, 1024, 8, 8, 2048, 32000, experts=8, top_k=2)


def test_five_steps_of_three_products() -> None:
    """X Xᵀ and A A and B X, each 2 FLOPs for a product and a sum, along the shorter side."""
    for shape in ((256, 1024), (1024, 256)):
        assert orthogonalisation_flops(*shape) == 5 * (2 * 256**2 * 1024 + 2 * 256**3 + 2 * 256**2 * 1024)


def test_the_work_of_a_model_is_that_of_its_matrices() -> None:
    square, wide = orthogonalisation_flops(2048, 2048), orthogonalisation_flops(2048, 8192)
    found = work_of(DENSE)
    weights = 4 * 2048**2 + 3 * 2048 * 8192
    assert found.dense == pytest.approx((4 * square + 3 * wide) / weights) and found.expert == 0.0
    assert found.largest == wide
    assert work_of(MIXTURE).expert == pytest.approx(orthogonalisation_flops(1024, 2048) / (1024 * 2048))


def held_under(**columns) -> tuple[Context, Strategies, HeldParameters]:
    where = context(DENSE, pool(nodes=64), JOB)
    rows = strategies([row(where, **columns)])
    return where, rows, held_parameters(where, rows, layer_rows(where, rows), starts_of(where, rows))


def starts_of(where: Context, rows: Strategies) -> np.ndarray:
    return boundaries(where.layer_count, int(rows.pp[0]), rows.first_layers, rows.last_layers)


@pytest.mark.parametrize("sharding", [UNSHARDED, ZERO1])
def test_matrices_travel_to_their_owners_and_back(sharding: int) -> None:
    """What each rank of a tensor- and data-parallel group sends, and gets: its part, or all that it holds."""
    where, rows, held = held_under(tp=2, dp=4, sharding=sharding)
    found = float(orthogonalisation_seconds(where, rows, held)[0, 0])
    layers = float((held.dense - held.ends)[0, 0])
    assert layers == pytest.approx(4 * (4 * 2048**2 + 3 * 2048 * 8192) / 2, rel=1e-3)
    everyone = group(where.links, np.array([8]), np.array([1]))
    passed = (layers / 4, layers / (1 if sharding == UNSHARDED else 4))
    travel = sum(float(exchange_seconds(where.links, everyone, np.array([2.0 * size]))[0]) for size in passed)
    peak = where.pool.gpu.peak("bf16") or 0.0
    assert found - travel == pytest.approx(layers / 4 * work_of(DENSE).dense / (peak * SATURATED["Ampere"].gemm))
    other = replace(where, job=replace(JOB, optimizer="adam"))
    assert not orthogonalisation_seconds(other, rows, held).any()


def test_no_rank_owns_less_than_a_matrix() -> None:
    where, rows, held = held_under(tp=2, dp=256, sharding=ZERO1)
    peak = where.pool.gpu.peak("bf16") or 0.0
    assert orthogonalisation_seconds(where, rows, held)[0, 0] > work_of(DENSE).largest / peak


def test_matrices_of_multi_token_prediction_are_no_ends() -> None:
    """They stand behind the head, and are matrices all the same: 8 bytes of state each, and products."""
    predicting = replace(MIXTURE, mtp_layers=1)
    where = context(predicting, pool(nodes=1), JOB)
    rows = strategies([row(where)])
    shards = layer_rows(where, rows)
    held = held_parameters(where, rows, shards, starts_of(where, rows))
    assert held.ends[0, 0] == MIXTURE.embedding_parameters + MIXTURE.head_parameters
    running = {name: getattr(shards.table, name) for name in ("dense", "expert", "ends")}
    seconds = running_product_seconds(where, **running)[0]
    layer = seconds[2] - seconds[1]
    assert seconds[1] == 0.0 and seconds[-1] - seconds[-2] == pytest.approx(layer, rel=0.2) and layer > 0.0


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_embedding_and_head_keep_both_moments(pp: int) -> None:
    """Under Muon a weight of a layer has 8 bytes of state, one of the ends 12, on the ranks that have these."""
    where, rows, held = held_under(pp=pp, dp=2)
    state = states(where, rows, layer_rows(where, rows), held).optimizer[0]
    ends = np.zeros(pp)
    ends[0] += DENSE.embedding_parameters
    ends[-1] += DENSE.head_parameters
    assert state == pytest.approx(8.0 * (DENSE.parameters - ends.sum()) / pp + 12.0 * ends)
