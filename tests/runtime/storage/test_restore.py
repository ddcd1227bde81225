"""What ranks write of a checkpoint, and what they read of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from tests.runtime.equal import ADAM
from tests.runtime.random_plans import plans
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.plans.plan import Plan, Sharding
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import Initial, seeded
from shardwright.runtime.state.pieces import StoredPiece, parameter_shapes
from shardwright.runtime.step.engine import Engine, make_engine
from shardwright.runtime.storage.checkpoint import Checkpoint, restore, written
from shardwright.runtime.storage.manifest import Manifest, Values, by_parameter, stored_piece

KINDS = 3  # weights and two moments


@contextmanager
def engine_of(plan: Plan, rank: int, initial: Initial | None) -> Iterator[Engine]:
    """An engine beside others that never answer: what they would send stays as it is."""
    layout = layout_of(plan)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        yield make_engine(
            layout, rank, make_process_groups(layout, rank), details=Details(), recipe=ADAM, initial=initial,
            precision="fp32", device=torch.device("cpu"),
        )  # fmt: skip
    finally:
        dist.destroy_process_group()


def saved(plan: Plan) -> dict[StoredPiece, Values]:
    """Return what all ranks of a plan write."""
    found = {}
    for rank in range(layout_of(plan).world_size):
        with engine_of(plan, rank, seeded(plan.model, 7)) as engine:
            for number, (piece, values) in enumerate(written(engine)):
                found[stored_piece(piece, values, f"{rank}", number)] = values.copy()
    return found


def read(plan: Plan, held: Mapping[StoredPiece, Values]) -> int:
    """Return how many bytes all ranks of a plan read of a checkpoint, from which each has what is its own."""
    layout, known, total = layout_of(plan), {stored.piece: values for stored, values in held.items()}, 0

    def fetch(stored: StoredPiece) -> Values:
        nonlocal total
        total += stored.bytes
        return held[stored]

    manifest = Manifest(step=1, model="", settings={}, parameters=parameter_shapes(layout), pieces=tuple(held))
    checkpoint = Checkpoint(name="here", manifest=manifest, index=by_parameter(manifest.pieces), fetch=fetch)
    for rank in range(layout.world_size):
        with engine_of(plan, rank, None) as engine:
            assert restore(engine, checkpoint) == ""
            assert all(np.array_equal(values, known.get(piece, values)) for piece, values in written(engine))
    return total


@settings(max_examples=3)
@given(plans(largest_tp=2))
def test_all_ranks_together_write_every_value_once_and_that_serves_each_of_them(plan: Plan) -> None:
    held = saved(plan)
    assert sum(stored.piece.elements for stored in held) == KINDS * plan.model.parameters
    read(plan, held)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_reads_do_not_grow_with_data_parallelism(sharding: Sharding) -> None:
    """However many copies wrote it. Where others did, what stands on a border of two ranks is read by both."""

    def copies(count: int) -> Plan:
        return plan_of(tiny_model(3), replica(stage((0, 3)), count=count, micro_batches=1), sharding=sharding)

    whole = KINDS * copies(1).model.parameters * 4
    of_one = saved(copies(1))
    largest = max(stored.bytes for stored in of_one)
    for count in (2, 8):
        assert read(copies(count), saved(copies(count))) == whole
        assert read(copies(count), of_one) <= whole + KINDS * (count - 1) * largest
