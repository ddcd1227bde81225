"""Losses over preferences: pairs are as many sequences, and a reference costs its weights and its passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import shardwright
from shardwright.cost.compute.flops import job_flops
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.batch import evaluate
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.learned import default_efficiency
from shardwright.cost.memory.facts import memory_facts
from shardwright.cost.strategies import SHARDING, UNIFORM, UNSHARDED, ZERO2, ZERO3, Strategies, strategies
from shardwright.spec.adapter import Adapter, parse_adapter
from shardwright.spec.job import Job
from shardwright.spec.options import Options
from shardwright.spec.preference import LOSSES, PreferenceLoss, parse_preference

MODEL = shardwright.load_model("llama-3.2-1b")
(POOL,) = shardwright.load_cluster("1x8xH100-SXM").pools
FRAMEWORKS = ("fsdp", "deepspeed")
TILED = Options(loss="tiled")
PAIRS: list[PreferenceLoss] = [loss for loss, passes in LOSSES.items() if passes.trained == 2]


def job(framework: str, loss: str | None = None, adapter: Adapter | None = None, **told: Any) -> Job:
    preference = None if loss is None else parse_preference(loss)
    plain = Job(global_batch=64, seq_len=1024, framework=framework, preference=preference, adapter=adapter)
    return replace(plain, **told)


def context(of: Job) -> Context:
    return Context(model=MODEL, pool=POOL, job=of, efficiency=default_efficiency())


def rows_of(of: Job, micro_batch: int) -> Strategies:
    """Return rows of every sharding, with and without recomputation."""
    layers = len(MODEL.layers)
    plain = {"dp": 8, "micro_batch": micro_batch, "flash": True, "first_layers": layers, "last_layers": layers}
    ways: tuple[dict[str, int], ...] = ({}, {"recompute": UNIFORM, "recompute_layers": 1})
    return strategies([{**plain, "sharding": code, **way} for code in range(len(SHARDING)) for way in ways])


def peak(of: Job, micro_batch: int = 1) -> Footprint:
    rows = rows_of(of, micro_batch)
    starts = np.tile([0, len(MODEL.layers)], (len(rows), 1))
    return footprint(context(of), rows, layer_rows(context(of), rows), starts)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("loss", PAIRS)
@pytest.mark.parametrize("adapter", [None, "lora:16", "qlora:16"])
def test_a_pair_without_a_reference_is_two_sequences(framework: str, loss: PreferenceLoss, adapter: str | None) -> None:
    """The same seconds and bytes, to the last bit; where logits are whole, TRL has them in fewer copies than a loss of
    the next token."""
    beside = None if adapter is None else parse_adapter(adapter)
    alone = f"{loss}:precomputed" if LOSSES[loss].reference else loss
    pairs = job(framework, alone, beside)
    options = TILED if LOSSES[loss].tiled else Options()
    sequences = job(framework, None, beside, global_batch=128, options=options)
    one, two = (evaluate(context(of), rows_of(of, size)) for of, size in ((pairs, 2), (sequences, 4)))
    np.testing.assert_array_equal(one.seconds, two.seconds)
    if LOSSES[loss].tiled:
        np.testing.assert_array_equal(one.peak_bytes, two.peak_bytes)
    assert np.all(one.peak_bytes <= two.peak_bytes)
    assert job_flops(MODEL, pairs) == job_flops(MODEL, sequences)


def test_a_reference_of_deepspeed_is_a_second_copy_in_16_bits() -> None:
    """Whole, but under ZeRO-3 a share of each rank; its passes gather layers as those of the model do."""
    with_it, without = (peak(job("deepspeed", loss)) for loss in ("dpo", "dpo:precomputed"))
    sharding = rows_of(job("deepspeed"), 1).sharding
    expected = 2.0 * MODEL.parameters / np.where(sharding == ZERO3, 8, 1)
    np.testing.assert_allclose((with_it.tensors - without.tensors)[:, 0], expected, rtol=1e-12)


def test_a_reference_of_fsdp_is_one_unit() -> None:
    """TRL gives its layers no units of their own: its shards, in fp32 as the masters are, are gathered together, beside
    what the model keeps for its backward pass; unless they are sharded again, they stay."""
    of = job("fsdp", "dpo")
    with_it, without = peak(of), peak(job("fsdp", "dpo:precomputed"))
    more, sharding = (with_it.tensors - without.tensors)[:, 0], rows_of(of, 1).sharding
    whole = np.full(len(more), float(MODEL.parameters))
    np.testing.assert_allclose(more[sharding == UNSHARDED], (4.0 * whole)[sharding == UNSHARDED], rtol=1e-12)
    np.testing.assert_allclose(more[sharding == ZERO2], (4.0 / 8 * whole + 2.0 * whole)[sharding == ZERO2], rtol=1e-12)
    shards = 4.0 / 8 * whole
    assert np.all(more[sharding == ZERO3] >= shards[sharding == ZERO3])
    assert np.all(more[sharding == ZERO3] <= (shards + 4.0 * whole)[sharding == ZERO3])


@pytest.mark.parametrize("code", ["llamafactory", "torchtune"])
def test_others_give_the_layers_of_a_reference_units_of_their_own(code: str) -> None:
    """In 16 bits, a share of each rank; LLaMA-Factory's output projection stays whole, which is the embedding here."""
    with_it, without = peak(job("fsdp", f"dpo:{code}")), peak(job("fsdp", "dpo:precomputed"))
    more, sharding = (with_it.weights - without.weights)[:, 0], rows_of(job("fsdp"), 1).sharding
    stays = 2.0 * MODEL.token_table_parameters * (code == "llamafactory")
    assert np.all(more[sharding == UNSHARDED] >= 2.0 * MODEL.parameters)
    shards = 2.0 / 8 * MODEL.parameters
    assert np.all(more[sharding == ZERO3] >= shards + stays)
    by_trl = (peak(job("fsdp", "dpo")).weights - without.weights)[:, 0]
    assert np.all(more[sharding == ZERO3] < by_trl[sharding == ZERO3])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("loss", ["dpo", "kto"])
