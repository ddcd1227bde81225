"""Traces a training step, forward and backward, to a graph of operators.

`torch.export` records what the module does and AOTAutograd adds the backward. In between, the operators of PyTorch
whose trace would depend on the device, or mean nothing on a shard, become our own (`replacements`).
"""

from __future__ import annotations

import contextlib
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

from shardwright.errors import SpecError, bad
from shardwright.spmd.experts import experts_by_row
from shardwright.spmd.joint import graph_of
from shardwright.spmd.repeats import with_repeats
from shardwright.spmd.replacements import DECOMPOSITIONS, numbered, replace_operators
from shardwright.synthesis.graph import Graph

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Any], Tensor]
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "Unbacked", "_local_scalar_dense")


class _Step(nn.Module):
    """What is traced: the loss of a module on a batch."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.module, batch)


def trace(module: nn.Module, batch: Batch, loss: Loss, say: Callable[[str], None] = lambda _: None) -> Graph:
    """Return the graph of `loss(module, batch)` and of the gradients to the module's parameters.

    The module stays as it is; its mode, `train` or `eval`, decides about dropout and BatchNorm. Its parameters and the
    batch may lie on the device "meta". `say` is told what is going on. Raises `SpecError` with the line of the user's
    code where tracing fails, as it does at an `if` that depends on the values of a tensor.
    """
    meta = any(parameter.is_meta for parameter in module.parameters())
    given = ({name: tensor.to("meta") if meta else tensor for name, tensor in batch.items()},)
    with ExitStack() as stack:
        for context in (_quiet(), experts_by_row(module), numbered(), _explained()):
            stack.enter_context(context)
        say("recording the forward")
        program = torch.export.export(_Step(module, loss), given, strict=False).module(check_guards=False)
        replace_operators(program)
        say("adding the backward")
        joint = aot_export_joint_with_descriptors(stack, program, given, decompositions=DECOMPOSITIONS)
        say("looking for repeated blocks")
        return with_repeats(graph_of(joint.graph_module, canonical_names(module), list(batch)))


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return, for each name in a trace, the first name that the module has for the same parameter or buffer."""
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {f"module.{name}": first.setdefault(id(tensor), name) for name, tensor in every}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what PyTorch says about attributes that it restores itself and about names that it will change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn whatever tracing raises into one message that names the line of the user's code."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        errors = list(_causes(error))
        frame = next((found for one in reversed(errors) if (found := _user_frame(one))), None)
        place = f"{frame.filename}:{frame.lineno}" if frame else "the module"
        line = f" at `{frame.line}`" if frame and frame.line else ""
        if any(word in f"{type(one).__name__} {one}" for one in errors for word in _DATA_DEPENDENT):
            problem, hint = "the path depends on the values of a tensor", "compute both sides, choose with torch.where"
        else:
            said = str(error).strip().splitlines() or [""]
            problem, hint = (
                f"cannot be traced: {type(error).__name__}: {said[0]}",
                "`debug=True` shows PyTorch's traceback",
            )
        raise bad(place, problem + line, hint) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the traceback that belongs neither to a library nor to this package."""
    paths = sysconfig.get_paths()
    foreign = (str(Path(__file__).parent), str(Path(torch.__file__).parent), paths["stdlib"], paths["purelib"], "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(foreign)]
    return frames[-1] if frames else None
