"""The hash of a model: that of all that its weights are of, its name left out. Needs no PyTorch."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from shardwright.runtime.storage.manifest import hash_of
from shardwright.spec.model import Model


def model_hash(model: Model) -> str:
    """Return the hash of a model. Fields that have their default value do not count, so that a field which a later
    release adds leaves the hash as it is."""
    return hash_of(json.dumps(_described(replace(model, name="")), sort_keys=True).encode())


def _described(value: Any) -> Any:
    if is_dataclass(value):
        found = {item.name: getattr(value, item.name) for item in fields(value) if _told(value, item)}
        return {name: _described(item) for name, item in found.items()}
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return value


def _told(value: Any, item: Any) -> bool:
    return item.default is MISSING or getattr(value, item.name) != item.default
