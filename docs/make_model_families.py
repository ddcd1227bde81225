"""Writes docs/model-families.md: which families of models are read, and which are refused and why.

.venv/bin/python docs/make_model_families.py
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.cost.compute.flops import image_flops
from shardwright.files import write_atomically
from shardwright.spec.images import taken_of
from shardwright.spec.model import Model, Tower
from shardwright.spec.read.encoder_decoders import BARTS, ENCODER_DECODERS, T5S
from shardwright.spec.read.families import FAMILIES, REFUSED, SYNONYMS, TRAINED
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.job import make_job
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.spec.sounds import SPECTRA
from shardwright.units import format_count

PAGE = Path(__file__).with_name("model-families.md")
COUNTS = Path(__file__).parents[1] / "tests" / "spec" / "transformers_counts.json"
TOWERS = COUNTS.with_name("transformers_towers.json")
SOUNDS = COUNTS.with_name("transformers_sounds.json")
LEAD = """# Families of models

Made by `docs/make_model_families.py`. A family is the `model_type` of a Hugging Face `config.json`. Counts are those of
transformers {version}, whose classes `tests/spec/count_with_transformers.py` builds on the meta device: small models of
every family, and of each that has one its default configuration. {equal} families are read, and {refused} are refused
by name. Any other `model_type` is refused unless `--accept-guess` is given; then every report begins with each guess.

## Read

{trained} of them `shardwright train` runs, equal to transformers: logits and every gradient of a small model of each
within a relative 1e-5 in fp32 (`tests/runtime/test_transformers.py`). The others it refuses by name, as any field of a
`config.json` whose meaning for the forward pass it does not know; `shardwright spmd train` runs any module.

"Particular" is what the forward pass has beyond what is costed: it moves neither parameters nor FLOPs that count.
`export` takes no such model.

| family | `train` runs it | configurations compared | largest difference | particular |
|---|---|---|---|---|
"""
SEEING = """
## Models that see images

Of these the vision tower and the projector are read too: their weights run before the first layer, on the images that
`--images-per-sequence` and `--image-size` say. Any other tower is left out, and the report says so: then only the text
model is planned. Compared are weights of tower, projector and text model, each, and FLOPs of an image with PyTorch's
counter (`tests/spec/count_towers_with_transformers.py`). Larger images than the encoder takes are scaled down, or cut
into tiles with the whole image beside them. What the tower of Llama 3.2 Vision (`mllama`) gives is no part of the
sequence: some layers read it by cross attention. The authors' own configs of InternVL (`internvl_chat`) are read, too.

| `model_type` | encoder | images | configurations compared | largest difference of weights | of FLOPs |
|---|---|---|---|---|---|
"""
HEARING = """
## Models that hear

The tower of sound and its projector are read, of `qwen2_5_omni` the thinker's: `--sounds-per-sequence` and
`--sound-seconds` say what they take. They are compared as those that see
(`tests/spec/count_sounds_with_transformers.py`).

| `model_type` | a sound is | tokens a second | configurations compared | largest difference of weights | of FLOPs |
|---|---|---|---|---|---|
"""
SPEAKING = """
## Encoder-decoders

Read with both stacks; weights of each are those of transformers' classes on the meta device
(`tests/spec/test_encoder_decoders.py`). Accelerate and DeepSpeed run them; adapters beside their weights are refused.

| `model_type` | the encoder takes | positions | presets |
|---|---|---|---|
"""
REFUSALS = """
## Refused

