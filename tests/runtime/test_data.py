"""Token files and the order of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright.errors import SpecError
from shardwright.runtime import metrics
from shardwright.runtime.data import END_OF_TEXT, header_path, make_samples, open_tokens, write_tokens
from shardwright.runtime.layer_profile import Measured, profile_document
from shardwright.runtime.metrics import Row
from shardwright.runtime.recipe import Recipe
from shardwright.runtime.watch import Sign, judged
from shardwright.spec.layer_profile import layer_profile


def corpus(folder: Path, text: str = "All happy families are alike. " * 20) -> Path:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    (folder / "b.txt").write_text("é", encoding="utf-8")
    write_tokens(folder / "c.bin", [folder / "a.txt", folder / "b.txt"])
    return folder / "c.bin"


def test_bytes_are_tokens_and_texts_end(tmp_path: Path) -> None:
    file = open_tokens(corpus(tmp_path, "ab"))
    assert file.tokens.tolist() == [97, 98, END_OF_TEXT, 0xC3, 0xA9, END_OF_TEXT]
    assert (file.vocab, file.tokenizer) == (257, "bytes")


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    samples = make_samples(open_tokens(corpus(tmp_path)), 16, seed=1, vocab=257)
    starts = {tuple(samples.file.tokens[i * 16 : i * 16 + 17].tolist()) for i in range(samples.count)}
    epochs = [[tuple(samples.sample(e * samples.count + i).tolist()) for i in range(samples.count)] for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) and set(epochs[0]) == starts
    assert epochs[0] != epochs[1]
    again = make_samples(open_tokens(tmp_path / "c.bin"), 16, seed=1, vocab=257)
    np.testing.assert_array_equal(again.rows(7, 5), samples.rows(7, 5))
    other = make_samples(samples.file, 16, seed=2, vocab=257)
    assert [tuple(other.sample(i).tolist()) for i in range(samples.count)] != epochs[0]


def test_bad_token_files_are_told(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    with pytest.raises(SpecError, match="vocabulary ends at 99"):
        make_samples(open_tokens(path), 16, seed=0, vocab=100)
    with pytest.raises(SpecError, match="a sample needs 10001"):
        make_samples(open_tokens(path), 10_000, seed=0, vocab=257)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpecError, match="its header says"):
        open_tokens(path)
    header_path(path).write_text("{}")
    with pytest.raises(SpecError, match="no header of a token file"):
        open_tokens(path)
    with pytest.raises(SpecError, match="has no header"):
        open_tokens(tmp_path / "missing.bin")


def test_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(learning_rate=1.0, warmup_steps=4, decay_steps=14, final_fraction=0.1)
    rates = [recipe.rate(step) for step in range(20)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.55) and rates[14:] == pytest.approx([0.1] * 6)


def row(step: int) -> Row:
    return Row(
        step=step, loss=1.0, gradient_norm=1.0, learning_rate=1.0, seconds=1.0, tokens_per_second=1.0, mfu=None,
        pass_seconds=1.0, sync_seconds=1.0, update_seconds=1.0, peak_memory_bytes=1,
    )  # fmt: skip


def test_resumed_metrics_follow_on_the_step_before(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    metrics.begin(path, 1)
    for step in (1, 2, 3):
        metrics.append(path, row(step))
    metrics.begin(path, 3)
    metrics.append(path, row(3))
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["step", "1", "2", "3"]


@pytest.mark.parametrize(
    ("sign", "silent", "words"),
    [
        (Sign(count=3, doing="waiting for a message", seconds=99.0), 1.0, ""),
        (Sign(count=3, doing="computing, forward", seconds=19.0), 1.0, ""),
        (Sign(count=3, doing="computing, forward", seconds=21.0), 1.0, "rank 2 is stuck: computing, forward for 21 s"),
        (Sign(count=3, doing="updating", seconds=0.0), 12.0, "no sign of life for 12 s; last seen updating"),
        (None, 12.0, "rank 2 has given no sign of life"),
    ],
)
def test_verdicts(sign: Sign | None, silent: float, words: str) -> None:
    verdict = judged("rank 2", sign, silent, patience_seconds=10.0)
    assert words in verdict and bool(verdict) == bool(words)


def test_profile_fills_what_a_type_of_gpu_did_not_run() -> None:
    plan = plan_of(tiny_model(3), replica(stage((0, 1)), stage((1, 3), gpu="other"), micro_batches=1))

    def measured(gpu: str, forward: dict[int, float], recomputed: frozenset[int] = frozenset()) -> Measured:
        backward = {unit: 2 * seconds for unit, seconds in forward.items()}
        return Measured(
            gpu=gpu, tensor_parallel=1, forward_seconds=forward, backward_seconds=backward, recomputed=recomputed,
            update_seconds_each=1e-3,
        )  # fmt: skip

    document = profile_document(
        plan, [measured("H100-SXM", {0: 1.0, 1: 2.0}), measured("other", {2: 4.0, 3: 4.0, 4: 3.0}, frozenset({2}))]
    )
    first, second = document["entries"]
    assert first["forward_seconds"] == [1.0, 2.0, 2.0, 2.0, 1.5]
    assert second["forward_seconds"] == [2.0, 4.0, 4.0, 4.0, 3.0]
    assert second["backward_seconds"][1:4] == [6.0] * 3  # the median of 8 - 4 and 8
    weights = 61 * 32
    assert first["weight_bytes"][0] == 4 * weights and first["optimizer_seconds"][0] == pytest.approx(weights * 1e-3)
    assert layer_profile(document).layers == 3
