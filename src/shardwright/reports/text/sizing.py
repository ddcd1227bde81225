"""The memory of each way to train, on a terminal and as a document."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from shardwright.reports.text import question
from shardwright.reports.text.layout import WIDTH, listed, table, wrapped
from shardwright.search.sizing import SURE, Size, Sizing
from shardwright.spec.adapter import LINEAR
from shardwright.spec.job import Job
from shardwright.spec.options import said
from shardwright.spec.read.cluster import short_form
from shardwright.units import GIBIBYTE, format_bytes

TERMS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "context")
USUAL = {"precision": "bf16", "optimizer": "adam"}  # what `plan` takes unasked
OF_FLAGS = ("master_weights",)  # options that have a flag
LOADING = (
    "sharded 4-bit weights: load the model on the CPU (device_map='cpu'), as axolotl does, or transformers 5 puts all "
    "{whole} of them on each GPU first"
)
EXPERTS = (
    "experts stay in 16 bits where weights are quantised: they are one parameter in transformers 5, and bitsandbytes "
    "takes linear layers alone"
)
CONTEXT = "context: CUDA's and NCCL's own memory, workspaces, and what the allocator reserves beyond tensors"
REACH = "How far it goes: the longest sequence, one at a time on each GPU; samples of the length asked for; GPUs"


def sizing_text(sizing: Sizing, source: str, width: int = WIDTH) -> str:
    """Return a row for each way with how far it goes, what would make the rest fit, and the command to type next.
    `source` is how the user named the model."""
    pool, cluster = sizing.pool, sizing.cluster
    samples = sizing.job.global_batch // cluster.gpus
    least = f"; the least, {pool.gpu.name}, decides" if len(cluster.pools) > 1 else ""
    at_a_time = f"{question.samples_words(sizing.job, samples)} at a time on each"
    sizes, lacking = sizing.sizes, "; ".join(way.name for way in sizing.lacking)
    lines = (
        question.model_line(sizing.model),
        f"{sizing.types}, {pool.memory_bytes / GIBIBYTE:.1f} GiB each{least}; "
        f"{at_a_time}, {sizing.job.precision}, {sizing.job.framework}",
        *([images] if (images := question.images_line(sizing.model, sizing.job)) else []),
        *([beyond] if (beyond := question.beyond_positions(sizing.model, sizing.job)) else []),
        f"Fits with a probability of {SURE:.0%} or more: {_listed(size for size in sizes if size.fits)}.",
        *(f"May fit or not: {_listed(open_)}." for open_ in [[size for size in sizes if size.may_fit]] if open_),
        *([f"No trainer for {sizing.job.framework} has: {lacking}."] if lacking else []),
        *([f"No adapters: {_without_adapters(sizing)}."] if sizing.without_adapters else []),
    )
    terms = [term for term in TERMS if any(getattr(size.memory, f"{term}_bytes") for size in sizes)]
    words = ("way to train", "")
    memory = table(
        ("way to train", *terms, "GiB", "of"), [_cells(size, terms) for size in sizes], words=words, width=width
    )
    header = ("way to train", "sure", "longest sequence", "largest micro-batch", "fewest GPUs", "")
    reach = table(header, [_reach(size) for size in sizes], words=words, width=width)
    advice = [f"{size.way.name}: {text}" for size in sizes if not size.fits and (text := _advice(size, cluster.gpus))]
    command = next_command(sizing, source)
    return "\n\n".join(
        part
        for part in (
            "\n".join(wrapped(line, "", width) for line in lines),
            f"Memory of the fullest GPU in GiB\n{memory}\n{wrapped(CONTEXT, '  ', width)}{_loading(sizing, width)}"
            f"{_experts(sizing, width)}",
            f"{wrapped(REACH, '', width)}\n{reach}",
            listed("What would make the rest fit", advice, width),
            f"Next\n  {command}" if command else "",
        )
        if part
    )


def _without_adapters(sizing: Sizing) -> str:
    """Return why no adapters have a trainer, by the first that was asked for; "" where some have."""
    names = (way.adapter.name for way in sizing.lacking if way.adapter is not None)
    return f"--adapter {next(names)}: {sizing.without_adapters}" if sizing.without_adapters else ""


def _loading(sizing: Sizing, width: int) -> str:
    """Return how 4-bit weights are loaded that a GPU cannot have whole; "" where all ways take them whole or not at
    all."""
    whole = sizing.too_large_to_load
    if whole is None or not any(size.way.quantised and size.way.sharding != "none" for size in sizing.sizes):
        return ""
    return "\n" + wrapped(LOADING.format(whole=format_bytes(whole)), "  ", width)


def _experts(sizing: Sizing, width: int) -> str:
    """Return that experts are wider than what is beside them, "" where they are not, or no way has some."""
    jobs = [size.way.of(sizing.job) for size in sizing.sizes] if sizing.model.has_experts else []
    return "\n" + wrapped(EXPERTS, "  ", width) if any(job.experts_unquantised for job in jobs) else ""


def _listed(sizes: Iterable[Size]) -> str:
    return (
        "; ".join(size.way.name if size.fits else f"{size.way.name} ({size.fit_probability:.0%})" for size in sizes)
        or "nothing"
    )


def _cells(size: Size, terms: Iterable[str]) -> list[str]:
    parts = [getattr(size.memory, f"{term}_bytes") for term in terms]
    total, room = size.memory.total_bytes / GIBIBYTE, size.memory.capacity_bytes / GIBIBYTE
    return [size.way.name, *(f"{part / GIBIBYTE:.1f}" for part in parts), f"{total:.1f}", f"{room:.1f}"]


def _reach(size: Size) -> list[str]:
    numbers = (size.longest_sequence, size.largest_micro_batch, size.fewest_gpus)
    reach = ["-" if number is None else f"{number:,}" for number in numbers]
    return [size.way.name, f"{size.fit_probability:.0%}", *reach, "fits" * size.fits]


def _advice(size: Size, gpus: int) -> str:
    options = {} if size.options is None else said(size.options)
    there = format_bytes(size.memory.host_capacity_bytes)
    host = f"{format_bytes(size.host_bytes)} of host memory for each GPU (there are {there})"
    roomy = f"a GPU with the memory of the {size.smallest_gpu}" if size.smallest_gpu else ""
    needed = (roomy, "" if size.memory.fits_in_host else host) if size.has_room or roomy else ()
    longest, fewest = size.longest_sequence, size.fewest_gpus
    words = (
        "with --set " + " --set ".join(f"{name}={word}" for name, word in options.items()) if options else "",
        f"sequences of at most {longest:,} tokens, one at a time" if longest else "",
        f"{fewest} GPUs of this type" if fewest and fewest > gpus else "",
        " and ".join(filter(None, needed)),
    )
    return ", or ".join(filter(None, words))


def next_command(sizing: Sizing, source: str) -> str:
    """Return what to type next: plan on these GPUs the first way that fits, full training before adapters, or that an
    option of the trainer makes fit, else on the fewest that do; nothing where no number of GPUs does."""
    pool, job, cluster, here = sizing.pool, sizing.job, sizing.cluster, sizing.first
    chosen = here or next((size for size in sizing.sizes if size.options is not None), None)
    options = job.options if chosen is None or chosen.options is None else chosen.options
    chosen = chosen or min(
        (size for size in sizing.sizes if size.fewest_gpus), key=lambda size: size.fewest_gpus or 0, default=None
    )
    if chosen is None:
        return ""
    machines = shlex.quote(short_form(cluster))
    count = cluster.gpus
    if here is None and options == job.options and chosen.fewest_gpus:
        nodes = -(-chosen.fewest_gpus // pool.gpus_per_node)
        machines, count = f"{nodes}x{pool.gpus_per_node}x{pool.gpu.name}", nodes * pool.gpus_per_node
    batch = max(job.global_batch, count)
    words = {"precision": job.precision, "optimizer": job.optimizer_words}
    asked = [(name, words[name]) for name, usual in USUAL.items() if words[name] != usual]
    if not chosen.way.of(replace(job, options=options)).masters:
        asked.append(("master-weights", "none"))
    if chosen.way.adapter is not None:
        asked.append(("adapter", chosen.way.adapter.name))
        if chosen.way.adapter.targets != LINEAR:
            asked.append(("adapter-targets", "+".join(chosen.way.adapter.targets)))
    if job.preference is not None:
        asked.append(("preference", job.preference.name))
    settings = [("set", f"{name}={word}") for name, word in said(options).items() if name not in OF_FLAGS]
    beside = bool(chosen.way.adapter or job.preference or job.projection_rank or settings)
    if beside or (chosen.way.sharding == "zero3" and chosen.way.offload):
        asked.append(("framework", job.framework))
    asked += [*settings, *_images_asked(job)]
    return (
        f"shardwright plan --model {source} --cluster {machines} --global-batch {batch} "
        f"--seq-len {job.seq_len}{''.join(f' --{name} {value}' for name, value in asked)}"
    )


def _images_asked(job: Job) -> list[tuple[str, str]]:
    """Return the options of a job's images and sounds, of the length in an encoder, and of what is frozen."""
    size = None if job.image_size is None else "x".join(map(str, reversed(job.image_size)))
    words = {
        "images-per-sequence": None if job.images_per_sequence is None else str(job.images_per_sequence),
        "image-size": size,
        "sounds-per-sequence": None if job.sounds_per_sequence is None else str(job.sounds_per_sequence),
        "sound-seconds": None if job.sound_seconds is None else f"{job.sound_seconds:g}",
        "encoder-seq-len": None if job.encoder_seq_len is None else str(job.encoder_seq_len),
        "freeze": None if job.freeze is None else "+".join(job.freeze),
    }
    return [(name, word) for name, word in words.items() if word is not None]


