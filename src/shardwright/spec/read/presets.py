"""Models known by name. `data/models.json` holds one a line, each with its source and date."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from shardwright.errors import bad, suggestion
from shardwright.files import shipped_file
from shardwright.spec.catalog.gpus import CATALOG
from shardwright.spec.model import Model
from shardwright.spec.read.huggingface import model_of_config
from shardwright.spec.read.model_yaml import model_of_dimensions

# Endings of published names that do not change the shape: the format first, then what a model was trained for.
FORMATS = ("-hf", "-v0.1")
VARIANTS = (*FORMATS, "-uncased", "-pt", "-it", "-base", "-chat", "-instruct", "-4k")


@cache
def _presets() -> dict[str, dict[str, Any]]:
    presets: dict[str, dict[str, Any]] = json.loads(shipped_file(CATALOG, "models.json"))
    return presets


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in the order of the data file."""
    return tuple(_presets())


def preset_source(name: str) -> str:
    """Return source and date of a preset."""
    entry = _presets()[name]
    return f"{entry['source']} ({entry['date']})"


def find_preset(name: str) -> str | None:
    """Return the preset that `name` means: case, hyphens, an organisation before a slash and endings such as -hf or
    -instruct do not matter; ModelScope's folders have `___` for a point."""
    for endings in (FORMATS, VARIANTS):
        if preset := _by_plain_name(endings).get(_plain(name, endings)):
            return preset
    return None


@cache
def _by_plain_name(endings: tuple[str, ...]) -> dict[str, str]:
    """Return the first preset of each plain name."""
    presets: dict[str, str] = {}
    for preset, entry in _presets().items():
        for known in (preset, *entry.get("also", ())):
            presets.setdefault(_plain(known, endings), preset)
    return presets


def _plain(name: str, endings: tuple[str, ...]) -> str:
    folded = (
        name.casefold()
        .strip()
        .rsplit("/", 1)[-1]
        .replace("___", ".")
        .replace("_", "-")
        .replace(" ", "-")
        .removeprefix("meta-")
    )
    while ending := next((ending for ending in endings if folded.endswith(ending)), ""):
        folded = folded.removesuffix(ending)
    return re.sub("(?<![0-9])-|-(?![0-9])", "", folded)


def preset_model(name: str) -> Model:
    """Return a preset. Raises SpecError with near names for an unknown one."""
    preset = find_preset(name)
    if preset is None:
        raise bad(f"model {name}", "is not the name of a preset", suggestion(name, _presets()))
    entry, place = _presets()[preset], f"preset {preset}"
    if "dimensions" in entry:
        return model_of_dimensions(entry["dimensions"], place, title=preset)
    return model_of_config(entry["config"], place, title=preset)
