"""What stages of a mixed plan have in common: tensor parallelism of each GPU type, context and expert parallelism,
micro-batch, switches of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np

from shardwright.cost.context import Context
from shardwright.cost.strategies import UNSHARDED, ZERO1, Row, Strategies, settled, strategies
from shardwright.plans.abilities import flash_attention_runs, tensor_parallel_overlaps
from shardwright.plans.cuts import Cut, cuts_fit, sequences_split
from shardwright.plans.findings import NotCovered, OtherContexts, Uncovered, UnequalReplicas
from shardwright.records import record
from shardwright.search.space.axes import (
    OFFLOADS,
    Space,
    context_parallel_degrees,
    expert_degrees,
    tensor_parallel_degrees,
    tiles_machines,
)
from shardwright.spec.model import Model

MICRO_BATCHES = (1, 2, 4, 8)
FEWEST_TOKENS = 8192  # of a sequence on a rank of context parallelism; chosen: shorter parts fit by other means
OF_MIXED_PLANS = (NotCovered.SHARED_MICRO_BATCH, NotCovered.SPREAD_STAGES)
AXES = frozenset({"sharding", "offload", "overlap_grad", "overlap_param"})


@record
class Setting:
    """One choice of what all stages have in common, and of the tensor-parallel degree of each GPU type, `tp`. Sequence
    parallelism holds for stages of more than one rank. A type that cannot fuse attention (`flash`), or run
    tensor-parallel communication beside products (`overlap_tp`), is idle where the others do. Experts are `cut` by
    tensor parallelism, as the rest of a layer is, or whole (expert-tensor degree 1)."""

    tp: tuple[int, ...]
    micro_batch: int
    sequence_parallel: bool
    flash: bool
    sharing: Sharing
    overlap_tp: bool = False
    cp: int = 1
    ep: int = 1
    cut: bool = True

    @property
    def symmetric(self) -> bool:
        return len(set(self.tp)) == 1

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of a stage of one replica, its unit, on each type."""
        return tuple(tp * self.cp for tp in self.tp)

    @property
    def spread(self) -> bool:
        """Whether context or experts are spread over ranks by degrees of their own, which a mesh of ranks alone has."""
        return self.cp > 1 or self.ep > 1 or not self.cut

    def etp(self, place: int, *, experts: bool) -> int:
        """Return the ranks that have parts of the same expert, on the type at `place`; `experts` says whether the model
        has some."""
        return self.tp[place] if experts and self.cut else 1

    def columns(self, *, experts: bool) -> Row:
        """Return what a setting of one type alone says of a strategy; `experts` says whether the model has some."""
        (tp,) = self.tp
        return {
            "tp": tp,
            "cp": self.cp,
            "ep": self.ep,
            "etp": self.etp(0, experts=experts),
            "micro_batch": self.micro_batch,
            "sequence_parallel": self.sequence_parallel,
            "flash": self.flash,
            "overlap_tp": self.overlap_tp,
            **asdict(self.sharing),
        }

    def on(self, place: int) -> Setting:
        """Return the setting of the type at `place` alone."""
        split = self.tp[place] > 1
        return replace(self, tp=(self.tp[place],), sequence_parallel=self.sequence_parallel and split)


def not_covered(contexts: Sequence[Context], space: Space) -> tuple[Uncovered, ...]:
    """Return what no mixed plan of the space has; on one type, what none of unequal replicas has."""
    if len(contexts) == 1:
        return (UnequalReplicas((*_of_train(space), NotCovered.UNEQUAL_DEGREES_OF_A_TYPE)),)
    degrees = NotCovered.UNEQUAL_DEGREES_OF_A_TYPE if space.tp_per_type else NotCovered.UNEQUAL_DEGREES
    sites = len({context.pool.site for context in contexts})
    depths = (NotCovered.UNEQUAL_DEPTHS_OVER_SITES,) if sites > 1 else ()
    return (*_of_train(space), *OF_MIXED_PLANS, degrees, *depths)


