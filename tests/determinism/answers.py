"""`python -m tests.determinism.answers MODE KIND…`: prints what the library answers to problems of the golden replay.

MODE is `exact`, or how results are disturbed (`disturbed`). A KIND may name one problem: `mixed:three types`.
"""

from __future__ import annotations

import sys

from tests.determinism.disturbed import install

FEWEST = 1000  # results that are disturbed in any search


def main(mode: str, asked: list[str]) -> None:
    """Answer the problems and print the text."""
    counts = None if mode == "exact" else install(mode)
    from tests.golden_replay.compare import text_of
    from tests.golden_replay.problem import answer, problems

    for one in asked:
        kind, _, name = one.partition(":")
        found = {each: answer(described) for each, described in problems(kind).items() if name in ("", each)}
        print(text_of(found))
    assert counts is None or counts["results"] > FEWEST, "hardly anything was disturbed"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
