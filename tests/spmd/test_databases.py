"""Each operator and module of PyTorch's own databases is trained as by autograd, or refused by name."""

from __future__ import annotations

from random import Random

import pytest
from tests.spmd.databases import Entry, judged_as, modules, operators, verdicts

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


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
def test_every_sample_of_every_operator_and_module(part: int) -> None:
    require_no_wrong([*operators(), *modules()][part::PARTS], None)
