"""Checkpoints as safetensors and torch.distributed.checkpoint: whole tensors, and back as they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.running import run

from shardwright.errors import SpecError
from shardwright.runtime.state.pieces import CutShape, StatePiece
from shardwright.runtime.storage.exchange import export_checkpoint, import_checkpoint
from shardwright.runtime.storage.manifest import Manifest, read_manifest, step_folder, write_manifest, write_pieces

SHAPES = {"a.weight": CutShape(shape=(4, 6), dim=1), "b": CutShape(shape=(5,))}
KINDS = ("weight", "first", "second")


def checkpoint(root: Path, matrix: Sequence[str] = KINDS) -> dict[str, torch.Tensor]:
    """Write a checkpoint whose matrix is cut in two columns and has other kinds of state than its bias, as under Muon,
    and return its whole tensors."""
    random = np.random.default_rng(0)
    kinds = {"a.weight": matrix, "b": KINDS}
    whole = {
        f"{kind}.{name}": random.random(cut.shape, np.float32) for name, cut in SHAPES.items() for kind in kinds[name]
    }
    folder = step_folder(root, 7)
    folder.mkdir(parents=True)
    items = []
    for kind in KINDS:
        for start, stop in ((0, 2), (2, 6)) if kind in matrix else ():
            part = np.ascontiguousarray(whole[f"{kind}.a.weight"][:, start:stop]).reshape(-1)
            piece = StatePiece(kind=kind, parameter="a.weight", start=start, stop=stop, low=0, high=part.size)
            items.append((piece, part))
        piece = StatePiece(kind=kind, parameter="b", start=0, stop=5, low=0, high=5)
        items.append((piece, whole[f"{kind}.b"]))
    pieces = write_pieces(folder, "rank-0.state", items)
    manifest = Manifest(
        step=7, model="m", settings={"seed": 3}, data={"samples": 56}, random={"seed": 3}, loss_scale={"value": 2.0},
        parameters=SHAPES, pieces=pieces,
    )  # fmt: skip
    write_manifest(folder, manifest)
    return {name: torch.from_numpy(values) for name, values in whole.items()}


@pytest.mark.parametrize("name", ["step.safetensors", "step-dcp"])
@pytest.mark.parametrize("matrix", [KINDS, KINDS[:2], KINDS[:1]])
def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path, name: str, matrix: tuple[str, ...]) -> None:
    whole = checkpoint(tmp_path / "run", matrix)
    assert run(["checkpoint", "export", str(tmp_path / "run"), "-o", str(tmp_path / name)]).code == 0
    if name.endswith(".safetensors"):
        there = load_file(tmp_path / name)
        assert there.keys() == whole.keys() and all(torch.equal(there[key], whole[key]) for key in whole)
    assert run(["checkpoint", "import", str(tmp_path / name), "-o", str(tmp_path / "back")]).code == 0
    before, after = (read_manifest(step_folder(tmp_path / root, 7)) for root in ("run", "back"))
    assert (after.settings, after.data, after.random, after.loss_scale, after.parameters) == (
        before.settings, before.data, before.random, before.loss_scale, before.parameters,
    )  # fmt: skip
    export_checkpoint(tmp_path / "back", tmp_path / "again.safetensors")
    again = load_file(tmp_path / "again.safetensors")
    assert all(torch.equal(again[key], whole[key]) for key in whole)


def test_nothing_is_written_over_and_what_is_no_export_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "run")
    (tmp_path / "there").mkdir()
    for wrong in (
        lambda: export_checkpoint(tmp_path / "run", tmp_path / "there"),
        lambda: import_checkpoint(tmp_path / "there", tmp_path / "back"),
        lambda: export_checkpoint(tmp_path / "none", tmp_path / "new"),
    ):
        with pytest.raises(SpecError):
            wrong()
