"""What all stages of a mixed plan have in common: tensor parallelism, micro-batch and the switches of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.cost.context import Context
from shardwright.cost.strategy import PIPELINE_OUTERMOST, UNSHARDED, ZERO1, Strategies, strategies
from shardwright.search.space import AXES, Space, tensor_parallel_degrees
from shardwright.spec.model import Model

MICRO_BATCHES = (1, 2, 4, 8)
SEARCHED = (
    "tp",
    "micro_batch",
    "sequence_parallel",
    "overlap_tp",
    "pp",
    "dp",
    "recompute",
    "sharding",
)
# What a mixed plan always has; a pin to anything else leaves it nothing to search.
FIXED = {"cp": 1, "ep": 1, "vpp": 1, "flash": 1, "overlap_pp": 0, "offload": 0.0}
NOT_COVERED = (
    "virtual pipeline stages",
    "context and expert parallelism",
    "ZeRO-2, ZeRO-3 and optimizer offload",
    "different tensor-parallel degrees in one plan",
    "different GPU types side by side in one stage",
    "stages of one type that are not neighbours",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One choice of what all stages share."""

    tp: int
    micro_batch: int
    sequence_parallel: bool
    overlap_tp: bool


def pinned_away(space: Space) -> str:
    """Return which pins leave no plan that mixes GPU types, in words; nothing if there may be some."""
    return " and ".join(f"{axis}={_words(axis, values)}" for axis, values in space.pins.items() if _away(axis, values))


def _away(axis: str, values: Sequence[float]) -> bool:
    if axis == "sharding":
        return ZERO1 not in values
    return axis not in SEARCHED and FIXED.get(axis) not in values


def _words(axis: str, values: Sequence[float]) -> str:
    names = {code: name for name, code in AXES[axis].items()}
    return ",".join(names.get(int(value), f"{value:g}") for value in values)


def settings(contexts: Sequence[Context], space: Space) -> list[Setting]:
    """Return every setting that at least one pool can run, in a fixed order."""
    job = contexts[0].job
    degrees = sorted({tp for context in contexts for tp in unit_degrees(context)})
    experts = any(kind.moe is not None for kind in contexts[0].model.kinds)
    found = []
    for tp in space.allowed("tp", degrees):
        for size in _micro_batches(contexts, space):
            for sequence, overlap in ((1, 1), (1, 0), (0, 0)):
                legal = tp > 1 and job.seq_len % int(tp) == 0 if sequence else not (experts and tp > 1)
                wanted = sequence in space.allowed("sequence_parallel", (0, 1)) and overlap in space.allowed(
                    "overlap_tp", (0, 1)
                )
                # Overlap is never slower where it is legal, so the setting without is searched only if it is pinned.
                dominated = sequence and not overlap and 1 in space.allowed("overlap_tp", (0, 1))
                if legal and wanted and not dominated:
                    found.append(
                        Setting(
                            tp=int(tp),
                            micro_batch=int(size),
                            sequence_parallel=bool(sequence),
                            overlap_tp=bool(overlap),
                        )
                    )
    return found


def _micro_batches(contexts: Sequence[Context], space: Space) -> list[int]:
    usual = {size for context in contexts if context.measured for size in context.measured.micro_batches}
    sizes = [int(size) for size in space.pins.get("micro_batch", sorted(usual) or MICRO_BATCHES)]
    return [size for size in sizes if contexts[0].job.global_batch % size == 0]


def unit_degrees(context: Context) -> list[int]:
    """Return the tensor-parallel degrees of which units tile a machine of the pool."""
    return [tp for tp in tensor_parallel_degrees(context) if context.pool.gpus_per_node % tp == 0]


def units(context: Context, setting: Setting) -> int:
    """Return how many tensor-parallel groups the pool's GPUs form; 0 where the degree does not suit it."""
    if setting.tp not in unit_degrees(context) or not _measured(context, setting):
        return 0
    return context.pool.gpus // setting.tp


def _measured(context: Context, setting: Setting) -> bool:
    """Return whether there are times of the setting: always, unless only some layers were measured."""
    if context.measured is None:
        return True
    experts = any(kind.moe is not None for kind in context.model.kinds)  # these need sequence parallelism
    sequence = setting.tp == 1 or experts or setting.sequence_parallel in context.measured.sequence_parallel
    return sequence and bool(context.measured.has(context.pool.gpu, setting.tp, setting.micro_batch)[0])


def rows_of(settings: Sequence[Setting], model: Model, *, stages: int, copies: int) -> Strategies:
    """Return the settings as rows of the cost model, for pipelines of `stages` stages in `copies` copies."""
    experts = any(kind.moe is not None for kind in model.kinds)
    return strategies(
        [
            {
                "tp": each.tp, "cp": 1, "pp": stages, "dp": copies, "ep": 1, "etp": each.tp if experts else 1, "vpp": 1,
                "micro_batch": each.micro_batch, "rank_order": PIPELINE_OUTERMOST,
                "sequence_parallel": each.sequence_parallel, "flash": True, "overlap_tp": each.overlap_tp,
                "overlap_pp": False, "first_layers": 1, "last_layers": 1, "recompute": 0, "recompute_layers": 0,
                "sharding": ZERO1 if copies > 1 else UNSHARDED, "offload": 0.0, "overlap_grad": copies > 1,
                "overlap_param": copies > 1,
            }
            for each in settings
        ]
    )  # fmt: skip
