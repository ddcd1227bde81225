"""A traced graph, run as it is in one process, is the module's own training step; programs drawn at random from the
table of rules, with random ratios, give the loss and the gradients of one device.

Every operator of every model runs by every rule that it has, on one to four ranks that hold different numbers of units,
some of them none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.nightly import examples
from tests.spmd.draws import drawn
from tests.spmd.models import CASES
from tests.spmd.processes import processes
from tests.spmd.programs import whole
from tests.spmd.steps import Traced, require_equal, require_part, run, run_on, traced

from shardwright.spmd.fabric import ProcessFabric
from shardwright.synthesis import graph as graphs
from shardwright.synthesis.rules.candidates import Choices, choices

SEEDS, RANKS = st.integers(0, 1 << 30), st.integers(1, 4)


@pytest.mark.parametrize("name", CASES)
def test_a_graph_run_whole_is_the_module_s_own_step(name: str) -> None:
    case = traced(name)
    assert graphs.from_json(graphs.to_json(case.graph)) == case.graph
    (found,) = run(case, whole(case.graph))
    assert {name for name in case.expected if name.startswith(("loss", "gradient"))} <= found.keys()
    torch.testing.assert_close(found, {name: case.expected[name] for name in found}, rtol=1e-5, atol=1e-6)


@cache
def choices_of(name: str) -> Choices:
    return choices(traced(name).graph)


@pytest.mark.parametrize("name", CASES)
@given(seed=SEEDS, ranks=RANKS)
@example(seed=0, ranks=1)
@settings(max_examples=2)
def test_a_random_program_equals_the_module(name: str, seed: int, ranks: int) -> None:
    case = traced(name)
    require_equal(case, drawn(case.graph, choices_of(name), ranks, Random(seed)))


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A case, kept in a file that each process reads once, and the seed of a program for it."""

    file: Path
    seed: int


@cache
def read(file: Path) -> tuple[Traced, Choices]:
    case: Traced = torch.load(file, weights_only=False)
    return case, choices(case.graph)


@cache
def fabric() -> ProcessFabric:
    """Return the processes, the last of which are on a machine of their own: some sums go by hierarchy."""
    ranks = dist.get_world_size()
    return ProcessFabric([0, *[1] * (ranks - 1)])


def require_equal_here(drawing: Drawing, rank: int) -> None:
    """Draw the same program on each process, run it, and compare this rank's part."""
    case, found = read(drawing.file)
    program = drawn(case.graph, found, dist.get_world_size(), Random(drawing.seed))
    require_part(case, program, rank, run_on(fabric(), case, program))


@pytest.fixture(scope="module")
def gloo() -> Iterator[dict[int, Callable[..., None]]]:
    """Yield one to four processes, which stay for all examples."""
    with ExitStack() as stack:
        yield {ranks: stack.enter_context(processes(ranks)) for ranks in (1, 2, 3, 4)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_many_random_programs_equal_the_module_on_gloo(
    gloo: dict[int, Callable[..., None]], tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    torch.save(traced(name), file)

    @given(seed=SEEDS, ranks=RANKS)
    @settings(max_examples=examples(200), phases=[Phase.generate])
    def equal(seed: int, ranks: int) -> None:
        gloo[ranks](require_equal_here, Drawing(file=file, seed=seed))

    equal()
