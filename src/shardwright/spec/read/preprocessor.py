"""How images are cut into tiles, as the file of the image processor beside a `config.json` says.

That is `preprocessor_config.json`, or the field `image_processor` of `processor_config.json`. Fields and defaults are
those of Hugging Face transformers 5.24 (`models/<model_type>/image_processing_*.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shardwright.errors import reject
from shardwright.spec.model import Model, Tower
from shardwright.spec.read.config_fields import ConfigFields
from shardwright.spec.text.reading import parse_json, read_text
from shardwright.spec.tiles import Tiling, grids_within

FILES = (("preprocessor_config.json", ""), ("processor_config.json", "image_processor"))


def with_preprocessor(model: Model, folder: Path) -> Model:
    """Return a model whose images are cut as a file in `folder` says, the same where it has none. Raises SpecError."""
    tower, fields = model.tower, _fields(folder)
    if tower is None or tower.tiling is None or fields is None:
        return model
    tiling = _tiling(tower, tower.tiling, fields)
    reject(fields.problems)
    return replace(model, tower=replace(tower, tiling=tiling))


def _fields(folder: Path) -> ConfigFields | None:
    for name, inside in FILES:
        path = folder / name
        data = parse_json(read_text(path), str(path)) if path.is_file() else None
        fields = data.get(inside) if inside and isinstance(data, Mapping) else data
        if isinstance(fields, Mapping):
            return ConfigFields.of(fields, f"{path}: {inside}" if inside else str(path))
    return None


def _tiling(tower: Tower, usual: Tiling, fields: ConfigFields) -> Tiling | None:
    if usual.by in ("ratio", "scale"):
        most = fields.size("max_patches")
        least = fields.size("min_patches") or 1
        return usual if most is None else replace(usual, grids=grids_within(least, most))
    if usual.by == "area":  # whose grids are in the config, too
        return usual
    if not fields.flag("do_image_splitting", default=True):
        return None
    side, longest = (_edge(fields, name) or number for name, number in (("max_image_size", 364), ("size", 4 * 364)))
    if side != tower.image:
        message = f"cuts images into tiles of {side} pixels, the encoder takes {tower.image}"
        fields.section.report("max_image_size", message, "check both files")
    elif longest % side:
        fields.section.report("size", f"{longest} pixels are no whole tiles of {side}", "write a multiple")
    return replace(usual, longest=max(longest // side, 1))


def _edge(fields: ConfigFields, name: str) -> int | None:
    inner = fields.inner(name) if fields.has((name,)) else None
    return inner.size("longest_edge") if inner is not None else None
