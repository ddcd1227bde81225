"""What ranks of uneven FSDP hold at a time is what was planned for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.runtime.equal import ADAM
from tests.runtime.samples import tiny_model
from tests.runtime.test_layered import UNIFORM, shared
from tests.spmd.peaks import Peak
from tests.spmd.processes import run

from shardwright.cost.learned import default_efficiency
from shardwright.cost.predict import predict
from shardwright.plans.plan import Plan, Recompute
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.step.engine import make_engine, train_step
from shardwright.spec.catalog.frameworks import OWN

SEQ_LEN = 192
MODEL = (
    replace(  # LayerNorm keeps what the account says on CPUs too, where PyTorch composes RMSNorm of several operators
        tiny_model(5, family="gpt2", hidden=192, heads=4, vocab=2048), learned_positions=SEQ_LEN, max_position=SEQ_LEN
    )
)


def peaks(plan: Plan, rank: int) -> list[Any]:
    """Return the most bytes that the tensors of each rank take at a time."""
    layout, found = layout_of(plan), [None] * plan.gpus

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        count = layout.places[rank].sizes[micro_batch]
        rows = torch.randint(MODEL.vocab, (count, SEQ_LEN + 1))
        return rows[:, :-1], rows[:, 1:]

    with Peak() as seen:
        engine = make_engine(
            layout, rank, make_process_groups(layout, rank), details=Details(), recipe=ADAM,
            initial=seeded(MODEL, 0), precision="fp32", device=torch.device("cpu"),
        )  # fmt: skip
        train_step(engine, batch, 0)
    dist.all_gather_object(found, seen.most)
    return found


def test_ranks_hold_what_was_planned() -> None:
    """Many rows and little state, few rows and much, and a rank that computes its layers again."""
    plain = shared(MODEL, (1, 6, 3, 1), (1, 2, 2, 6), (1, 6, 3, 2), recompute=(Recompute(), Recompute(), UNIFORM))
    plan = replace(plain, job=replace(plain.job, seq_len=SEQ_LEN, framework=OWN))
    memory = [row[0] for row in predict(plan, default_efficiency()).memory]
    own = np.array([each.total_bytes - each.context_bytes for each in memory])
    planned = own[[place.replica for place in layout_of(plan).places]]
    (measured,) = run(peaks, [plan], plan.gpus)
    off = planned / np.array(measured) - 1
    assert np.abs(off).max() <= 0.06, off
