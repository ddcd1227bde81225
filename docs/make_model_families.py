"""Writes docs/model-families.md: which families of models are read, and which are refused and why.

.venv/bin/python docs/make_model_families.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from shardwright.cost.compute.flops import image_flops
from shardwright.files import write_atomically
from shardwright.spec.images import taken_of
from shardwright.spec.model import Tower
from shardwright.spec.read.families import FAMILIES, REFUSED, SYNONYMS, TRAINED
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.job import make_job

PAGE = Path(__file__).with_name("model-families.md")
COUNTS = Path(__file__).parents[1] / "tests" / "spec" / "transformers_counts.json"
TOWERS = COUNTS.with_name("transformers_towers.json")
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
counter (`tests/spec/count_towers_with_transformers.py`).

| `model_type` | encoder | configurations compared | largest difference of weights | of FLOPs |
|---|---|---|---|---|
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
    lead = LEAD.format(version=data["transformers"], equal=len(FAMILIES), refused=len(REFUSED), trained=len(TRAINED))
    rows = [_read(name, compared.get(name, [])) for name in sorted(FAMILIES)]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in REFUSED.items():
        reasons[reason].append(name)
    refused = [f"| {reason} | {', '.join(sorted(names))} |" for reason, names in reasons.items()]
    return lead + "\n".join(rows) + "\n" + SEEING + _seeing() + REFUSALS + "\n".join(refused) + "\n"


def _seeing() -> str:
    """Return a row for each kind of model with each kind of encoder that it was compared with."""
    compared: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    data = json.loads(TOWERS.read_text(encoding="utf-8"))
    for row in data["models"]:
        tower = model_of_config(row["config"], "config.json").tower
        assert tower is not None, "every model of the file has a tower that is read"
        compared[row["given"]["model_type"], tower.family].append(
            (_difference(row), _more_flops(tower, row["flops"], data["image"]))
        )
    lines = []
    for (name, encoder), of_kind in compared.items():
        weights, flops = (max(side) for side in zip(*of_kind, strict=True))
        lines.append(f"| {name} | {encoder} | {len(of_kind)} | {weights:.1%} | {flops:.1%} |\n")
    return "".join(lines)


def _more_flops(tower: Tower, counted: int, size: str) -> float:
    """Return how far our FLOPs of an image of a size are from those that PyTorch counted, as a share."""
    job = make_job(global_batch=1, seq_len=1024, image_size=None if tower.image else size)
    images = taken_of(tower, job)
    return abs(sum(image_flops(tower, images)) / counted - 1.0)


def _difference(row: dict[str, Any]) -> float:
    """Return how far our count is from that of transformers, as a share."""
    ours = model_of_config(row["config"], "config.json").parameters
    return float(abs(ours / row["parameters"] - 1.0))


def _read(name: str, differences: list[float]) -> str:
    also = sorted(other for other, meant in SYNONYMS.items() if meant == name)
    names = f"{name} ({', '.join(also)})" if also else name
    worst = f"{max(differences):.2%}" if differences else "not in transformers"
    trained = "yes" if name in TRAINED else ""
    return f"| {names} | {trained} | {len(differences)} | {worst} | {FAMILIES[name].particular or ''} |"


if __name__ == "__main__":
    main()
