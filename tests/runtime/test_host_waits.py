"""The host never waits for the device within a step: what decides it stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.runtime.equal import ADAM
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.workers import batch_of
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.plans.plan import Plan
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import ProcessGroups, make_process_groups
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.step.engine import Engine, make_engine, train_step

# Operators and methods for which a process waits until a GPU has the values that they need.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "is_nonzero", "equal.default")
METHODS = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__contains__")


class Waits(TorchDispatchMode):
    """Notes operators that wait."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(name.startswith(f"aten.{waiting}") for waiting in WAITING):
            self.found.append(name)
        if name.startswith("aten.repeat_interleave") and (kwargs or {}).get("output_size") is None:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None]) -> Iterator[list[str]]:
    """Note all calls that wait, and call `before` at the first one."""
    found: list[str] = []
    for name in METHODS:
        real = getattr(torch.Tensor, name)

        def counting(self: Any, *args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            if not found:
                before()
            found.append(name)
            with torch.utils._python_dispatch._disable_current_modes():
                return real(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counting)
    with Waits(found):
        yield found
    monkeypatch.undo()


def engine_of(plan: Plan) -> Engine:
    layout = layout_of(plan)
    groups: ProcessGroups = make_process_groups(layout, 0)
    return make_engine(
        layout, 0, groups, details=Details(), recipe=ADAM, initial=seeded(plan.model, 7), precision="fp32",
        device=torch.device("cpu"),
    )  # fmt: skip


@pytest.mark.parametrize("experts", [0, 4])
def test_the_host_reads_what_a_step_gave_once_all_of_it_is_under_way(
    experts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(2, family="qwen2", experts=experts, shared=bool(experts)) if experts else tiny_model(2)
    plan = plan_of(model, replica(stage((0, 2)), micro_batches=2), micro_batch=2)
    engine = engine_of(plan)
    batch = batch_of(engine, 0)
    rows = [batch(number) for number in range(2)]
    before = [slot.master.clone() for slot in engine.slots]
    then: list[torch.Tensor] = []
    with waits(monkeypatch, lambda: then.extend(slot.master.clone() for slot in engine.slots)) as found:
        result = train_step(engine, rows.__getitem__, 0)
    assert found == ["tolist"]
    for slot, first, updated in zip(engine.slots, before, then, strict=True):
        assert not torch.equal(first, updated) and torch.equal(updated, slot.master), "it was updated before"
    assert result.loss > 0.0


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    plan = plan_of(tiny_model(2), replica(stage((0, 2)), micro_batches=1))
    engine = engine_of(plan)
    train_step(engine, batch_of(engine, 0), 0)
    before = [{kind: slot.read(kind, slot.start, slot.stop).clone() for kind in slot.kinds} for slot in engine.slots]
    spoiled = engine.store.parameters["head.weight"].data
    kept = spoiled[0, 0].clone()
    spoiled[0, 0] = torch.inf
    train_step(engine, batch_of(engine, 1), 1)
    assert engine.loss_scale.skipped == 1
    spoiled[0, 0] = kept
    for slot, state in zip(engine.slots, before, strict=True):
        assert all(torch.equal(slot.read(kind, slot.start, slot.stop), value) for kind, value in state.items())
