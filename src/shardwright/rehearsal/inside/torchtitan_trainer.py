"""A rank of torchtitan 0.3: the exported configuration, and torchtitan's own trainer, model, parallelism and step.

Layers and the loss are traced and divided into what is kept and what runs again as `torch.compile` does it
(AOTAutograd's min-cut, Inductor's decompositions), and their operators run one by one: fused kernels may need less
beside what is kept. Flash attention stands in for FlexAttention, whose kernel keeps the same.

Stages of torch.distributed.pipelining 2.13 have no neighbours here: they are told what these would tell of their
tensors, and micro-batches that a trainer has cut itself are taken as later releases of PyTorch take them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from shardwright.rehearsal.inside.fake_device import flash_attention
from shardwright.rehearsal.inside.guard import TORCHTITAN, Refused
from shardwright.rehearsal.inside.meter import GRADIENTS, PARAMETERS, STATE, Meter

MODULE = "shardwright_plan"
OUTSIDE = ((DeviceMesh, "_concatenate"), (DeviceMesh, "__getitem__"), (DeviceMesh, "_flatten"))  # look at values
GROUPS = {"fsdp": "gradient", "dp_replicate": "gradient", "tp": "tensor", "cp": "context"}
CHOICES = (
    "layers and loss compiled by AOTAutograd with Inductor's decompositions, their operators run one by one",
    "attention: PyTorch's flash kernel in place of FlexAttention's, which keeps the same",
    "optimizer: AdamW as torchtitan builds it",
    "CUDA graphs are not captured; where they are asked for, gradients stay from step to step",
)
SCHEDULES = "torch.distributed.pipelining.schedules"
STAGES = "torch.distributed.pipelining.stage"


def rehearse(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Run two steps of a rank, of which the second is measured: Adam's state appears in the first."""
    config = _configured(question)
    _stand_ins(config, meter)
    eager, config.training.disable_cuda_graphs = config.training.disable_cuda_graphs, True
    trainer = import_module("torchtitan.trainer").Trainer(config)
    config.training.disable_cuda_graphs = eager  # else gradients stay from step to step, as graphs need them
    _label(trainer.parallel_dims, meter)
    meter.balanced = trainer.parallel_dims.cp_enabled
    if trainer.parallel_dims.pp_enabled:
        take_micro_batches()
        tell_shapes(_between_stages(trainer, config))
    weights = [weight for part in trainer.model_parts for weight in part.parameters()]
    meter.mark(PARAMETERS, weights)
    data = _batches(trainer, config)
    for _ in range(2):
        trainer.step = 2  # neither is logged
        meter.begin_step()
        trainer.train_step(data)
        meter.mark(GRADIENTS, (weight.grad for weight in weights))
        for optimizer in trainer.optimizers:
            values = (value for state in optimizer.state.values() for value in state.values())
            meter.mark(STATE, (value for value in values if isinstance(value, torch.Tensor)))
    masters = config.training.dtype == "float32" and config.training.mixed_precision_param != "float32"
    return {"shims": {}, "choices": list(CHOICES), "masters": masters}