def sizing_document(sizing: Sizing, source: str) -> Mapping[str, object]:
    """Return what `fit --json` prints."""
    return {
        "model": sizing.model.name,
        "parameters": sizing.model.parameters,
        "gpu": sizing.pool.gpu.name,
        "gpus": sizing.cluster.gpus,
        "seq_len": sizing.job.seq_len,
        "sure": SURE,
        "too_large_to_load_bytes": sizing.too_large_to_load,
        "ways": [_document(size) for size in sizing.sizes],
        "lacking": [way.name for way in sizing.lacking],
        "without_adapters": _without_adapters(sizing),
        "next": next_command(sizing, source),
    }


def _document(size: Size) -> Mapping[str, object]:
    return {
        "name": size.way.name,
        "training": size.way.training,
        "sharding": size.way.sharding,
        "optimizer_offload": size.way.offload,
        "recompute": size.way.recompute,
        "memory_bytes": asdict(size.memory) | {"total_bytes": size.memory.total_bytes},
        "host_memory_bytes": size.host_bytes,
        "fit_probability": size.fit_probability,
        "fits": size.fits,
        "longest_sequence": size.longest_sequence,
        "largest_micro_batch": size.largest_micro_batch,
        "fewest_gpus": size.fewest_gpus,
        "smallest_gpu": size.smallest_gpu,
        "options": None if size.options is None else said(size.options),
    }
