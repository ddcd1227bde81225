"""A rank ready to train: its parameters, pipeline, synchronisation and optimizer, the step that joins them, and the
loss on a batch without training on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from shardwright.records import record
from shardwright.runtime.layout.groups import Layout, Place, expert_group
from shardwright.runtime.layout.process_groups import ProcessGroups
from shardwright.runtime.model.attention import documents_of
from shardwright.runtime.model.blocks import LayerForward, layer_forward
from shardwright.runtime.model.chunk import Chunk, Observer, forward, loss_of, table_of, unit_forward
from shardwright.runtime.model.context import ContextGroup, positions_of
from shardwright.runtime.model.details import Details
from shardwright.runtime.model.initial import Initial
from shardwright.runtime.model.parallel import ExpertGroup, TensorGroup
from shardwright.runtime.model.products import FP8, PLAIN, AdapterProducts, Later, putting_off
from shardwright.runtime.state.muon import Orthogonaliser, Steps, exchanges_of, make_orthogonaliser
from shardwright.runtime.state.optimizer import muon_steps, own_square, update, verdict_on
from shardwright.runtime.state.recipe import UNSCALED, LossScale, Recipe
from shardwright.runtime.state.slots import Slot, StepVerdict, make_slots
from shardwright.runtime.state.store import Store, fill, make_store
from shardwright.runtime.step.layered import run_layered
from shardwright.runtime.step.pipeline import (
    Batch,
    Event,
    RankPipeline,
    make_pipeline,
    moment,
    run_forward,
    run_step,
    seconds_between,
)
from shardwright.runtime.step.sync import GradientSync
from shardwright.runtime.step.unshard import Unsharding
from shardwright.spec.job import Precision

# Of weights and activations; in fp8 the products of layers are 8 bits, and what goes in and comes out is not.
DTYPES: Mapping[Precision, torch.dtype] = {
    "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16,
}  # fmt: skip


@dataclass(kw_only=True)
class Engine:
    """What one rank needs for a step. `loss_scale`, which also counts steps left out, changes from step to step;
    `steps` are Muon's of the step that is under way."""

    layout: Layout
    place: Place
    groups: ProcessGroups
    store: Store
    pipeline: RankPipeline
    sync: GradientSync
    unsharding: Unsharding
    slots: tuple[Slot, ...]
    orthogonaliser: Orthogonaliser | None
    steps: Steps
    recipe: Recipe
    sharded: bool
    loss_scale: LossScale


@record
class StepResult:
    """What a step gave: mean loss over the tokens of the global batch, gradient norm before clipping (where one of
    them is not finite, the step was left out), whether any rank was asked to stop, and the seconds of the passes, of
    waiting for gradient sums, and of the update."""

    loss: float
    gradient_norm: float
    stop: bool
    pass_seconds: float
    sync_seconds: float
    update_seconds: float


class Vote(NamedTuple):
    """What decides a step, summed over all ranks: the mean loss over the tokens of the global batch, the square of the
    norm of the scaled gradients, and how many ranks were asked to stop."""

    loss: float
    square: float
    stop: float


class StepPhases(Protocol):
    """What a run that outlives lost ranks does inside a step, which for it has two phases: the vote, and the update,
    which needs nobody else."""

    def voting(self) -> None:
        """Note that this rank has all gradient sums and is about to vote. Raises where it may not any more."""

    def commit(self, vote: Vote) -> float:
        """Update by the outcome of the vote, and return the gradients' norm. Raises where it may not any more."""


