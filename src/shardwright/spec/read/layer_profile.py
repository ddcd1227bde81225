"""Reading of a layer profile, and what planning needs beyond it, made from the profile where nobody says it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

from shardwright.errors import Problem, bad, reject, suggestion
from shardwright.spec.catalog.gpus import gpus, known_gpu
from shardwright.spec.cluster import Gpu
from shardwright.spec.layer import Attention, Layer, Mlp
from shardwright.spec.layer_profile import EXTRAS, TIMES, Column, LayerProfile, LayerTimes, LinkCurve, Scope
from shardwright.spec.model import Model
from shardwright.spec.read.custom_gpu import stand_in
from shardwright.spec.text.fields import Section, number_problem, shown
from shardwright.spec.text.reading import document
from shardwright.units import GIGA

VERSION = 1
DOCUMENTATION = "docs/how-to-bring-your-own-measurements.md"
PROFILE_KEYS = ("version", "model", "seq_len", "precision", "source", "sequence_parallel", "entries", "links")
ENTRY_KEYS = ("gpu", "tensor_parallel", "micro_batch", *TIMES, *EXTRAS)
LINK_KEYS = ("from", "to", "scope", "ranks", "bytes", "seconds")
MOST_DEGREE, MOST_SIZE = 4096, 10**9
FEWEST_POSITIONS = 3  # embedding, one layer, head
STAND_IN = "layer profile"  # source of a GPU of which only the profile knows
HEAD_WIDTH = 64
WIDTHS = {"fp32": 4.0}  # bytes of a weight or an activation; 2 in any other precision


def is_layer_profile(data: object) -> bool:
    """Return whether JSON data are meant as a layer profile, rather than as a machine profile."""
    return isinstance(data, Mapping) and "entries" in data and "operators" not in data


def load_layer_profile(path: Path | str) -> LayerProfile:
    """Return the layer profile that a file holds. Raises SpecError, naming every faulty field."""
    with document(Path(path)) as data:
        return layer_profile(data, str(path))


def layer_profile(data: object, name: str = "profile") -> LayerProfile:
    """Return the layer profile that JSON data hold; `name` stands for the file in messages. Raises SpecError."""
    if not isinstance(data, Mapping) or not is_layer_profile(data):
        raise bad(name, "is not a layer profile", f"what belongs in it: {DOCUMENTATION}")
    if data.get("version") != VERSION or isinstance(data.get("version"), bool):
        raise bad(f"{name}: version", f"is {shown(data.get('version'))}, not {VERSION}", f"write version: {VERSION}")
    root = Section(name, data, [])
    root.reject_unknown(PROFILE_KEYS)
    for key, hint in (("model", "name the model"), ("seq_len", "say how many tokens a sample had")):
        root.require(key, hint)
    model, seq_len = root.text("model"), root.integer("seq_len", most=MOST_SIZE)
    precision = root.text("precision") or ""
    sequence_parallel = root.flag("sequence_parallel")
    entries = [entry for section in root.sections("entries") if (entry := _entry(section)) is not None]
    if not root.problems and not entries:
        root.report("entries", "has no measured layers", "one entry for each GPU type, degree and micro-batch")
    _alike(root, entries)
    links = [link for section in root.sections("links") if (link := _link(section)) is not None]
    reject(root.problems)
    return LayerProfile(
        model=cast("str", model),
        seq_len=cast("int", seq_len),
        precision=precision,
        entries=tuple(entries),
        links=tuple(links),
        sequence_parallel=sequence_parallel,
    )


def gpu_name(name: str) -> str:
    """Return the catalogue's name of a GPU (or alias), or `name` itself where the catalogue has none."""
    gpu = known_gpu(name)
    return gpu.name if gpu else name


