"""Traces a training step, forward and backward, to a graph of operators.

AOTAutograd runs the module's own code on tensors that have shapes but no values, and records what happens below
autograd: hooks and the backward of a custom `autograd.Function` are in the graph because they ran. The tensors say that
they lie on the CPU, whatever the module's device: there every operator of PyTorch has its whole backward, in any build.
Operators whose trace would then depend on the device, or mean nothing on a shard, become our own (`replacements`).
"""

from __future__ import annotations

import contextlib
import operator
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module

from shardwright.errors import SpecError, bad
from shardwright.spmd.joint import graph_of, with_repeats
from shardwright.spmd.normalise import value_of
from shardwright.spmd.replacements import DECOMPOSITIONS, experts_by_row, numbered, replaced_operators
from shardwright.synthesis.graph import Graph


@contextlib.contextmanager
def user_code(what: str, at: str = "") -> Iterator[None]:
    """Turn whatever the user's code raises inside into a `SpecError`: `what` was being done, "cannot build its module".

    The place is the innermost line of the user's code, or `at` where there is none.
    """
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        place, line = user_line(causes(error))
        said = str(error).strip().splitlines() or [""]
        raise bad(
            place or at,
            f"{what}: {type(error).__name__}: {said[0]}{line}",
            "`debug=True` shows PyTorch's traceback",
        ) from error


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and what led to it, the last first."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def user_line(errors: list[BaseException]) -> tuple[str, str]:
    """Return `file:line` of the innermost line of the user's code and what it says; empty where it belongs to libraries
    and this package alone."""
    paths = sysconfig.get_paths()
    package = str(Path(__file__).parents[1])
    foreign = (package, str(Path(torch.__file__).parent), paths["stdlib"], paths["purelib"], "<")
    for error in reversed(errors):
        if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith(foreign):
            return f"{error.filename}:{error.lineno}", f" at `{(error.text or '').strip()}`"
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(foreign)
        ]
        if frames:
            line = f" at `{frames[-1].line}`" if frames[-1].line else ""
            return f"{frames[-1].filename}:{frames[-1].lineno}", line
    return "", ""


Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Any], Tensor]
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "DynamicOutputShape", "_local_scalar_dense")


