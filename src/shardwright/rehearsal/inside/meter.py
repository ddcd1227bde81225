"""Counts what a step allocates, computes and sends, operator by operator, in the order in which it happens; and what
that comes to: peaks by phase, by kind and by shim, and the course of memory over a step.

A storage on the device is a *block* from its first operator to its end. Its kind is what a runner says of it
(`Meter.mark`), else what its life shows: a storage that was freed and has grown again, or holds weights or gradients on
their way, is a buffer; what is alive when a backward pass begins is an activation, what collectives read or write is a
buffer, and the rest is temporary.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "state"
ACTIVATIONS, BUFFERS, TEMPORARIES = "activations", "buffers", "temporaries"
KINDS = (PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, BUFFERS, TEMPORARIES)
PHASES = ("build", "forward", "backward", "update")
ROUNDING = 512  # c10/cuda/CUDACachingAllocator.h of PyTorch 2.13: kMinBlockSize
OUTSIDE = -1
SEEN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
COLLECTIVES = {
    "allreduce_": "all-reduce", "all_reduce": "all-reduce", "all_reduce_": "all-reduce",
    "allreduce_coalesced_": "all-reduce",
    "_allgather_base_": "all-gather", "allgather_": "all-gather", "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_out": "all-gather", "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter", "reduce_scatter_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter", "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "alltoall_base_": "all-to-all", "alltoall_": "all-to-all", "all_to_all_single": "all-to-all",
    "send": "send", "recv_": "receive", "broadcast_": "broadcast", "broadcast": "broadcast",
}  # fmt: skip
WEIGHTS = "gradient"  # the purpose of groups that gather weights and sum gradients
STAGES = "stages"  # between which messages of two ranks go
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
POINTS = 120  # of the course of memory, each the highest of its part of the step
LARGEST = 8


@dataclass(slots=True)
class Block:
    """One life of a storage: its bytes, the operator that made it, and what its kind is decided by."""

    size: int
    operator: str
    phase: int
    shim: str | None
    shape: tuple[int, ...]
    dtype: str
    marked: str | None = None
    grown: bool = False
    waited: bool = False
    sent: bool = False

    @property
    def kind(self) -> str:
        if self.marked is not None:
            return self.marked
        if self.grown:
            return BUFFERS
        if self.waited:
            return ACTIVATIONS
        return BUFFERS if self.sent else TEMPORARIES


@dataclass(slots=True)
class Counts:
    """What was counted since a step began: FLOPs by operator, and (type, group) to messages and bytes."""

    flops: Counter[str] = field(default_factory=Counter)
    messages: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    message_bytes: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    guessed: Counter[str] = field(default_factory=Counter)
    operators: int = 0


class Meter(TorchDispatchMode):
    """The blocks of a process, as a row of `events`: (number of the block from 1, negative where it ends; phase)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.events: list[tuple[int, int]] = []
        self.counts = Counts()
        self.phase = "build"
        self.begun = 0
        self.labels: dict[str, str] = {}
        self.live_bytes = 0
        self.used: set[str] = set()
        self.balanced = False  # whether ranks that share a sequence have equally many of its scores
        self._alive: dict[int, tuple[Any, int]] = {}
        self._fresh: list[int] = []
        self._shim: str | None = None
        self._inside = False
        self._in_backward = False
        self._resize_before = torch.UntypedStorage.resize_

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether code is compiled within it, as within fake tensors."""
        return True

    def __enter__(self) -> Any:
        before, meter = self._resize_before, self

        def resize(storage: Any, size: int) -> Any:
            before(storage, size)
            if not meter._inside and (storage._cdata in meter._alive or storage.device.type == "cuda"):
                meter._note(storage, "resize_", (), "")
            return storage

        storages: Any = torch.UntypedStorage
        storages.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        storages: Any = torch.UntypedStorage
        storages.resize_ = self._resize_before
        super().__exit__(*error)

    def begin_step(self) -> None:
        self.begun, self.counts, self.phase = len(self.events), Counts(), "forward"
        self._fresh = []

    def label(self, group: Any, words: str) -> None:
        self.labels[str(group.group_name)] = words

    def mark(self, kind: str, tensors: Iterable[torch.Tensor | None]) -> None:
        """Say of what kind the memory of some tensors is, all through its life."""
        for tensor in tensors:
            known = None if tensor is None else self._alive.get(_storage(tensor)._cdata)
            if known is not None:
                self.blocks[known[1] - 1].marked = kind

    @contextmanager
    def shimmed(self, name: str) -> Iterator[None]:
        """What is allocated here comes from a shim."""
        self.used.add(name)
        before, self._shim = self._shim, name
        try:
            yield
        finally:
            self._shim = before

    @contextmanager
    def one_kernel(self) -> Iterator[None]:
        """What is allocated here lives in registers, unless it is `given` afterwards."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def given(self, tensors: Any) -> None:
        """Count what came of a kernel."""
        if not self._inside:
            self._note_all(tensors, "kernel")

    def add_flops(self, operator: str, flops: float) -> None:
        self.counts.flops[operator] += int(flops)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in SEEN for kind in types):  # a distributed tensor: what it does to its own part comes here
            return NotImplemented
        kwargs = kwargs or {}
        self.counts.operators += 1
        self._see_backward()
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._number(func, args)
        packet = func._overloadpacket
        together = func.namespace == "c10d" and "coalesced" in packet.__name__  # which fake tensors do not know
        out = torch._C._distributed_c10d.FakeWork().boxed() if together else func(*args, **kwargs)
        if func.namespace in NAMESPACES:
            self._collective(packet.__name__, args, out)
        elif packet in flop_registry or packet.__name__ in (*ATTENTION, *GROUPED):
            self.add_flops(packet.__name__, flops_of(packet, args, kwargs, out, balanced=self.balanced))
        if not self._inside:
            self._note_all(out, packet.__name__)
        return out

    def _note_all(self, tensors: Any, operator: str) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda":
                self._note(tensor.untyped_storage(), operator, tuple(tensor.shape), str(tensor.dtype))

    def _number(self, func: Any, args: Any) -> Any:
        """Return a number that the host reads from the device, where it depends on data: 1."""
        try:
            return func(*args)
        except DataDependentOutputException:
            self.counts.guessed[self.phase] += 1
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1

    def _see_backward(self) -> None:
        inside = torch._C._current_graph_task_id() != OUTSIDE
        if inside and not self._in_backward:
            for number in self._fresh:
                self.blocks[number - 1].waited = True
            self._fresh = []
        self._in_backward = inside

    def _phase(self) -> int:
        return PHASES.index("backward" if self._in_backward and self.phase == "forward" else self.phase)

    def _note(self, storage: Any, operator: str, shape: tuple[int, ...], dtype: str) -> None:
        """Begin or end the block of a storage whose size is another than it was."""
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None and known[0]() is storage:
            if self.blocks[known[1] - 1].size == storage.nbytes():
                return
            self._end(key)
        elif known is not None:
            self._end(key)
        size = int(storage.nbytes())
        self.blocks.append(
            Block(
                size=size, operator=operator, phase=self._phase(), shim=self._shim, shape=shape,
                dtype=dtype.removeprefix("torch."), grown=operator == "resize_",
            )
        )  # fmt: skip
        number = len(self.blocks)

        def ended(_: Any) -> None:
            last = self._alive.get(key)
            if last is not None and last[1] == number:
                self._end(key)

        self._alive[key] = (weakref.ref(storage, ended), number)
        if size:
            self.events.append((number, self._phase()))
            self.live_bytes += size
            if not self._in_backward:
                self._fresh.append(number)

    def _end(self, key: int) -> None:
        _, number = self._alive.pop(key)
        size = self.blocks[number - 1].size
        if size:
            self.events.append((-number, self._phase()))
            self.live_bytes -= size

    def _collective(self, operator: str, args: Any, out: Any) -> None:
        kind = COLLECTIVES.get(operator)
        if kind is None:
            return
        leaves = tree_leaves(args)
        tensors = [leaf for leaf in (*leaves, *tree_leaves(out)) if isinstance(leaf, torch.Tensor)]
        group = _group(leaves)
        words = self.labels.get(str(group.group_name), "") if group is not None else ""
        if kind not in ("send", "receive"):
            for tensor in tensors:
                known = self._alive.get(_storage(tensor)._cdata)
                if known is not None:
                    self.blocks[known[1] - 1].sent = True
                    self.blocks[known[1] - 1].grown |= words == WEIGHTS
        key = (kind, words, 1 if group is None else group.size())
        if kind in ("send", "receive"):
            key = (kind, STAGES, 2)
        self.counts.messages[key] += 1
        self.counts.message_bytes[key] += _message_bytes(args, out)


