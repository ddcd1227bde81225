"""What is traced on the device "meta" is the whole step: nothing of the backward is lost, or it is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.spmd.models import Batch
from tests.spmd.programs import whole
from tests.spmd.steps import Traced, require_equal
from torch import Tensor, nn

from shardwright.errors import SpecError
from shardwright.spmd.check import eager
from shardwright.spmd.trace import trace
from shardwright.spmd.training import whole_state
from shardwright.synthesis.graph import Graph
from shardwright.synthesis.rules.candidates import choices

F = nn.functional


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class Lambda(nn.Module):
    """A linear layer, and what `compute` makes of its result and the batch's numbers."""

    def __init__(
        self, compute: Callable[[Tensor, Tensor], Tensor], layer: Callable[[], nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.layer = layer() if layer else nn.Linear(4, 4)
        self.compute = compute

    def forward(self, batch: Batch) -> Tensor:
        return self.compute(self.layer(batch["x"]), batch["y"])


def doubled(h: Tensor, _: Tensor) -> Tensor:
    h.register_hook(lambda gradient: 2 * gradient)
    return h.square().sum()


COMPUTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "selu": lambda h, y: F.selu(h).square().sum(),
    "standard deviation": lambda h, y: h.std(0).sum(),
    "variance": lambda h, y: h.var(1, unbiased=False).sum(),
    "RMS norm": lambda h, y: (F.rms_norm(h, (4,)) ** 3).sum(),
    "Fourier transform": lambda h, y: torch.fft.rfft(h).abs().sum(),
    "label smoothing": lambda h, y: F.cross_entropy(h, y, label_smoothing=0.1),
    "weighted classes": lambda h, y: F.cross_entropy(h, y, weight=torch.arange(4.0) + 1),
    "triplets": lambda h, y: F.triplet_margin_loss(h[:2], h[2:4], h[4:]),
    "distance": lambda h, y: F.pairwise_distance(h[:3], h[3:]).sum(),
    "attention": lambda h, y: F.scaled_dot_product_attention(h, h, h).square().sum(),
    "custom function": lambda h, y: (StraightThrough.apply(h) ** 2).sum(),
    "hook of a tensor": doubled,
    "numbers made in the forward": lambda h, y: (h * torch.arange(4) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(),
    "gradient inside the loss": lambda h, y: torch.autograd.grad((h**3).sum(), h, create_graph=True)[0].square().sum(),
}


def loss(module: nn.Module, batch: Batch) -> Tensor:
    value: Tensor = module(batch)
    return value


def batch() -> Batch:
    torch.manual_seed(3)
    return {"x": torch.randn(6, 4), "y": torch.tensor([0, 1, 2, 3, 1, 2])}


def traced_on_meta(build: Callable[[], nn.Module]) -> Graph:
    with torch.device("meta"):
        skeleton = build()
    return trace(skeleton, batch(), loss)


def require_same_step(build: Callable[[], nn.Module]) -> None:
    """Hold the step traced on the device "meta" against autograd's."""
    torch.manual_seed(5)
    module, given = build(), batch()
    graph = traced_on_meta(build)
    values = {**whole_state(module), **given}
    tables = (graph.parameters, graph.buffers, graph.inputs)
    leaves = {ref.node: values[name].detach() for table in tables for name, ref in table.items()}
    expected = eager(module, given, loss)
    assert {f"gradient {name}" for name in graph.gradients} == {name for name in expected if name.startswith("grad")}
    require_equal(Traced(graph=graph, leaves=leaves, expected=expected), whole(graph, 2))


@pytest.mark.parametrize("name", COMPUTED)
def test_the_backward_is_whole(name: str) -> None:
    require_same_step(lambda: Lambda(COMPUTED[name]))


class Rows(nn.Module):
    """Rows of an embedding, their gradients scaled by how often they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 4, scale_grad_by_freq=True)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.words(torch.tensor([0, 1, 1, 2, 1, 3]))


def hooked() -> nn.Module:
    """Return a module with a hook on a parameter that has two names."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    first.weight.register_hook(lambda gradient: 5 * gradient)
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    "layer",
    [
        hooked,
        lambda: nn.RMSNorm(4),
        lambda: nn.Sequential(nn.Unflatten(1, (4, 1)), nn.ConvTranspose1d(4, 6, 2, groups=2), nn.Flatten()),
        lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2),
        lambda: nn.Sequential(nn.Linear(4, 4), Rows()),
    ],
)
def test_hooks_and_layers(layer: Callable[[], nn.Module]) -> None:
    require_same_step(lambda: Lambda(lambda h, y: (h**3).sum(), layer))