| what they have that cannot be costed | families |
|---|---|
"""


def main() -> None:
    """Write the page."""
    write_atomically(PAGE, page())


def page() -> str:
    """Return the whole page."""
    data = json.loads(COUNTS.read_text(encoding="utf-8"))
    compared: defaultdict[str, list[float]] = defaultdict(list)
    for row in data["models"]:
        compared[row["config"]["model_type"]].append(_difference(row))
    for row in json.loads(TOWERS.read_text(encoding="utf-8"))["models"]:  # of text models that only see images
        text = row["config"].get("text_config", {}).get("model_type", "")
        if text in FAMILIES and text not in {row["config"]["model_type"] for row in data["models"]}:
            compared[text].append(_difference(row))
    lead = LEAD.format(version=data["transformers"], equal=len(FAMILIES), refused=len(REFUSED), trained=len(TRAINED))
    built = {row["model_type"] for row in data["causal"]}
    rows = [_read(name, compared.get(name, []), built) for name in sorted(FAMILIES)]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in REFUSED.items():
        reasons[reason].append(name)
    refused = [f"| {reason} | {', '.join(sorted(names))} |" for reason, names in reasons.items()]
    return (
        lead
        + "\n".join(rows)
        + "\n"
        + SEEING
        + _seeing()
        + HEARING
        + _hearing()
        + SPEAKING
        + _speaking()
        + REFUSALS
        + "\n".join(refused)
        + "\n"
    )


def _seeing() -> str:
    """Return a row for each kind of model with each kind of encoder that it was compared with."""
    compared: defaultdict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    data = json.loads(TOWERS.read_text(encoding="utf-8"))
    for row in data["models"]:
        tower = model_of_config(row["config"], "config.json").tower
        assert tower is not None, "every model of the file has a tower that is read"
        images = (
            "scaled" if tower.budget else "any size" if tower.image is None else "tiles" if tower.tiling else "one size"
        )
        images = f"{tower.tiles} tiles together" if tower.tiles else images
        compared[row["given"]["model_type"], tower.family, images].append(
            (_difference(row), _more_flops(tower, row["flops"], size=data["image"]))
        )
    return _table(compared)


def _hearing() -> str:
    """Return a row for each kind of model that hears."""
    compared: defaultdict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    data = json.loads(SOUNDS.read_text(encoding="utf-8"))
    for row in data["models"]:
        audio = model_of_config(row["config"], "config.json").audio
        assert audio is not None, "every model of the file has a tower of sound that is read"
        words = "padded" if audio.segments is None else f"cut into segments, the last one {audio.segments}"
        halved, chunk = 2 ** (len(audio.stem) - 1), audio.chunk or SPECTRA * 8
        rate = f"{SPECTRA * math.ceil(chunk / halved) / chunk / audio.joined:g}"
        key = row["given"]["model_type"], words if audio.positions else "of any length", rate
        compared[key].append((_difference(row), _more_flops(audio, row["flops"], seconds=data["seconds"])))
    return _table(compared)


def _table(compared: Mapping[tuple[str, str, str], list[tuple[float, float]]]) -> str:
    lines = []
    for key, of_kind in compared.items():
        weights, flops = (max(side) for side in zip(*of_kind, strict=True))
        lines.append(f"| {' | '.join(key)} | {len(of_kind)} | {weights:.1%} | {flops:.1%} |\n")
    return "".join(lines)


def _more_flops(tower: Tower, counted: int, *, size: str | None = None, seconds: float | None = None) -> float:
    """Return how far our FLOPs of an image or a sound are from those that PyTorch counted, as a share."""
    free = tower.tiling or not tower.image
    job = make_job(global_batch=1, seq_len=1024, image_size=size if free else None, sound_seconds=seconds)
    taken = taken_of(tower, job)
    return abs(taken.count * sum(image_flops(tower, taken)) / counted - 1.0)


def _speaking() -> str:
    """Return a row for each kind of encoder-decoder with the presets of it."""
    presets: defaultdict[str, list[Model]] = defaultdict(list)
    for model in map(preset_model, preset_names()):
        presets[model.family].append(model)
    lines = []
    for name in ENCODER_DECODERS:
        words = ", ".join(f"{model.name} ({format_count(model.parameters)})" for model in presets[name])
        taken, positions = ("text", "relative") if name in T5S else ("text", BARTS[name].positions)
        taken = "sound" if name == "whisper" else taken
        lines.append(f"| {name} | {taken} | {'computed' if positions == 'none' else positions} | {words} |\n")
    return "".join(lines)


def _difference(row: dict[str, Any]) -> float:
    """Return how far our count is from that of transformers, as a share."""
    ours = model_of_config(row["config"], "config.json").parameters
    return float(abs(ours / row["parameters"] - 1.0))


def _read(name: str, differences: list[float], built: set[str]) -> str:
    also = sorted(other for other, meant in SYNONYMS.items() if meant == name)
    names = f"{name} ({', '.join(also)})" if also else name
    absent = "the text model alone, by its published count" if name in built else "not in transformers"
    worst = f"{max(differences):.2%}" if differences else absent
    trained = "yes" if name in TRAINED else ""
    return f"| {names} | {trained} | {len(differences)} | {worst} | {FAMILIES[name].particular or ''} |"


if __name__ == "__main__":
    main()
