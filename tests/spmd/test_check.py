"""`spmd plan` writes no program that differs from eager mode, and says what it was held against."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random, random
from typing import Any

import pytest
import torch
from tests.cli.running import refused, run
from tests.spmd.models import build
from torch import Tensor, nn

from shardwright import SpecError, load_cluster
from shardwright.spmd import synthesize
from shardwright.spmd.check import eager, require_elementwise, require_equal
from shardwright.spmd.document import Synthesized
from shardwright.spmd.synthesize import machines_of
from shardwright.spmd.task import Task
from shardwright.spmd.trace import trace
from shardwright.synthesis.graph import Graph, Node

CLUSTER = "1x1x4090 + 1x1x3090"
SLOW = 1e-7  # of the peak: at this size sharding pays only where computing is slow
SHARDED = ["--cluster", CLUSTER, "--efficiency", str(SLOW)]


class Two(nn.Module):
    """Two layers of a width, and a parameter that the forward may leave out."""

    def __init__(self, width: int, unused: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        if unused:
            self.left_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.gelu(self.norm(self.first(x))))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return module(batch["x"]).square().mean()


def moved(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return how far a module takes its input: what a norm gives has squares of one on average, whatever was dropped."""
    return (module(batch["x"]) - batch["x"]).square().mean()


def whole(rows: int = 10, width: int = 6, **fields: object) -> Task:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
    return Task(build=lambda: Two(width), batch={"x": x}, loss=loss, **fields)


def unused() -> Task:
    return replace(whole(), build=lambda: Two(6, unused=True))


def with_small() -> Task:
    return whole(rows=1 << 10, width=1 << 6, small=whole)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])


def corrupted(change: Callable[[Graph], Graph]) -> Callable[..., Graph]:
    return lambda *arguments, **named: change(trace(*arguments, **named))


def swapped(graph: Graph) -> Graph:
    """Return the graph with the gradients of two parameters exchanged."""
    gradients = dict(graph.gradients)
    gradients["first.bias"], gradients["second.bias"] = gradients["second.bias"], gradients["first.bias"]
    return replace(graph, gradients=gradients)


def test_a_program_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "step.json"
    plan = ["spmd", "plan", f"{__name__}:whole", *SHARDED, "--out", str(out)]
    with monkeypatch.context() as patched:
        patched.setattr(synthesize, "trace", corrupted(swapped))
        message = refused(run(plan))
        assert "the gradient of" in message and "bias differs from eager's by" in message and "--no-check" in message
        assert not out.exists()
        made = run([*plan, "--no-check", "--json"])
        assert made.code == 0 and not json.loads(made.out)["notes"]["checked"]
        assert "not checked against eager mode: it was not asked for" in run(["spmd", "show", str(out)]).out
    made = run([*plan, "--json"])
    assert made.code == 0 and json.loads(made.out)["notes"]["checked"] == "the task"
    assert "one step of the task equals eager mode" in run(["spmd", "show", str(out)]).out