def _of_train(space: Space) -> tuple[NotCovered, ...]:
    """Return what stages of unequal replicas, which `shardwright train` runs, have in no setting of the space."""
    first, *rest = in_no_setting(space)
    apart = (NotCovered.ZERO_BUBBLE,) if space.allowed("zero_bubble", (1,)) else ()
    return first, *apart, NotCovered.CONTEXT_OR_EXPERTS, *rest


def of_a_mesh(contexts: Sequence[Context], space: Space) -> tuple[Uncovered, ...]:
    """Return what stages of a mesh have in no setting of the space."""
    first, *rest = in_no_setting(space)
    pinned = [
        (context.pool, tp * cp)
        for context in contexts
        for tp in unit_degrees(context)
        for cp in space.pins.get("cp", ())
    ]
    others = () if pinned and all(tiles_machines(*unit) for unit in pinned) else (OtherContexts(FEWEST_TOKENS),)
    return first, *others, *rest


def in_no_setting(space: Space) -> tuple[NotCovered, ...]:
    """Return what stages have in no setting of the space."""
    unless_pinned = {
        "micro_batch": NotCovered.OTHER_MICRO_BATCHES,
        "recompute": NotCovered.GROUPED_RECOMPUTATION,
    }
    rest = (kind for axis, kind in unless_pinned.items() if axis not in space.pins)
    return NotCovered.VIRTUAL_STAGES, NotCovered.SHARDED_GRADIENTS, NotCovered.EMPTY_STAGES, *rest


def settings(contexts: Sequence[Context], space: Space, ruled: frozenset[str] = frozenset()) -> list[Setting]:
    """Return every setting that at least one pool can run, in a fixed order: those with one degree for all types, then,
    if the space has them, those that types of unequal degrees can run. `ruled` are the axes of which rules speak."""
    if not all(space.pins.values()):  # rules leave nothing of an axis
        return []
    degrees = [*_equal_degrees(contexts, space), *_unequal_degrees(contexts, space)]
    flash = _allowed("flash", list(map(_fuses, contexts)), space, ruled)
    candidates = [
        Setting(
            tp=tp,
            micro_batch=size,
            sequence_parallel=sequence,
            flash=fused,
            sharing=sharing,
            overlap_tp=beside,
            cp=cp,
            ep=ep,
            cut=cut,
        )
        for tp in degrees
        for cp in _contexts_parallel(contexts, space, tp)
        for ep, cut in _experts_parallel(contexts, space, tp)
        for size in _micro_batches(contexts, space)
        for sequence in _sequence(contexts[0], space, tp, cp)
        for beside in _allowed("overlap_tp", [sequence and _hides(context) for context in contexts], space, ruled)
        for fused in flash
        if fused or cp == 1
        for sharing in sharings(space, ruled)
    ]
    return [setting for setting in candidates if _is_run(contexts, setting)]


def _contexts_parallel(contexts: Sequence[Context], space: Space, tp: tuple[int, ...]) -> list[int]:
    """Return the degrees of context parallelism for types of degrees `tp`: unless pinned, those that leave a rank many
    tokens of a sequence. They are degrees of meshes, in which all types have the same."""
    able = {cp for context in contexts for cp in context_parallel_degrees(context)} if len(set(tp)) == 1 else {1}
    longest = contexts[0].job.seq_len // FEWEST_TOKENS
    return [int(cp) for cp in space.pins.get("cp", [1, *range(2, longest + 1)]) if cp in able]


