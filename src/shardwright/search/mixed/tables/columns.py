"""The columns that a mixed search works on: seconds and bytes of every position, for each setting and GPU type.

They know nothing of where their figures come from: the cost model fills them (`model_tables`), and a user's own
layer times can in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from shardwright.arrays import Floats, Ints, picked
from shardwright.cost.frameworks.overheads import BACKWARD_LAUNCHES, SHARPNESS, launched_seconds
from shardwright.cost.layers.table import running_sums
from shardwright.cost.network.collectives import Fabric, Group, group, reduce_seconds
from shardwright.cost.stage.exact import live_bytes
from shardwright.cost.stage.relaxed import LeastLayer, again_by_state
from shardwright.cost.stage.terms import MODES, WHOLE
from shardwright.records import record

UNLIKE = 0.02  # part by which the quickest layer may be below the mean for all to count as the quickest one


@record
class Unit:
    """What a stage of one copy has: GPUs, `tp` times `cp` of them, in domains of `domain_gpus`. An expert's weights are
    spread over `expert_gpus`, which may be those of several copies, or a part of one's."""

    tp: int
    cp: int
    expert_gpus: int
    domain_gpus: int

    @property
    def holders(self) -> tuple[float, float]:
        """Ranks that hold the same dense weights, and the same experts'."""
        return float(self.cp), self.tp * self.cp / self.expert_gpus

    def groups(self, copies: Ints, local: Ints) -> tuple[Group, Group]:
        """Return the ranks that hold the same dense weights, and the same experts', where `copies` hold a layer,
        `local` of them in a domain."""
        gpus, domain = self.tp * self.cp, self.domain_gpus
        ranks = np.maximum(copies * gpus // self.expert_gpus, 1)
        inside = np.clip(np.minimum(local * gpus, domain) // self.expert_gpus, 1, ranks)
        dense = Group(size=copies * self.cp, local=local * min(self.cp, max(domain // self.tp, 1)))
        return dense, Group(size=ranks, local=inside)


@record
class Table:
    """One setting on G types. Running sums over the positions (embedding, layers, head) are [G, L + 3]: entry p is
    the sum over positions before p.

    Seconds of one micro-batch without the host's part: `forward`, `backward`, `core` (what selective recomputation
    repeats), and of a tower [G] what runs again: `tower_again`; bytes that a micro-batch leaves in each state of a
    layer (`cost.stage.terms`): `kept` [G, 3, L + 3]; parameters: `dense`, `expert`, and `ends`, those of `dense` in
    embedding and output projection; seconds once a step that Muon's products take a copy, and that all copies share
    out: `orthogonal`.

    Per type, [G]: `host` seconds of launching a layer's forward pass in a pipeline, `each` seconds of a pass through a
    stage; seconds of a message inside (`near`) and across (`far`) domains; `room_bytes` for tensors; `fixed_bytes` of a
    stage whatever its layers, `staged_bytes` more in a pipeline, `frozen_bytes` on its first; those live while the
    largest layer runs backward, by state, `live` [G, 3], and `group` more for each that runs again together;
    `logit_bytes`, with which these alternate on the last stage, where `output_bytes` stay; `embedding_bytes` when the
    first has run backward; `update_bytes` per parameter that is updated while it is; `state_bytes` per parameter that
    every copy keeps, `shared_bytes` that copies share out, `ends_bytes` more of one of the `ends`; in host memory, of
    which a GPU may take `host_room`, `in_host` and `in_host_ends` of the same, and the running sums `offloaded` of
    inputs of layers; `update_seconds` per parameter and step, for one copy, and if there is a `shared_update`, for all
    copies together; `fabrics` are the links of the types, `wide` how many times the least tensor-parallel degree of the
    setting that of a type is; `copied_bytes` are those of a parameter that is laid out twice where copies of a layer
    differ in degree; `step_seconds` once an iteration; `tied_near` and `tied_far` to add the gradients of a tied
    embedding between the ends of a pipeline inside a domain and across; `again_parameters` are the last stage's of a
    pipeline beside its own; `tied_parameters` are counted twice where one stage has both ends, of `tied_elsewhere` the
    other end of a pipeline has the state; `units` of the type and `local` of them in a domain; of stages in a row that
    stand on the type, every `period`-th message leaves a domain (0: not known).

    `reduced_bytes` of a parameter are reduced as gradient, `gathered_bytes` gathered as weight, beside these parts of a
    backward and a forward pass, `reduced_beside` and `gathered_beside`; no message takes longer than `longest_move`
    seconds. Layers that run again do so `alone`, or in groups.

    `activation_bytes` of a micro-batch go from stage to stage, on all ranks together. Types at two sites are joined at
    `site_rates` bytes per second with `site_delays`, [G, G]: infinite, and none, at one site.
    """

    forward: Floats
    backward: Floats
    core: Floats
    kept: Floats
    dense: Floats
    expert: Floats
    ends: Floats
    orthogonal: Floats
    tower_again: Floats
    host: Floats
    each: Floats
    near: Floats
    far: Floats
    room_bytes: Floats
    fixed_bytes: Floats
    staged_bytes: Floats
    frozen_bytes: Floats
    live: Floats
    group: Floats
    logit_bytes: Floats
    output_bytes: Floats
    embedding_bytes: Floats
    update_bytes: Floats
    state_bytes: Floats
    shared_bytes: Floats
    ends_bytes: Floats
    host_room: Floats
    in_host: Floats
    in_host_ends: Floats
    offloaded: Floats
    update_seconds: Floats
    fabrics: tuple[Fabric, ...]
    wide: Floats
    copied_bytes: Floats
    longest_move: float
    activation_bytes: float
    site_rates: Floats
    site_delays: Floats
    step_seconds: Floats
    tied_near: Floats
    tied_far: Floats
    again_parameters: Floats
    tied_parameters: Floats
    tied_elsewhere: Floats
    reduced_bytes: float
    gathered_bytes: float
    reduced_beside: float
    gathered_beside: float
    shared_update: bool
    alone: bool
    unit: tuple[Unit, ...]
    units: Ints
    local: Ints
    period: Ints

    @property
    def holders(self) -> Floats:
        """Ranks of each copy of a stage that hold the same dense weights, and the same experts' (less than one where
        several copies hold these together), [2, G]."""
        return np.array([unit.holders for unit in self.unit]).T

    @property
    def together(self) -> int:
        """Copies of a stage over which the experts of each are spread: they are replicas with as many micro-batches."""
        return max(unit.expert_gpus // gcd(unit.expert_gpus, unit.tp * unit.cp) for unit in self.unit)

    @property
    def layers(self) -> int:
        return int(self.forward.shape[1]) - 3

    def sharers(self, copies: int) -> Floats:
        """Return how many ranks share the optimizer step of a weight, dense or of an expert, that `copies` hold,
        [2, G]."""
        return copies * self.holders if self.shared_update else np.ones((2, self.types))

    def updates(self, copies: int) -> Floats:
        """Return the seconds of the optimizer step for a weight, dense or of an expert, that `copies` hold, [2, G]."""
        return self.update_seconds / self.sharers(copies)

    def kept_bytes(self, copies: int) -> tuple[Floats, Floats]:
        """Return the bytes of a weight, dense or of an expert, that `copies` hold, [2, G], and how many more of one of
        the `ends`, [G]."""
        per_weight = self.state_bytes + self.shared_bytes / (copies * self.holders)
        return per_weight, self.ends_bytes / self.sharers(copies)[0]

    def copy_bytes(self, copies: int) -> Floats:
        """Return the bytes that are there in an update alone, of a weight that `copies` hold, [2, G]."""
        ranks = np.where(self.shared_bytes > 0.0, copies * self.holders, 1.0)
        return np.asarray(self.update_bytes / ranks)

    def host_bytes(self, copies: int) -> tuple[Floats, Floats]:
        """Return the same in host memory."""
        ranks = self.sharers(copies)
        return self.in_host / ranks, self.in_host_ends / ranks[0]

    def elsewhere_bytes(self, copies: int) -> tuple[Floats, Floats]:
        """Return the bytes of a tied embedding's state that the other end of a pipeline has, [G], and those in host
        memory."""
        ranks, (host, ends) = self.sharers(copies)[0], self.host_bytes(copies)
        on_gpu = self.shared_bytes / (copies * self.holders[0]) + self.ends_bytes / ranks
        return self.tied_elsewhere * on_gpu, self.tied_elsewhere * (host[0] + ends)

    @property
    def links(self) -> Floats:
        """Bytes per second between domains of as many GPUs as the least degree has, [G]: they reduce equal parts of a
        layer."""
        return np.array([fabric.inter_bytes_per_second for fabric in self.fabrics]) * self.wide

    def rooms(self, *, staged: bool) -> Floats:
        """Return the bytes of each type for states, activations and logits of a stage, in a pipeline or alone, [G]."""
        return self.room_bytes - self.fixed_bytes - (self.staged_bytes if staged else 0.0)

    def beside(self, *, last: bool) -> Floats:
        """Return what lives at least beside what is kept while a stage runs backward, by mode, [G, 4]: on the last one
        it alternates with the logits."""
        least = live_bytes(self.live, self.group, np.arange(self.types)[:, None], np.arange(len(MODES)), 1, 1)
        return np.maximum(least, self.logit_bytes[:, None]) if last else least

    def links_seen(self, kind: int, others: Iterable[int] = ()) -> Fabric:
        """Return the slowest links of a type and `others` as the stages of the type find them in a ring: at a higher
        rate than they have where theirs are cut into fewer parts (`cost.iteration.links.once_seconds`)."""
        there = sorted({kind, *others})
        shares = {other: float(self.wide[other] / self.wide[kind]) for other in there}
        return replace(
            self.fabrics[kind],
            intra_bytes_per_second=min(self.fabrics[other].intra_bytes_per_second * shares[other] for other in there),
            inter_bytes_per_second=min(self.fabrics[other].inter_bytes_per_second * shares[other] for other in there),
            inter_latency_seconds=max(self.fabrics[other].inter_latency_seconds for other in there),
        )

    def tied_seconds(self, depth: Ints | int) -> Floats:
        """Return the least seconds to add the gradients of a tied embedding in pipelines of `depth` [N] stages that
        begin on each type, [N, G]: inside a domain where one can hold the pipeline."""
        depth = np.atleast_1d(np.asarray(depth))[:, None]
        seconds = np.where(depth - 1 < self.local, np.minimum(self.tied_near, self.tied_far), self.tied_far)
        return np.where(depth > 1, seconds, 0.0)

    def tied_between(self, kinds: Ints, stages: Ints | int, stride: int = 1) -> Floats:
        """Return the seconds to add the gradients of a tied embedding in pipelines of so many `stages`, `stride` units
        apart, the first and the last on the types `kinds` [..., 0] and [..., -1]: the slower end decides, and no domain
        has units of two types."""
        ends = kinds[..., [0, -1]]
        apart = np.asarray(stages)[..., None] * stride - stride
        near = (apart < self.local[ends]) & (ends[..., :1] == ends[..., 1:])
        seconds = np.where(near, self.tied_near[ends], self.tied_far[ends])
        return np.asarray(np.where(apart > 0, seconds, 0.0).max(axis=-1))

    def norm_seconds(self, units: Ints | int) -> Floats:
        """Return what a stage of each type does once an iteration, [N, G], where its pipeline and the copies of it have
        `units` [N] units together: it agrees on the norm of all gradients, and does what the framework does."""
        units = np.atleast_1d(np.asarray(units))
        most = 1 << int(units.max(initial=1)).bit_length()
        return picked(_agreement_seconds(self.fabrics, tuple(self.local.tolist()), most), units) + self.step_seconds

    def laid_out(self) -> Table:
        """Return the table with weights and gradients laid out twice, where copies of a layer differ in degree."""
        return replace(self, state_bytes=self.state_bytes + self.copied_bytes, copied_bytes=0.0 * self.copied_bytes)

    @property
    def types(self) -> int:
        return int(self.forward.shape[0])


@lru_cache(maxsize=64)
def _agreement_seconds(fabrics: tuple[Fabric, ...], local: tuple[int, ...], most: int) -> Floats:
    """Return the seconds in which 0 to `most` units of each type agree on a number, [most + 1, G]; `local` of them
    share a domain."""
    seconds = []
    for links, together in zip(fabrics, local, strict=True):
        ranks = np.maximum(np.arange(most + 1), 1) * (links.domain_gpus // together)
        seconds.append(reduce_seconds(links, group(links, ranks, np.ones_like(ranks)), np.zeros(most + 1)))
    return np.array(seconds).T


@record
class Layers:
    """A lower bound of the table in which all layers of a type are alike, [G] each, `kept` [G, 3] by state.

    Layer l counts as `weight` of them, [L]; a stage holds whole layers only where all weights are 1 (`whole`). The
    slowest layer takes `spread` times as long as those. `first` and `last` are what the embedding and the head add,
    of weights [2, G] dense ones and experts'.
    What hides communication is bounded from above: a layer's passes take `longest` seconds at most for each of those
    that it counts as, those of the ends `first_passes` and `last_passes` (backward and forward, [2, G]). The forward
    pass is `share` of a layer's time at most.
    """

    weight: Floats
    whole: bool
    spread: Floats
    alone_seconds: Floats
    seconds: Floats
    forward: Floats
    backward: Floats
    share: Floats
    longest: Floats
    first_passes: Floats
    last_passes: Floats
    recompute: Floats
    core: Floats
    kept: Floats
    dense: Floats
    expert: Floats
    orthogonal: Floats
    first_seconds: Floats
    last_seconds: Floats
    first_bytes: Floats
    last_bytes: Floats
    first_weights: Floats
    last_weights: Floats
    first_ends: Floats
    last_ends: Floats

    @property
    def total(self) -> float:
        return float(self.weight.sum())

    @property
    def weights(self) -> Floats:
        """Parameters of a layer, dense ones and experts', [2, G]."""
        return np.array([self.dense, self.expert])

    @property
    def all_weights(self) -> Floats:
        """Those of all layers and both ends, [2, G]."""
        return np.asarray(self.total * self.weights + self.first_weights + self.last_weights)

    @property
    def least(self) -> LeastLayer:
        """A layer of each type, [G]."""
        return LeastLayer(seconds=self.seconds, again=again_by_state(self.core, self.recompute), kept=self.kept)


def layers_of(table: Table) -> Layers:
    """Return the bound of `table` by layers that are all alike."""
    of_layers = {name: np.diff(getattr(table, name), axis=-1) for name in RUNNING}
    middle = {name: values[..., 1:-1] for name, values in of_layers.items()}
    work = middle["forward"] + middle["backward"]
    shape = work / work.mean(axis=1, keepdims=True)
    weight = shape.mean(axis=0)
    whole = bool((shape.min(axis=1) > 1.0 - UNLIKE).all())
    if whole:
        weight = np.ones_like(weight)

    def least(name: str) -> Floats:
        return np.asarray((middle[name] / weight).min(axis=-1))

    forward, backward = least("forward"), least("backward")
    launches = np.array([BACKWARD_LAUNCHES * table.host, table.host])  # of a backward and a forward pass, [2, G]
    staged_backward, staged_forward = launched_seconds(np.array([backward, forward]), launches / weight.max())
    passes = np.array([middle["backward"], middle["forward"]])
    staged = launched_seconds(passes, launches[..., None])
    ends = np.array([of_layers["backward"], of_layers["forward"]])
    # The smooth maximum is convex: its tangent at the layers bounds what more device time adds.
    gain_forward = (forward / staged_forward) ** (SHARPNESS - 1.0)
    gain_backward = (backward / staged_backward) ** (SHARPNESS - 1.0)

    def edge(place: int) -> Floats:
        return np.asarray(
            gain_forward * of_layers["forward"][:, place] + gain_backward * of_layers["backward"][:, place]
        )

    return Layers(
        weight=weight,
        whole=whole,
        spread=(work / weight).max(axis=1) / (work / weight).min(axis=1),
        alone_seconds=forward + backward,
        seconds=staged_forward + staged_backward,
        forward=staged_forward,
        backward=staged_backward,
        share=(staged[1] / staged.sum(axis=0)).max(axis=-1),
        longest=launched_seconds((passes / weight).max(axis=-1), launches / weight.min()),
        first_passes=ends[..., 0],
        last_passes=ends[..., -1],
        recompute=gain_backward * forward,
        core=gain_backward * least("core"),
        kept=least("kept"),
        dense=least("dense"),
        expert=least("expert"),
        orthogonal=least("orthogonal"),
        first_seconds=edge(0),
        last_seconds=edge(-1),
        first_bytes=of_layers["kept"][:, :, 0].min(axis=1),
        last_bytes=of_layers["kept"][:, WHOLE, -1],
        first_weights=np.stack([of_layers["dense"][:, 0], of_layers["expert"][:, 0]]),
        last_weights=np.stack([of_layers["dense"][:, -1], of_layers["expert"][:, -1]]),
        first_ends=of_layers["ends"][:, 0],
        last_ends=of_layers["ends"][:, -1],
    )


def levelled(table: Table) -> Table:
    """Return a lower bound of `table` in which all layers of a type are alike, and like the least one."""
    columns: dict[str, Any] = {}
    for name in RUNNING:
        layers = np.diff(getattr(table, name), axis=-1)
        layers[..., 1:-1] = layers[..., 1:-1].min(axis=-1, keepdims=True)
        columns[name] = running_sums(layers)
    return replace(table, **columns)


def with_experts(table: Table) -> Table | None:
    """Return a table as if its layers without experts were not there, None where all have some, or none has."""
    there = np.diff(table.expert, axis=-1)[:, 1:-1].min(axis=0) > 0.0
    if there.all() or not there.any():
        return None
    kept = np.array([True, *there, True])
    columns: dict[str, Any] = {}
    for name in RUNNING:
        columns[name] = running_sums(np.diff(getattr(table, name), axis=-1)[..., kept])
    return replace(table, **columns)


RUNNING = ("forward", "backward", "core", "kept", "dense", "expert", "ends", "orthogonal")
