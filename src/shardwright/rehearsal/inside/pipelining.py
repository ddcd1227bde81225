"""Stages of torch.distributed.pipelining 2.13 without neighbours: what these would tell of their tensors, and
micro-batches that a trainer has cut itself, as later releases of PyTorch take them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

SCHEDULES = "torch.distributed.pipelining.schedules"
STAGES = "torch.distributed.pipelining.stage"


def take_micro_batches() -> None:
    """Have schedules take lists of micro-batches in place of whole batches that they cut."""
    schedules: Any = import_module(SCHEDULES)

    def step(
        self: Any,
        *,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        losses: Any = None,
        loss_kwargs: Any = None,
        return_outputs: bool = True,
    ) -> None:
        for stage in getattr(self, "_stages", None) or [self._stage]:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        count = self._n_microbatches
        inputs = arg_mbs or [()] * count, kwarg_mbs or [{}] * count
        self._step_microbatches(*inputs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)

    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = step


def tell_shapes(between: Callable[[], torch.Tensor]) -> None:
    """Have stages find the shapes of their tensors by running once, as they do by themselves, and their neighbours say
    that they send tensors such as `between` makes, and take gradients like the outputs."""
    stages: Any = import_module(STAGES)
    schedules: Any = import_module(SCHEDULES)
    modes: Any = import_module("torch.distributed.pipelining._utils").InferenceMode

    def warm_up(_: Any, local: list[Any], *__: Any) -> None:
        for stage in local:
            stage._inference_mode = modes.DYNAMIC

    def received(self: Any, neighbour: int) -> Any:
        if neighbour < self.stage_index:
            return stages._StageForwardMeta(forward_metas=(stages.extract_tensor_meta(between()),))
        return stages._StageBackwardMeta(backward_metas=tuple(map(_of_gradient, self._stage_meta.outputs)))

    def _of_gradient(meta: Any) -> Any:
        whole: Any = stages._derive_grad_metas((meta,))[0]
        return stages.extract_tensor_meta(between().detach()) if whole is None else whole

    schedules._PipelineSchedule._warmup_p2p = warm_up
    stages.PipelineStage._recv_meta = received
    stages.PipelineStage._send_meta = lambda *_: None
