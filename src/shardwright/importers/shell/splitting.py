"""Text as words: where what is not quoted is split, and what braces stand for."""

from __future__ import annotations

import itertools
import re

from shardwright.importers.shell.state import TooMuchError

BLANK = " \t\n"
BRACES = re.compile(r"^(.*?)\{([^{}]*(?:,|\.\.)[^{}]*)\}(.*)$", re.S)
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
    """Return what `a{b,c}` and `{1..4}` become."""
    match = BRACES.match(text)
    if match is None:
        return [text]
    head, body, tail = match.groups()
    numbers = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?", body)
    if numbers:
        first, last, step = int(numbers[1]), int(numbers[2]), abs(int(numbers[3] or 1)) or 1
        if abs(last - first) // step > MOST_BRACES:
            raise TooMuchError
        step = step if last >= first else -step
        items = [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]
    elif "," in body:
        items = body.split(",")
    else:
        return [text]
    found = [head + item + rest for item, rest in itertools.product(items, braced(tail))]
    if len(found) > MOST_BRACES:
        raise TooMuchError
    return found