def make_engine(
    layout: Layout,
    rank: int,
    groups: ProcessGroups,
    *,
    details: Details,
    recipe: Recipe,
    initial: Initial | None,
    precision: Precision,
    device: torch.device,
    layer: LayerForward = layer_forward,
    end: int | None = None,
) -> Engine:
    """Return the engine of a rank with `initial` weights; None leaves them zero, for a checkpoint to set, which has no
    frozen ones. `layer` is
    `layer_forward`, or what `blocks.compiled` made of it. Attention stays within documents where their last token
    `end` is given; layers are not compiled then, their attention is."""
    plan, place, dtype = layout.plan, layout.places[rank], DTYPES[precision]
    store = make_store(layout, place, dtype, device)
    if initial is not None:
        fill(store, initial)
    stage = plan.replicas[place.replica].stages[place.stage]
    tensor, context = _tensor_group(layout, place, groups), _context_group(layout, place, groups)
    positions = positions_of(context.part, context.size, plan.job.seq_len).to(device)
    table = table_of(plan.model, details, positions, dtype, plan.job.seq_len)
    sharded = plan.optimizer.distributed
    sync = GradientSync(layout, place, store, groups, sharded=sharded, overlap=plan.overlap.grad_reduce)
    later: Later | None = [] if plan.schedule.weights_apart else None
    unsharding = Unsharding(layout, place, store, groups, sync, later)
    products = FP8 if precision == "fp8" else PLAIN if later is None else putting_off(later)
    if plan.job.adapter is not None:
        products = replace(products, adapters=AdapterProducts(scale=plan.job.adapter.scale, tensor=tensor))
    chunks = [
        Chunk(
            units=units, weights=store.parameters, model=plan.model, details=details, tensor=tensor,
            experts=_expert_group(layout, place, groups), context=context, recompute=stage.recompute,
            positions=positions, table=table, products=products,
            way=None if plan.layered else unsharding,
            layer=layer if end is None and later is None else layer_forward,
            end=end,
        )
        for units in place.chunks
    ]  # fmt: skip
    slots = make_slots(store, rank, recipe, sharded=sharded, offload=plan.optimizer.offload)
    orthogonaliser = None
    if recipe.method == "muon":
        orthogonaliser = make_orthogonaliser(exchanges_of(layout, place), groups, rank, slots, dtype, device)
    return Engine(
        layout=layout,
        place=place,
        groups=groups,
        store=store,
        pipeline=make_pipeline(layout, place, chunks, groups, dtype, device, later),
        sync=sync,
        unsharding=unsharding,
        slots=slots,
        orthogonaliser=orthogonaliser,
        steps=(),
        recipe=recipe,
        sharded=sharded,
        loss_scale=LossScale() if dtype == torch.float16 else UNSCALED,
    )


def _tensor_group(layout: Layout, place: Place, groups: ProcessGroups) -> TensorGroup:
    return TensorGroup(
        rank=place.tensor_rank,
        size=place.tensor_parallel,
        group=groups.find("tensor", layout.tensor_group(place)),
        sequence=layout.plan.sequence_parallel and place.tensor_parallel > 1,
    )


def _context_group(layout: Layout, place: Place, groups: ProcessGroups) -> ContextGroup:
    members = layout.context_group(place)
    return ContextGroup(
        part=place.context_rank,
        parts=tuple(layout.places[member].context_rank for member in members),
        group=groups.find("context", members),
    )


def _expert_group(layout: Layout, place: Place, groups: ProcessGroups) -> ExpertGroup:
    sharing = expert_group(layout.pipelines, place)
    return ExpertGroup(
        rank=sharing.index(place.rank),
        size=len(sharing),
        group=groups.find("experts", sharing),
        local=place.expert_tensor_parallel < place.tensor_parallel,
    )


