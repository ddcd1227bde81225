"""What an optimizer keeps of a parameter and moves to update it, in bytes.

Mixed precision with Adam keeps a master weight and two moments in fp32: 12 bytes, 16 where gradients are reduced in 16
bits, as each rank then makes fp32 gradients of its shard (Megatron-LM core_v0.19, docs: distributed optimizer). The
precision-aware optimizer has a type for each, reads gradients as they are, and of an fp32 master weight keeps the 16
bits that the bf16 weight lacks (optimizer_config.py 192, distrib_optimizer.py 1007 and 2774 of core_v0.19.2).
"""

from __future__ import annotations

from shardwright.spec.job import Job
from shardwright.spec.options import WIDTH

# Master weight and moments in fp32; moments of 8 bits have a scale in fp32 for each 256 (arXiv 2110.02861). Documented.
STATE_BYTES = {"adam": 12.0, "adam8bit": 4.0 + 2.0 * (1.0 + 4.0 / 256.0), "muon": 8.0, "sgd": 8.0, "none": 0.0}
STORED_BYTES = STATE_BYTES | {"adam8bit": 12.0}  # the same in a checkpoint, where all moments are in fp32; documented
# What an update moves: read gradient (twice, for the norm), master weight, moments; write these and the bf16 weight.
# Muon writes and reads the bf16 step as well.
UPDATE_BYTES = {"adam": 34.0, "adam8bit": 22.06, "muon": 30.0, "sgd": 26.0, "none": 0.0}  # documented
COPY_BYTES = 4.0  # an fp32 copy of a gradient; documented


def state_width(job: Job) -> float:
    """Return the bytes of optimizer state of a trained parameter on the ranks that update it."""
    if job.options.precision_aware:
        kept = _master_width(job) + _moments_width(job)
    else:
        kept = STATE_BYTES[job.optimizer]
        if job.precision == "fp32" and job.optimizer != "none":  # the weight is its own master
            kept -= WIDTH["fp32"]
    return kept + (COPY_BYTES if _copies(job) else 0.0)


def ends_width(job: Job) -> float:
    """Return the bytes of state that a parameter of embedding or output projection has beyond one of a layer: under
    Muon these stay with Adam."""
    return STATE_BYTES["adam"] - STATE_BYTES["muon"] if job.optimizer == "muon" else 0.0


def update_width(job: Job) -> float:
    """Return the bytes that the update of a parameter moves in the memory of its GPU."""
    if not (job.options.precision_aware or job.options.bf16_gradients):
        return UPDATE_BYTES[job.optimizer]
    gradient = WIDTH["bf16" if job.options.bf16_gradients else "fp32"]
    gradients = gradient + 3.0 * COPY_BYTES if _copies(job) else 2.0 * gradient
    if not job.options.precision_aware:
        return UPDATE_BYTES[job.optimizer] - 2.0 * WIDTH["fp32"] + gradients
    weight = 2.0 * WIDTH[job.options.main_params or "fp32"]
    written = 0.0 if _remainder(job) else WIDTH["bf16"]  # of the remainder the other half is the weight itself
    return gradients + weight + written + 2.0 * _moments_width(job)


def _copies(job: Job) -> bool:
    """Whether gradients reduced in 16 bits are copied to fp32 for the update."""
    takes_any = job.options.precision_aware and (_delayed(job) or job.options.main_params == "fp16")
    return job.options.bf16_gradients and not takes_any


def _master_width(job: Job) -> float:
    return WIDTH["bf16"] if _remainder(job) else WIDTH[job.options.main_params or "fp32"]


def _moments_width(job: Job) -> float:
    return WIDTH[job.options.exp_avg or "fp32"] + WIDTH[job.options.exp_avg_sq or "fp32"]


def _remainder(job: Job) -> bool:
    return (job.options.main_params or "fp32") == "fp32" and _delayed(job)


def _delayed(job: Job) -> bool:
    """Whether the update is Transformer Engine's own: of 16-bit weights, or in fp8 with delayed scaling (optimizer_
    config.py 404)."""
    return job.precision != "fp8" or job.fp8_recipe in (None, "delayed")