def test_a_parameter_without_a_gradient_is_named(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    message = refused(run(["spmd", "plan", f"{__name__}:unused", *SHARDED, "--out", str(out), "--no-check"]))
    assert "left_out.weight" in message and "set requires_grad to False" in message and not out.exists()


def test_a_large_task_is_checked_by_its_small_version(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, large = load_cluster(CLUSTER), with_small()
    monkeypatch.setattr(synthesize, "MOST_BYTES", 1e5)
    found = synthesize.plan(large, cluster, efficiency=SLOW)
    assert found.program.notes["checked"] == "Task.small()"
    without = synthesize.plan(replace(large, small=None), cluster, efficiency=SLOW).program.notes
    assert without["checked"] == "" and "over 0.1 MiB, and the task has no `small`" in without["unchecked_because"]
    monkeypatch.setattr(synthesize, "trace", corrupted(swapped))
    with pytest.raises(SpecError, match=r"Task.small\(\): the gradient of"):
        synthesize.plan(large, cluster, efficiency=SLOW)


def test_the_program_of_the_small_version_has_the_shares_of_the_large() -> None:
    cluster = load_cluster(CLUSTER)
    machines = machines_of(cluster, "fp32", SLOW)
    large = with_small()
    found = synthesize.plan(large, cluster, efficiency=SLOW, check=False)
    small = synthesize._like(found, whole(), machines, "any")
    shared = {key: row for key, row in small.program.sizes.items() if key[0] in found.program.shares}
    assert shared
    for (ratio, units), row in shared.items():
        exact = [share * units for share in found.program.shares[ratio]]
        assert all(abs(held - share) <= 1 for held, share in zip(row, exact, strict=True))


@cache
def planned(name: str) -> tuple[Synthesized, Task]:
    module, batch, function = build(name)
    task = Task(build=lambda: build(name)[0], batch=batch, loss=function)
    found = synthesize.synthesize(module, batch, function, load_cluster(CLUSTER), efficiency=SLOW)
    return found, task


def wrong(graph: Graph, random: Random) -> Graph:
    """Return the graph with one thing wrong in its backward: a term of a gradient lost or doubled, two gradients
    exchanged."""
    loss_at = [node.name for node in graph.nodes].index(graph.loss.node)
    backward = graph.nodes[loss_at + 1 :]
    sums = [node for node in backward if node.op == "add.Tensor" and len(set(node.inputs)) == 2 and not node.kwargs]
    products = [node for node in backward if node.op == "mul.Tensor" and len(node.inputs) == 2]
    values = graph.values()
    alike = [
        (one, other)
        for one, other in combinations(graph.gradients, 2)
        if values[graph.gradients[one]] == values[graph.gradients[other]]
    ]
    kind = random.choice([kind for kind, some in (("lost", sums), ("doubled", products), ("swapped", alike)) if some])
    if kind == "swapped":
        one, other = random.choice(alike)
        gradients = {**graph.gradients, one: graph.gradients[other], other: graph.gradients[one]}
        return replace(graph, gradients=gradients)
    if kind == "lost":
        node = random.choice(sums)
        return _with(graph, replace(node, args=(node.inputs[0], node.inputs[0])))
    node = random.choice(products)
    return _with(graph, replace(node, op="add.Tensor"))


def _with(graph: Graph, changed: Node) -> Graph:
    return replace(graph, nodes=tuple(changed if node.name == changed.name else node for node in graph.nodes))


class Attending(nn.Module):
    """Attention of PyTorch's own, which drops out of sight of a mode for functions."""

    def __init__(self, weighs: bool) -> None:
        super().__init__()
        self.inner, self.weighs = nn.MultiheadAttention(6, 3, dropout=0.3, batch_first=True), weighs

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=self.weighs)[0]


class Noisy(Two):
    """Numbers of Python's, which a trace has as constants."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random())


@pytest.mark.parametrize(
    "build", [lambda: Attending(True), lambda: Attending(False), lambda: nn.TransformerEncoderLayer(6, 3, 8, 0.3)]
)
def test_dropout_inside_pytorch_s_own_functions_is_drawn_by_position(build: Callable[[], nn.Module]) -> None:
    task = Task(build=build, batch={"x": torch.randn(10, 4, 6)}, loss=moved)
    program = synthesize.synthesize(task.skeleton(), task.batch, moved, load_cluster("1x1x4090"), efficiency=SLOW)
    require_equal(program, task)
    module = task.module()
    first, second, other = (eager(module, task.batch, moved, seed)["loss"] for seed in (0, 0, 1))
    assert torch.equal(first, second) and not torch.allclose(first, other)


def test_a_task_that_draws_numbers_of_python_is_refused() -> None:
    with pytest.raises(SpecError, match="it draws numbers, and not by dropout"):
        synthesize.plan(replace(whole(), build=lambda: Noisy(6)), load_cluster(CLUSTER), efficiency=SLOW)


def test_what_the_user_s_code_raises_in_eager_mode_is_told() -> None:
    labels = {"x": torch.randn(10, 6), "labels": torch.full((10,), 6)}
    wrong = replace(whole(), batch=labels, loss=lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["labels"]))
    with pytest.raises(SpecError, match="the task fails in eager mode: IndexError: Target 6 is out of bounds"):
        synthesize.plan(wrong, load_cluster(CLUSTER), efficiency=SLOW)


ELEMENTWISE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=1e-2),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("name", [*ELEMENTWISE, "Adafactor", "LBFGS"])
def test_an_optimizer_of_whole_tensors_is_refused(name: str) -> None:
    """A rank steps it over its shards, of which it would make something else."""
    graph = planned("bert")[0].graph
    if name in ELEMENTWISE:
        require_elementwise(whole(optimizer=ELEMENTWISE[name]), graph, torch.device("cpu"))
        return
    task = whole(optimizer=lambda groups: getattr(torch.optim, name)(groups, lr=1e-2))
    words = (
        "optimizer: updates .* otherwise in parts" if name == "Adafactor" else "the task's `optimizer` fails: TypeError"
    )
    with pytest.raises(SpecError, match=words):
        require_elementwise(task, graph, torch.device("cpu"))


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_wrong_in_a_backward_is_noticed(seed: int) -> None:
    found, task = planned("bert")
    require_equal(found, task)
    with pytest.raises(SpecError, match="differs from eager's"):
        require_equal(replace(found, graph=wrong(found.graph, Random(seed))), task)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["bert", "vit", "everything", "llama"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_wrong_in_any_backward_is_noticed(name: str, seed: int) -> None:
    found, task = planned(name)
    with pytest.raises(SpecError, match="differs from eager's"):
        require_equal(replace(found, graph=wrong(found.graph, Random(seed))), task)
