"""Patterns of file names, and what they take away from a text."""

from __future__ import annotations

import re


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
