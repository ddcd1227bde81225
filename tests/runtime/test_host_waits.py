"""The host never waits for the device within a step, whatever the plan: what decides it stays there.

PyTorch's meta device stands for the GPU: it has shapes and no values, so that whatever needs one on the host fails or is
noted here, and one process runs any rank of any plan, with process groups that send nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.nightly import nightly
from tests.runtime.equal import ADAM
from tests.runtime.random_plans import drawn
from tests.runtime.samples import plan_of, replica, stage, tiny_model
from tests.runtime.trained_plans import end_of, runnable
from tests.runtime.workers import batch_of
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwright.plans.plan import Plan
from shardwright.runtime.layout.groups import layout_of
from shardwright.runtime.layout.process_groups import make_process_groups
from shardwright.runtime.model import attention
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import seeded
from shardwright.runtime.state.recipe import METHOD_OF, Recipe
from shardwright.runtime.step.engine import Engine, make_engine, train_step

DEVICE, HOST = torch.device("meta"), torch.device("cpu")
# Methods and functions for which a process waits until a GPU has the values that they need, or has taken theirs.
READING = {
    "item", "cpu", "numpy", "nonzero", "argwhere", "masked_select", "unique", "bincount", "equal", "allclose",
    "is_nonzero", "__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__",
}  # fmt: skip
MAKING = {"tensor", "as_tensor", "asarray"}
OPERATORS = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "unique", "is_nonzero", "equal.default")
VOTE, ROWS = "a vote is read", "rows for experts on other ranks are counted"


@dataclass
class Watch:
    """What waited, in order, each with what the step was doing."""

    doing: str = "passes"
    noted: list[tuple[str, str]] = field(default_factory=list)

    def note(self, words: str) -> None:
        self.noted.append((self.doing, words))

    def reached(self, words: str) -> None:
        if words.startswith(("updating", "waiting for updated")):
            self.doing = "update"


@contextmanager
def methods(watch: Watch) -> Iterator[None]:
    """Note methods and functions that wait, in backward passes too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in READING:
            patch.setattr(torch.Tensor, name, noting(watch, name, getattr(torch.Tensor, name)))
        for name in MAKING:
            patch.setattr(torch, name, noting_device(watch, name, getattr(torch, name)))
        patch.setattr(torch.Tensor, "to", moving(watch, torch.Tensor.to))
        listing(watch, patch)
        yield


def noting(watch: Watch, name: str, real: Any) -> Any:
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device == DEVICE:
            watch.note(name)
        return real(self, *args, **kwargs)

    return method


