"""The manifest of a step comes back as it was written, or not at all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.samples import tiny_model

from shardwright.errors import SpecError
from shardwright.runtime.state.pieces import CutShape, StatePiece, StoredPiece
from shardwright.runtime.storage.checkpoint import prune
from shardwright.runtime.storage.manifest import (
    MANIFEST,
    Manifest,
    checkpoints,
    manifest_text,
    model_hash,
    parse_manifest,
    read_manifest,
    read_part,
    step_folder,
    working_folders,
    write_manifest,
    write_part,
)

STORED = StoredPiece(
    piece=StatePiece(kind="weight", parameter="p", start=1, stop=3, low=2, high=5),
    file="rank-00000.state", offset=64, bytes=12, dtype="float32", hash="ab",
)  # fmt: skip
SAMPLE = Manifest(
    step=7, model="cd", settings={"seed": 0, "rate": 1e-3, "name": "é"}, data={"samples": 56}, random={"seed": 0},
    loss_scale={"value": 65536.0}, parameters={"p": CutShape(shape=(4, 3))}, pieces=(STORED,),
)  # fmt: skip


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    write_manifest(tmp_path, SAMPLE)
    assert read_manifest(tmp_path) == SAMPLE
    write_part(tmp_path, STORED.file, SAMPLE.pieces)
    assert read_part(tmp_path, STORED.file) == SAMPLE.pieces


@given(st.integers(0, len(manifest_text(SAMPLE).encode()) - 1), st.integers(0, 7))
def test_no_flipped_bit_of_a_manifest_passes(place: int, bit: int) -> None:
    content = bytearray(manifest_text(SAMPLE).encode())
    content[place] ^= 1 << bit
    try:
        found = parse_manifest(content.decode(errors="replace"), "here")
    except SpecError:
        return
    assert found == SAMPLE, "white space and the like alone may differ"


@pytest.mark.parametrize(
    "wrong",
    [
        replace(STORED, file="../a"),
        replace(STORED, bytes=8),
        replace(STORED, dtype="float64"),
        replace(STORED, piece=replace(STORED.piece, high=7, low=4)),
        replace(STORED, piece=replace(STORED.piece, stop=5)),
        replace(STORED, piece=replace(STORED.piece, parameter="q")),
    ],
)
def test_pieces_that_cannot_be_are_refused(wrong: StoredPiece) -> None:
    with pytest.raises(SpecError):
        parse_manifest(manifest_text(replace(SAMPLE, pieces=(wrong,))), "here")


def test_only_whole_steps_count(tmp_path: Path) -> None:
    for name in ("step-00000010", "step-00000009", ".step-00000011.tmp", "step-x"):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, SAMPLE)
    (tmp_path / "step-00000012").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000009", "step-00000010"]
    assert (tmp_path / "step-00000010" / MANIFEST).exists()


def test_the_hash_of_a_model_is_that_of_its_shape() -> None:
    model = tiny_model(4)
    assert model_hash(model) == model_hash(replace(model, name="other"))
    others = [
        tiny_model(5),
        replace(model, rotary_base=1e6),
        replace(model, activation="gelu"),
        tiny_model(4, window=4),
    ]
    assert len({model_hash(item) for item in [model, *others]}) == 1 + len(others)


def test_what_is_left_of_a_checkpoint_that_was_being_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        folder = step_folder(tmp_path, step)
        folder.mkdir()
        write_manifest(folder, replace(SAMPLE, step=step))
    monkeypatch.setattr(shutil, "rmtree", lambda folder, ignore_errors: (folder / MANIFEST).unlink())  # and no further
    prune(tmp_path, 2)
    assert sorted(tmp_path.glob("step-*")) == checkpoints(tmp_path) == [step_folder(tmp_path, step) for step in (2, 3)]
    assert len(working_folders(tmp_path)) == 1, "which the next checkpoint clears away"
