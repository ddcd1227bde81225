"""Text of which a part is known only where the script runs, such as `$HOSTNAME` or `$(date)`.

The unknown part is kept in its place as the words that stand for it, between two characters that no script has and in
letters that no shell reads as its own. All of the shell's operations on strings then work, and what comes out says what
it depends on.
"""

from __future__ import annotations

import re

BEGIN, END = "\ue000", "\ue001"
PLANE = 0xF0000  # of private use: letters of an unknown part stand there
UNKNOWN = re.compile(f"{BEGIN}([^{BEGIN}{END}]*){END}")
MARKS = re.compile(f"[{BEGIN}{END}\U000f0000-\U000ffffd]")
VARIABLE = re.compile(r"\$\{(\w+)\}")


def unknown(words: str) -> str:
    """Return text that stands for what `words` (`${NAME}`, `$(command)`) would be."""
    words = shown(words)
    return BEGIN + "".join(chr(PLANE + ord(letter)) if ord(letter) < 0xFFFE else "?" for letter in words) + END


def unknown_variable(name: str) -> str:
    """Return text that stands for the value of a variable."""
    return unknown(f"${{{name}}}")


def is_known(text: str) -> bool:
    """Whether no part of `text` is unknown."""
    return BEGIN not in text


def is_lone(text: str) -> bool:
    """Whether `text` is nothing but one unknown, which may then be any number of words."""
    return UNKNOWN.fullmatch(text) is not None


def unknowns(text: str) -> tuple[str, ...]:
    """Return the unknown parts of `text`, each once."""
    return tuple(dict.fromkeys(map(_plain, UNKNOWN.findall(text))))


def shown(text: str) -> str:
    """Return `text` as a person would write it, with references for what is unknown."""
    return UNKNOWN.sub(lambda match: _plain(match[1]), text)


def _plain(part: str) -> str:
    return "".join(chr(ord(letter) - PLANE) for letter in part)


def variable_of(part: str) -> str | None:
    """Return the name of the variable that an unknown part is the value of, None for the output of a command."""
    match = VARIABLE.fullmatch(part)
    return match[1] if match else None


def purged(text: str) -> str:
    """Return text of a user without the characters that mark what is unknown."""
    return MARKS.sub("", text)
