"""What a rank holds, parameters and all that it computes with, follows its share."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from tests.spmd.models import SEQUENCE, VOCABULARY, Bert, next_token
from tests.spmd.programs import whole
from tests.spmd.ranks import ThreadFabric, on_ranks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.spmd.execute import compiled, execute
from shardwright.spmd.local import Site
from shardwright.spmd.shards import Place, cut
from shardwright.spmd.trace import trace
from shardwright.spmd.training import whole_state
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.machines import Device, Machine, Machines
from shardwright.synthesis.program import Program
from shardwright.synthesis.synthesize import synthesize


class Peak(TorchDispatchMode):
    """Counts the bytes of the memory that tensors made in this thread hold, and the most of them at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        for tensor, returned in zip(results, function._schema.returns, strict=False):
            if (
                isinstance(tensor, Tensor) and returned.alias_info is None
            ):  # else it is a view, of another rank's perhaps
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if key and key not in self.known:
            self.known.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peaks(graph: Graph, program: Program, leaves: dict[str, Tensor]) -> list[int]:
    """Return the most bytes that each rank held, its parameters and inputs among them."""
    code = compiled(graph, program)

    def one(fabric: ThreadFabric) -> int:
        place = Place(rank=fabric.rank, sizes=program.sizes)
        site = Site(place=place, fabric=fabric, device=torch.device("cpu"), seed=0)
        with Peak() as peak:
            parts = {name: cut(x, program.steps[name].outputs[0], place).clone() for name, x in leaves.items()}
            execute(code, parts, site)
        return peak.most

    return on_ranks(program.ranks, one)


def test_a_rank_holds_what_its_share_needs() -> None:
    module = Bert(width=96, heads=4, layers=3, dropout=0.0)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (8, SEQUENCE), generator=random)
    batch = {"tokens": tokens, "labels": tokens}
    graph = trace(module, batch, next_token)
    state = whole_state(module)
    leaves = {ref.node: state[name].detach() for name, ref in {**graph.parameters, **graph.buffers}.items()}
    leaves |= {ref.node: batch[name] for name, ref in graph.inputs.items()}
    (alone,) = peaks(graph, whole(graph), leaves)
    limit = 0.9 * 4 * 4 * sum(parameter.numel() for parameter in module.parameters())
    machines = Machines(
        machines=tuple(
            Machine(
                device=Device(name=name, flops_per_second=rate, memory_bytes=limit), gpus=1, link_bytes_per_second=1e11
            )
            for name, rate in (("fast", 3e9), ("slow", 1e9))
        ),
        network_bytes_per_second=1e11,
    )
    program = synthesize(graph, machines)
    fast, slow = peaks(graph, program, leaves)
    assert slow < 0.6 * alone
    assert slow < fast < 0.9 * alone
