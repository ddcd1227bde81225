"""A rank of transformers on one GPU, in DistributedDataParallel or under FSDP2, set up as Accelerate 1.15 and the
Trainer of transformers 5 set it up.

Layers are sharded one by one, the embedding, and final norm and head together, which stay gathered; masters and
optimizer state are fp32, and with bf16 parameters are gathered and gradients reduced in bf16 (`fsdp2_prepare_model` of
accelerate/utils/fsdp_utils.py, `set_mixed_precision` of accelerate/utils/dataclasses.py); AdamW's fused kernel,
and gradients are clipped (`optim` and `max_grad_norm` of transformers/training_args.py). Passes are not under autocast
(`_prepare_fsdp2` of accelerate/accelerator.py). Beside frozen weights, which
are loaded in the type of the passes and sharded with their layers, PEFT's adapters are fp32 (`autocast_adapter_dtype`
of peft/mapping_func.py 0.21); those in four bits are bitsandbytes'. Adam in 8 bits is torchao's, as bitsandbytes'
takes no sharded parameters.

Frozen weights in four bits are bitsandbytes' own modules and operators, which know their shapes. What they keep is
theirs (bitsandbytes 0.50: nn/modules.py, autograd/_functions.py): a matrix is packed in a parameter of the type that
FSDP gathers, its scales stand beside it in `quant_state`, whole on every rank.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from shardwright.rehearsal.inside.guard import TRANSFORMERS, Refused, require
from shardwright.rehearsal.inside.meter import GRADIENTS, PARAMETERS, STATE, Meter
from shardwright.rehearsal.inside.trl_losses import REWARD, add_head, add_kernel, loss_of, whole_loss_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
RELEASE = 5  # of transformers
UPDATE = "update in 8 bits"
WHY_UPDATE = "compiled kernels for each parameter, which allocate nothing here (torchao/optim/adam.py)"
PRODUCT = "product with 4-bit weights"
WHY_PRODUCT = (
    "their matrix in 16 bits, then the product, as bitsandbytes 0.50 does on GPUs above 1,536 tokens "
    "(backends/cuda/ops.py: _dequant_linear_fallback)"
)
BUCKETS = "order of buckets"
WHY_BUCKETS = (
    "gradients are summed in the buckets of the first step, which others replace by as many bytes in the second"
)
SCALES = 256  # that share one: quantize_4bit of bitsandbytes/functional.py


def rehearse(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Run two steps of a rank, of which the second is measured: Adam's state appears in the first."""
    model, transformers, shims = _model(question, meter)
    options = _fsdp_options(question, meter)
    reference = _reference(question, model, options, shims)
    sharded = _sharded(model, question, options)
    if not options and int(question["world_size"]) > 1:
        sharded = _replicated(sharded, shims, meter)
    if question.get("on_gpu"):
        sharded.to_empty(device="cuda")
    trained = [parameter for parameter in sharded.parameters() if parameter.requires_grad]
    optimizer, words = _optimizer(question["optimizer"], trained, shims)
    meter.mark(PARAMETERS, sharded.parameters())
    for _ in range(2):
        meter.begin_step()
        _step(sharded, reference, optimizer, question, meter)
        meter.mark(
            STATE, (part for state in optimizer.state.values() for value in state.values() for part in _parts(value))
        )
    return {
        "shims": shims, "choices": [f"optimizer: {words}", f"transformers {transformers}"],
        "masters": question["precision"] != "fp32" and question["adapter"] is None and question["masters"],
    }  # fmt: skip


def _optimizer(name: str, parameters: list[Any], shims: dict[str, str]) -> tuple[Any, str]:
    """Return the optimizer that transformers' Trainer is told to take, and what it is."""
    if name != "adam8bit":
        fused = name == "adam"
        words = f"torch.optim.AdamW({'fused' if fused else 'foreach'}=True)"
        return torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused), words
    require("torchao", "pip install torchao")
    with _disable_current_modes():
        library = importlib.import_module("torchao.optim")
        steps: Any = importlib.import_module("torchao.optim.adam")
    steps.single_param_adam = lambda *_, **__: None
    shims[UPDATE] = WHY_UPDATE
    return library.AdamW8bit(parameters, lr=1e-4), "torchao.optim.AdamW8bit"


def _parts(value: Any) -> list[Any]:
    """Return the tensors of a state: the codes and scales of one in eight bits."""
    inner = getattr(value, "_local_tensor", value)
    return [inner.codes, inner.scale] if hasattr(inner, "codes") else [inner]


