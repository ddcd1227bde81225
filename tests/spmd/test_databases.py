"""Each operator and module of PyTorch's own databases is trained as by autograd, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from random import Random

import pytest
from tests.spmd.databases import Entry, Verdict, judged, judged_as, modules, operators, verdicts

SEED = 30
PARTS = 32


def require_no_wrong(entries: list[Entry], limit: int | None) -> None:
    judgements = {entry.name: verdicts(entry, limit, SEED) for entry in entries}
    wrong = {name: [verdict.reason for verdict in some if verdict.word == "wrong"] for name, some in judgements.items()}
    assert not {name: reasons for name, reasons in wrong.items() if reasons}
    equal = [entry for entry in entries if judged_as(judgements[entry.name]) == "equal"]
    assert 2 * len(equal) > len(entries), "refusing is no way out"


def test_some_operators_and_modules_are_trained_as_by_autograd() -> None:
    random = Random(SEED)
    require_no_wrong([*random.sample(operators(), 20), *random.sample(modules(), 6)], 1)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("nn.functional.adaptive_avg_pool2d", (3,)),  # an image without a batch: its rows were taken for channels
        ("nn.functional.max_pool2d", (0, 1)),
        ("constant_pad_nd", (25,)),  # cut at one end, padded at the other: as long as before
        ("nn.functional.pad (reflect)", (11,)),
        ("nn.functional.pad (replicate)", (11,)),
        ("nn.functional.scaled_dot_product_attention", (18, 22)),  # queries of one batch, keys of several
    ],
)
def test_samples_that_were_wrong_are_equal(name: str, numbers: Sequence[int]) -> None:
    entry = next(entry for entry in operators() if entry.name == name)
    samples = list(islice(entry.samples(), max(numbers) + 1))
    assert {judged(samples[number], SEED + number) for number in numbers} == {Verdict("equal")}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_of_every_operator_and_module(part: int) -> None:
    require_no_wrong([*operators(), *modules()][part::PARTS], None)
