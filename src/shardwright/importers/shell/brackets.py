"""Where quotes and brackets of the shell close, with all that may stand inside of them."""

from __future__ import annotations

import re

TOKEN = re.compile(r";;&|;;|;&|&&|\|\||\|&|<<<|<<|>>|[;&|<>()\n]|[^\s;&|<>()]+")


class ShellSyntaxError(ValueError):
    """Bash refuses the text, in the words of bash. `position` is the index of the character where that shows."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class NotReadError(ShellSyntaxError):
    """Bash runs the text, and it is not read here."""


def unclosed(sign: str, position: int) -> ShellSyntaxError:
    """Return the error for a quote or bracket that began at `position` and that no `sign` closes."""
    return ShellSyntaxError(f"unexpected EOF while looking for matching `{sign}'", position)


def stray(text: str, position: int) -> ShellSyntaxError:
    """Return the error for the token at `position`, which is none that may stand there."""
    match = TOKEN.match(text, position)
    if match is None:
        return ShellSyntaxError("syntax error: unexpected end of file", position)
    token = "newline" if match[0] == "\n" else match[0]
    return ShellSyntaxError(f"syntax error near unexpected token `{token}'", position)


def closing(text: str, sign: str, start: int) -> int:
    """Return the position of the `sign` that closes what opened before `start`."""
    position = start
    while position < len(text):
        if text[position] == "\\" and sign != "'":
            position += 1
        elif text[position] == sign:
            return position
        position += 1
    raise unclosed(sign, start - 1)


def end_of_double_quotes(text: str, start: int) -> int:
    """Return the position of the quote that closes what opened before `start`."""
    return _end(text, start, '"', '"', "\\$`")


def end_of_brackets(text: str, start: int) -> int:
    """Return the position of the bracket that closes what opened before `start`."""
    return _end(text, start, "[", "]", "\\'\"`$")


def _end(text: str, start: int, begin: str, end: str, skipped: str) -> int:
    """Return the position of the `end` of what began before `start`; what begins with one of `skipped` is passed."""
    position, depth = start, 1
    while position < len(text):
        letter = text[position]
        if letter in (begin, end):
            depth += 1 if letter != end else -1
            if depth == 0:
                return position
        position = _skip(text, position) if letter in skipped else position + 1
    raise unclosed(end, start - 1)


def _skip(text: str, position: int) -> int:
    """Return the position after the escape, the substitution or the quotes at `position`."""
    letter = text[position]
    if letter == "\\":
        return position + 2
    if letter == "'":
        return closing(text, "'", position + 1) + 1
    if letter == '"':
        return end_of_double_quotes(text, position + 1) + 1
    if letter == "`":
        return closing(text, "`", position + 1) + 1
    if text.startswith("$(", position):
        return end_of_parentheses(text, position + 2) + 1
    if text.startswith("${", position):
        return end_of_braces(text, position + 2) + 1
    return position + 1


def end_of_parentheses(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes what opened before `start`."""
    position, depth, fresh = start, 1, True
    while position < len(text):
        letter = text[position]
        if letter == "#" and fresh:
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        fresh = letter in " \t\n;("
        if letter in "()":
            depth += 1 if letter == "(" else -1
            if depth == 0:
                return position
        position = _skip(text, position) if letter in "\\'\"`$" else position + 1
    raise unclosed(")", start - 1)


def end_of_braces(text: str, start: int) -> int:
    position = start
    while position < len(text):
        letter = text[position]
        if letter == "}":
            return position
        if letter == "'":  # an apostrophe in the text of a message, where it does not close
            end = text.find("'", position + 1)
            position = end + 1 if end >= 0 and "}" not in text[position:end] else position + 1
        else:
            position = _skip(text, position) if letter in '\\"`$' else position + 1
    raise unclosed("}", start - 1)
