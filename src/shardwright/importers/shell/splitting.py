"""Text as words: where what is not quoted is split, what braces stand for, and what patterns fit."""

from __future__ import annotations

import re
from itertools import pairwise

from shardwright.importers.shell.state import TooMuchError

BLANK = " \t\n"
RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")
MOST_BRACES = 4096


class Fields:
    """Words in the making: `solid` text makes a word even where it is empty, as quotes do."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.text: list[str] = []
        self.solid = False

    def add(self, text: str, *, solid: bool) -> None:
        self.text.append(text)
        self.solid |= solid

    def end(self, *, always: bool = False) -> None:
        text = "".join(self.text)
        if text or self.solid or always:
            self.done.append(text)
        self.text, self.solid = [], False


def add_split(value: str, found: Fields, separators: str) -> None:
    """Add a value that is not quoted: the signs of IFS, `separators`, end words."""
    if not separators:
        found.add(value, solid=False)
        return
    blanks = re.escape("".join(sign for sign in separators if sign in BLANK))
    others = re.escape("".join(sign for sign in separators if sign not in BLANK))
    soft = f"[{blanks}]+" if blanks else "(?!)"
    hard = (f"[{blanks}]*[{others}][{blanks}]*" if blanks else f"[{others}]") if others else "(?!)"
    for piece in re.split(f"({hard}|{soft})", value):
        if piece and re.fullmatch(hard, piece):
            found.end(always=True)
        elif piece and re.fullmatch(soft, piece):
            found.end()
        else:
            found.add(piece, solid=False)


def braced(text: str) -> list[str]:
    """Return what `a{b,c}`, `{1..4}` and `{a..e..2}` become."""
    for begin, *cuts in _cuts(text):
        parts = [text[one + 1 : other] for one, other in pairwise((begin, *cuts))]
        items = _range(parts[0]) if len(parts) == 1 else [item for part in parts for item in braced(part)]
        if items:
            tails = braced(text[cuts[-1] + 1 :])
            if len(items) * len(tails) > MOST_BRACES:
                raise TooMuchError
            return [text[:begin] + item + tail for item in items for tail in tails]
    return [text]


def _cuts(text: str) -> list[list[int]]:
    """Return where each brace that closes opens, its commas and where it closes, in order."""
    found, opened = [], list[list[int]]()
    for place, letter in enumerate(text):
        if letter == "{":
            opened.append([place])
        elif letter in ",}" and opened:
            opened[-1].append(place)
            if letter == "}":
                found.append(opened.pop())
    return sorted(found)


def _range(text: str) -> list[str]:
    """What `first..last..step` stands for, numbers as wide as they are written; nothing where it is no range."""
    match = RANGE.fullmatch(text)
    if match is None or match[1].isalpha() != match[2].isalpha():
        return []
    letters = match[1].isalpha()
    first, last = (ord(end) if letters else int(end) for end in match.groups()[:2])
    step = (abs(int(match[3] or 1)) or 1) * (1 if last >= first else -1)
    if abs(last - first) // abs(step) > MOST_BRACES:
        raise TooMuchError
    padded = any(re.match(r"-?0\d", end) for end in match.groups()[:2])
    width = max(map(len, match.groups()[:2])) if padded else 0
    numbers = range(first, last + (1 if step > 0 else -1), step)
    return [chr(number) if letters else str(number).zfill(width) for number in numbers]


def glob(text: str) -> str:
    """Return a pattern such as `*.json` as a regular expression."""
    found, position = [], 0
    while position < len(text):
        letter = text[position]
        end = text.find("]", position + 2) if letter == "[" else -1
        if letter == "*":
            found.append(".*")
        elif letter == "?":
            found.append(".")
        elif end > 0:
            inner = text[position + 1 : end].replace("\\", "\\\\")
            found.append(f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]")
            position = end
        else:
            found.append(re.escape(letter))
        position += 1
    return "".join(found)


def trimmed(value: str, pattern: str, operator: str) -> str:
    """Return a text without what a pattern, as a regular expression, fits at its begin (`#`) or end (`%`)."""
    lengths = range(len(value) + 1)
    longest = len(operator) == 2
    for length in reversed(lengths) if longest else lengths:
        part = value[:length] if operator[0] == "#" else value[len(value) - length :]
        if re.fullmatch(pattern, part, re.S):
            return value[length:] if operator[0] == "#" else value[: len(value) - length]
    return value
