"""The library answers some sixty problems of all kinds as it did before, the two longest at night; `make golden` takes
the new answers over."""

from __future__ import annotations

import pytest
from tests.golden_replay.compare import answers_of, differences, text_of
from tests.golden_replay.problem import KINDS, RESULTS, answer, problems
from tests.nightly import nightly

LONG = ("long",)
ADVICE = "\nIf these changes are meant, `make golden` takes them over; say in the commit what moved, and by how much."


@pytest.mark.parametrize("kind", [*(kind for kind in KINDS if kind not in LONG), *nightly(LONG)])
def test_answers_are_those_of_before(kind):
    kept = answers_of((RESULTS / f"{kind}.txt").read_text())
    found = {name: answer(description) for name, description in problems(kind).items()}
    changed = list(differences(kept, found))
    if changed:
        pytest.fail("\n".join(changed) + ADVICE, pytrace=False)


KEPT = {"small": [("iteration", "1.25 s"), ("bytes of stage 0.0", "weights 10 gradients 20")]}


def test_text_gives_the_answers_back():
    assert answers_of(text_of(KEPT)) == KEPT


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ([("iteration", "1.2500000001 s"), KEPT["small"][1]], []),
        ([("iteration", "1.26 s"), KEPT["small"][1]], ["small: iteration: 1.25 → 1.26"]),
        (
            [KEPT["small"][0], ("bytes of stage 0.0", "weights 10 gradients 21")],
            ["small: bytes of stage 0.0: gradients 20 → 21"],
        ),
        (
            [KEPT["small"][0], ("bytes of stage 0.0", "none")],
            ["small: bytes of stage 0.0: weights 10 gradients 20 → none"],
        ),
    ],
)
def test_differences_are_said_in_words(figures, words):
    assert list(differences(KEPT, {"small": figures})) == words


def test_a_problem_that_is_new_or_gone_is_a_difference():
    assert list(differences(KEPT, {"large": []})) == ["small: has no answer any more", "large: is new"]
