"""Tensor-parallel communication of the backward pass runs beside products, as the cost model prices it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.runtime.recorded import Recorded
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwright.runtime.model.parallel import TensorGroup
from shardwright.runtime.model.products import FP8, PLAIN, Products

GATHER, SCATTER, REDUCE, WAIT = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "wait_tensor"


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def backward(products: Products, *, sequence: bool) -> list[str]:
    """Return the collectives of the backward pass of three matrices on one input, and the products among them."""
    tensor = TensorGroup(size=2, group=dist.group.WORLD, sequence=sequence)
    x = torch.randn(2, 16, 64, dtype=torch.bfloat16, requires_grad=True)
    matrices = [(torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True), None) for _ in range(3)]
    loss = sum(y.sum() for y in products.enter(x, matrices, tensor))
    assert isinstance(loss, torch.Tensor)
    with Recorded() as recorded:
        loss.backward()
    names = {"mm": "product", "_scaled_mm": "product", "_scaled_mm_v2": "product"}
    return [names.get(name, name) for name in recorded.names if name in (*names, GATHER, SCATTER, REDUCE, WAIT)]


@pytest.mark.parametrize("products", [PLAIN, FP8], ids=["16 bits", "fp8"])
def test_inputs_arrive_and_gradients_leave_beside_products(products: Products) -> None:
    assert backward(products, sequence=True) == [
        GATHER, *["product"] * 3, SCATTER, WAIT, *["product"] * 3, WAIT
    ]  # fmt: skip


@pytest.mark.parametrize("products", [PLAIN, FP8], ids=["16 bits", "fp8"])
def test_gradients_of_whole_inputs_are_summed_beside_products(products: Products) -> None:
    assert backward(products, sequence=False) == [*["product"] * 3, REDUCE, *["product"] * 3, WAIT]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own way
def test_compiled_layers_keep_their_own_positions_alone() -> None:
    """The compiler must not take the gather of the backward pass for that of the forward pass, and keep what it gave. It
    sees PyTorch's own collectives alone: of others it does not know that they read on while others compute."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    kept: list[int] = []
    gathered: list[str] = []

    def forward(graph: Any, _: Any) -> Any:
        (outputs,) = graph.graph.output_node().args
        kept.extend(output.meta["val"].numel() for output in outputs if hasattr(output, "meta"))
        return make_boxed_func(graph.forward)

    def backward(graph: Any, _: Any) -> Any:
        nodes = [node for node in graph.graph.nodes if "_c10d_functional.all_gather" in str(node.target)]
        gathered.extend(str(node.args[0].target) for node in nodes)
        return make_boxed_func(graph.forward)

    tensor = TensorGroup(size=2, group=dist.group.WORLD, sequence=True)

    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (wide,) = PLAIN.enter(x.sin(), [(weight, None)], tensor)
        return PLAIN.leave(wide, weight.t(), tensor).sum()

    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, partition_fn=min_cut_rematerialization_partition
    )  # fmt: skip
    x, weight = (torch.randn(shape, requires_grad=True) for shape in ((2, 16, 64), (32, 64)))
    torch.compile(block, fullgraph=True, backend=backend)(x, weight).backward()
    own, whole = x.numel(), 2 * x.numel()
    assert own in kept and whole not in kept
    assert "shardwright.copy_after.default" in gathered
