"""The layer table: sums over ranges of layers, communication that overlap hides but never adds, parameters held."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.samples import BARE, context, gpt, llama, mixtral, pool, shard

from shardwright import Job, Model, load_model
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.compute.operators import Shard
from shardwright.cost.context import Context
from shardwright.cost.layers.table import LayerTable, layer_table, mtp_parameters
from shardwright.cost.network.collectives import fabric
from shardwright.cost.stage.terms import STATES, WHOLE
from shardwright.spec.adapter import matrices

JOB = Job(global_batch=64, seq_len=4096)
RUNNING = (
    "forward", "backward", "compute_forward", "compute_backward", "core_seconds", "tp_seconds", "cp_seconds", "ep_seconds",
    "kept", "dense", "expert",
)  # fmt: skip


def table_of(model: Model, columns: Shard, where: Context | None = None, job: Job = JOB) -> LayerTable:
    machines = pool(4, 8) if where is None else where.pool
    links = fabric(machines, intra_efficiency=1.0, inter_efficiency=1.0)
    return layer_table(model, machines.gpu, job, columns, Analytic(), links, BARE)


def test_the_table_is_a_running_sum_of_equal_layers():
    layers = table_of(llama(5, 2048, 16, 8, 8192, 32000), shard(2, tp=[1, 4], flash=True))
    for name in RUNNING:
        sums = getattr(layers, name)
        assert sums.shape == ((2, STATES, 5 + 3) if name == "kept" else (2, 5 + 3)) and (sums[..., 0] == 0).all()
        positions = np.diff(sums, axis=-1)
        assert (positions >= 0).all()
        np.testing.assert_allclose(positions[..., 1:-1], positions[..., 1:2] * np.ones(5), rtol=1e-9)


def test_kinds_of_layers_stand_where_the_model_has_them():
    model = load_model("deepseek-v3")
    layers = table_of(model, shard(ep=8, flash=True))
    experts = np.diff(layers.expert, axis=1)[0, 1:-1]
    np.testing.assert_array_equal(experts > 0, [layer.moe is not None for layer in model.layers])
    assert layers.expert[0, -2] == pytest.approx(58 * 256 * 3 * 7168 * 2048 / 8)
    assert layers.group[0] == np.diff(layers.kept[0, WHOLE])[1:-1].max()
    assert layers.parameters[0] == np.diff(layers.dense + layers.expert, axis=1)[0, 1:-1].max()


def test_keys_and_values_travel_beside_attention_or_before_it():
    """`train` gathers them, gathers them again backward and scatters their gradients: 3 times what is not its own."""
    seconds = {}
    for framework in ("megatron", "train"):
        job = Job(global_batch=64, seq_len=65536, framework=framework)
        layers = table_of(llama(5, 2048, 16, 8, 8192, 32000), shard(cp=[4], flash=True), job=job)
        seconds[framework] = float(layers.cp_seconds[0, -1])
    links = fabric(pool(4, 8), intra_efficiency=1.0, inter_efficiency=1.0)
    foreign = 3 / 4 * 2.0 * 65536 * 2 * 1024
    assert seconds["train"] == pytest.approx(5 * 3 * foreign / links.intra_bytes_per_second, rel=0.1)
    assert seconds["megatron"] < 0.5 * seconds["train"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b", "gemma-2-9b"])
def test_one_gpu_holds_all_parameters(name):
    model = load_model(name)
    layers = table_of(model, shard())
    copy = model.vocab * model.hidden if model.tied_embeddings else 0
    held = layers.dense[0, -1] + layers.expert[0, -1]
    assert held - copy == pytest.approx(model.parameters + sum(mtp_parameters(model)), rel=1e-9)
    split = table_of(model, shard(tp=2, ep=2, etp=1, sequence_parallel=True))
    every = [*model.layers, *model.layers[-1:] * model.mtp_layers]
    apart = sum(
        matrix.inputs * matrix.outputs for kind in every for matrix in matrices(model, kind) if not matrix.split
    )
    apart += sum(model.hidden * kind.moe.experts for kind in every if kind.moe)  # routers
    assert split.dense[0, -1] == pytest.approx((layers.dense[0, -1] + apart) / 2)
    assert split.expert[0, -1] == pytest.approx(layers.expert[0, -1] / 2)


@pytest.mark.parametrize("link", [1e9, 50e9, 1e12])
def test_overlapped_tensor_parallel_communication_is_never_slower(link):
    where = context(gpt(2, 4096, 32), pool(2, 8, intra_bytes_per_second=link), JOB)
    for model in (gpt(2, 4096, 32), mixtral(2, 4096, 32, 8, 14336, 32000, 8, 2)):
        for etp in (1, 4):
            columns = shard(2, tp=4, etp=etp, sequence_parallel=True, overlap_tp=[False, True], flash=True)
            layers = table_of(model, columns, where)
            for sums in (layers.forward, layers.backward):
                apart, beside = np.diff(sums, axis=1)
                assert (beside <= apart * (1 + 1e-9)).all() and beside.sum() < apart.sum()
            assert layers.tp_seconds[1, -1] > 0
            np.testing.assert_array_equal(layers.compute_forward[0], layers.compute_forward[1])


def test_each_parallelism_pays_for_its_own_communication():
    model, zero = mixtral(2, 4096, 32, 8, 14336, 32000, 8, 2), 0.0
    columns = shard(
        4, tp=[1, 4, 1, 1], cp=[1, 1, 4, 1], ep=[1, 1, 1, 4], etp=1, sequence_parallel=[False, True, False, False]
    )
    layers = table_of(model, columns)
    paid = np.stack([layers.tp_seconds[:, -1], layers.cp_seconds[:, -1], layers.ep_seconds[:, -1]])
    np.testing.assert_array_equal(paid > zero, [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    total = layers.compute_forward + layers.compute_backward + layers.tp_seconds + layers.cp_seconds + layers.ep_seconds
    np.testing.assert_allclose(layers.forward + layers.backward, total, rtol=1e-12)


def test_sequence_parallel_gathers_once_more_but_does_less_between_blocks():
    columns = shard(2, tp=8, sequence_parallel=[False, True], flash=True)
    layers = table_of(llama(1, 8192, 64, 8, 28672, 32000), columns)
    communication, compute, kept = (
        np.diff(sums, axis=1)[:, 1] for sums in (layers.tp_seconds, layers.compute_forward, layers.kept[:, WHOLE])
    )
    assert communication[1] > communication[0]
    assert compute[1] < compute[0] and kept[1] < kept[0]


def test_slow_links_are_paid_and_no_more():
    model, columns = llama(2, 8192, 64, 8, 28672, 32000), shard(3, tp=[8, 1, 1], cp=[1, 8, 1], flash=True)
    fast, slow = (
        table_of(model, columns, context(model, pool(1, 8, intra_bytes_per_second=rate), JOB)) for rate in (600e9, 60e9)
    )
    assert (slow.forward[:2, -1] > fast.forward[:2, -1]).all()
    np.testing.assert_array_equal(slow.forward[2], fast.forward[2])
    np.testing.assert_array_equal(slow.compute_forward, fast.compute_forward)


def test_time_grows_with_the_micro_batch_but_less_than_in_proportion():
    columns = shard(4, micro_batch=[1, 2, 4, 8], tp=4, flash=True)
    layers = table_of(llama(2, 2048, 16, 8, 8192, 32000), columns)
    each = (layers.forward + layers.backward)[:, -1]
    assert (np.diff(each) > 0).all()
    assert (np.diff(each / columns.micro_batch) <= 1e-12).all()


def test_multi_token_prediction_is_work_of_the_head():
    model = llama(4, 2048, 16, 8, 8192, 32000)
    plain, more = (table_of(replace(model, mtp_layers=depth), shard(flash=True)) for depth in (0, 1))
    np.testing.assert_array_equal(plain.forward[:, :-1], more.forward[:, :-1])
    layer = plain.forward[0, 2] - plain.forward[0, 1]
    head = plain.forward[0, -1] - plain.forward[0, -2]
    assert more.forward[0, -1] - plain.forward[0, -1] > layer + 0.99 * head
    assert more.dense[0, -1] - plain.dense[0, -1] == pytest.approx(sum(mtp_parameters(replace(model, mtp_layers=1))))
