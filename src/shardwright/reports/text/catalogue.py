"""The catalogue on a terminal: GPUs, models and prices, as lists and one by one, and which trainer runs what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.reports.text.layout import WIDTH, labelled, table
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Gpu
from shardwright.spec.layer import Attention, Layer, Moe
from shardwright.spec.model import Model, Tower
from shardwright.spec.sounds import SPECTRA
from shardwright.units import GIGA, TERA, counted, format_bytes, format_count

NONE = "–"


def gpus_text(gpus: Sequence[Gpu], width: int | None = None) -> str:
    """Return one row a GPU; within `width` with shortened sources."""
    rows = [
        [
            gpu.name,
            gpu.architecture,
            *(_teraflops(gpu.peak(precision)) for precision in ("bf16", "fp16", "fp8")),
            format_bytes(gpu.memory_bytes),
            f"{gpu.memory_bytes_per_second / GIGA:,.0f}",
            f"{gpu.link} {gpu.link_bytes_per_second / GIGA:.0f}",
            gpu.date,
            gpu.source,
        ]
        for gpu in gpus
    ]
    header = ("GPU", "architecture", "bf16 TF/s", "fp16", "fp8", "memory", "GB/s", "link GB/s", "date", "source")
    return table(header, rows, words=("GPU", "architecture", "date", "source"), cut="source", width=width)


def _teraflops(peak: float | None) -> str:
    return NONE if peak is None else f"{peak / TERA:,.3g}" if peak < TERA else f"{peak / TERA:,.0f}"


def gpu_text(gpu: Gpu, prices: Sequence[MachinePrice], width: int = WIDTH) -> str:
    """Return everything that is known of one GPU."""
    peaks = ", ".join(f"{precision} {_teraflops(peak)}" for precision, peak in gpu.peak_flops)
    lines = {
        "maker": f"{gpu.vendor}, {gpu.architecture}, compute capability {gpu.compute_capability}",
        "dense peak": f"{peaks} TFLOP/s; {gpu.multiprocessors} multiprocessors at {gpu.clock_hertz / 1e9:.2f} GHz",
        "memory": f"{format_bytes(gpu.memory_bytes)} at {gpu.memory_bytes_per_second / GIGA:,.0f} GB/s, "
        f"L2 {format_bytes(gpu.l2_bytes)}",
        "links": _links(gpu),
        "power": f"{gpu.tdp_watts:.0f} W",
        "price": _price_range(prices),
        "source": f"{gpu.source} ({gpu.date})",
    }
    return "\n".join([gpu.name, *(labelled(name, words, width) for name, words in lines.items())])


def _links(gpu: Gpu) -> str:
    """Return the links of a GPU: those of its own among several, if it has such, and PCIe."""
    pcie = f"PCIe {gpu.pcie_bytes_per_second / GIGA:.0f} GB/s"
    if gpu.link_domain == 1:
        return f"{pcie}, none between GPUs"
    within = f"{gpu.link} {gpu.link_bytes_per_second / GIGA:.0f} GB/s in one direction among {gpu.link_domain} GPUs"
    return f"{within}, {pcie}"


def _price_range(prices: Sequence[MachinePrice]) -> str:
    """Return the least and the most that one GPU costs an hour."""
    demand = [p.price.on_demand_per_hour / p.gpus for p in prices if p.price.on_demand_per_hour is not None]
    spot = [p.price.spot_per_hour / p.gpus for p in prices if p.price.spot_per_hour is not None]
    rates = [
        f"{name} ${min(values):.2f} to ${max(values):.2f}"
        for name, values in (("on demand", demand), ("spot", spot))
        if values
    ]
    if not rates:
        return "none known"
    return f"{', '.join(rates)} a GPU and hour, whole machines of {len({p.provider for p in prices})} providers"


def models_text(models: Sequence[Model], sources: Mapping[str, str], width: int | None = None) -> str:
    """Return one row a model; within `width` with shortened sources."""
    rows = []
    for model in models:
        attention = model.attention
        figures = (model.parameters, model.active_parameters, len(model.layers), model.hidden)
        heads = f"{attention.heads}/{attention.kv_heads}" if attention else NONE
        rows.append(
            [model.name, *(f"{figure:,}" for figure in figures), heads, f"{model.vocab:,}", sources.get(model.name, "")]
        )
    header = ("model", "parameters", "active", "layers", "hidden", "heads/kv", "vocab", "source")
    return table(header, rows, words=("model", "source"), cut="source", width=width)


def model_text(model: Model, source: str, width: int = WIDTH) -> str:
    """Return how a model was understood, with what was assumed."""
    active = model.active_parameters
    count = f"{model.parameters:,} ({format_count(model.parameters)})"
    heads = "tied to the embedding" if model.tied_embeddings else "of its own"
    scaling = model.rotary_scaling
    kinds = {kind: sum(layer == kind for layer in model.layers) for kind in model.kinds}
    lines = [
        ("parameters", count + (f", {active:,} active for each token" if active != model.parameters else "")),
        ("shape", f"{len(model.layers)} layers of hidden width {model.hidden:,}, {model.norm}"),
        ("vocabulary", f"{model.vocab:,}, output layer {heads}"),
        ("positions", _positions(model)),
        *((counted(number, "layer"), _layer_words(kind)) for kind, number in kinds.items()),
        *(line for tower in model.towers for line in _lines_of(tower)),
        ("source", source),
        ("norm epsilon", "" if model.norm_epsilon is None else f"{model.norm_epsilon:g}"),
        ("scaling", "" if scaling is None else f"rotary positions {scaling.kind}, factor {scaling.factor:g}"),
        ("rotary", "even and odd dimensions interleave" if model.rotary_interleaved else ""),
        ("particular", model.particular or ""),
        *(("guessed", words) for words in model.guesses),
        *(("assumed", words) for words in model.assumed),
    ]
    said = [labelled(name, words, width) for name, words in lines if words]
    return "\n".join([model.name, *said])


def _lines_of(tower: Tower) -> list[tuple[str, str]]:
    encoder = f"{tower.depth} layers of hidden width {tower.hidden:,}, {tower.norm}"
    first = f"{tower.encoder_parameters:,} parameters in {encoder}: {_layer_words(tower.layer)}"
    projector = f"{tower.projector_parameters:,} parameters; "
    if tower.part == "audio":
        sounds = f"sounds of {SPECTRA / 2 ** (len(tower.stem) - 1):g} positions a second"
        if tower.positions:
            sounds += f", {tower.positions:,} of them {'a segment' if tower.segments else 'at most'}"
        return [("audio", first), ("projector", f"{projector}{sounds}, {tower.joined} a token")]
    if tower.input != "image":
        heard = f"; {tower.positions:,} positions of sound" if tower.positions else ""
        return [("encoder", first + heard)]
    sides = f"{tower.image} × {tower.image} pixels" if tower.image else "any size"
    sides = f"any size in tiles of {sides}" if tower.tiling else sides
    sides = f"any size, scaled to {tower.budget} tokens at most" if tower.budget else sides
    patches = f"images of {sides}, {tower.merge**2} of their {tower.patch} × {tower.patch} patches a token"
    return [
        ("vision", first),
        ("projector", projector + patches),
    ]


def _positions(model: Model) -> str:
    words = str(model.position)
    if model.position == "rope":
        words += f" of base {model.rotary_base:,.0f}"
    return words + (f", up to {model.max_position:,} tokens" if model.max_position else "")


def _layer_words(layer: Layer) -> str:
    parts = (
        _attention_words(layer.attention) if layer.attention else "",
        "attention to what is read" if layer.cross else "",
        layer.mixer.words if layer.mixer else "",
        _moe_words(layer.moe) if layer.moe else "",
        f"feed-forward of width {layer.mlp.width:,}{', gated' if layer.mlp.gated else ''}" if layer.mlp else "",
        "attention and feed-forward shared with other layers" if layer.shared else "",
        f"an embedding of its own of width {layer.embedded:,}" if layer.embedded else "",
    )
    return "; ".join(part for part in parts if part)


def _attention_words(attention: Attention) -> str:
    latent, sparse = attention.latent, attention.sparse
    if latent is not None:
        words = f"multi-head latent attention, {attention.heads} heads, key-value rank {latent.kv_rank}"
    else:
        words = (
            f"attention of {attention.heads} heads of {attention.head_dim}, {attention.kv_heads} for keys and values"
        )
    return "".join(
        (
            words,
            {"values": ", which are the same", "both": " of an earlier layer"}.get(attention.reused or "", ""),
            f", window {attention.window:,}" if attention.window is not None else "",
            "" if attention.causal else ", in both directions",
            ", gated" if attention.gate is not None else "",
            f", over {sparse.top_k:,} keys that an indexer picks" if sparse else "",
            " in a layer before" if sparse and not sparse.heads else "",
        )
    )


def _moe_words(moe: Moe) -> str:
    return "".join(
        (
            f"{moe.experts} experts of width {moe.expert_width:,}, {moe.top_k} for each token",
            f", on tokens projected to {moe.latent:,}" if moe.latent is not None else "",
            f", shared width {moe.shared_width:,}" if moe.shared_width else "",
            ", gated" if moe.gated else "",
        )
    )


def prices_text(prices: Sequence[MachinePrice], width: int | None = None) -> str:
    """Return one row a price; within `width` with shortened sources."""
    rows = [
        [row.provider, row.region, row.machine, f"{row.gpus} × {row.gpu}", _price(row.price.on_demand_per_hour),
         _price(row.price.spot_per_hour), row.price.date, row.price.source]
        for row in prices
    ]  # fmt: skip
    header = ("provider", "region", "machine", "GPUs", "on demand $/h", "spot $/h", "date", "source")
    words = ("provider", "region", "machine", "GPUs", "date", "source")
    return table(header, rows, words=words, cut="source", width=width)


def _price(dollars: float | None) -> str:
    return NONE if dollars is None else f"{dollars:.2f}"


def matrix_text(cells: Mapping[tuple[str, str], Mapping[str, str]], names: Sequence[str]) -> str:
    """Return a table with a row for each subject and value, and a column for each trainer in `names`. `cells` has what
    a trainer answers, by its name."""
    rows = [[*what, *(answers.get(name, NONE) for name in names)] for what, answers in cells.items()]
    header = ("subject", "value", *names)
    return table(header, rows, words=header)


def model_support_text(name: str, answers: Mapping[str, Sequence[str]], width: int = WIDTH) -> str:
    """Return who runs a model: for each trainer, by its title, what it lacks of the model, nothing where it runs it."""
    lines = [
        labelled(trainer, "runs it" if not lacks else "does not run it: " + "; ".join(lacks), width, column=16)
        for trainer, lacks in answers.items()
    ]
    return "\n".join([name, *lines])
