"""A rank of `shardwright train`: its own engine, on fake tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardwright.plans.document import from_document
from shardwright.rehearsal.inside.fake_device import choose_lower_right, even_lists
from shardwright.rehearsal.inside.meter import GRADIENTS, PARAMETERS, STATE, Meter
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.blocks import compiled, layer_forward
from shardwright.runtime.model.details import details_of
from shardwright.runtime.state.blocks import Blocks
from shardwright.runtime.state.recipe import METHOD_OF, Recipe
from shardwright.runtime.step.engine import Engine, make_engine, train_step


def rehearse(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Run one step of a rank of the plan in a question, and return what is named beside the figures."""
    plan = from_document(question["plan"])
    rank, device = int(question["rank"]), torch.device("cuda", 0)
    layout = layout_of(plan)
    place = layout.places[rank]
    engine = make_engine(
        layout, rank, _groups(layout, rank, meter), details=details_of(plan.model, None),
        recipe=Recipe(method=METHOD_OF[plan.job.optimizer]), initial=None, precision=plan.job.precision, device=device,
        layer=compiled() if question.get("compiled") else layer_forward,
    )  # fmt: skip
    _mark(engine, meter)
    if place.context_parallel > 1 and not question.get("on_gpu"):
        choose_lower_right()
    moes = [kind.moe for kind in plan.model.kinds if kind.moe]
    tokens = plan.micro_batch * plan.job.seq_len // place.context_parallel
    if moes:
        local = plan.sequence_parallel and place.expert_tensor_parallel < place.tensor_parallel
        rows = tokens * moes[0].top_k // (place.tensor_parallel if local else 1)
        even_lists(lambda: rows)

    def batch(micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        _, count = place.samples(micro_batch)
        rows = torch.zeros(count, plan.job.seq_len + 1, dtype=torch.int64, device=device)
        return rows[:, :-1], rows[:, 1:]

    def note(words: str) -> None:
        meter.phase = "update" if words in ("updating", "waiting for updated weights") else "forward"

    for step in range(2 if question.get("on_gpu") else 1):  # kernels are chosen and compiled in the first
        meter.begin_step()
        train_step(engine, batch, step, note=note)
        engine.unsharding.arrive()
    shims = {"even split of tokens over experts": "the host reads how many rows go where"} if moes else {}
    return {"shims": shims, "choices": ["layers run one operator after another; `train` compiles them on GPUs"]}


def _groups(layout: Any, rank: int, meter: Meter) -> ProcessGroups:
    """Return the groups that a rank is in; those of others have no part in its step."""
    groups = {}
    for communicator in layout.communicators():
        if rank in communicator.ranks:
            group = dist.new_group(list(communicator.ranks))
            meter.label(group, communicator.purpose)
            groups[communicator] = group
    return ProcessGroups(groups=groups)


def _mark(engine: Engine, meter: Meter) -> None:
    """Say which memory holds weights, gradients and optimizer state."""
    store = engine.store
    meter.mark(PARAMETERS, (buffer.weights.kept for buffer in (*store.buffers, *store.frozen)))
    meter.mark(PARAMETERS, store.parameters.values())
    meter.mark(GRADIENTS, (buffer.gradients.kept for buffer in store.buffers))
    meter.mark(GRADIENTS, (parameter.grad for parameter in store.parameters.values()))
    full = engine.layout.plan.job.precision == "fp32"
    for slot in engine.slots:
        if not full:
            meter.mark(STATE, [slot.master])
        for moment in slot.moments.values():
            meter.mark(STATE, [moment.codes, moment.scales] if isinstance(moment, Blocks) else [moment])
