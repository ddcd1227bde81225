"""Rules of one axis narrow the space before it is enumerated: the search finds and counts what it would without that.

Every rule of every switch and word that a strategy has beyond its layout is tried, alone and after another, with pins
beside it that leave something of the axis, and nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import nightly

from shardwright import load_cluster, load_model, make_job
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context
from shardwright.cost.strategies import COLUMNS
from shardwright.search.objective import Objective
from shardwright.search.rules.filters import Filters
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import Space, parse_pins, searched
from shardwright.search.space.parameters import BEYOND_LAYOUT, PARAMETERS
from shardwright.search.uniform.search import UniformResult, search

FOUR_GPUS = Context(
    model=load_model("llama-3.2-1b"),
    pool=load_cluster("1x4xA100-SXM-80").pools[0],
    job=make_job(global_batch=8, seq_len=2048),
    efficiency=Analytic(),
)
ONE_GPU = Context(
    model=load_model("llama-3.2-1b"),
    pool=load_cluster("1x1xA100-SXM-40").pools[0],
    job=make_job(global_batch=4, seq_len=1024),
    efficiency=Analytic(),
)


def rules() -> Iterator[str]:
    for row in PARAMETERS:
        if row.name in BEYOND_LAYOUT and row.axis:
            if row.kind == "switch":
                yield from (f"${row.name}", f"!${row.name}")
            elif row.kind == "word":
                yield from (f"${row.name} {sign} {word}" for sign in ("==", "!=") for word in row.words)
    yield from ("$optimizer_offload_fraction > 0", "$optimizer_offload_fraction == 0", "$recompute_num_layers > 1")


RULES = tuple(rules())


def found_by(context: Context, space: Space, text: str) -> UniformResult:
    objective = Objective(model=context.model, job=context.job, pool=context.pool)
    filters = Filters(rules=parse_rules(text, "rules"))
    return search(context, searched(context, space), filters, objective, top=3)


def check(context: Context, space: Space, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrowed = found_by(context, space, text)
    with monkeypatch.context() as patch:
        patch.setattr(Filters, "narrowings", lambda self, context, space: iter(()))
        plain = found_by(context, space, text)
    assert [value for value, _ in narrowed.ranked] == [value for value, _ in plain.ranked]
    for (_, mine), (_, other) in zip(narrowed.ranked, plain.ranked, strict=True):
        assert {name: getattr(mine, name)[0] for name in COLUMNS} == {name: getattr(other, name)[0] for name in COLUMNS}
    assert narrowed.candidates == plain.candidates
    for result in (narrowed, plain):
        assert sum(count for _, count in result.rejected) + result.costed == result.candidates
        assert all(count >= 0 for _, count in result.rejected)


@pytest.mark.parametrize("number", range(len(RULES)), ids=RULES)
def test_a_rule_of_one_axis_finds_and_counts_what_its_masks_do(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one GPU alone, and after another rule on four: of these one in three in an ordinary run."""
    check(ONE_GPU, Space(), RULES[number], monkeypatch)
    if nightly.wanted or number % nightly.FEWER == 0:
        check(FOUR_GPUS, Space(), f"{RULES[number - 7]}\n{RULES[number]}", monkeypatch)


@pytest.mark.parametrize(
    "pin", ["offload=1", "sharding=zero1,zero2", "sharding=zero3", "overlap_tp=no", "recompute=none"]
)
def test_rules_beside_pins(pin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("$sharding == zero1", "$optimizer_offload_fraction > 0", "$recompute_granularity == none"):
        check(ONE_GPU, parse_pins([pin]), text, monkeypatch)
        check(FOUR_GPUS, parse_pins([pin]), text, monkeypatch)