def _message_bytes(args: Any, out: Any) -> int:
    """Return the bytes of the whole message: the largest of what goes in and what comes out, lists of tensors each as
    one."""
    sides = (*args, out)
    return max(sum(leaf.nbytes for leaf in tree_leaves(side) if isinstance(leaf, torch.Tensor)) for side in sides)


def _storage(tensor: torch.Tensor) -> Any:
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()


def _group(leaves: list[Any]) -> Any:
    distributed: Any = torch._C._distributed_c10d
    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject):
            try:
                return distributed.ProcessGroup.unbox(leaf)
            except (RuntimeError, TypeError):  # another object: the operation of a sum
                continue
        if isinstance(leaf, str):
            try:
                return distributed._resolve_process_group(leaf)
            except (RuntimeError, TypeError):  # the operation by its name
                continue
    return None


# Operators of attention: FLOPs in passes of scores and values, the place of the queries, and that of `is_causal`.
ATTENTION = {
    "_scaled_dot_product_flash_attention": (1.0, 0, 4),
    "_scaled_dot_product_flash_attention_backward": (2.5, 1, 11),
}
GROUPED = ("_grouped_mm", "grouped_product")


def flops_of(packet: Any, args: Any, kwargs: Any, out: Any, *, balanced: bool = False) -> float:
    """Return the FLOPs of an operator, of causal attention the half that is used. A backward pass of flash attention
    computes five products for two (arXiv 2205.14135, algorithm 4)."""
    if packet.__name__ in GROUPED:  # each row with the matrix of its group
        return 2.0 * args[0].shape[0] * args[0].shape[1] * args[1].shape[-1]
    if packet.__name__ not in ATTENTION:
        sizes = [part for part in args if not isinstance(part, torch.dtype)]  # of an output of another type
        return float(flop_registry[packet](*sizes, **kwargs, out_val=out))
    passes, first, causal = ATTENTION[packet.__name__]
    query, key, value = args[first : first + 3]
    flag = args[causal] if len(args) > causal else kwargs.get("is_causal", False)
    unused = (key if balanced else query).shape[2] / 2.0 if flag else 0.0  # causal queries are the last positions
    used = key.shape[2] - unused
    return passes * 2.0 * math.prod(query.shape[:3]) * used * (query.shape[3] + value.shape[3])


