"""`MeasuredLayers`: a source of layers in which a user's own times of layers and links stand for predicted ones.

Times, weights and activations of a position come from the entry of the profile with the same GPU type, tensor-parallel
degree and micro-batch; what was not measured (the bytes of a column that is missing, the part of a layer that selective
recomputation repeats) is the model's own figure, in proportion. What frameworks add to predicted times is in measured
ones already. Only what was measured is planned: other degrees and micro-batches are not searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from shardwright.arrays import Bools, Floats, Ints, packed
from shardwright.cost.compute.efficiency import Efficiency, peak_flops
from shardwright.cost.compute.operator_table import OperatorTable
from shardwright.cost.compute.operators import Shard
from shardwright.cost.frameworks.optimizer import update_width
from shardwright.cost.frameworks.overheads import UPDATE_EFFICIENCY, Overheads
from shardwright.cost.layers.source import Basis, LayerSource, layer_source
from shardwright.cost.layers.table import LayerTable, layer_table, running_sums
from shardwright.cost.memory.ends import head_bytes
from shardwright.cost.memory.sizes import weight_bytes
from shardwright.cost.network.collectives import Fabric
from shardwright.cost.network.curves import LinkTimes, between_machines, inside_machine, with_curves
from shardwright.cost.stage.terms import AGAIN, LEAN, WHOLE
from shardwright.cost.trust.evidence import Conditions
from shardwright.cost.trust.interval import ANY, interval_of
from shardwright.errors import Problem, bad, reject
from shardwright.records import record
from shardwright.spec.cluster import Cluster, Gpu, NodePool
from shardwright.spec.job import Job
from shardwright.spec.layer_profile import LayerProfile, LayerTimes, smoothed
from shardwright.spec.model import Model
from shardwright.spec.read.layer_profile import STAND_IN, flops_per_second

DESCRIBED = "gpu: {{name: {}, memory_gb: …, memory_gb_per_second: …, bf16_tflops: …}}"
# Of the squared error that two runs of one site have: layers are known, ten runs of `train` were off by 1 to 11 %;
# chosen, 0.4 to 1.
MEASURED_PART = 0.65
SETTING_BITS = 31  # of a degree and of a micro-batch in a key; numeric


@record(slots=False)
class MeasuredLayers:
    """`base`, with the layers and links of `profile` in place of its own."""

    base: Efficiency
    profile: LayerProfile

    def operator_seconds(self, gpu: Gpu, job: Job, operators: OperatorTable) -> Floats:
        """Return the base model's times, which only serve for proportions within a layer, [operators, M]."""
        return self.base.operator_seconds(gpu, job, operators)

    def fabric(self, pool: NodePool) -> Fabric:
        """Return the links of `pool`, as measured where they were."""
        inside = inside_machine(self.profile, pool)
        between = between_machines(self.profile, pool, pool.gpu.kind)
        return with_curves(self.base.fabric(pool), inside, between)

    def between(self, start: NodePool, other: NodePool) -> LinkTimes | None:
        """Return the measured link between machines of two types, None without one."""
        return between_machines(self.profile, start, other.gpu.kind)

    def overheads(self, gpu: Gpu, job: Job, software: Overheads) -> Overheads:
        """Return what comes on top of measured layers: `software`'s effect on links that were not measured, and the
        measured pace of the optimizer's step."""
        scopes = {curve.scope for curve in self.profile.links if curve.source == curve.target == gpu.kind}
        rate = self._update_seconds(gpu, job)
        plain = gpu.memory_bytes_per_second * UPDATE_EFFICIENCY / max(update_width(job), 1.0)
        return Overheads(
            intra=1.0 if "intra_node" in scopes else software.intra,
            inter=1.0 if "inter_node" in scopes else software.inter,
            latency=1.0 if "inter_node" in scopes else software.latency,
            optimizer=software.optimizer if rate is None else rate * plain,
        )

    def _update_seconds(self, gpu: Gpu, job: Job) -> float | None:
        """Return the seconds of an update per parameter, the median over the entries; None if not measured."""
        seconds = [
            sum(entry.optimizer_seconds) / (sum(entry.weight_bytes) / weight_bytes(job))
            for entry in self.profile.of(gpu.kind)
            if any(entry.optimizer_seconds) and any(entry.weight_bytes)
        ]
        return float(np.median(seconds)) if seconds else None

    def attainable_flops(self, gpu: Gpu, model: Model, job: Job) -> float:
        """Return the peak of the data sheet, or of the arithmetic with which layers turned out to be faster."""
        entries, stated = self.profile.of(gpu.kind), peak_flops(gpu, job.precision)
        fastest = max(flops_per_second(entry, model, self.profile.seq_len) for entry in entries)
        return stated if fastest <= stated else max(gpu.peak("tf32") or 0.0, fastest)

    def basis(self, seconds: float, settings: Sequence[Conditions]) -> Basis:
        """Return a part of what two runs of one site differ by: measured layers are the evidence themselves."""
        return interval_of(seconds, settings[0].framework, {ANY: MEASURED_PART}), (), None

    @property
    def only(self) -> Mapping[str, tuple[int | float, ...]]:
        """What was measured: whole sequences and all experts on a rank, fused attention, communication that nothing
        hides, an optimizer on the GPU; one choice of sequence parallelism, and the micro-batches, ascending."""
        return {
            "sequence_parallel": (int(self.profile.sequence_parallel),),
            "overlap_tp": (0,),
            "flash": (1,),
            "ep": (1,),
            "offload": (0.0,),
            "micro_batch": tuple(sorted({entry.micro_batch for entry in self.profile.entries})),
        }

    def knows(self, gpu: Gpu, tp: Ints, cp: Ints, ep: Ints, micro_batch: Ints) -> Bools:
        """Return for which ways to shard the layers of `gpu` were measured, [N]."""
        entries = [(entry.tensor_parallel, entry.micro_batch) for entry in self.profile.of(gpu.kind)]
        degrees, sizes = np.array(entries, dtype=np.int64).reshape(-1, 2).T
        known = np.isin(_setting_keys(tp, micro_batch), _setting_keys(degrees, sizes))
        return np.asarray(known & (cp == 1) & (ep == 1))

    def alike_after(self, gpu: Gpu, model: Model) -> int:
        """Return the number of layers at the beginning after which all have exactly the same figures."""
        columns = [
            column[1:-1]
            for entry in self.profile.of(gpu.kind)
            for column in (entry.forward_seconds, entry.backward_seconds, entry.weight_bytes, entry.activation_bytes)
            if column
        ]
        odd = [place for place in range(self.profile.layers) if any(times[place] != times[-1] for times in columns)]
        return odd[-1] + 1 if odd else 0

    def table(
        self, model: Model, gpu: Gpu, job: Job, shard: Shard, links: Fabric, software: Overheads, *, strain: float
    ) -> LayerTable:
        """Return the base model's table with the measured figures of every row. Raises SpecError for a row that was
        not measured."""
        table = layer_table(model, gpu, job, shard, self.base, links, software, strain=strain)
        entries = [self._entry(gpu, shard, row) for row in range(len(shard.tp))]
        dense, expert = np.diff(table.dense), np.diff(table.expert)
        forward = running_sums(_measured(entries, "forward_seconds", dense))
        backward = running_sums(_measured(entries, "backward_seconds", dense))
        weights = _measured(entries, "weight_bytes", (dense + expert) * weight_bytes(job)) / weight_bytes(job)
        if model.tied_embeddings:  # stages that hold the head have a copy of the embedding, whatever was counted
            weights[:, -1] = np.maximum(weights[:, -1], dense[:, -1] + expert[:, -1])
        held = weights / np.where(dense + expert > 0.0, dense + expert, 1.0)
        states = np.diff(table.kept)
        kept = states[:, WHOLE]
        logits = head_bytes(model, job, shard.micro_batch, shard.cp, shard.tp)
        computed = kept + _at_the_head(kept, logits + table.before_logits)
        activations = _measured(entries, "activation_bytes", computed) - _at_the_head(kept, logits)
        activations = np.maximum(activations, 0.0)
        before_logits, activations[:, -1] = activations[:, -1].copy(), 0.0
        nothing = np.zeros_like(forward)
        return replace(
            table,
            forward=forward,
            backward=backward,
            compute_forward=forward,
            compute_backward=backward,
            core_seconds=running_sums(
                _part(np.diff(table.core_seconds), np.diff(table.compute_forward), np.diff(forward))
            ),
            tp_seconds=nothing,
            cp_seconds=nothing,
            ep_seconds=nothing,
            weight_seconds=running_sums(
                _part(np.diff(table.weight_seconds), np.diff(table.compute_backward), np.diff(backward))
            ),
            beside_weights=nothing,
            kept=running_sums(_measured_states(states, activations)),
            dense=running_sums(np.where(dense + expert > 0.0, dense * held, weights)),
            expert=running_sums(expert * held),
            ends=running_sums(np.diff(table.ends) * held),
            group=activations[:, 1:-1].max(axis=1),
            parameters=weights[:, 1:-1].max(axis=1),
            before_logits=before_logits,
        )

    def _entry(self, gpu: Gpu, shard: Shard, row: int) -> LayerTimes:
        tp, micro_batch = int(shard.tp[row]), int(shard.micro_batch[row])
        entry = self.profile.by_setting.get((gpu.kind, tp, micro_batch))
        if entry is None or shard.cp[row] > 1 or shard.ep[row] > 1:
            words = f"tensor parallel {tp}, micro-batch {micro_batch}"
            words += f", context parallel {shard.cp[row]}" if shard.cp[row] > 1 else ""
            words += f", expert parallel {shard.ep[row]}" if shard.ep[row] > 1 else ""
            have = ", ".join(f"{e.tensor_parallel} × {e.micro_batch}" for e in self.profile.of(gpu.kind))
            raise bad(
                "`profile=`", f"has no times of {gpu.kind} with {words}", f"measured, degree × micro-batch: {have}"
            )
        return entry