class Kept(nn.Module):
    """A module with an unused layer, and one with a limit on its rows."""

    def __init__(self, **settings: float) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 4, **settings)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x.argmax(-1))


def accumulated() -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return module


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Kept, "2 parameters 0.layer.0.unused.weight, 0.layer.0.unused.bias: no gradient"),
        (lambda: Kept(max_norm=1.0), "changes the parameter 0.layer.0.words.weight in place"),
        (lambda: nn.RReLU(), "draws random numbers by aten.rrelu_with_noise"),
        (accumulated, "has a hook that runs after its gradient was accumulated"),
    ],
)
def test_what_would_train_otherwise_is_refused_by_name(layer: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        traced_on_meta(lambda: nn.Sequential(Lambda(lambda h, y: h.sum(), lambda: nn.Sequential(layer()))))


LOSSES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda h, y: F.mse_loss(h, torch.ones_like(h)),
    lambda h, y: F.binary_cross_entropy_with_logits(h, h.detach().sign().clamp(0)),
    lambda h, y: F.binary_cross_entropy(h.sigmoid(), h.detach().sign().clamp(0)),
    lambda h, y: F.cross_entropy(h, y, label_smoothing=0.1),
    lambda h, y: h.new_zeros(6, 9).scatter_add(1, y.unsqueeze(1).expand(6, 4), h).flip(1).std(0).sum(),
]


@pytest.mark.parametrize("compute", LOSSES)
def test_what_losses_and_layers_are_made_of_has_rules(compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    layers = (nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2))
    last = (nn.ConvTranspose2d(4, 4, 2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    graph = traced_on_meta(lambda: Lambda(compute, lambda: nn.Sequential(*layers, *last).to("meta")))
    assert not choices(graph).unknown


def test_autocast_that_a_trace_would_not_see_is_refused() -> None:
    def cast(h: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return (h @ h.T).sum()

    with pytest.raises(SpecError, match="uses autocast for cuda"):
        traced_on_meta(lambda: Lambda(cast))


@pytest.mark.parametrize("draw", ["exponential_", "cauchy_", "log_normal_", "uniform_", "normal_", "geometric_"])
def test_every_operator_that_draws_at_random_is_refused(draw: str) -> None:
    drawing = {"geometric_": (0.5,)}.get(draw, ())
    with pytest.raises(SpecError, match=f"draws random numbers by aten.{draw.strip('_')}"):
        traced_on_meta(lambda: Lambda(lambda h, y: (h * getattr(torch.zeros_like(h), draw)(*drawing)).sum()))


def test_an_operator_that_fails_in_a_run_is_named_with_its_shapes() -> None:
    graph = traced_on_meta(lambda: Lambda(lambda h, y: h.gather(1, y.unsqueeze(1)).sum()))
    names = {ref.node: name for table in (graph.parameters, graph.inputs) for name, ref in table.items()}
    given = {**whole_state(Lambda(COMPUTED["selu"])), **batch(), "y": torch.full((6,), 9)}
    case = Traced(graph=graph, leaves={node: given[name].detach() for node, name in names.items()}, expected={})
    with pytest.raises(SpecError, match=r"gather.*failed on float32 \(6, 4\), int64 \(6, 1\): index 9"):
        require_equal(case, whole(graph, 2))
