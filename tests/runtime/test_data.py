"""Token files and the order of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardwright.errors import SpecError
from shardwright.runtime.storage import data
from shardwright.runtime.storage.data import (
    END_OF_TEXT,
    document_tokens,
    header_path,
    make_samples,
    open_tokens,
    write_tokens,
)


def corpus(folder: Path, text: str = "All happy families are alike. " * 20) -> Path:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    (folder / "b.txt").write_text("é", encoding="utf-8")
    write_tokens(folder / "c.bin", [folder / "a.txt", folder / "b.txt"])
    return folder / "c.bin"


def test_bytes_are_tokens_and_texts_end(tmp_path: Path) -> None:
    file = open_tokens(corpus(tmp_path, "ab"))
    assert np.asarray(file.tokens[:]).tolist() == [97, 98, END_OF_TEXT, 0xC3, 0xA9, END_OF_TEXT]
    assert (file.vocab, file.tokenizer) == (257, "bytes")


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    samples = make_samples(open_tokens(corpus(tmp_path)), 16, seed=1, vocab=257, batch=4)
    starts = {tuple(samples.file.tokens[i * 16 : i * 16 + 17].tolist()) for i in range(samples.count)}
    epochs = [
        [tuple(row) for row in samples.rows(range(e * samples.count, (e + 1) * samples.count)).tolist()]
        for e in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) and set(epochs[0]) == starts
    assert epochs[0] != epochs[1]
    again = make_samples(open_tokens(tmp_path / "c.bin"), 16, seed=1, vocab=257, batch=4)
    np.testing.assert_array_equal(again.rows(range(7, 12)), samples.rows(range(7, 12)))
    other = make_samples(samples.file, 16, seed=2, vocab=257, batch=4)
    assert [tuple(row) for row in other.rows(range(samples.count)).tolist()] != epochs[0]


def test_bad_token_files_are_told(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    with pytest.raises(SpecError, match="vocabulary ends at 99"):
        make_samples(open_tokens(path), 16, seed=0, vocab=100, batch=1)
    with pytest.raises(SpecError, match="0 samples of 10,000; a step takes 1"):
        make_samples(open_tokens(path), 10_000, seed=0, vocab=257, batch=1)
    with pytest.raises(SpecError, match="samples of 16; a step takes 100"):
        make_samples(open_tokens(path), 16, seed=0, vocab=257, batch=100)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpecError, match="its header says"):
        open_tokens(path)
    header_path(path).write_text("{}")
    with pytest.raises(SpecError, match="no header of a token file"):
        open_tokens(path)
    with pytest.raises(SpecError, match="has no header"):
        open_tokens(tmp_path / "missing.bin")


def test_documents_are_measured_as_samples_cut_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("a", 9), ("b", 29), ("c", 4)):
        (tmp_path / name).write_text("x" * size)
    file = write_tokens(tmp_path / "c.bin", [tmp_path / name for name in "abc"])
    assert document_tokens(file, 100) == pytest.approx((10**2 + 30**2 + 5**2) / 45)
    cut = (10**2 + 6**2 + 16**2 + 8**2 + 5**2) / 45  # samples of 16: 10 6 | 16 | 8 5
    for scanned in (1, 1 << 24):
        monkeypatch.setattr(data, "SCANNED_TOKENS", scanned)
        assert document_tokens(file, 16) == pytest.approx(cut)
