"""PyTorch's own databases of operators and modules as training steps, each sample with its gradients.

A sample becomes a module whose parameters are the tensors that want a gradient, and whose loss is a number with a term
for every element of every result: the results times fixed random tensors, summed. So the loss is the value, and its
gradients are those to every tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

import torch
from tests.spmd.draws import drawn
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from shardwright.errors import SpecError
from shardwright.spmd.check import on_ranks
from shardwright.spmd.execute import Site, compiled, execute
from shardwright.spmd.fabric import RankFabric
from shardwright.spmd.replacements import numbered, replaced_operators
from shardwright.spmd.shards import RankPlace, cut
from shardwright.spmd.trace import trace
from shardwright.synthesis.graph import Graph, Sharded
from shardwright.synthesis.program import Program
from shardwright.synthesis.rules.candidates import Choices
from shardwright.synthesis.rules.signature import Cut, Signature, cut_rule, linear_rules, placed, replicated
from shardwright.synthesis.rules.table import signature
from shardwright.synthesis.schedule import ends

DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool, torch.bfloat16)
# Half of the bits of a product of its own: sums are taken in another order, of terms that may cancel.
ACCURACY = {torch.float64: 1e-7, torch.float32: 1e-4, torch.complex128: 1e-7, torch.complex64: 1e-4}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One operator or module of a database: its name, whether it has a gradient, and its samples."""

    name: str
    differentiable: bool
    samples: Callable[[], Iterator[Case]]


