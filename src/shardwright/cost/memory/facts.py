"""What frameworks keep in memory beyond the formulas, and how far a predicted peak may be off: is it likely to fit?

The formulas of `cost.memory` count what a fused implementation with fp32 gradient accumulation (Megatron-LM) must keep.
Where a figure is not a documented fact it is fitted to published peaks by `tools.refit.memory`.

log(measured / predicted) has median 0 and is normal on either side, with the standard deviations `above` and `below` of
the framework (`MemoryFacts`), so that `headroom` and `fit_probability` are inverses of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from statistics import NormalDist

from shardwright.records import record
from shardwright.spec.catalog.frameworks import figures, framework_rows
from shardwright.spec.job import Framework, Job

SUB_GROUP = 1e9  # documented: weights that DeepSpeed 0.19.8 updates at a time under ZeRO-3 (runtime/zero/config.py)


@record
class MemoryFacts:
    """Figures of one framework.

    `shard_weight`: bytes of the 16-bit weight that a rank keeps of its own shard under ZeRO-3 (FSDP casts its fp32
    shard anew). `fp8_weight`: bytes of fp8 copies of a weight held beside it in fp8 training. `gradient`: bytes of
    gradients a parameter (nanotron: bf16 beside fp32). `logit`: bytes a logit on the last stage. `unmerged`: bytes of
    the gradient of a weight of a layer and of its copy in the type of its buffer, before it is added there.
    `chunk_elements`: logits that are in fp32 at a time, and twice the elements of the gradient of the output projection
    or the embedding that are made at a time; 0 where they are not made so. `chunks`: how many parts a chunked loss
    makes of the tokens, each with all that a whole loss has, and the gradient of the output projection in 16 bits,
    which is added to one in fp32; 0 where it is made otherwise. `by_unit`: whether under ZeRO-2 and 3 the head and the
    embedding are whole alone, as each layer is. `head_alone`: whether under these no layer's weights and gradients are
    whole while the logits are there. `tied_once`: whether the ranks of both ends of a pipeline share out the state of a
    tied embedding, which each end else has for itself. `stage_buffers`: whether a stage of a pipeline receives the
    inputs and the gradients of every micro-batch of a step in memory of their own, and keeps what it gives until the
    backward pass (torch/distributed/pipelining/stage.py 2.13: `_setup_forward_recv_info`, `_create_grad_recv_info`,
    `fwd_cache`). `freed`: whether gradients end with the update, so that under ZeRO-2 and 3 a step of one micro-batch
    has them in place of activations, and weights of two layers are gathered in place of the head's. `buckets`: whether
    copies sum whole gradients in buffers of their type beside them, which stay (DistributedDataParallel with
    `gradient_as_bucket_view=False`, the default of PyTorch 2.13 and Accelerate 1.15). `flattens`: whether gradients
    in 16 bits go to one tensor for the update, and from that to fp32: of all that a rank updates,
    or under ZeRO-3 of `SUB_GROUP` weights at a time (DeepSpeed 0.19.8: runtime/zero/stage_1_and_2.py 3113-3131,
    stage3.py: `_prepare_fp32_grad_for_sub_group`). `gradients_follow`:
    whether under ZeRO-2 and 3 gradients go to host memory with the state that is there, in every micro-batch
    (DeepSpeed, FSDP2); `weights_follow`: whether under ZeRO-3 weights do, too, and come back for every pass (FSDP2's
    `CPUOffloadPolicy`). `host_beside`: bytes in host memory beside the state there: the gradient that its update reads,
    and under DeepSpeed 16-bit gradients that micro-batches are added to (weights under ZeRO-1). `megatron_core`:
    whether it is Megatron-Core 0.19 in layers of Transformer Engine 2.8: gradients of weights are added to their
    buffers inside products, and autograd is given a tensor in 16 bits for each shape of a weight, which stays
    (transformer_engine/pytorch/module/base.py: `get_dummy_wgrad`); a non-linearity runs backward in one kernel; tokens
    go to experts by its dispatchers, and what the output projection gathers has a buffer that stays. `keys_gathered`:
    whether context-parallel ranks keep the keys and values of all (torchtitan's FlexAttention, torch/distributed/
    tensor/experimental/_context_parallel/_attention.py 2.13: `flex_cp_allgather`).
    `inputs_whole`: whether a product whose input tensor-parallel ranks gather keeps it whole for its weights' gradients
    (torchtitan: neither DTensor nor PyTorch's partitioner gathers again, torch/_functorch/partitioners.py 2.13:
    `force_save_collectives`), where others keep each rank's part and gather anew.
    `expert_output`: whether what experts give is kept, as it is weighed after them. `reference`: how a frozen
    second model stands beside the one that is trained, in losses over preferences: as one `unit`, loaded as the other
    is, with its shards gathered all at once (FSDP2 by TRL 1.16: `prepare_fsdp` of trl/models/utils.py gives
    `fully_shard` no layers), or by `layers` in the type of the passes, whole unless ZeRO-3 shards it
    (`prepare_deepspeed`); empty where no trainer has such losses. `hidden_copies`,
    `inner_copies`: bytes that unfused operators keep beyond the formulas, for each element of a layer's hidden state
    and of its feed-forward block. `gathered`: bytes for each element of the hidden state, gathered over the
    tensor-parallel ranks, that the allocator cannot reuse yet since the host runs ahead of the device;
    `gathered_staged` the same in a pipeline, where the host waits for neighbours. `fragmentation`: what the caching
    allocator reserves beyond the tensors, as a part of these. `above`, `below`: standard deviations of log(measured /
    predicted) on either side of the prediction.
    """

    shard_weight: float
    fp8_weight: float
    gradient: float
    logit: float
    unmerged: float
    chunk_elements: float
    chunks: float
    by_unit: bool
    head_alone: bool
    tied_once: bool
    stage_buffers: bool
    freed: bool
    buckets: bool
    flattens: bool
    gradients_follow: bool
    weights_follow: bool
    host_beside: float
    megatron_core: bool
    keys_gathered: bool
    inputs_whole: bool
    expert_output: bool
    reference: str
    hidden_copies: float
    inner_copies: float
    gathered: float
    gathered_staged: float
    fragmentation: float
    above: float
    below: float


@lru_cache
def shipped_facts() -> Mapping[Framework, MemoryFacts]:
    """Return the figures that ship with the package."""
    return {name: figures(MemoryFacts, row) for name, row in framework_rows().items()}


_TRIAL: ContextVar[Mapping[Framework, MemoryFacts] | None] = ContextVar("trial", default=None)


@contextmanager
def trial(facts: Mapping[Framework, MemoryFacts]) -> Iterator[None]:
    """Use other figures in this context, as a fit does."""
    token = _TRIAL.set(facts)
    try:
        yield
    finally:
        _TRIAL.reset(token)


def memory_facts(framework: Framework) -> MemoryFacts:
    """Return the figures of a framework."""
    return (_TRIAL.get() or shipped_facts())[framework]


def headroom(probability: float, job: Job) -> float:
    """Return the part of the memory that a predicted peak may fill for it to fit with `probability`."""
    return math.exp(-_sigma(probability >= 0.5, job) * NormalDist().inv_cdf(probability))


def fit_probability(peak_bytes: float, capacity_bytes: float, job: Job) -> float:
    """Return the probability that a predicted peak stays within the capacity."""
    if peak_bytes <= 0.0:
        return 1.0
    room = math.log(capacity_bytes / peak_bytes)
    return NormalDist().cdf(room / _sigma(room >= 0.0, job))


def _sigma(above: bool, job: Job) -> float:
    facts = memory_facts(job.framework)
    return facts.above if above else facts.below