def train_step(
    engine: Engine,
    batch: Batch,
    step: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    observe: Observer | None = None,
    record: Callable[[Event], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
    phases: StepPhases | None = None,
) -> StepResult:
    """Run one step, counted from 0, on all ranks together; with `phases` the outcome of its vote is known before
    anything is updated. Raises DistError where that vote was cut off."""
    device = engine.pipeline.device
    begin = moment(device)
    loss = run_passes(engine, batch, observe=observe, record=record, note=note)
    passed = moment(device)
    note("waiting for gradient sums")
    engine.sync.finish()
    if phases is None:
        sums = voted(engine, loss, asked_to_stop=stop())
        summed = moment(device)
        note("updating")
        prepare(engine, step, sums)
        decide(engine, step, sums)
    else:
        phases.voting()
        vote = take_vote(engine, step, loss, asked_to_stop=stop())
        summed = moment(device)
        norm = phases.commit(vote)
    note("waiting for updated weights")
    share_weights(engine, beside=engine.layout.plan.overlap.param_gather)
    updated = moment(device)
    if phases is None:
        vote = Vote(*sums[:3].tolist())  # the first time that the process waits for the device
        norm = note_outcome(engine, vote)
    return StepResult(
        loss=vote.loss,
        gradient_norm=norm,
        stop=vote.stop > 0.0,
        pass_seconds=seconds_between(begin, passed),
        sync_seconds=seconds_between(passed, summed),
        update_seconds=seconds_between(summed, updated),
    )


def run_passes(
    engine: Engine,
    batch: Batch,
    *,
    observe: Observer | None = None,
    record: Callable[[Event], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> torch.Tensor:
    """Run all passes of a step in the plan's order and return this rank's summed loss; sums of gradients may still be
    on their way."""
    scale, plan = engine.loss_scale.value, engine.layout.plan
    if plan.layered:
        waves = plan.schedule.waves or 1
        loss = run_layered(
            engine.pipeline, batch, engine.sync, engine.unsharding, waves, loss_scale=scale, record=record, note=note
        )
    else:
        loss = run_step(
            engine.pipeline, batch, engine.sync, loss_scale=scale, observe=observe, record=record, note=note
        )
    engine.unsharding.release()
    return loss


def voted(engine: Engine, loss: torch.Tensor, *, asked_to_stop: bool) -> torch.Tensor:
    """Return the figures of a `Vote` and how many ranks they are of [4], alike on all ranks, once this one has all its
    gradient sums."""
    mine = mean_loss(engine, loss)
    square = own_square(engine.store, engine.place.rank, engine.pipeline.device)
    sums = torch.stack([mine, square, torch.full_like(mine, float(asked_to_stop)), torch.ones_like(mine)])
    if engine.layout.world_size > 1:
        dist.all_reduce(sums)
    return sums


def outcome(engine: Engine, sums: torch.Tensor) -> Vote:
    """Return the vote in its sums. Raises DistError where they are not of all ranks: NCCL's collectives return without
    an error when they are aborted, with whatever had been summed by then."""
    *figures, ranks = sums.tolist()
    if ranks != engine.layout.world_size:
        raise dist.DistError(f"the vote of a step was cut off: it is of {ranks:g} of {engine.layout.world_size} ranks")
    return Vote(*figures)


def mean_loss(engine: Engine, loss: torch.Tensor) -> torch.Tensor:
    """Return what a rank's summed `loss` adds to the mean over the tokens of the global batch."""
    return loss * engine.pipeline.scale if engine.place.tensor_rank == 0 else torch.zeros_like(loss)


def prepare(engine: Engine, step: int, sums: torch.Tensor) -> None:
    """Have what the update needs of other ranks, which under Muon is much: all must call it together."""
    if engine.orthogonaliser is not None:
        engine.steps = muon_steps(engine.slots, engine.recipe, step, _verdict(engine, sums), engine.orthogonaliser)


def decide(engine: Engine, step: int, sums: torch.Tensor) -> None:
    """Update what this rank updates, by the figures of a vote and what is prepared: without the host or other ranks."""
    skipped, verdict = engine.loss_scale.skipped, _verdict(engine, sums)
    update(engine.slots, engine.recipe, step, verdict, skipped=skipped, steps=engine.steps)
    engine.steps = ()


def _verdict(engine: Engine, sums: torch.Tensor) -> StepVerdict:
    scale = engine.loss_scale.value
    return verdict_on(sums[1].sqrt() / scale, sums[0], engine.recipe.clip, scale)


def note_outcome(engine: Engine, vote: Vote) -> float:
    """Set the scale of the next step, and return the norm of the gradients before clipping."""
    norm = float(vote.square**0.5 / engine.loss_scale.value)
    engine.loss_scale = engine.loss_scale.after(finite=isfinite(vote.loss) and isfinite(norm))
    return norm


def take_vote(engine: Engine, step: int, loss: torch.Tensor, *, asked_to_stop: bool) -> Vote:
    """Return the outcome of a step. A rank takes part by having its gradient sums, and then what else its update needs
    of others, so who knows the outcome knows that all have it."""
    sums = voted(engine, loss, asked_to_stop=asked_to_stop)
    if engine.orthogonaliser is not None:
        prepare(engine, step, sums)
        prepared = torch.ones_like(sums[3])
        if engine.layout.world_size > 1:
            dist.all_reduce(prepared)
        sums[3] = torch.minimum(sums[3], prepared)
    return outcome(engine, sums)


def apply_vote(engine: Engine, step: int, vote: Vote) -> float:
    """Update what this rank updates, by the outcome alone; return the gradients' norm."""
    decide(engine, step, torch.tensor(vote, dtype=torch.float32, device=engine.pipeline.device))
    return note_outcome(engine, vote)


def share_weights(engine: Engine, *, beside: bool = False) -> None:
    """Have the weights that other ranks updated; `beside` the next step's passes, which wait for those of a unit when
    they reach it, where it may be. Every rank must call it."""
    if engine.sharded:
        engine.unsharding.collect()
    if not beside or not all(buffer.bucket.alone for buffer in engine.store.buffers):
        engine.unsharding.arrive()
        engine.store.publish()


def evaluate(engine: Engine, batch: Batch, note: Callable[[str], None] = lambda _: None) -> float:
    """Return the mean loss over the tokens of a global batch, the same on all ranks. Every rank must call it between
    steps; weights and optimizer state stay as they are. `note` is told what the rank waits for or does."""
    with torch.no_grad():
        loss = _layered(engine, batch) if engine.layout.plan.layered else run_forward(engine.pipeline, batch, note)
    engine.unsharding.release()
    mean = mean_loss(engine, loss)
    if engine.layout.world_size > 1:
        dist.all_reduce(mean)
    return float(mean)


def _layered(engine: Engine, batch: Batch) -> torch.Tensor:
    """Return the summed loss of this rank's micro-batches, all of which go through a unit before the next one."""
    pipeline, unsharding = engine.pipeline, engine.unsharding
    (chunk,) = pipeline.chunks
    pairs = [batch(number) for number in range(pipeline.place.micro_batches)]
    x = [tokens for tokens, _ in pairs]
    documents = [documents_of(tokens, chunk.end) for tokens in x]
    embedded = x
    for unit in chunk.units:
        unsharding.reached(unit)
        if unit < engine.layout.head:
            unsharding.fetch(unit + 1)
            x = [
                unit_forward(chunk, unit, value, inside, entered)
                for value, inside, entered in zip(x, documents, embedded, strict=True)
            ]
            embedded = x if unit == 0 else embedded
    losses = [loss_of(chunk, value, targets) for value, (_, targets) in zip(x, pairs, strict=True)]
    return torch.stack(losses).sum() if losses else torch.zeros((), device=pipeline.device)


def run_each_kind(engine: Engine, *, evaluates: bool) -> None:
    """Run a layer of each kind that this rank has, forward and backward, and forward alone where it `evaluates`. The
    gradients are zeros, and no message leaves the stage. Ranks that share layers must call it together, between steps.

    (Layer by layer, as in uneven FSDP, all ranks begin with the same unit: nothing is to be compiled ahead there.)"""
    if engine.layout.plan.layered:
        return
    channels, sync = engine.pipeline.channels, engine.sync
    generator = torch.Generator(device=channels.device).manual_seed(0)  # tokens that go to different experts
    x = torch.randn(channels.shape, dtype=channels.dtype, device=channels.device, generator=generator)
    sync.begin()
    for chunk in map(one_of_each_kind, engine.pipeline.chunks):
        if not chunk.units:
            continue
        if evaluates:
            with torch.no_grad():
                forward(chunk, x)
            engine.unsharding.release()
        after_frozen = engine.layout.plan.job.adapters and 0 in engine.place.units  # what embeds has no gradient then
        for needed in (True, False) if after_frozen else (True,):
            out = forward(chunk, x.detach().requires_grad_(needed))
            if out.requires_grad:
                torch.autograd.backward(out, torch.zeros_like(out))
            sync.pass_done()
            sync.settle()
            engine.unsharding.release()


def one_of_each_kind(chunk: Chunk) -> Chunk:
    """Return a chunk with the first layer of each kind, without embedding and head."""
    layers = chunk.model.layers
    first = {layers[unit - 1]: unit for unit in reversed(chunk.units) if 0 < unit <= len(layers)}
    return replace(chunk, units=tuple(sorted(first.values())))
