"""What an optimizer keeps of a parameter and moves to update it, in bytes.

Mixed precision with Adam keeps a master weight and two moments in fp32: 12 bytes, and for the time of an update 4 more
where gradients are reduced in 16 bits, as each rank then makes fp32 gradients of its shard (Megatron-LM core_v0.19,
optimizer/distrib_optimizer.py: `_copy_model_grads_to_main_grads`, `zero_grad`). The
precision-aware optimizer has a type for each, reads gradients as they are, and of an fp32 master weight keeps the 16
bits that the bf16 weight lacks (optimizer_config.py 192, distrib_optimizer.py 1007 and 2774 of core_v0.19.2).
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.adapter import held_matrices
from shardwright.spec.job import PROJECTED, Job
from shardwright.spec.model import Model
from shardwright.spec.options import WIDTH

COPY_BYTES = 4.0  # an fp32 copy of a gradient; documented


@record
class OptimizerWidths:
    """Bytes a trained parameter of one optimizer, a row of `data/optimizers.csv`.

    `state` has the fp32 master weight and the moments, `stored` the same in a checkpoint, `update` what an update
    moves: read gradient (twice, for the norm), master weight, moments; write these and the 16-bit weight. `copy` is
    what is there in an update alone. `state_16`, `update_16` and `copy_16` are those beside 16-bit weights without
    masters, `paged` and `paged_16` the part that is paged to the host.
    """

    state: float
    state_16: float
    stored: float
    update: float
    update_16: float
    copy: float
    copy_16: float
    paged: float
    paged_16: float


@cache
def optimizer_widths() -> dict[str, OptimizerWidths]:
    """Return the rows by the optimizer's name."""
    rows = shipped_table("shardwright.cost.frameworks", "optimizers.csv")
    names = [field.name for field in fields(OptimizerWidths)]
    return {row["optimizer"]: OptimizerWidths(**{name: float(row[name]) for name in names}) for row in rows}


def state_width(model: Model, job: Job) -> float:
    """Return the bytes of optimizer state of a trained parameter of a layer on the ranks that update it."""
    return _whole_state_width(job) + _projected_width(model, job) - paged_width(job)


def _projected_width(model: Model, job: Job) -> float:
    """Return the bytes of moments of projected gradients and of projections, for each parameter of layers.

    Of a matrix [m, n], m >= n, GaLore and APOLLO of rank r keep two moments [m, r] and a projection [r, n], all of the
    type of the gradient. What is no linear module has Adam's moments: norms, and experts in one tensor (galore_torch
    1.0, adamw.py and galore_projector.py; apollo_torch 1.0.3; transformers 5.23, trainer_optimizer.py).
    """
    rank = job.projection_rank
    if rank is None:
        return 0.0
    width, kept, projected = WIDTH["fp32"] if job.masters else WIDTH["bf16"], 0.0, 0.0
    for matrix, times in held_matrices(model):
        if matrix.target == "experts":
            continue
        larger, smaller = max(matrix.inputs, matrix.outputs), min(matrix.inputs, matrix.outputs)
        most = min(rank, smaller) if job.optimizer == "galore" else rank  # singular vectors, or random ones
        kept += times * matrix.copies * (2.0 * larger + smaller) * most
        projected += times * matrix.copies * larger * smaller
    inside = model.parameters - model.end_parameters - model.head_parameters
    return width * (kept + 2.0 * (inside - projected)) / max(inside, 1)


def _whole_state_width(job: Job) -> float:
    """Return the bytes of optimizer state with what is paged to the host, without what is projected."""
    widths = optimizer_widths()[job.optimizer]
    if not job.masters:
        return widths.state_16
    if job.options.precision_aware:
        kept = _master_width(job) + _moments_width(job)
    else:
        kept = widths.state
        if job.precision == "fp32" and job.optimizer != "none":  # the weight is its own master
            kept -= WIDTH["fp32"]
    return kept


def update_copy_width(job: Job) -> float:
    """Return the bytes of an updated parameter that are there in an update alone."""
    widths = optimizer_widths()[job.optimizer]
    return widths.copy + COPY_BYTES * _copies(job) if job.masters else widths.copy_16


def paged_width(job: Job) -> float:
    """Return the bytes of state of a trained parameter that a paged optimizer keeps in host memory. It pages what the
    GPU has no room for; all of it counts here, and travels both ways in every update."""
    widths = optimizer_widths()[job.optimizer]
    return widths.paged if job.masters else widths.paged_16


def stored_width(model: Model, job: Job) -> float:
    """Return the bytes of a trained parameter's state in a checkpoint, beside its weight in 16 bits."""
    widths = optimizer_widths()[job.optimizer]
    return (widths.stored if job.masters else widths.state_16) + _projected_width(model, job)


def ends_width(model: Model, job: Job) -> float:
    """Return the bytes of state that a parameter of embedding or output projection has beyond one of a layer: under
    Muon, GaLore and APOLLO these stay with Adam."""
    rows = optimizer_widths()
    if job.optimizer not in ("muon", *PROJECTED):
        return 0.0
    adam, other = rows["adam"], rows[job.optimizer]
    more = adam.state - other.state if job.masters else adam.state_16 - other.state_16
    return more - _projected_width(model, job)


def update_width(job: Job) -> float:
    """Return the bytes that the update of a parameter moves in the memory of its GPU."""
    widths = optimizer_widths()[job.optimizer]
    if not job.masters:
        return widths.update_16
    if not (job.options.precision_aware or job.options.bf16_gradients):
        return widths.update
    gradient = WIDTH["bf16" if job.options.bf16_gradients else "fp32"]
    gradients = gradient + 3.0 * COPY_BYTES if _copies(job) else 2.0 * gradient
    if not job.options.precision_aware:
        return widths.update - 2.0 * WIDTH["fp32"] + gradients
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
