"""Several weighted token files: which sample is the n-th depends on seed and weights alone."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.commands import make_folder, rows, run_alone

from shardwright.cli.train_input import sources_of
from shardwright.errors import SpecError
from shardwright.runtime.storage.data import header_path, write_tokens
from shardwright.runtime.storage.mixture import BLOCK, Mixture, Source, open_mixture

LENGTH = 4


def token_file(folder: Path, name: str, first: int, samples: int, tokenizer: str = "t.json") -> Path:
    """A file whose sample k has token first + k alone."""
    path = folder / name
    np.repeat(np.arange(first, first + samples + 1), LENGTH).astype(np.uint16).tofile(path)
    header = {
        "version": 1,
        "dtype": "uint16",
        "tokens": LENGTH * (samples + 1),
        "vocab": 60_000,
        "tokenizer": tokenizer,
    }
    header_path(path).write_text(json.dumps(header))
    return path


def mixture(folder: Path, *weights: float | None, seed: int = 0, batch: int = 4) -> Mixture:
    sizes = (0, 300), (1000, 100), (2000, 40)
    files = [
        token_file(folder, f"{first}.bin", first, count) for (first, count), _ in zip(sizes, weights, strict=False)
    ]
    sources = [Source(path=path, weight=weight) for path, weight in zip(files, weights, strict=True)]
    return open_mixture(sources, LENGTH, seed, 60_000, batch)


def numbers(found: Mixture, first: int, count: int) -> list[int]:
    return found.rows(first, count)[:, 0].tolist()


def test_every_block_has_each_file_in_its_share_and_each_file_goes_on_in_its_own_order(tmp_path: Path) -> None:
    found = mixture(tmp_path, 5, 3, 1)
    assert found.quotas == (5_556, 3_333, 1_111)
    seen = numbers(found, 0, 2 * BLOCK)
    for block in (seen[:BLOCK], seen[BLOCK:]):
        assert Counter(number // 1000 for number in block) == {0: 5_556, 1: 3_333, 2: 1_111}
    for file, part in enumerate(found.parts):
        own = [number for number in seen if number // 1000 == file]
        assert own == [int(part.rows([number])[0, 0]) for number in range(len(own))]
        epochs = [own[start : start + part.count] for start in range(0, len(own) - part.count, part.count)]
        assert len(epochs) > 3 and all(len(set(epoch)) == part.count for epoch in epochs), "each sample once an epoch"
    shares = [sum(number >= 2000 for number in seen[start : start + 1000]) for start in range(0, BLOCK, 1000)]
    assert min(shares) > 70, "mixed throughout"


def test_a_sample_is_found_without_those_before_it(tmp_path: Path) -> None:
    seen = numbers(mixture(tmp_path, 5, 3, 1), BLOCK - 50, 100)
    fresh = mixture(tmp_path, 0.5, 0.3, 0.1)
    assert numbers(fresh, BLOCK + 49, 1) + numbers(fresh, BLOCK - 50, 99) == [seen[-1], *seen[:-1]]
    assert numbers(mixture(tmp_path, 5, 3, 1, seed=1), BLOCK - 50, 100) != seen


def test_one_file_is_read_as_it_is_alone_and_sizes_are_weights_where_none_are_given(tmp_path: Path) -> None:
    alone = mixture(tmp_path, None)
    assert numbers(alone, 290, 20) == alone.parts[0].rows(range(290, 310))[:, 0].tolist()
    assert mixture(tmp_path, 7.0).fingerprint == alone.fingerprint and alone.name == "0.bin"
    two = mixture(tmp_path, None, None)
    assert two.quotas == (7488, 2512) and two.name == "0.bin=0.7488 1000.bin=0.2512"
    assert two.fingerprint not in (alone.fingerprint, mixture(tmp_path, 0.5, 0.5).fingerprint)


def test_data_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="40 samples of 4; a step takes 45"):
        mixture(tmp_path, 1, 1, 8, batch=56)
    with pytest.raises(SpecError, match="does not say which token ends a document"):
        mixture(tmp_path, 1).document_end()
    with pytest.raises(SpecError, match="less than one sample in 10,000"):
        mixture(tmp_path, 1, 1e-6)
    other = token_file(tmp_path, "x.bin", 0, 50, tokenizer="other/u.json")
    with pytest.raises(SpecError, match=r"has tokens of other/u.json, .*0.bin of t.json"):
        open_mixture([Source(path=tmp_path / "0.bin"), Source(path=other)], LENGTH, 0, 60_000, 4)


def test_files_and_weights_are_told_apart() -> None:
    found = sources_of(["a=b.bin", "c.bin"])
    assert found == (Source(path=Path("a=b.bin")), Source(path=Path("c.bin")))
    assert sources_of(["a=b.bin=0.25"]) == (Source(path=Path("a=b.bin"), weight=0.25),)
    for told, message in (
        ([], "is missing"),
        (["a.bin=1", "b.bin"], "some files have a weight"),
        (["a.bin=0"], "not above 0"),
        (["a.bin", "a.bin"], "twice"),
    ):
        with pytest.raises(SpecError, match=message):
            sources_of(told)


def test_a_run_on_several_files_goes_on_at_the_sample_where_it_stopped(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (tmp_path / "b.txt").write_text("Call me Ishmael. Some years ago, never mind how long precisely. " * 40)
    write_tokens(tmp_path / "d.bin", [tmp_path / "b.txt"])

    def trained(out: str, steps: int, *more: object, share: float = 0.3) -> subprocess.CompletedProcess[str]:
        data = ["--data", f"{folder}/c.bin=0.7", "--data", f"{folder}/d.bin={share}", "--eval-data", folder / "d.bin"]
        told = [
            *data,
            "--mask-documents",
            "--eval-every",
            2,
            "--eval-batches",
            3,
            "--steps",
            steps,
            "--out",
            folder / out,
        ]
        return run_alone(folder / "single.json", *told, *more)

    whole, first = trained("whole", 6), trained("parts", 3)
    again = trained("parts", 6, "--resume", folder / "parts")
    assert [done.returncode for done in (whole, first, again)] == [0, 0, 0], again.stderr
    found, expected = rows(folder / "parts"), rows(folder / "whole")
    assert [row["loss"] for row in found] == [row["loss"] for row in expected]
    assert [row["held_out_loss"] != "" for row in found] == [False, True, True, True, False, True]
    assert found[-1]["held_out_loss"] == expected[-1]["held_out_loss"] != expected[-1]["loss"]
    last = f"held-out loss {float(found[-1]['held_out_loss']):.4f}"
    assert (
        f"{last} at step 6" in again.stdout and f"step 6/6  loss {float(found[-1]['loss']):.4f}  {last}" in again.stderr
    )
    other = trained("parts", 8, "--resume", folder / "parts", share=0.5)
    assert other.returncode == 2 and "was written with data c.bin=0.7 d.bin=0.3 (" in other.stderr
