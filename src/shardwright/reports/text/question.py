"""What was asked, in a line each: model, cluster, job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from shardwright.spec.adapter import ATTENTION, LINEAR, TARGETS
from shardwright.spec.catalog.machines import GBIT_BYTES
from shardwright.spec.cluster import Cluster, NodePool
from shardwright.spec.images import images_of, parts_of, taken_of
from shardwright.spec.job import Job
from shardwright.spec.model import Model, Tower
from shardwright.spec.read.huggingface import TEXT_ALONE
from shardwright.spec.sounds import sounds_of
from shardwright.units import SECONDS_PER_HOUR, counted, format_count, format_dollars, format_seconds

BESIDE = {ATTENTION: "attention", LINEAR: "all linear matrices", TARGETS: "all matrices, those of experts too"}


def model_line(model: Model) -> str:
    """Return name and size of a model."""
    size = f"{format_count(model.parameters)} parameters"
    if model.active_parameters != model.parameters:
        size += f" ({format_count(model.active_parameters)} active)"
    words = f"{model.name}: {size}, {len(model.layers)} layers"
    for tower in model.towers:
        words += f", {tower.noun} of {tower.depth} ({format_count(tower.parameters)})"
    if TEXT_ALONE in model.assumed:
        words += "; the text model alone of a multimodal one, whose tower is not known here"
    return words


def cluster_line(cluster: Cluster) -> str:
    """Return the machines of a cluster."""
    groups = " + ".join(_group_words(list(pools)) for _, pools in _groups(cluster.pools))
    return f"{groups} ({counted(cluster.gpus, 'GPU')})"


def machines_words(cluster: Cluster, nodes: Sequence[int]) -> str:
    """Return so many machines of each group of a cluster."""
    there = [pool for count, pool in zip(nodes, cluster.pools, strict=True) if count]
    counts = {pool.machines: count for count, pool in zip(nodes, cluster.pools, strict=True)}
    return " + ".join(f"{counts[name]} × {_inside_words(list(pools))}" for name, pools in _groups(there))


def _groups(pools: Iterable[NodePool]) -> Iterator[tuple[str, Iterator[NodePool]]]:
    """Return the pools of the same machines together."""
    return groupby(pools, key=lambda pool: pool.machines)


def _inside_words(pools: Sequence[NodePool]) -> str:
    """Return the GPUs in a machine of some pools."""
    words = " + ".join(f"{pool.gpus_per_node} {pool.gpu.name}" for pool in pools)
    return f"({words})" if len(pools) > 1 else words


def _group_words(pools: Sequence[NodePool]) -> str:
    pool = pools[0]
    words = f"{pool.nodes} × {_inside_words(pools)}"
    if pool.site:
        words += f" at {pool.site}"
    if pool.rack_nodes:
        words += (
            f" in racks of {pool.rack_nodes} machines, {pool.rack_bytes_per_second / GBIT_BYTES:g} Gbit/s out of each"
        )
    return words


def images_line(model: Model, job: Job) -> str:
    """Return the images and sounds of a sequence, what of them was assumed, and what is frozen; of an encoder-decoder
    the length of the encoder's sequences; "" where a model has neither."""
    frozen = [part for part in parts_of(model) if not job.trains(part)]
    of_part = {"vision": _images_words, "audio": _sounds_words, "encoder": _encoder_words}
    words = [of_part[tower.part](tower, job) for tower in model.towers]
    return "; ".join([*words, *([f"frozen: {' and '.join(frozen)}"] if frozen else [])])


def _encoder_words(tower: Tower, job: Job) -> str:
    length = taken_of(tower, job).positions
    if tower.input == "sound":
        return f"{length:,} positions of sound in the encoder, {job.seq_len:,} tokens in the decoder"
    assumed = " (assumed: --encoder-seq-len says otherwise)" if job.encoder_seq_len is None else ""
    return f"{length:,} tokens in the encoder{assumed}, {job.seq_len:,} in the decoder"


def _images_words(tower: Tower, job: Job) -> str:
    images = images_of(tower, job)
    sides = f"{images.width} × {images.height} pixels" + (
        f" ({counted(tower.tiles or images.tiles, 'tile')})" if tower.tiling or tower.tiles else ""
    )
    place = "beside it" if tower.aside else "of its tokens"
    words = f"{counted(images.count, 'image')} of {sides} in a sequence, {images.all_tokens:,} {place}"
    options = {"--images-per-sequence": job.images_per_sequence, "--image-size": job.image_size}
    if tower.tiling is None and tower.image:
        del options["--image-size"]
    return words + _assumed(options)


def _sounds_words(tower: Tower, job: Job) -> str:
    sounds = sounds_of(tower, job)
    words = (
        f"{counted(sounds.count, 'sound')} of {sounds.seconds:g} s in a sequence, {sounds.all_tokens:,} of its tokens"
    )
    return words + _assumed({"--sounds-per-sequence": job.sounds_per_sequence, "--sound-seconds": job.sound_seconds})


def _assumed(options: Mapping[str, object]) -> str:
    """Return which options would say what was assumed."""
    assumed = [option for option, said in options.items() if said is None]
    return f" (assumed: {' and '.join(assumed)} say{'s' * (len(assumed) == 1)} otherwise)" if assumed else ""


def beyond_positions(model: Model, job: Job) -> str:
    """Return that sequences are longer than the model was made for; "" where they are not. Longer ones than a table of
    learned positions holds are refused, not warned of."""
    if not 0 < model.max_position < job.seq_len:
        return ""
    return (
        f"Note: samples of {job.seq_len:,} tokens are longer than the {model.max_position:,} tokens that {model.name} "
        "was made for."
    )


def samples_words(job: Job, count: int) -> str:
    """Return so many samples of a job and their tokens; of a loss over preferences, what they are."""
    if job.preference is None:
        return f"{count} × {job.seq_len} tokens"
    if job.preference.passes.trained > 1:
        return f"{counted(count, 'pair')} of 2 × {job.seq_len} tokens"
    return f"{counted(count, 'answer')} of {job.seq_len} tokens"


def job_line(job: Job) -> str:
    """Return batch, sequence, precision and length of a job."""
    adapter, deadline, budget = job.adapter, job.deadline_hours, job.budget_dollars
    targets = "" if adapter is None else BESIDE.get(adapter.targets, "+".join(adapter.targets))
    loss = "" if job.preference is None else f"{job.preference.name}: "
    words = (
        f"{loss}global batch {samples_words(job, job.global_batch)}",
        job.precision + (f" ({job.fp8_recipe})" if job.fp8_recipe else ""),
        job.optimizer + ("" if job.projection_rank is None else f" of rank {job.projection_rank}"),
        "" if adapter is None else f"{adapter.name} beside {targets}",
        "" if job.document_tokens is None else f"attention within documents ({job.attended_tokens:,.0f} tokens)",
        "" if job.tokens is None else f"{format_count(job.tokens)} tokens in all",
        "" if job.objective == "time" else f"least {job.objective}",
        "" if deadline is None else f"within {format_seconds(deadline * SECONDS_PER_HOUR)}",
        "" if budget is None else f"for at most {format_dollars(budget)}",
    )
    return ", ".join(part for part in words if part)
