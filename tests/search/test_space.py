"""The declared space: what may be pinned, which layouts are legal, and how many candidates each stands for."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.cost.samples import attention, context, llama, mixtral, pool, row
from tests.nightly import examples
from tests.search import oracle_uniform as oracle
from tests.search.problems import Problem, problems

from shardwright import Job, Model, SpecError, load_model
from shardwright.cost.strategies import DATA_OUTERMOST, SELECTIVE, UNIFORM, ZERO1, ZERO3, Layouts, strategies
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.space.axes import (
    Space,
    parse_pins,
    split_choices,
    tensor_parallel_degrees,
    virtual_stages,
    within,
)
from shardwright.search.space.layouts import candidate_counts, layouts, splits
from shardwright.search.space.parameters import AXES, SYNONYMS
from shardwright.search.uniform.search import search
from shardwright.spec.layer import Layer, Mlp, Moe
from shardwright.spec.options import VALUES

JOB = Job(global_batch=16, seq_len=2048)


def layouts_and_counts(where, space: Space) -> dict[oracle.Layout, float]:
    rows = layouts(where, space)
    counts = candidate_counts(where, space, rows, splits(where, space, rows.pp * rows.vpp))
    found = tuples(rows)
    assert len(set(found)) == len(found)
    return {layout: count for layout, count in zip(found, counts, strict=True) if count}


def tuples(rows: Layouts) -> list[oracle.Layout]:
    return [tuple(int(getattr(rows, name)[place]) for name in oracle.LAYOUT) for place in range(len(rows))]


def listed(where, pins: oracle.Pins) -> dict[oracle.Layout, float]:
    counts = {layout: oracle.candidates_of(where, pins, layout) for layout in oracle.layouts(where, pins)}
    return {layout: count for layout, count in counts.items() if count}


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(problem=problems(most=2000))
def test_layouts_and_counts_are_those_of_the_list(problem: Problem):
    space = Space(pins=MappingProxyType(problem.pins))
    assert layouts_and_counts(problem.context, space) == listed(problem.context, problem.pins)


@pytest.mark.parametrize(
    ("name", "nodes", "pins"),
    [
        ("llama-3.1-8b", 4, {}),
        ("gpt3-175b", 2, {"recompute": (SELECTIVE,), "micro_batch": (1, 2)}),
        ("mixtral-8x7b", 4, {"micro_batch": (2,), "recompute_layers": (1, 40)}),
        ("deepseek-v3", 8, {"ep": (8, 16), "pp": (4, 8), "micro_batch": (1,)}),
        ("gemma-2-9b", 2, {"pp": (3,), "vpp": (1, 5)}),
    ],
)
def test_layouts_and_counts_of_real_models_are_those_of_the_list(name, nodes, pins):
    where = context(load_model(name), pool(nodes, 8), Job(global_batch=48, seq_len=4096))
    found = layouts_and_counts(where, Space(pins=pins))
    assert found == listed(where, pins)
    assert len(found) > 5


@pytest.mark.parametrize(("pp", "vpp"), [(8, 12), (16, 6), (32, 3)])
def test_embedding_and_loss_count_as_layers(pp: int, vpp: int):
    """94 layers in 96 chunks, as NVIDIA runs Qwen3-235B-A22B: the first and the last have none."""
    where = context(load_model("qwen3-235b-a22b"), pool(32, 8), Job(global_batch=64, seq_len=4096))
    assert vpp in virtual_stages(where, Space(), pp)
    firsts, lasts = split_choices(where, Space(), pp * vpp, 1.5)
    assert {(0, 0), (1, 1)} <= set(zip(firsts.tolist(), lasts.tolist(), strict=True))


def test_tensor_parallel_degrees_respect_every_width():
    def degrees(layer: Layer, hidden: int = 1024, **machines) -> list[int]:
        model = Model(name="", family="", hidden=hidden, vocab=1000, layers=(layer,))
        return tensor_parallel_degrees(context(model, pool(**machines), JOB))

    plain = Layer(attention=attention(8, 128), mlp=Mlp(width=4096, gated=True), moe=None)
    assert degrees(plain) == [1, 2, 4, 8]
    assert degrees(plain, gpus_per_node=4) == [1, 2, 4]
    assert degrees(plain, nodes=4, gpus_per_node=2, domain_gpus=8) == [1, 2, 4, 8]
    assert degrees(plain, gpus_per_node=6) == [1, 2]
    assert degrees(plain, hidden=1020) == [1, 2, 4]
    assert degrees(replace(plain, attention=attention(8, 128, 2))) == [1, 2, 4, 8]
    assert degrees(replace(plain, attention=attention(12, 128, 6))) == [1, 2]
    assert degrees(replace(plain, mlp=Mlp(width=4098, gated=True))) == [1, 2]
    moe = Moe(experts=4, top_k=1, expert_width=33, gated=True, shared_width=1028)
    assert degrees(Layer(attention=attention(8, 128), mlp=None, moe=moe)) == [1, 2, 4]


def test_experts_with_tensor_parallelism_need_a_sequence_that_it_splits():
    job, legal = Job(global_batch=8, seq_len=60), {(2, 1), (2, 2), (2, 3), (4, 1)}
    for model, more in (
        (mixtral(2, 1024, 8, 8, 2048, 1000, 4, 2), set()),
        (llama(2, 1024, 8, 8, 2048, 1000), {(4, 2), (8, 1)}),
    ):
        found = layouts_and_counts(context(model, pool(1, 8), job), Space())
        assert {(tp, cp) for tp, cp, *_ in found if tp > 1} == legal | more


def test_pins_are_read_with_their_words_and_synonyms():
    space = parse_pins([
        "tp=8", "micro-batch-size=1,2", "recompute=full", "sharding=zero1,none", "sp=on",
        "rank_order=tp-cp-ep-pp-dp", "offload=0.3", "$pp=4", "last_stage_layers=0", "recompute_num_layers=2,2",
    ])  # fmt: skip
    assert dict(space.pins) == {
        "tp": (8,), "micro_batch": (1, 2), "recompute": (2, 3), "sharding": (1, 0), "sequence_parallel": (1,),
        "rank_order": (1,), "offload": (0.3,), "pp": (4,), "last_layers": (0,), "recompute_layers": (2,),
    }  # fmt: skip
    assert set(SYNONYMS.values()) <= {*AXES, *VALUES}


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("tp", "not of the form name=value", "`set=tp=8`"),
        ("tp=", "not of the form name=value", "`set=tp=8`"),
        ("tpp=8", "no parameter 'tpp'", "tp"),
        ("=8", "no parameter ''", ""),
        ("tp=eight", "'eight' is not a number", ""),
        ("tp=0", "whole number of at least 1", ""),
        ("tp=2.5", "whole number", ""),
        ("tp=-1", "whole number", ""),
        ("tp=nan", "whole number", ""),
        ("tp=inf", "whole number", ""),
        ("tp=1e300", "whole number", ""),
        ("tp=1,,2", "not a number", ""),
        ("last_layers=-1", "whole number of at least 0", ""),
        ("offload=1.5", "fraction", "from 0 to 1"),
        ("offload=nan", "fraction", "from 0 to 1"),
        ("flash=maybe", "no value of flash", "on"),
        ("sharding=zero4", "no value of sharding", "zero3"),
    ],
)
def test_a_pin_that_cannot_be_read_names_itself_and_the_remedy(setting, message, hint):
    with pytest.raises(SpecError) as caught:
        parse_pins(["pp=2", setting])
    (problem,) = caught.value.problems
    assert problem.path.startswith("`set=") and setting.partition("=")[0] in problem.path
    assert message in problem.message and hint in problem.hint


def test_every_bad_pin_is_reported_and_none_may_be_given_twice():
    with pytest.raises(SpecError) as caught:
        parse_pins(["tp=x", "pp=2", "pipeline_parallel=4", "dq=1"])
    for problem, part in zip(caught.value.problems, ("not a number", "set twice", "no parameter"), strict=True):
        assert part in problem.message


def test_within_says_which_strategies_the_pins_allow():
    where = context(llama(4, 1024, 8, 8, 4096, 1000), pool(1, 8), JOB)
    rows = strategies([row(where, tp=2, dp=4, sharding=ZERO1, offload=0.5), row(where, dp=4), row(where, tp=2)])
    for settings_, expected in (
        ([], [1, 1, 1]), (["tp=2"], [1, 0, 1]), (["gpus=4,8"], [1, 1, 0]), (["offload=0.5", "sharding=zero1"], [1, 0, 0]),
    ):  # fmt: skip
        np.testing.assert_array_equal(within(parse_pins(settings_), rows), expected)


def found_with(settings_: list[str], where=None):
    where = where or context(llama(4, 1024, 8, 8, 4096, 1000), pool(1, 8), JOB)
    return search(
        where, parse_pins(settings_), Filters(), Objective(model=where.model, job=where.job, pool=where.pool), top=1
    )


def test_a_pinned_fraction_of_offload_need_not_be_one_of_the_usual():
    found = found_with(["offload=0.3"])
    assert found.ranked[0][1].offload[0] == 0.3
    assert found.ranked[0][1].sharding[0] == ZERO1


def test_pins_of_every_axis_reach_the_plan():
    pinned = found_with([
        "tp=2", "cp=2", "pp=2", "dp=1", "vpp=2", "micro_batch=2", "sequence_parallel=off", "flash=on", "first_layers=2",
        "last_layers=1", "recompute=uniform", "recompute_layers=2", "sharding=zero1", "offload=0.5", "overlap_grad=off",
    ])  # fmt: skip
    ((_, plan),) = pinned.ranked
    assert (plan.tp[0], plan.cp[0], plan.pp[0], plan.dp[0], plan.vpp[0], plan.micro_batch[0]) == (2, 2, 2, 1, 2, 2)
    assert (plan.first_layers[0], plan.last_layers[0]) == (2, 1)
    assert (plan.recompute[0], plan.recompute_layers[0]) == (UNIFORM, 2)
    assert (plan.sharding[0], plan.offload[0], plan.overlap_grad[0], plan.overlap_param[0]) == (
        ZERO1,
        0.5,
        False,
        False,
    )
    assert not plan.sequence_parallel[0] and plan.overlap_pp[0]


@pytest.mark.parametrize(
    "impossible",
    [["tp=3"], ["tp=16"], ["ep=2"], ["pp=5"], ["cp=2", "flash=off"], ["sharding=zero3", "pp=2"], ["gpus=7"]],
)
def test_what_no_candidate_has_gives_an_empty_space(impossible):
    found = found_with(impossible)
    assert (found.candidates, found.costed, found.ranked, found.rejected) == (0, 0, (), ())


def test_data_parallelism_outside_the_pipeline_is_found_where_machines_talk_slowly():
    """Between two machines, a pipeline step is then inside a machine and gradients cross."""
    model = llama(8, 1024, 8, 8, 4096, 1000)
    where = context(model, pool(2, 4, inter_bytes_per_second=1e9), Job(global_batch=16, seq_len=2048))
    ((_, plan),) = found_with(["pp=4", "dp=2", "rank_order=tp-cp-ep-pp-dp"], where).ranked
    assert plan.rank_order[0] == DATA_OUTERMOST
    inside = found_with(["pp=4", "dp=2", "rank_order=tp-cp-ep-dp-pp"], where)
    assert inside.ranked[0][1].rank_order[0] != DATA_OUTERMOST


@pytest.mark.parametrize("alike", [["pp=1"], ["dp=1", "cp=1"]])
def test_a_pinned_rank_order_keeps_what_either_order_places_alike(alike):
    free, pinned = found_with(alike), found_with([*alike, "rank_order=tp-cp-ep-pp-dp"])
    assert pinned.ranked[0][0] == free.ranked[0][0]
    assert pinned.ranked[0][1].rank_order[0] == DATA_OUTERMOST
    assert 0 < pinned.candidates <= free.candidates, "not those whose order Megatron-LM refuses"


def test_a_price_that_is_missing_is_an_error_where_money_counts():
    where = context(llama(4, 1024, 8, 8, 4096, 1000), pool(1, 8), replace(JOB, objective="cost"))
    with pytest.raises(SpecError, match="price of A100"):
        found_with([], where)


def test_zero_3_is_found_where_nothing_else_fits():
    where = context(
        llama(8, 4096, 32, 8, 14336, 32000), pool(1, 8, memory_bytes=9.5e9), Job(global_batch=8, seq_len=1024)
    )
    ((_, plan),) = found_with(["tp=1", "pp=1", "cp=1"], where).ranked
    assert plan.sharding[0] == ZERO3