def noting_device(watch: Watch, name: str, real: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        if torch.device(kwargs.get("device") or HOST) == DEVICE:
            watch.note(name)
        return real(*args, **kwargs)

    return function


def moving(watch: Watch, real: Any) -> Any:
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.device != DEVICE or not {HOST, "cpu"} & {*args, kwargs.get("device")}:
            return real(self, *args, **kwargs)
        watch.note("to the host")
        return torch.zeros(self.shape, dtype=self.dtype)

    return to


def listing(watch: Watch, patch: pytest.MonkeyPatch) -> None:
    """Give what a step could have read: a vote, and as many rows for the experts of each rank as add up."""
    rows = [0]

    def count(self: torch.Tensor, *args: Any, real: Any = torch.Tensor.scatter_add_) -> Any:
        rows[0] = len(args[1])
        return real(self, *args)

    def tolist(self: torch.Tensor, real: Any = torch.Tensor.tolist) -> Any:
        if self.device != DEVICE:
            return real(self)
        watch.note(VOTE if self.dim() == 1 else ROWS)
        ranks = len(self) if self.dim() == 1 else self.shape[1]
        sent = [rows[0] // ranks + (number < rows[0] % ranks) for number in range(ranks)]
        return [1.0, 1.0, 0.0] if self.dim() == 1 else [sent, sent]

    patch.setattr(torch.Tensor, "scatter_add_", count)
    patch.setattr(torch.Tensor, "tolist", tolist)


class Operators(TorchDispatchMode):
    """Notes operators that wait: they read values, or have tensors of the host and of the device."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func).removeprefix("aten.")
        result = func(*args, **kwargs)
        if name.startswith("copy_.") and args[2:]:
            kwargs = {"non_blocking": args[2]}
        if waits(name, [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)], kwargs):
            self.watch.note(name)
        return result


def waits(name: str, tensors: list[torch.Tensor], settings: Mapping[str, Any]) -> bool:
    """Return whether an operator waits. A number of the host is part of a kernel's arguments, unless it is copied; a
    copy from the host need not wait where it is told so."""
    there = any(x.device == DEVICE for x in tensors)
    if not there:
        return False
    copies = "copy" in name
    crosses = any(x.device == HOST and (x.dim() or copies) for x in tensors) and not settings.get("non_blocking")
    masked = name.startswith("index") and any(x.dtype in (torch.bool, torch.uint8) for x in tensors[1:])
    unknown = name.startswith("repeat_interleave") and settings.get("output_size") is None
    return crosses or masked or unknown or name.startswith(OPERATORS)


@contextmanager
def pretended(plan: Plan, rank: int, recipe: Recipe, device: torch.device, end: int | None = None) -> Iterator[Engine]:
    """Be a rank of a plan."""
    layout = layout_of(plan)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        with methods(Watch()):
            engine = make_engine(
                layout, rank, make_process_groups(layout, rank), details=Details(), recipe=recipe,
                initial=seeded(plan.model, 7) if device == HOST else None, precision="fp32", device=device, end=end,
            )  # fmt: skip
        yield engine
    finally:
        dist.destroy_process_group()


@contextmanager
def watched() -> Iterator[Watch]:
    watch = Watch()
    with methods(watch), Operators(watch):
        yield watch


def waited_by(plan: Plan, rank: int, recipe: Recipe, end: int | None = None) -> list[tuple[str, str]]:
    """Return what waits in a step of a rank."""
    with pytest.MonkeyPatch.context() as patch, pretended(plan, rank, recipe, DEVICE, end) as engine:
        patch.setattr(attention, "_compiled", lambda: _attention)
        patch.setattr(attention, "_lower_right", lambda *_: None)  # a tensor that no mode can see made
        rows = batch_of(engine, 0)
        pairs = [tuple(x.to(DEVICE) for x in rows(number)) for number in range(engine.place.micro_batches)]
        with watched() as watch:
            train_step(engine, pairs.__getitem__, 0, note=watch.reached)  # type: ignore[arg-type]
    return watch.noted


def _attention(query: Any, key: Any, value: Any, *, enable_gqa: bool, **_: Any) -> torch.Tensor:
    """FlexAttention as far as shapes go: its kernels are for CPUs and GPUs."""
    return functional.scaled_dot_product_attention(query, key, value, enable_gqa=enable_gqa)


# All kinds of plans: every sharding, schedule and optimizer, state in host memory, documents, windows, and each degree.
SEEDS = (0, 5, 6, 8, 12, 19, 27, 30, 31, 36, 49, 54, 56, 74, 82)


@pytest.mark.parametrize("seed", [*SEEDS, *nightly(seed for seed in range(300) if seed not in SEEDS)])
def test_the_host_reads_what_a_step_gave_once_all_of_it_is_under_way(seed: int) -> None:
    """But for how many rows go to experts on other ranks, and for state in host memory, once the passes are over."""
    plan = drawn(seed)
    if not runnable(plan):
        assert seed not in SEEDS
        return
    rank = seed % plan.gpus
    method = METHOD_OF["adam" if plan.job.optimizer == "sgd" else plan.job.optimizer]  # which has no meta kernel
    recipe = replace(ADAM, method=method)
    *before, last = waited_by(plan, rank, recipe, end_of(seed))
    assert last == ("update", VOTE)
    allowed = {("passes", ROWS)} if layout_of(plan).places[rank].expert_parallel > 1 else set()
    assert set(before) <= allowed or (
        plan.optimizer.offload and all(doing == "update" for doing, _ in set(before) - allowed)
    )


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.to(HOST, torch.float64),
        lambda x: x.new_empty(2).copy_(torch.ones(2)),
        lambda x: torch.ones(2).to(x.device),
        lambda x: torch.ones(()).to(x.device),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.index_select(0, torch.tensor([0]).to(x.device)),
        lambda x: x[x > 0.0],
        lambda x: x.nonzero(),
        lambda x: torch.where(x),
        lambda x: x.masked_select(x > 0.0),
        lambda x: torch.repeat_interleave(x.long()),
        lambda x: bool((x > 0.0).any()),
        lambda x: float(x[0]),
        lambda x: torch.equal(x, x),
        lambda x: x.tolist(),
    ],
)
def test_whatever_waits_is_seen(wait: Any) -> None:
    x = torch.empty(2, device=DEVICE)
    with watched() as watch:
        try:
            wait(x)
        except (NotImplementedError, RuntimeError):  # a value that is not there
            return
    assert watch.noted


def test_what_does_not_wait_is_left_alone() -> None:
    with watched() as watch:
        x = torch.full((), 2.0, device=DEVICE) * torch.zeros(()) + torch.arange(3, device=DEVICE)
        x.copy_(torch.ones(3), non_blocking=True)
        torch.where(x > 1.0, x, 0.0).sum()
    assert watch.noted == []


def test_the_update_is_under_way_before_a_vote_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tiny_model(2), replica(stage((0, 2)), micro_batches=2), micro_batch=2)
    then: list[torch.Tensor] = []
    with pretended(plan, 0, ADAM, HOST) as engine:
        before = [slot.master.clone() for slot in engine.slots]
        real = torch.Tensor.tolist

        def read(x: torch.Tensor) -> Any:
            then.extend(slot.master.clone() for slot in engine.slots)
            return real(x)

        monkeypatch.setattr(torch.Tensor, "tolist", read)
        result = train_step(engine, batch_of(engine, 0), 0)
    for slot, first, updated in zip(engine.slots, before, then, strict=True):
        assert not torch.equal(first, updated) and torch.equal(updated, slot.master), "it was updated before"
    assert result.loss > 0.0


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    plan = plan_of(tiny_model(2), replica(stage((0, 2)), micro_batches=1))
    with pretended(plan, 0, ADAM, HOST) as engine:
        train_step(engine, batch_of(engine, 0), 0)
        before = [
            {kind: slot.read(kind, slot.start, slot.stop).clone() for kind in slot.kinds} for slot in engine.slots
        ]
        spoiled = engine.store.parameters["head.weight"].data
        kept = spoiled[0, 0].clone()
        spoiled[0, 0] = torch.inf
        train_step(engine, batch_of(engine, 1), 1)
    assert engine.loss_scale.skipped == 1
    spoiled[0, 0] = kept
    for slot, state in zip(engine.slots, before, strict=True):
        assert all(torch.equal(slot.read(kind, slot.start, slot.stop), value) for kind, value in state.items())