def _setting_keys(tp: Ints, micro_batch: Ints) -> Ints:
    return packed([tp, micro_batch], [SETTING_BITS, SETTING_BITS])


@layer_source.register
def _measured_source(efficiency: MeasuredLayers) -> LayerSource:
    return efficiency


def measured_layers(
    base: Efficiency, profile: LayerProfile, model: Model, cluster: Cluster, job: Job
) -> MeasuredLayers:
    """Return the efficiency model of a layer profile. Raises SpecError, naming everything, where the profile is of
    another model, sequence length or precision, or lacks a GPU type of the cluster."""
    problems = []
    if profile.layers != len(model.layers):
        message = f"has {profile.layers} layers (and embedding and head), {model.name} has {len(model.layers)}"
        problems.append(Problem("`profile=`", message, "give the model that was measured, or leave `model=` out"))
    for tower in model.towers:
        message = f"has times of layers, and none of what is before them: {model.name} has {tower.noun}"
        problems.append(Problem("`profile=`", message, "plan on predicted layers"))
    if profile.seq_len != job.seq_len:
        message = f"was measured with sequences of {profile.seq_len} tokens, not {job.seq_len}"
        problems.append(Problem("`profile=`", message, f"plan with `seq_len={profile.seq_len}`, or measure again"))
    if job.preference is not None:
        message = f"has times of the next token's loss, and none of {job.preference.loss}"
        problems.append(Problem("`profile=`", message, "plan on predicted layers"))
    if profile.precision not in ("", job.precision):
        message = f"was measured in {profile.precision}, not {job.precision}"
        problems.append(Problem("`profile=`", message, f"plan with `precision={profile.precision}`, or measure again"))
    missing = [name for name in dict.fromkeys(pool.gpu.kind for pool in cluster.pools) if name not in profile.gpus]
    if missing:
        message = f"has no times of {', '.join(missing)} (it has {', '.join(profile.gpus)})"
        hint = f"measure them too, or name the GPU as the profile does: gpu: {profile.gpus[0]}, memory_gb: …"
        problems.append(Problem("`profile=`", message, hint))
    for pool in cluster.pools:
        bare = pool.gpu.source == STAND_IN and not any(entry.optimizer_seconds for entry in profile.of(pool.gpu.kind))
        if bare:
            message = f"has no optimizer_seconds of {pool.gpu.kind}, and the catalogue no bandwidth of its memory"
            hint = "measure them, or describe it in the cluster file: " + DESCRIBED
            problems.append(Problem("`profile=`", message, hint.format(pool.gpu.kind)))
    reject(problems)
    return MeasuredLayers(base=base, profile=smoothed(profile, model.kind_of_layer))


def _measured(entries: list[LayerTimes], name: str, computed: Floats) -> Floats:
    """Return a column of the entries, the model's `computed` figures where it was not measured, [M, positions]."""
    return np.array([getattr(entry, name) or computed[row] for row, entry in enumerate(entries)]).reshape(
        computed.shape
    )


def _part(part: Floats, whole: Floats, measured: Floats) -> Floats:
    """Return the same part of what was measured as `part` is of `whole`."""
    return np.asarray(measured * part / np.where(whole > 0.0, whole, 1.0))


def _measured_states(states: Floats, activations: Floats) -> Floats:
    """Return what positions keep in each state, [M, 3, positions], where `activations` [M, positions] were measured
    without recomputation: the same part is freed, inputs are what they are, and the ends never run again."""
    measured = np.stack([activations, _part(states[:, LEAN], states[:, WHOLE], activations), states[:, AGAIN]], axis=1)
    measured[:, :, [0, -1]] = activations[:, None, [0, -1]]
    return measured


def _at_the_head(like: Floats, values: Floats) -> Floats:
    """Return `values` [M] at the last position, 0 elsewhere, [M, positions]."""
    at_head = np.zeros_like(like)
    at_head[:, -1] = values
    return at_head