@pytest.mark.parametrize("adapter", [None, "lora:16"])
def test_passes_without_gradients_take_their_time(framework: str, loss: PreferenceLoss, adapter: str | None) -> None:
    """At least the part of the FLOPs that is theirs over the GPUs' peak, and no more than as many whole passes."""
    beside = None if adapter is None else parse_adapter(adapter)
    of, before = job(framework, loss, beside), job(framework, f"{loss}:precomputed", beside)
    rows = rows_of(of, 1)
    more = evaluate(context(of), rows).seconds - evaluate(context(before), rows).seconds
    flops = job_flops(MODEL, of) - job_flops(MODEL, before)
    reference = LOSSES[loss].reference / LOSSES[loss].trained
    plain = job_flops(MODEL, job(framework, loss, None)) / (3.0 + of.passes_without_gradients)
    assert flops == pytest.approx(reference * plain)
    peak_flops = POOL.gpu.peak("bf16")
    assert peak_flops is not None
    assert np.all(more > flops / peak_flops / 8)
    gathered = reference * (2.0 * MODEL.parameters / POOL.gpu.link_bytes_per_second) * 8
    assert np.all(more < reference * evaluate(context(before), rows).seconds + gathered)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("loss", LOSSES)
def test_plans_take_as_many_samples_at_a_time_as_the_loss_needs(framework: str, loss: str) -> None:
    """KTO's trainer refuses batches of one sample, which would be best where each GPU has one."""
    cluster = shardwright.load_cluster("1x8xH100-SXM")
    best = shardwright.plan(MODEL, cluster, job(framework, loss, global_batch=8), top=1).best
    least = job(framework, loss).preference
    assert least is not None and best.micro_batch >= least.least_samples
    with_one = replace(best, micro_batch=1)
    refused = any("holds answers" in str(problem) for problem in shardwright.check(with_one))
    assert refused == (least.least_samples > 1)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_gpu_is_not_sized_for_fewer_samples_than_the_loss_needs(loss: str) -> None:
    of = job("fsdp", loss, global_batch=8)
    assert of.preference is not None
    if of.preference.least_samples == 1:
        assert shardwright.fit(MODEL, shardwright.load_cluster("1x8xH100-SXM"), of).sizes
        return
    with pytest.raises(shardwright.SpecError, match="holds answers of a batch"):
        shardwright.fit(MODEL, shardwright.load_cluster("1x8xH100-SXM"), of)


def test_every_trainer_of_preferences_says_how_its_reference_stands() -> None:
    from shardwright.exporters.support.matrix import facts, trainers

    able = {trainers()[row.target].framework for row in facts() if row.subject == "preference" and row.runs == "yes"}
    assert {name for name in able if memory_facts(name).reference} == able == set(FRAMEWORKS)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b"])
def test_a_model_of_rewards_has_a_head_of_one_score(name: str) -> None:
    """No weights over the vocabulary but the embedding's, and no FLOPs of logits."""
    model = shardwright.load_model(name)
    scored = model.giving_scores()
    table = model.vocab * model.hidden
    assert scored.parameters == model.parameters - table * (not model.tied_embeddings) + model.hidden
    pairs, rewards = job("fsdp", "orpo"), job("fsdp", "reward")
    tokens = pairs.tokens_per_iteration
    less = 6.0 * tokens * (table - model.hidden)
    assert job_flops(model, pairs) - job_flops(scored, rewards) == pytest.approx(less)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("adapter", [None, "lora:16"])
def test_rewards_take_less_memory_than_logits_of_the_same_pairs(framework: str, adapter: str | None) -> None:
    """But for the weights of the score, where the head is the embedding and the update is the peak."""
    beside = None if adapter is None else parse_adapter(adapter)
    model = MODEL.giving_scores()
    both = []
    for of, trained in ((job(framework, "orpo", beside), MODEL), (job(framework, "reward", beside), model)):
        where = replace(context(of), model=trained)
        rows = rows_of(of, 4)
        starts = np.tile([0, len(trained.layers)], (len(rows), 1))
        both.append(footprint(where, rows, layer_rows(where, rows), starts).tensors[:, 0])
    assert np.all(both[1] < both[0] + 32 * model.hidden) and np.any(both[1] < 0.9 * both[0])


def test_a_plan_of_rewards_is_of_the_model_that_gives_them() -> None:
    of = job("fsdp", "reward", global_batch=8)
    best = shardwright.plan(MODEL, shardwright.load_cluster("1x8xH100-SXM"), of, top=1).best
    assert best.model == MODEL.giving_scores() and not shardwright.check(best)
    for wrong in (replace(best, model=MODEL), replace(best, job=job("fsdp", "orpo", global_batch=8))):
        assert "model.scores" in {problem.path for problem in shardwright.check(wrong)}