def _experts_parallel(contexts: Sequence[Context], space: Space, tp: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """Yield degrees of expert parallelism for types of degrees `tp`, and whether experts are cut as the rest of a layer
    is. Those of meshes are spread over the GPUs of a stage, so over no more than each of two types has; `flex` sends
    tokens to experts that are split, by either degree."""
    flex = contexts[0].job.options.dispatcher == "flex"
    moes = [kind.moe for kind in contexts[0].model.kinds if kind.moe is not None]
    gpus = sorted(context.pool.gpus for context in contexts)[-2:][0]
    meshes = bool(moes) and len(set(tp)) == 1
    degrees = sorted({ep for context in contexts for ep in expert_degrees(context)}) if meshes else [1]
    for cut in (True, False) if meshes and max(tp) > 1 else (True,):
        etps = set(tp) if moes and cut else {1}
        legal = all(moe.expert_width % etp == 0 for moe in moes for etp in etps)
        if legal and etps <= set(space.pins.get("etp", etps)):
            able = (int(ep) for ep in space.allowed("ep", degrees) if ep * max(etps) <= gpus)
            yield from ((ep, cut) for ep in able if not flex or ep * min(etps) > 1)


def _is_run(contexts: Sequence[Context], setting: Setting) -> bool:
    """Return whether some type can run a setting, and where it has several degrees, types of two of them."""
    able = {of_type.tp for place, context in enumerate(contexts) if units(context, of_type := setting.on(place))}
    return len(able) >= (1 if setting.symmetric else 2)


def _equal_degrees(contexts: Sequence[Context], space: Space) -> list[tuple[int, ...]]:
    degrees = sorted({tp for context in contexts for tp in unit_degrees(context)})
    return [(int(tp),) * len(contexts) for tp in space.allowed("tp", degrees)]


def _unequal_degrees(contexts: Sequence[Context], space: Space) -> list[tuple[int, ...]]:
    """Return all combinations of degrees that the types can run, but for equal ones. A type that can run none of those
    allowed has no units, whatever its degree: it is given the least."""
    equal = [tp[0] for tp in _equal_degrees(contexts, space)]
    if not space.tp_per_type or not equal:
        return []
    degrees = [[tp for tp in equal if tp in unit_degrees(context)] or equal[:1] for context in contexts]
    return [tp for tp in product(*degrees) if len(set(tp)) > 1]


def _sequence(context: Context, space: Space, tp: tuple[int, ...], cp: int) -> Iterator[bool]:
    """Yield what sequence parallelism may be for types of degrees `tp`, whose ranks have a part of a sequence each."""
    experts = any(kind.moe is not None for kind in context.model.kinds)
    split = max(tp) > 1
    for sequence in (True, False):
        divides = all(context.job.seq_len // cp % degree == 0 for degree in tp)
        legal = split and divides if sequence else not (experts and split)
        if legal and sequence in space.allowed("sequence_parallel", (0, 1)):
            yield sequence


def _allowed(switch: str, able: Sequence[bool], space: Space, ruled: frozenset[str]) -> list[bool]:
    """Return what a switch may be for types of which some are `able` to have it on, on first: where all are it is no
    slower, and off is for rules that speak of it."""
    values = [bool(value) for value in space.allowed(switch, (1, 0) if any(able) else (0,))]
    return values if switch in ruled or not all(able) else values[:1]


def _fuses(context: Context) -> bool:
    return flash_attention_runs(context.pool.gpu, context.job)


def _hides(context: Context) -> bool:
    """Return whether tensor-parallel communication can run beside products."""
    measured = 1 in context.source.only.get("overlap_tp", (0, 1))
    return measured and tensor_parallel_overlaps(context.pool, context.job)


def _micro_batches(contexts: Sequence[Context], space: Space) -> list[int]:
    usual = {size for context in contexts for size in context.source.only.get("micro_batch", ())}
    sizes = [int(size) for size in space.pins.get("micro_batch", sorted(usual) or MICRO_BATCHES)]
    return [size for size in sizes if contexts[0].job.global_batch % size == 0]


def unit_degrees(context: Context) -> list[int]:
    """Return the tensor-parallel degrees of which units tile a machine of the pool."""
    return [tp for tp in tensor_parallel_degrees(context) if context.pool.gpus_per_node % tp == 0]


def units(context: Context, setting: Setting) -> int:
    """Return how many units the pool's GPUs form in a setting of its type alone; 0 where the degrees or a switch do not
    suit it."""
    able = (_fuses(context) or not setting.flash) and (_hides(context) or not setting.overlap_tp)
    able = able and _fits(context, setting)
    if not able or setting.tp[0] not in unit_degrees(context) or not timed(context, setting):
        return 0
    (unit,) = setting.gpus
    return context.pool.gpus // unit if tiles_machines(context.pool, unit) else 0


def _fits(context: Context, setting: Setting) -> bool:
    """Return whether a setting of one type cuts matrices and sequences into parts that the framework takes."""
    experts = any(kind.moe is not None for kind in context.model.kinds)
    tp, cp = setting.tp[0], setting.cp
    cut = Cut(tp, cp, setting.etp(0, experts=experts), setting.micro_batch)
    return bool(sequences_split(context.model, tp, cp) and cuts_fit(context.model, context.job, cut))


def timed(context: Context, setting: Setting) -> bool:
    """Return whether there are times of the setting: always, unless only some layers were measured."""
    experts = any(kind.moe is not None for kind in context.model.kinds)  # these need sequence parallelism
    source = context.source
    choices = source.only.get("sequence_parallel", (0, 1))
    degrees = (np.array([degree]) for degree in (setting.tp[0], setting.cp, setting.ep, setting.micro_batch))
    known = source.knows(context.pool.gpu, *degrees)
    return bool(known[0]) and (setting.tp[0] == 1 or experts or setting.sequence_parallel in choices)


def rows_of(owns: Sequence[Setting], model: Model, *, stages: int, copies: int) -> Strategies:
    """Return settings of one type alone as rows of the cost model, for pipelines of `stages` stages in `copies`
    copies."""
    experts = any(kind.moe is not None for kind in model.kinds)
    alike = {"pp": stages, "dp": copies, "first_layers": 1, "last_layers": 1}
    return strategies([settled({**alike, **setting.columns(experts=experts)}) for setting in owns])


@record
class Sharing:
    """Values of the axes of these names, as replicas have them that are several (`of`)."""

    sharding: int = ZERO1
    offload: float = 0.0
    overlap_grad: bool = True
    overlap_param: bool = True

    @property
    def overlaps(self) -> tuple[bool, bool]:
        """Whether the reduction of gradients and the gathering of weights run beside passes."""
        return self.overlap_grad, self.overlap_param

    def of(self, copies: int) -> Sharing:
        """Return what so many replicas have of it: a single one has none to share with, and shards only to keep a part
        of its state in host memory."""
        if copies > 1:
            return self
        alone = ZERO1 if self.offload else UNSHARDED
        return Sharing(sharding=alone, offload=self.offload, overlap_grad=False, overlap_param=False)

    def within(self, space: Space, copies: int) -> bool:
        """Return whether so many replicas keep the pins."""
        sharing = self.of(copies)
        return all(getattr(sharing, axis) in space.pins.get(axis, (getattr(sharing, axis),)) for axis in AXES)


USUAL = Sharing()  # the fastest that fits in least memory, but for state in host memory


def sharings(space: Space, ruled: frozenset[str]) -> list[Sharing]:
    """Return the ways to share that the pins leave and that may be best: of those that differ in overlap alone, the one
    with most, unless rules speak of it (`ruled` are the axes of which they do)."""
    spoken = AXES & (ruled | set(space.pins))
    if not spoken:
        return [USUAL]
    legal = [sharing for sharing in _legal(space, spoken) if sharing.within(space, 2)]
    if ruled & {"overlap_grad", "overlap_param"}:
        return legal
    most = {
        (sharing.sharding, sharing.offload): sharing
        for sharing in sorted(legal, key=lambda sharing: sum(sharing.overlaps))
    }
    best = [sharing for sharing in most.values() if all(sharing.overlaps)]
    return best if best and "sharding" not in spoken else list(most.values())


def _legal(space: Space, spoken: frozenset[str]) -> Iterator[Sharing]:
    offloads = space.pins.get("offload", OFFLOADS if "offload" in spoken else (0.0,))
    for sharding in (ZERO1, UNSHARDED):
        for offload in (float(value) for value in offloads if sharding == ZERO1 or not value):
            for grad, param in ((False, False), (True, False), (True, True)):
                if sharding == ZERO1 or not param:
                    yield Sharing(sharding=sharding, offload=offload, overlap_grad=grad, overlap_param=param)