def measured(meter: Meter) -> dict[str, Any]:
    """Return what a step took, as plain data: bytes at the peak by kind and by shim, the peak of each phase, the course
    of memory, FLOPs and messages."""
    totals, highest = _totals(meter)
    top = max(highest.values(), key=lambda entry: entry[0], default=(0, 0))
    alive = _alive_at(meter, top[1])
    return {
        "peak_bytes": top[0],
        "rounding_bytes": sum(-block.size % ROUNDING for block in alive),
        "kinds": _by_kind(alive),
        "shims": dict(sorted(_summed(alive, lambda block: block.shim).items())),
        "largest": _largest(alive),
        "phases": [
            {"phase": PHASES[phase], "peak_bytes": size, "kinds": _by_kind(_alive_at(meter, place))}
            for phase, (size, place) in sorted(highest.items())
        ],
        "course": _course(meter, totals),
        "flops": sum(meter.counts.flops.values()),
        "flops_by_operator": dict(sorted(meter.counts.flops.items())),
        "messages": [
            {
                "type": kind,
                "purpose": words,
                "ranks": ranks,
                "count": count,
                "bytes": meter.counts.message_bytes[kind, words, ranks],
            }
            for (kind, words, ranks), count in sorted(meter.counts.messages.items())
        ],
        "operators": meter.counts.operators,
        "guessed_numbers": sum(meter.counts.guessed.values()),
    }


def _totals(meter: Meter) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """Return the live bytes after each event of the step, and for each phase its highest and after how many events."""
    live, totals = 0, []
    highest: dict[int, tuple[int, int]] = {}
    for place, (number, phase) in enumerate(meter.events, 1):
        size = meter.blocks[abs(number) - 1].size
        live += size if number > 0 else -size
        if place <= meter.begun:
            continue
        totals.append(live)
        if live > highest.get(phase, (-1, 0))[0]:
            highest[phase] = (live, place)
    return totals, highest


def _alive_at(meter: Meter, place: int) -> list[Block]:
    alive: dict[int, Block] = {}
    for number, _ in meter.events[:place]:
        if number > 0:
            alive[number] = meter.blocks[number - 1]
        else:
            del alive[-number]
    return list(alive.values())


def _summed(blocks: list[Block], key: Any) -> Counter[str]:
    result: Counter[str] = Counter()
    for block in blocks:
        if key(block) is not None:
            result[key(block)] += block.size
    return result


def _by_kind(blocks: list[Block]) -> dict[str, int]:
    result = _summed(blocks, lambda block: block.kind)
    return {kind: result[kind] for kind in KINDS}


def _largest(blocks: list[Block]) -> list[dict[str, Any]]:
    """Return what takes most at the peak, alike blocks together."""
    sizes: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    counts: Counter[tuple[str, str, tuple[int, ...], str]] = Counter()
    for block in blocks:
        key = (block.kind, block.operator, block.shape, block.dtype)
        sizes[key] += block.size
        counts[key] += 1
    names = ("kind", "operator", "shape", "dtype")
    return [
        dict(zip(names, (key[0], key[1], list(key[2]), key[3]), strict=True)) | {"count": counts[key], "bytes": size}
        for key, size in sizes.most_common(LARGEST)
    ]


def _course(meter: Meter, totals: list[int]) -> list[dict[str, Any]]:
    """Return the step in equal parts of its events: the phase and the bytes where memory is highest in each."""
    if not totals:
        return []
    length = max(-(-len(totals) // POINTS), 1)
    result = []
    for start in range(0, len(totals), length):
        place = max(range(start, min(start + length, len(totals))), key=totals.__getitem__)
        phase = meter.events[meter.begun + place][1]
        result.append({"event": place, "phase": PHASES[phase], "bytes": totals[place]})
    return result


def blocks_at_peak(meter: Meter) -> list[dict[str, Any]]:
    """Return every block at the peak of the step, for tests and for looking closely."""
    _, highest = _totals(meter)
    _, place = max(highest.values(), default=(0, 0))
    return [asdict(block) | {"kind": block.kind} for block in _alive_at(meter, place)]