class _Step(nn.Module):
    """What is traced: the loss of a module on a batch. Tied parameters are one tensor, with the hooks that it has."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss
        names = {name.removeprefix("module."): first for name, first in canonical_names(module).items()}
        self.tied = {name: first for name, first in names.items() if name != first}
        self.hooks = _parameter_hooks(module)

    def forward(self, batch: Batch) -> Tensor:
        for name, hooks in self.hooks.items():
            for hook in hooks:
                operator.attrgetter(name)(self.module).register_hook(hook)
        shared = {name: operator.attrgetter(first)(self.module) for name, first in self.tied.items()}
        with _reparametrize_module(self.module, shared):
            value = self.loss(self.module, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise bad("the loss", f"is {kind}, not one number", "return a scalar tensor: a mean or a sum")
        return value.reshape(())


def trace(module: nn.Module, batch: Batch, loss: Loss, say: Callable[[str], None] = lambda _: None) -> Graph:
    """Return the graph of `loss(module, batch)` and of the gradients to the module's parameters.

    The module stays as it is; its mode, `train` or `eval`, decides about dropout and BatchNorm. Its parameters and the
    batch may lie on any device, "meta" too. `say` is told what is going on. Raises `SpecError` with the line of the
    user's code where tracing fails, as it does at an `if` that depends on the values of a tensor, and for what a
    program would train otherwise: numbers drawn at random, parameters that get no gradient.
    """
    _require_tensors(batch)
    shapes = FakeTensorMode(allow_non_fake_inputs=True)
    state = _without_values(module, shapes)
    given = {name: _without_value(tensor, shapes) for name, tensor in batch.items()}
    step = _Step(module, loss)
    with _quiet(), _explained():
        with ExitStack() as stack:
            for context in (experts_by_row(module), _as_exporting(), _no_autocast(), replaced_operators(), numbered()):
                stack.enter_context(context)
            stack.enter_context(_reparametrize_module(module, state))
            say("recording forward and backward")
            joint = aot_export_joint_with_descriptors(stack, step, (given,), decompositions=DECOMPOSITIONS)
        graph = graph_of(joint.graph_module, canonical_names(module), list(batch))
        _require_gradients(module, graph)
        say("looking for repeated blocks")
        return with_repeats(graph)


def _require_tensors(batch: object) -> None:
    """Raise `SpecError` for a batch that is no mapping of tensors."""
    if not isinstance(batch, Mapping):
        raise bad("the batch", f"is a {type(batch).__name__}", "give a dictionary of tensors by name")
    for name, part in batch.items():
        if not isinstance(part, Tensor):
            hint = "give a tensor; what is the same in every step belongs into the loss"
            raise bad(f"the batch: {name}", f"is a {type(part).__name__}, no tensor", hint)


def _require_gradients(module: nn.Module, graph: Graph) -> None:
    """Raise `SpecError` for parameters that want a gradient and get none: they would never be trained."""
    idle = [name for name, x in module.named_parameters() if x.requires_grad and name not in graph.gradients]
    if idle:
        several = f"{len(idle)} parameters" if len(idle) > 1 else "the parameter"
        raise bad(
            "the module",
            f"the loss does not depend on {several} {', '.join(idle[:5])}{' …' * (len(idle) > 5)}: no gradient",
            "set requires_grad to False where that is meant",
        )
    if not graph.gradients:
        raise bad("the module", "has no parameter that wants a gradient", "give it one: else there is nothing to train")


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return, for each name in a trace, the first name that the module has for the same parameter or buffer."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {f"module.{name}": first.setdefault(id(tensor), name) for name, tensor in every}


def _without_values(module: nn.Module, shapes: FakeTensorMode) -> dict[str, Tensor]:
    """Return stand-ins for the parameters and buffers by their places, of which a module that has two names has one;
    tied tensors have one stand-in."""
    made: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) not in made:
                copy = _without_value(tensor, shapes)
                is_parameter = isinstance(tensor, nn.Parameter)
                made[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
            state[f"{prefix}.{name}" if prefix else name] = made[id(tensor)]
    return state


def _without_value(tensor: Tensor, shapes: FakeTensorMode) -> Tensor:
    """Return a tensor of the same form that has no values, on the CPU."""
    value_of(tensor)
    with shapes:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _parameter_hooks(module: nn.Module) -> dict[str, list[Callable[[Tensor], Any]]]:
    """Return the hooks on the gradients of parameters. Raises `SpecError` for those that run after a gradient was
    added to `.grad`, where a step by a program has only a shard."""
    hooks: dict[str, list[Callable[[Tensor], Any]]] = {}
    for name, parameter in module.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise bad(
                f"the parameter {name}",
                "has a hook that runs after its gradient was accumulated",
                "use `register_hook`, which a program traces, or change gradients between backward and optimizer",
            )
        if parameter._backward_hooks:
            hooks[name] = list(parameter._backward_hooks.values())
    return hooks


@contextlib.contextmanager
def _as_exporting() -> Iterator[None]:
    """Let libraries that ask whether they are being traced know that they are, and the CPU's own fused kernels, which
    no other device has, stay out of the trace."""
    before = torch.compiler._is_exporting_flag, torch.compiler._is_compiling_flag
    torch.compiler._is_exporting_flag = torch.compiler._is_compiling_flag = True
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.compiler._is_exporting_flag, torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    """Refuse autocast for other devices than the CPU, which a trace would not see: it would train in full precision."""
    before: Any = torch.autocast.__init__

    def checked(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *rest: Any, **more: Any) -> None:
        if enabled and device_type != "cpu":
            hint = "give the module its precision with .to(torch.bfloat16), or autocast for cpu, which is traced"
            raise bad("the module", f"uses autocast for {device_type}, of which a program knows nothing", hint)
        before(self, device_type, dtype, enabled, *rest, **more)

    torch.autocast.__init__ = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = before  # type: ignore[method-assign]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what PyTorch says about attributes that it restores itself and about names that it will change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn whatever tracing raises into one message that names the line of the user's code."""
    with user_code("cannot be traced", "the module"):
        try:
            yield
        except SpecError:
            raise
        except Exception as error:
            chain = causes(error)
            if not any(word in f"{type(cause).__name__} {cause}" for cause in chain for word in _DATA_DEPENDENT):
                raise
            place, line = user_line(chain)
            problem = f"the path depends on the values of a tensor{line}"
            raise bad(place or "the module", problem, "compute both sides, choose with torch.where") from error