class Case(nn.Module):
    """A sample as a module: `tensors` are the leaves among its arguments, `inner` the module called, if there is one.

    Those tensors that want a gradient and get one are parameters; the others are the batch.
    """

    def __init__(self, call: Callable[..., Any], arguments: Any, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.call = (lambda *args, **kwargs: self.inner(*args, **kwargs)) if call is inner else call
        leaves, self.form = tree_flatten(arguments)
        self.leaves: list[Any] = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.batch: dict[str, Tensor] = {}
        self.places = {number: f"x{number}" for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        for number, name in self.places.items():
            value = leaves[number].detach().clone()
            if leaves[number].requires_grad:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.batch[name] = value
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.finite: list[bool] = []

    def freeze(self, names: Sequence[str]) -> None:
        """Make parameters part of the batch."""
        for name in names:
            if name.startswith("inner."):
                self.get_parameter(name).requires_grad_(False)
            else:
                self.batch[name] = getattr(self, name).detach()
                delattr(self, name)

    def results(self, batch: dict[str, Tensor]) -> list[Tensor]:
        leaves = list(self.leaves)
        for number, name in self.places.items():
            leaves[number] = batch[name] if name in batch else getattr(self, name)
        args, kwargs = tree_unflatten(leaves, self.form)
        results = tree_leaves(self.call(*args, **kwargs))
        return [result for result in results if isinstance(result, Tensor)]

    def loss(self, _: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        total = self.scale.new_zeros(())
        for number, result in enumerate(self.results(batch)):
            parts = [result.real, result.imag] if result.is_complex() else [result]
            for part, which in zip(parts, ("real", "imaginary"), strict=False):
                part = part.to(torch.float64)
                if not self.finite[number]:
                    part = torch.where(torch.isfinite(part), part, 0.0)
                total = total + (part * batch[f"{which} {number}"]).sum()
        return self.scale * total

    def prepare(self) -> None:
        """Draw what the results are multiplied by, and freeze what gets no gradient."""
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            results = self.results(self.batch)
        for number, result in enumerate(results):
            self.finite.append(bool(torch.isfinite(result).all()))
            for which in ("real", "imaginary")[: 1 + result.is_complex()]:
                shape = result.shape
                self.batch[f"{which} {number}"] = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.freeze([name for name, gradient in self.gradients().items() if gradient is None])

    def gradients(self) -> dict[str, Tensor | None]:
        """Return the gradient to each parameter by autograd alone, None where it has none."""
        names, parameters = zip(*[pair for pair in self.named_parameters() if pair[1].requires_grad], strict=True)
        value = self.loss(self, self.batch)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        return {"loss": value.detach(), **dict(zip(names, gradients, strict=True))}


def operators() -> list[Entry]:
    """Return every operator of PyTorch's database."""
    from torch.testing._internal.common_methods_invocations import op_db  # takes seconds

    return [
        Entry(
            name=op.name + (f" ({op.variant_test_name})" if op.variant_test_name else ""),
            differentiable=op.supports_autograd,
            samples=lambda op=op: _samples_of(op),
        )
        for op in op_db
    ]


def _samples_of(op: Any) -> Iterator[Case]:
    dtype = next((kind for kind in DTYPES if op.supports_dtype(kind, "cpu")), torch.float32)
    wants = (op.supports_autograd and dtype.is_floating_point) or dtype.is_complex
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=wants):
        yield Case(op.op, ((sample.input, *sample.args), sample.kwargs))


def modules() -> list[Entry]:
    """Return every module of PyTorch's database, ready for training."""
    from torch.testing._internal.common_modules import module_db

    return [
        Entry(name=info.name, differentiable=True, samples=lambda info=info: _samples_of_module(info))
        for info in module_db
    ]


def _samples_of_module(info: Any) -> Iterator[Case]:
    dtype = torch.float64 if torch.float64 in info.dtypes else torch.float32
    torch.manual_seed(0)
    for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=True):
        inner = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype)
        forward = sample.forward_input
        yield Case(inner, (forward.args, forward.kwargs), inner)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a sample: "equal", "refused" with the reason, "wrong" with what differs, or "skipped" where
    PyTorch itself cannot run it."""

    word: str
    reason: str = ""


@contextmanager
def filled() -> Iterator[None]:
    """Let PyTorch fill memory that `empty` and its like leave as it was: what stands there is nobody's error."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def judged(case: Case, seed: int) -> Verdict:
    """Return whether a program drawn at random gives what autograd gives."""
    with warnings.catch_warnings(), filled():
        warnings.simplefilter("ignore")
        try:
            case.prepare()
        except Exception as error:
            return Verdict("skipped", f"{type(error).__name__}: {error}")
        try:
            graph = trace(case, case.batch, case.loss)
        except SpecError as error:
            return Verdict("refused", "; ".join(problem.message.partition(" at `")[0] for problem in error.problems))
        expected = _expected(case, graph)
        random = Random(seed)
        program = drawn(graph, every_rule(graph), random.choice((2, 3, 4)), random)
        differs = _differences(case, graph, program, expected)
        return Verdict("wrong", differs) if differs else Verdict("equal")


def _expected(case: Case, graph: Graph) -> dict[str, Tensor]:
    if not any(node.op in ("dropout", "attention") for node in graph.nodes):
        gradients = case.gradients()
    else:  # masks by position in both
        with replaced_operators(), numbered():
            gradients = case.gradients()
    return {name if name == "loss" else f"gradient {name}": x for name, x in gradients.items() if x is not None}


def _differences(case: Case, graph: Graph, program: Program, expected: dict[str, Tensor]) -> str:
    state = {**dict(case.named_parameters()), **dict(case.named_buffers()), **case.batch}
    tables = (graph.parameters, graph.buffers, graph.inputs)
    leaves = {ref.node: state[name].detach() for table in tables for name, ref in table.items()}

    def run(fabric: RankFabric) -> dict[str, Tensor]:
        place = RankPlace(rank=fabric.rank, sizes=program.sizes)
        site = Site(place=place, fabric=fabric, device=torch.device("cpu"), seed=0)
        parts = {name: cut(x, program.steps[name].outputs[0], place) for name, x in leaves.items()}
        left: dict[str, Tensor] = {}
        execute(compiled(graph, program), parts, site, left.__setitem__)
        return left

    places = {name: held for name, (_, held) in ends(graph, program).items()}
    if missing := expected.keys() - places.keys():
        return f"no {min(missing)}"
    accuracy = max(ACCURACY.get(x.dtype, 1e-2) for x in state.values() if x.is_floating_point() or x.is_complex())
    for rank, left in enumerate(on_ranks(program.ranks, run)):
        place = RankPlace(rank=rank, sizes=program.sizes)
        for name, whole in expected.items():
            part = cut(whole, places[name], place)
            if left[name].shape != part.shape or left[name].dtype != part.dtype:
                return f"{name}: {tuple(left[name].shape)} {left[name].dtype}, not {tuple(part.shape)} {part.dtype}"
            off = _off(left[name], part, whole, max(accuracy, ACCURACY.get(whole.dtype, 1e-2)))
            if off:
                return f"{name} is off by {off}"
    return ""


