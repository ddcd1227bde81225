"""Models known by name. `data/models.json` holds their configs, each with its source and date."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from shardwright.errors import bad, suggestion
from shardwright.spec.huggingface import model_of_config
from shardwright.spec.model import Model


@lru_cache(maxsize=1)
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("shardwright.spec").joinpath("data/models.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in the order of the data file."""
    return tuple(_presets())


def preset_source(name: str) -> str:
    """Return source and date of a preset."""
    entry = _presets()[name]
    return f"{entry['source']} ({entry['date']})"


def find_preset(name: str) -> str | None:
    """Return the preset that `name` means: case, underscores, an organisation before a slash and endings such as
    -hf do not matter."""
    plain = _plain(name)
    return next((preset for preset in _presets() if _plain(preset) == plain), None)


def _plain(name: str) -> str:
    folded = name.casefold().rsplit("/", 1)[-1].replace("_", "-").removeprefix("meta-")
    for ending in ("-hf", "-v0.1", "-uncased", "-pt"):
        folded = folded.removesuffix(ending)
    return folded


def preset_model(name: str) -> Model:
    """Return a preset. Raises SpecError with near names for an unknown one."""
    found = find_preset(name)
    if found is None:
        raise bad(f"model {name}", "is neither a preset, a file nor a folder", suggestion(name, _presets()))
    return model_of_config(_presets()[found]["config"], f"preset {found}", title=found)
