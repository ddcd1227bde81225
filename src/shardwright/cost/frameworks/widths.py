"""How many bytes an element of each kind of traffic and buffer has, from the job: `data/widths.csv`.

A row of the table names a traffic, a precision and a framework (`*` for any) and a flag: a switch of the job
(`fp8_storage`, `fp8_weights`, `adapters`) or an fp8 recipe, which must be on. The first row that applies counts.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache

from shardwright.files import shipped_table
from shardwright.records import record
from shardwright.spec.job import FP8_RECIPES, Job


@record
class Widths:
    """Bytes of an element.

    On links: `tensor_gather` inputs (and gradients of outputs) gathered over tensor-parallel ranks under sequence
    parallelism, `tensor_reduce` the partial sums that these add up, `context` keys and values on their ring,
    `dispatch` and `combine` tokens to experts and back, `pipeline` activations between stages, `weight_gather` weights
    that data-parallel ranks shard, `frozen_gather` those of layers that adapters stand beside, `gradient_reduction`
    gradients.
    In memory until the backward pass: `saved` activations, of these `saved_input` the inputs of products and
    `saved_inner` those of the non-linearities of feed-forward blocks; and `logit`, as the output projection has them.
    """

    tensor_gather: float
    tensor_reduce: float
    context: float
    dispatch: float
    combine: float
    pipeline: float
    weight_gather: float
    frozen_gather: float
    gradient_reduction: float
    saved: float
    saved_input: float
    saved_inner: float
    logit: float


@cache
def widths_of(job: Job) -> Widths:
    """Return the widths of a job."""
    return Widths(**{field.name: _width(field.name, job) for field in fields(Widths)})


def _width(traffic: str, job: Job) -> float:
    return next(float(row["bytes"]) for row in _rows() if row["traffic"] == traffic and _applies(row, job))


def _applies(row: dict[str, str], job: Job) -> bool:
    flag = row["flag"]
    on = job.fp8_recipe == flag if flag in FP8_RECIPES else not flag or bool(getattr(job, flag))
    return on and row["precision"] in ("*", job.precision) and row["framework"] in ("*", job.framework)


@cache
def _rows() -> tuple[dict[str, str], ...]:
    return shipped_table("shardwright.cost.frameworks", "widths.csv")