def _off(made: Tensor, part: Tensor, whole: Tensor, accuracy: float) -> str:
    """Return by how much a part differs, "" if it does not: its norm against that of the whole."""
    kinds = (torch.isnan, torch.isposinf, torch.isneginf)
    if not made.is_complex() and any(not torch.equal(kind(made), kind(part)) for kind in kinds):
        return "what is not finite"
    exact = {"nan": 0.0, "posinf": 0.0, "neginf": 0.0}
    off = (torch.nan_to_num(made, **exact) - torch.nan_to_num(part, **exact)).norm().item()
    norm = torch.nan_to_num(whole, **exact).norm().item()
    return f"{off:.1e} of {norm:.1e}" if off > accuracy * norm + accuracy else ""


def every_rule(graph: Graph) -> Choices:
    """Return each node's rules for every axis and every count of units, whether a search would look at them or not."""
    values = graph.values()
    rules, unknown = {}, []
    for node in graph.nodes:
        made = signature(node, tuple(values[ref] for ref in node.inputs))
        if made is None:
            unknown.append(node.name)
        cuts = [] if made is None else [*(cut_rule(made, cut) for cut in _cuts(made)), *linear_rules(made)]
        rules[node.name] = (replicated(node), *cuts)
    return Choices(rules=rules, unknown=tuple(unknown))


def _cuts(made: Signature) -> list[Cut]:
    """Return the cuts of each axis into all of its units, and into half as many in two stretches."""
    axes = [(axis, size) for axis, size in made.sizes.items() if size > 1]
    cuts = [Cut(axis, size) for axis, size in axes]
    cuts += [Cut(axis, size // 2, 2) for axis, size in axes if size % 2 == 0 and size > 2]
    return [cut for cut in cuts if made.allows(cut) and _shards(made, cut)]


def _shards(made: Signature, cut: Cut) -> bool:
    sides = (*made.inputs, *made.outputs)
    return any(isinstance(placed(dims, made.sizes, cut), Sharded) for dims in sides)


def judged_as(several: Sequence[Verdict]) -> str:
    """Return what an operator comes to: "wrong" if any of its samples is, "equal" if all are that PyTorch can run, else
    "in part" or "refused"; "skipped" if PyTorch runs none."""
    words = {verdict.word for verdict in several} - {"skipped"}
    if "wrong" in words or len(words) < 2:
        return "wrong" if "wrong" in words else next(iter(words), "skipped")
    return "in part"


def verdicts(entry: Entry, limit: int | None, seed: int) -> list[Verdict]:
    """Return what becomes of the first `limit` samples of an entry, all if None. Whatever is no refusal is wrong."""
    judgements: list[Verdict] = []
    samples = iter(islice(entry.samples(), limit))
    while True:
        try:
            case = next(samples)
        except StopIteration:
            return judgements
        except Exception as error:
            return [*judgements, Verdict("skipped", f"{type(error).__name__}: {error}")]
        try:
            judgements.append(judged(case, seed + len(judgements)))
        except Exception as error:
            judgements.append(Verdict("wrong", f"{type(error).__name__}: {error}"))