def _model(question: dict[str, Any], meter: Meter) -> tuple[Any, str, dict[str, str]]:
    import transformers

    if int(transformers.__version__.split(".")[0]) < RELEASE:
        hint = f"{TRANSFORMERS}, or name an interpreter that has it with `python=`"
        raise Refused("transformers", f"is {transformers.__version__}", hint)
    masks: Any = importlib.import_module("transformers.masking_utils")
    masks.is_tracing = lambda *_: False  # fake tensors look like a trace, where attention gets a mask and repeats keys
    wide = question["adapter"] is None and question["masters"]
    model = _of_config(question, torch.float32 if wide else DTYPES[question["precision"]])
    with torch.device("meta" if question.get("on_gpu") else "cuda"):
        shims = quantise(model, question["quantisation"], meter) if question["quantisation"] else {}
        if question["adapter"] is not None:
            model = _adapted(model, question["adapter"])
    if question["recompute"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train(), transformers.__version__, shims


def _of_config(question: dict[str, Any], dtype: torch.dtype) -> Any:
    import transformers

    fields = dict(question["config"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    kind = transformers.AutoModelForCausalLM
    if question["preference"] == REWARD:
        kind, config.num_labels, config.pad_token_id = transformers.AutoModelForSequenceClassification, 1, 0
    with torch.device("meta" if question.get("on_gpu") else "cuda"):  # whole, it may not fit on a GPU
        return kind.from_config(config, dtype=dtype, attn_implementation="sdpa")


def _adapted(model: Any, fields: dict[str, Any]) -> Any:
    """Return a model with PEFT's adapters beside its frozen weights."""
    require("peft", "pip install peft")
    _before_peft()
    import peft

    peft_config = peft.LoraConfig(**{name: value for name, value in fields.items() if name != "peft_type"})
    return peft.get_peft_model(model, peft_config)


def _reference(question: dict[str, Any], model: Any, options: dict[str, Any], shims: dict[str, str]) -> Any:
    """Return what gives the log-probabilities of a reference, before it is sharded: beside adapters the model without
    them, else a second one, loaded as the first; None where none is asked. Both get TRL's head if the loss is TRL's."""
    if not question["tiled"]:
        if question["preference"]:
            _before_peft()
            add_kernel(shims)
        return None
    adapted = question["adapter"] is not None
    _before_peft()
    add_head(model.get_base_model() if adapted else model, question["preference"], shims)
    if not question["reference"]:
        return None
    if adapted:
        return partial(_disabled, model)
    reference = _of_config(question, torch.float32 if question["masters"] else DTYPES[question["precision"]])
    add_head(reference, None, shims)
    if options:  # no layer is a unit of its own: prepare_fsdp of trl/models/utils.py 1.16
        from torch.distributed.fsdp import fully_shard

        fully_shard(reference, **options)
    return reference.eval()


def _disabled(model: Any, **inputs: Any) -> Any:
    with model.disable_adapter():
        return model(**inputs)


def _fsdp_options(question: dict[str, Any], meter: Meter) -> dict[str, Any]:
    """Return how FSDP2 shards, nothing where each rank has all."""
    dtype, ranks = DTYPES[question["precision"]], int(question["world_size"])
    if question["sharding"] == "none":
        return {}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    with _disable_current_modes():  # a mesh looks for its rank among values
        mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("dp_shard",))
    meter.label(mesh.get_group(), "gradient")
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": question["sharding"] == "zero3"}
    if question["offload"]:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)  # pinned, it is no more of a GPU's memory
    return options


def _before_peft() -> None:
    """Import what PEFT, and TRL through it, import where it is there."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        bits_and_bytes()


def _sharded(model: Any, question: dict[str, Any], options: dict[str, Any]) -> Any:
    if not options:
        return model
    from torch.distributed.fsdp import fully_shard

    inner = model.get_base_model().model if question["adapter"] is not None else model.model
    for layer in inner.layers:
        fully_shard(layer, **options)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tail = [inner.norm] if head is None else [inner.norm, head]
    if head is not None and embedding.weight is head.weight:
        tail.insert(1, embedding)
    else:
        fully_shard(embedding, **options)
    fully_shard(tail, **(options | {"reshard_after_forward": False}))
    fully_shard(model, **{name: value for name, value in options.items() if name != "reshard_after_forward"})
    return model


def _replicated(model: Any, shims: dict[str, str], meter: Meter) -> Any:
    """Return a model whose copies DistributedDataParallel holds together. Three things that it would ask of other
    ranks, or of a GPU's clock, are answered for them."""
    parallel: Any = importlib.import_module("torch.nn.parallel.distributed")
    parallel._verify_param_shape_across_processes = parallel._sync_module_states = lambda *_, **__: None
    replicated = parallel.DistributedDataParallel(model, device_ids=[0], output_device=0)
    replicated.register_comm_hook(
        None, lambda _, bucket: _all_reduced(bucket)
    )  # a fake process group's future has no result
    replicated.reducer = _Reducer(replicated.reducer)
    replicated.logger = SimpleNamespace(set_runtime_stats_and_log=lambda: None)
    meter.label(torch.distributed.group.WORLD, "gradient")
    shims[BUCKETS] = WHY_BUCKETS
    return replicated


class _Reducer:
    """A reducer of DistributedDataParallel whose buckets stay in the order of the first step."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _all_reduced(bucket: Any) -> Any:
    torch.distributed.all_reduce(bucket.buffer())
    done: Any = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _step(model: Any, reference: Any, optimizer: Any, question: dict[str, Any], meter: Meter) -> None:
    mixed = question["sharding"] == "none" and question["precision"] != "fp32"  # FSDP2 casts what passes take itself
    size, count = int(question["micro_batch"]) * int(question["sequences"]), int(question["micro_batches"])

    def tokens() -> torch.Tensor:
        return torch.zeros(size, int(question["seq_len"]), dtype=torch.int64, device="cuda")

    for number in range(count):
        meter.phase = "forward"
        _sync(model, question, last=number == count - 1)
        with torch.autocast("cuda", DTYPES[question["precision"]], enabled=mixed):
            loss = (
                loss_of(question["preference"], model, reference, tokens)
                if question["tiled"]
                else _plain(model, tokens, question["preference"])
            )
        (loss / count).backward()
        del loss
    meter.phase = "update"
    meter.mark(GRADIENTS, (parameter.grad for parameter in model.parameters()))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _sync(model: Any, question: dict[str, Any], *, last: bool) -> None:
    """Have gradients be summed over ranks after this micro-batch, or not: `no_sync` of accelerate/accelerator.py."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.require_backward_grad_sync = last
    elif question["whole_until_last"]:
        model.set_requires_gradient_sync(last)


def _plain(model: Any, tokens: Callable[[], torch.Tensor], preference: str | None) -> torch.Tensor:
    if preference:
        return whole_loss_of(preference, model, tokens)
    batch = tokens()
    loss: torch.Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
    return loss


def bits_and_bytes() -> Any:
    """Return the library, imported as where there is no GPU, for which its kernels cannot be loaded."""
    require("bitsandbytes", "pip install bitsandbytes")
    cuda: Any = torch.cuda
    release: Any = torch.version
    before = cuda.is_available, release.cuda
    cuda.is_available, release.cuda = (lambda: False), None
    try:
        with _disable_current_modes():
            return importlib.import_module("bitsandbytes")
    finally:
        cuda.is_available, release.cuda = before


def quantise(model: Any, fields: dict[str, Any], meter: Meter) -> dict[str, str]:
    """Have the linear layers of a model of transformers be those that `BitsAndBytesConfig` of these fields loads, and
    return what stands in for a kernel."""
    library, config = bits_and_bytes(), importlib.import_module("transformers").BitsAndBytesConfig(**fields)
    library.nn.Params4bit.__new__ = _parameter
    before = {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    importlib.import_module("transformers.integrations.bitsandbytes").replace_with_bnb_linear(
        model, modules_to_not_convert=["lm_head"], quantization_config=config
    )
    kind = {"compress_statistics": config.bnb_4bit_use_double_quant, "quant_type": config.bnb_4bit_quant_type}
    for name, linear in before.items():
        module = model.get_submodule(name)
        if isinstance(module, library.nn.Linear4bit):
            packed, state = library.functional.quantize_4bit(
                linear.weight.detach(), quant_storage=config.bnb_4bit_quant_storage, **kind
            )
            meter.mark(PARAMETERS, [state.absmax, *([state.state2.absmax] if state.nested else [])])
            module.quant_state, module.weight = state, library.nn.Params4bit(packed, quant_state=state, **kind)
            module.bias = linear.bias
    model.requires_grad_(False)
    model.is_loaded_in_4bit = True
    operators: Any = torch.ops.bitsandbytes
    operators.gemm_4bit.default = _product(operators, meter)
    return {PRODUCT: WHY_PRODUCT}


def _parameter(kind: Any, data: torch.Tensor | None = None, requires_grad: bool = False, **attributes: Any) -> Any:
    """Return a fake tensor, which can be of no other class, as a parameter with the attributes of bitsandbytes'."""
    made: Any = (torch.empty(0) if data is None else data).detach()
    made._is_param = True
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _product(operators: Any, meter: Meter) -> Callable[..., torch.Tensor]:
    def product(
        x: torch.Tensor,
        packed: torch.Tensor,
        shape: Sequence[int],
        absmax: torch.Tensor,
        blocksize: int,
        kind: str,
        bias: torch.Tensor | None = None,
        absmax_8bit: torch.Tensor | None = None,
        absmax_code: torch.Tensor | None = None,
        absmax_offset: torch.Tensor | None = None,
    ) -> torch.Tensor:
        with meter.shimmed(PRODUCT):
            if absmax_8bit is not None and absmax_offset is not None:
                absmax = operators.dequantize_blockwise(absmax_8bit, absmax, absmax_code, SCALES, torch.float32)
                absmax = absmax + absmax_offset
            whole = operators.dequantize_4bit(packed, absmax, blocksize, kind, shape, x.dtype)
        return torch.nn.functional.linear(x, whole, bias)

    return product