def _configured(question: dict[str, Any]) -> Any:
    """Return what the exported file says, less what needs data, files or CUDA."""
    os.environ.update(WORLD_SIZE=str(question["world_size"]), RANK=str(question["rank"]), LOCAL_RANK="0")
    os.environ.update(HF_ASSETS_PATH="assets", LEARNING_RATE="3e-4")
    with tempfile.TemporaryDirectory() as folder, _disable_current_modes():
        (Path(folder) / f"{MODULE}.py").write_text(question["file"], encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            import_module("torchtitan.trainer")
            config: Any = import_module(MODULE).plan()
        except ModuleNotFoundError as error:
            raise Refused(str(error.name), "is not installed; torchtitan 0.3 imports it", TORCHTITAN) from None
        finally:
            sys.path.remove(folder)
    config.compile.enable_async_tensor_parallel = False
    config.compile.backend = _partitioned()
    return config


def _partitioned() -> Any:
    """Return a backend of `torch.compile` that divides layers as Inductor's does and runs them operator by operator."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import partitioners
    from torch._inductor.decomposition import select_decomp_table

    dividing: Any = partitioners
    compiling: Any = import_module("functorch.compile")
    dividing.has_recomputable_rng_ops = lambda _: False  # attention draws nothing without dropout

    def as_it_is(graph: Any, _: Any) -> Any:
        return compiling.make_boxed_func(graph.forward)

    return aot_autograd(
        fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=compiling.min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip


def _stand_ins(config: Any, meter: Meter) -> None:
    """Replace what fake tensors cannot do, and what a step does not need: data, tokens, checkpoints, first values."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def attention(query: Any, key: Any, value: Any, *, scale: float | None, **_: Any) -> tuple[Any, None]:
        return flash_attention(query, key, value, is_causal=True, scale=scale), None

    modules: Any = import_module("torchtitan.models.common.attention")
    modules.FlexAttention.compiled_flex_attn = staticmethod(attention)
    decoder: Any = import_module("torchtitan.models.common.decoder")
    decoder.create_attention_mask = _mask
    split: Any = import_module("torch.distributed.tensor.experimental._context_parallel._attention")
    split._compiled_create_block_mask = _mask
    compiling: Any = import_module("torchtitan.distributed.compile")
    compiling._maybe_regional_inductor_backend = lambda _, backend: backend
    protocol: Any = import_module("torchtitan.protocols.model")
    protocol.BaseModel.init_weights = _tied_again
    for part in (config.dataloader, config.tokenizer):
        type(part).build = nothing
    staging = types.SimpleNamespace(maybe_wait_for_staging=nothing)
    type(config.checkpoint).build = lambda *_, **__: staging
    dims: Any = import_module("torchtitan.distributed").ParallelDims
    for holder, name in ((dims, "build_mesh"), *OUTSIDE):
        _run_outside(holder, name)
    _see_whole_gradients(meter)


def _tied_again(model: Any, **_: Any) -> None:
    """Do what is left of making first values where none are: a table that is cut for tensor parallelism, embedding and
    projection apart, is one again (torchtitan/models/common/decoder.py 0.3: `init_states`)."""
    if getattr(model, "enable_weight_tying", False):
        model.tok_embeddings.weight = model.lm_head.weight


def _run_outside(holder: Any, name: str) -> None:
    """Have a method of meshes, which look for their rank among values, run on tensors that have some."""
    before = holder.__dict__[name]
    function: Callable[..., Any] = getattr(before, "__func__", before)

    def outside(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    setattr(holder, name, staticmethod(outside) if isinstance(before, staticmethod) else outside)


def _see_whole_gradients(meter: Meter) -> None:
    """Have whole gradients that micro-batches are added to count as such."""
    sharded: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param").FSDPParam
    before = sharded.to_accumulated_grad_if_needed

    def to_accumulated(self: Any) -> None:
        before(self)
        meter.mark(GRADIENTS, [self.unsharded_accumulated_grad])

    sharded.to_accumulated_grad_if_needed = to_accumulated


def _mask(rule: Any, batch: int | None, _: Any, queries: int, keys: int, *, device: Any, **given: Any) -> Any:
    """Return a mask of blocks of the shapes that `create_block_mask` gives."""
    size = given["BLOCK_SIZE"]
    rows, columns = (size, size) if isinstance(size, int) else size
    down, across = -(-queries // rows), -(-keys // columns)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty((batch or 1, 1, *shape), dtype=torch.int32, device=device)

    kind: Any = import_module("torch.nn.attention.flex_attention").BlockMask
    fields: dict[str, torch.Tensor] = {}
    for name in ("", "full_"):
        fields |= {f"{name}kv_num_blocks": numbers(down), f"{name}kv_indices": numbers(down, across)}
        fields |= {f"{name}q_num_blocks": numbers(across), f"{name}q_indices": numbers(across, down)}
    return kind(seq_lengths=(queries, keys), BLOCK_SIZE=(rows, columns), mask_mod=rule, **fields)


def _label(dims: Any, meter: Meter) -> None:
    for name, words in GROUPS.items():
        mesh = dims.get_optional_mesh(name)
        if mesh is not None:
            meter.label(mesh.get_group(), words)


def _between_stages(trainer: Any, config: Any) -> Callable[[], torch.Tensor]:
    """Return what makes a tensor as stages send them."""
    parallel, training = config.parallelism, config.training
    tp = parallel.tensor_parallel_degree
    length = training.seq_len // parallel.context_parallel_degree
    if parallel.enable_sequence_parallel:
        length //= tp
    dtype = torch.bfloat16 if "bfloat16" in (training.dtype, training.mixed_precision_param) else torch.float32
    shape = (parallel.pipeline_parallel_microbatch_size, length, config.model_spec.model.dim)

    def made() -> torch.Tensor:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        local = torch.empty(shape, dtype=dtype, device="cuda", requires_grad=True)
        if tp == 1:
            return local
        place = Shard(1) if parallel.enable_sequence_parallel else Replicate()
        return DTensor.from_local(local, trainer.parallel_dims.get_mesh("tp"), [place], run_check=False)

    return made


def _batches(trainer: Any, config: Any) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    parallel, training = config.parallelism, config.training
    staged = trainer.parallel_dims.pp_enabled
    rows = parallel.pipeline_parallel_microbatch_size if staged else training.local_batch_size
    shape = (rows, training.seq_len)
    while True:
        tokens, labels = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        positions = torch.arange(training.seq_len).expand(shape)
        yield {"input": tokens, "positions": positions}, labels


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
