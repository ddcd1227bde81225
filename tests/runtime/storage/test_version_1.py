"""Checkpoints of version 1 are read as they were written: whole cuts by bucket, in safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from shardwright.errors import SpecError
from shardwright.runtime.storage.checkpoint import open_checkpoint
from shardwright.runtime.storage.manifest import MANIFEST, checkpoints

ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)
COLUMNS = np.arange(24, dtype=np.float32).reshape(4, 6)
WHOLE = np.arange(4, dtype=np.float32)


def write(root: Path, step: int) -> Path:
    """A step as version 1 wrote it: two shards of a unit, a vocabulary of 5 rows padded to 6, a norm in one of them."""
    folder = root / f"step-{step:08d}"
    folder.mkdir()
    for shard in range(2):
        parts: dict[str, tuple[NDArray[np.float32], tuple[int | None, int, int]]] = {
            "weight:embedding.tokens.weight": (ROWS[3 * shard : 3 * shard + 3], (0, 3 * shard, 3 + 2 * shard)),
            "weight:layers.0.out": (COLUMNS[:, 3 * shard : 3 * shard + 3], (1, 3 * shard, 3 * shard + 3)),
        }
        if shard == 0:
            parts["weight:layers.0.norm"] = (WHOLE, (None, 0, 0))
        save_file(
            {key: np.ascontiguousarray(value) for key, (value, _) in parts.items()},
            folder / f"units-0000-0001-shard-{shard}-of-2.safetensors",
            {"parts": json.dumps({key: where for key, (_, where) in parts.items()})},
        )
    meta = {"version": 1, "step": step, "settings": {"seed": 3}, "loss_scale": None}
    (folder / "checkpoint.json").write_text(json.dumps(meta))
    return folder


def test_whole_parameters_come_back(tmp_path: Path) -> None:
    write(tmp_path, 9)
    write(tmp_path, 10)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.step, checkpoint.manifest.settings) == (10, {"seed": 3})
    for name, value in {"embedding.tokens.weight": ROWS, "layers.0.out": COLUMNS, "layers.0.norm": WHOLE}.items():
        assert np.array_equal(checkpoint.whole_weight(name).numpy(), value)


def test_both_versions_stand_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, 9)
    (tmp_path / "step-00000012").mkdir()
    (tmp_path / "step-00000012" / MANIFEST).write_text("{}")
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000009", "step-00000012"]
    assert open_checkpoint(tmp_path / "step-00000009").step == 9


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, 9)
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(SpecError, match="is cut off"):
        open_checkpoint(tmp_path).whole_weight("layers.0.out")
    file.write_bytes(b"0")
    with pytest.raises(SpecError, match=r"safetensors: is no part of a whole checkpoint"):
        open_checkpoint(tmp_path)
