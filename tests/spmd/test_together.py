"""Parameters that a block gathers and gradients that it shares out go in one call, whatever the parts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.spmd.draws import shared
from tests.spmd.steps import require_equal, traced
from tests.synthesis.clusters import unequal

from shardwright.synthesis.baselines import STRATEGIES
from shardwright.synthesis.properties import STATE, Partial, Sharded
from shardwright.synthesis.schedule import Send, schedule
from shardwright.synthesis.synthesize import synthesize


@pytest.mark.parametrize("way", ["padded", "grouped"])
def test_uneven_parts_in_one_call_equal_the_module(way: str) -> None:
    case, random = traced("gpt2"), Random(3)
    found = synthesize(case.graph, unequal(), rules=STRATEGIES["uneven-fsdp"])
    sizes = {key: shared(key[1], found.ranks, random) if key[0] == STATE else row for key, row in found.sizes.items()}
    methods = {"all_gather_padded": f"all_gather_{way}", "all_gather_grouped": f"all_gather_{way}"}
    methods |= {"reduce_scatter_padded": f"reduce_scatter_{way}", "reduce_scatter_grouped": f"reduce_scatter_{way}"}
    sent = tuple(replace(one, method=methods.get(one.method, one.method)) for one in found.communications)
    program = replace(found, sizes=sizes, communications=sent)
    sends = [action.several for action in schedule(case.graph, program) if isinstance(action, Send)]
    gathers = [several for several in sends if several[0].early and isinstance(several[0].source, Sharded)]
    shares = [one for one in sends if isinstance(one[0].source, Partial) and isinstance(one[0].target, Sharded)]
    assert all(len(calls) < sum(map(len, calls)) / 1.4 for calls in (gathers, shares))
    require_equal(case, program)