def _entry(section: Section) -> LayerTimes | None:
    before = len(section.problems)
    section.reject_unknown(ENTRY_KEYS)
    for key in ("gpu", "tensor_parallel", "micro_batch", *TIMES):
        section.require(key, "needed of every entry")
    gpu, degree = section.text("gpu"), section.integer("tensor_parallel", most=MOST_DEGREE)
    size = section.integer("micro_batch", most=MOST_SIZE)
    columns = {key: _column(section, key) for key in (*TIMES, *EXTRAS)}
    lengths = {key: len(values) for key, values in columns.items() if values}
    if len(section.problems) > before:
        return None
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {length}" for key, length in lengths.items())
        section.report("forward_seconds", f"the lists differ in length: {counts}", "one figure for each position")
    elif lengths["forward_seconds"] < FEWEST_POSITIONS:
        section.report("forward_seconds", "has fewer than three positions", "embedding, every layer, head")
    else:
        _require_work(section, columns)
    if len(section.problems) > before:
        return None
    return LayerTimes(
        gpu=gpu_name(cast("str", gpu)), tensor_parallel=cast("int", degree), micro_batch=cast("int", size), **columns
    )


def _require_work(section: Section, columns: Mapping[str, Column]) -> None:
    """Embedding and head may take no time or memory, layers do."""
    for key, values in columns.items():
        empty = [place for place, value in enumerate(values[1:-1], start=1) if value == 0.0]
        if empty:
            section.report(f"{key}[{empty[0]}]", "is 0, but it is a layer", "write what it takes, or drop the list")


def _column(section: Section, key: str) -> Column:
    """Return a list of numbers from zero on, empty where it is missing or after adding its problem."""
    values = section.fields.get(key)
    if values is None:
        return ()
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        section.report(key, f"expected a list of numbers, got {shown(values)}", "one figure for each position")
        return ()
    for place, value in enumerate(values):
        problem = number_problem(value, zero=True)
        if problem:
            section.report(f"{key}[{place}]", *problem)
            return ()
    return tuple(float(value) for value in values)


def _alike(root: Section, entries: Sequence[LayerTimes]) -> None:
    """Add a problem where entries have other positions than the first, or a setting comes twice."""
    seen: set[tuple[str, int, int]] = set()
    for place, entry in enumerate(entries):
        key = (entry.gpu, entry.tensor_parallel, entry.micro_batch)
        words = f"{entry.gpu}, tensor_parallel {entry.tensor_parallel}, micro_batch {entry.micro_batch}"
        if key in seen:
            root.report(f"entries[{place}]", f"{words} is there twice", "keep one of them")
        seen.add(key)
        if len(entry.forward_seconds) != len(entries[0].forward_seconds):
            message = f"has {len(entry.forward_seconds)} positions, the first entry {len(entries[0].forward_seconds)}"
            root.report(f"entries[{place}]", message, "all entries are of one model")


def _link(section: Section) -> LinkCurve | None:
    before = len(section.problems)
    section.reject_unknown(LINK_KEYS)
    for key in ("from", "to", "scope", "bytes", "seconds"):
        section.require(key, "needed of every link")
    source, target = section.text("from"), section.text("to")
    scope = section.fields.get("scope")
    if scope is not None and scope not in ("intra_node", "inter_node"):
        section.report("scope", f"is {shown(scope)}", suggestion(str(scope), ("intra_node", "inter_node")))
    ranks = section.integer("ranks", most=MOST_DEGREE)
    sizes, seconds = _column(section, "bytes"), _column(section, "seconds")
    if len(section.problems) == before:
        if len(sizes) != len(seconds):
            section.report("seconds", f"has {len(seconds)} times for {len(sizes)} sizes", "one for each size")
        elif min(sizes) <= 0.0 or min(seconds) <= 0.0:
            section.report("seconds", "a message of no bytes or no time", "leave it out")
        elif any(low >= high for low, high in pairwise(sizes)):
            section.report("bytes", "are not in ascending order", "sort them")
    if len(section.problems) > before:
        return None
    return LinkCurve(
        source=gpu_name(cast("str", source)),
        target=gpu_name(cast("str", target)),
        scope=cast("Scope", scope),
        bytes=sizes,
        seconds=seconds,
        ranks=ranks,
    )


