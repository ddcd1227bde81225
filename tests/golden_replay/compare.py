"""The replay as text, and what differs between two of them, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from tests.golden_replay.figures import Figure

WIDTH = 22
TOLERANCE = 1e-9  # relative: processors add in different orders; the figures have ten digits
Answers = Mapping[str, Sequence[Figure]]


def text_of(answers: Answers) -> str:
    """Return the answers to the problems of a kind as text, a paragraph for each."""
    paragraphs = ("\n".join([f"# {name}", *map(_line, figures)]) for name, figures in answers.items())
    return "\n\n".join(paragraphs) + "\n"


def _line(figure: Figure) -> str:
    return f"{figure[0]:<{WIDTH}}  {figure[1]}".rstrip()


def answers_of(text: str) -> Answers:
    """Return the answers that a text of `text_of` has."""
    found: dict[str, list[Figure]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("# "):
            figures = found.setdefault(line[2:], [])
        else:
            name, _, words = line.partition("  ")
            figures.append((name, words.strip()))
    return found


def differences(kept: Answers, found: Answers) -> Iterator[str]:
    """Yield in words what differs: which problem, which figure, from what to what."""
    for name in dict.fromkeys([*kept, *found]):
        if name not in found or name not in kept:
            yield f"{name}: {'has no answer any more' if name in kept else 'is new'}"
            continue
        for old, new in zip_longest(kept[name], found[name], fillvalue=("", "nothing")):
            if old[0] != new[0]:
                yield f"{name}: {_line(old)} → {_line(new)}; what follows is not compared"
                break
            if words := _changed(old[1], new[1]):
                yield f"{name}: {old[0]}: {words}"


def updated(kept: Answers, found: Answers) -> Answers:
    """Return `found`, with the kept answer of every problem in which nothing differs by more than rounding."""
    same = {name for name in kept.keys() & found.keys() if not any(differences(_one(kept, name), _one(found, name)))}
    return {name: kept[name] if name in same else figures for name, figures in found.items()}


def _one(answers: Answers, name: str) -> Answers:
    return {name: answers[name]}


def _changed(old: str, new: str) -> str:
    """Return the words that differ, each number after the word before it; nothing where all are equal."""
    before, after = old.split(), new.split()
    if len(before) != len(after):
        return f"{old} → {new}"
    changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if not _equal(*pair)]
    if any(_number(before[place]) is None for place in changed):
        return f"{old} → {new}"
    return ", ".join(_labelled(before, place) + f"{before[place]} → {after[place]}" for place in changed)


def _labelled(words: Sequence[str], place: int) -> str:
    label = words[place - 1] if place and _number(words[place - 1]) is None else ""
    return f"{label} " if label else ""


def _equal(old: str, new: str) -> bool:
    if old == new:
        return True
    before, after = _number(old), _number(new)
    return before is not None and after is not None and math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=1e-12)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