def stand_in_model(profile: LayerProfile, precision: str) -> Model:
    """Return a GPT with the hidden size, parameters and vocabulary of a profile of a model that nobody describes.

    Raises SpecError where the profile does not say what these are.
    """
    entry = min(profile.entries, key=lambda candidate: (candidate.tensor_parallel, candidate.micro_batch))
    reject(
        Problem("`profile=`", f"has no {key}, and no model is given", f"give `model=`, or add {key} of every position")
        for key in ("weight_bytes", "output_bytes")
        if not getattr(entry, key)
    )
    width = WIDTHS.get(precision, 2.0)
    hidden = max(round(entry.output_bytes[1] / (width * entry.micro_batch * profile.seq_len)), 1)
    weights = [size * entry.tensor_parallel / width for size in entry.weight_bytes]
    vocab = max(round(weights[-1] / hidden) - 2, 1)
    degrees = math.lcm(*(timed.tensor_parallel for timed in profile.entries))
    heads = _heads(hidden, degrees)
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=max(hidden // heads, 1),
        value_head_dim=max(hidden // heads, 1),
        qkv_bias=True,
        out_bias=True,
    )
    layer = sum(weights[1:-1]) / profile.layers
    inner = round((layer - attention.parameters(hidden) - 5 * hidden) / (2 * hidden + 1) / degrees)
    mlp = Mlp(width=max(inner, 1) * degrees, gated=False, bias=True)
    rows = round(weights[0] / hidden) - vocab
    positions = rows if rows >= profile.seq_len else 0  # fewer are padding of the vocabulary
    return Model(
        name=profile.model,
        family="gpt2",
        hidden=hidden,
        vocab=vocab,
        layers=(Layer(attention=attention, mlp=mlp, moe=None),) * profile.layers,
        norm="layernorm",
        position="learned" if positions else "rope",
        max_position=profile.seq_len,
        learned_positions=positions,
        activation="gelu",
        assumed=(f"a GPT of the sizes in the profile: hidden {hidden}, vocabulary {vocab}, {heads} heads",),
    )


def _heads(hidden: int, degrees: int) -> int:
    """Return a number of heads that every measured degree divides, of about the usual width."""
    wanted = max(hidden // HEAD_WIDTH, degrees)
    return max(wanted // degrees, 1) * degrees


def stand_in_gpus(profile: LayerProfile, model: Model, precision: str) -> Mapping[str, Gpu]:
    """Return the GPUs of a profile that the catalogue does not have, by name. Their peak is what the fastest layer
    measured reaches; how much memory they have, and which links, is for the cluster and the profile to say."""
    return {name: _gpu(profile, name, model, precision) for name in profile.gpus if name not in gpus()}


def _gpu(profile: LayerProfile, name: str, model: Model, precision: str) -> Gpu:
    peak = max(flops_per_second(entry, model, profile.seq_len) for entry in profile.of(name))
    return stand_in(
        name=name,
        peak_flops=tuple((dtype, peak) for dtype in dict.fromkeys((precision, "bf16"))),
        memory_bytes=0.0,
        memory_bytes_per_second=1000 * GIGA,
        source=STAND_IN,
    )


def flops_per_second(entry: LayerTimes, model: Model, seq_len: int) -> float:
    """Return the speed of the fastest layer: 6 FLOPs a token and parameter, and the products of causal attention."""
    tokens = entry.micro_batch * seq_len
    rates = []
    for place, layer in enumerate(model.layers, start=1):
        parameters = model.layer_parameters(layer)
        flops = 6.0 * tokens * (parameters + seq_len * (layer.attention.out_width if layer.attention else 0))
        rates.append(flops / entry.tensor_parallel / (entry.forward_seconds[place] + entry.backward_seconds[place]))
    return max(rates)
