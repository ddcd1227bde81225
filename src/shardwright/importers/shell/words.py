"""Words of the shell as trees: literal text, references, arithmetic and command substitutions, in order; and where
quotes and brackets close, with all that may stand inside of them.
"""

from __future__ import annotations

import re
from itertools import groupby

from shardwright.records import record

REFERENCE = re.compile(r"(?P<prefix>[#!]?)(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])", re.S)
OPERATORS = (
    *("::", ":-", ":=", ":?", ":+", "##", "%%", "//", "/#", "/%", "^^", ",,"),
    *("-", "=", "?", "+", "#", "%", "/", "^", ",", ":", "@"),
)
ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "e": "\x1b"}
DEEPEST = 50
TOKEN = re.compile(r";;&|;;|;&|&&|\|\||\|&|<<<|<<|>>|[;&|<>()\n]|[^\s;&|<>()]+")


@record(kw_only=False)
class Text:
    """Literal text. What is quoted is neither split nor matched as a pattern."""

    value: str
    quoted: bool = False


@record(kw_only=False)
class Reference:
    """`${name}` in any of its forms: `prefix` is `#` (length), `!` (indirect) or nothing, `operator` what follows the
    name, `operand` what follows that, `index` the subscript of an array."""

    name: str
    prefix: str = ""
    index: ShellWord | None = None
    operator: str = ""
    operand: ShellWord | None = None
    quoted: bool = False


@record(kw_only=False)
class ShellArithmetic:
    """`$((…))`."""

    expression: ShellWord
    quoted: bool = False


@record(kw_only=False)
class Substitution:
    """`$(…)`: the output of a script, whose text this is."""

    script: str
    quoted: bool = False


@record(kw_only=False)
class ShellWord:
    """The parts of a word, in order."""

    parts: tuple[Part, ...]

    @property
    def literal(self) -> str | None:
        """The text of a word in which nothing is quoted or put in, else None: reserved words are such."""
        if all(isinstance(part, Text) and not part.quoted for part in self.parts):
            return "".join(part.value for part in self.parts if isinstance(part, Text))
        return None


Part = Text | Reference | ShellArithmetic | Substitution
EMPTY = ShellWord(())


def read_word(text: str, start: int, stops: str, depth: int = 0) -> tuple[ShellWord, int]:
    """Return the word at `start`, which ends before the first unquoted character of `stops`, and the position after
    it. Raises ShellSyntaxError for quotes and brackets that do not close."""
    if depth > DEEPEST:
        raise NotReadError("it is nested too deeply", start)
    parts: list[Part] = []
    position = start
    while position < len(text):
        letter = text[position]
        if letter in stops and not (letter in "<>" and text.startswith("(", position + 1)):
            break
        if letter == "\\":
            if position + 1 < len(text) and text[position + 1] != "\n":
                parts.append(Text(text[position + 1], quoted=True))
            position += 2
        elif letter == "'":
            end = closing(text, "'", position + 1)
            parts.append(Text(text[position + 1 : end], quoted=True))
            position = end + 1
        elif letter == '"':
            end = end_of_double_quotes(text, position + 1)
            inner = read_quoted(text[position + 1 : end], depth + 1)
            parts += inner.parts or (Text("", quoted=True),)
            position = end + 1
        elif text.startswith("$'", position):
            value, position = _ansi(text, position + 2)
            parts.append(Text(value, quoted=True))
        elif text.startswith('$"', position):
            position += 1
        elif letter == "$" or letter == "`":
            part, position = _reference(text, position, quoted=False, depth=depth)
            parts.append(part)
        elif letter in "<>" and text.startswith("(", position + 1):
            end = end_of_parentheses(text, position + 2)
            parts.append(Text("/dev/fd/63", quoted=True))
            position = end + 1
        else:
            parts.append(Text(letter))
            position += 1
    return ShellWord(_merged(parts)), min(position, len(text))


def read_quoted(text: str, depth: int = 0) -> ShellWord:
    """Return the parts of text as between double quotes."""
    if depth > DEEPEST:
        raise NotReadError("it is nested too deeply", 0)
    parts: list[Part] = []
    position = 0
    while position < len(text):
        letter = text[position]
        if letter == "\\" and position + 1 < len(text) and text[position + 1] in '$`"\\\n':
            parts.append(Text("" if text[position + 1] == "\n" else text[position + 1], quoted=True))
            position += 2
        elif letter in "$`":
            part, position = _reference(text, position, quoted=True, depth=depth)
            parts.append(part)
        else:
            parts.append(Text(letter, quoted=True))
            position += 1
    return ShellWord(_merged(parts))


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    """Return the parts with neighbouring texts joined."""
    merged: list[Part] = []
    for quoted, run in groupby(parts, lambda part: part.quoted if isinstance(part, Text) else None):
        alike = list(run)
        texts = [part.value for part in alike if isinstance(part, Text)]
        merged += alike if quoted is None else [Text("".join(texts), quoted)]
    return tuple(merged)


def _reference(text: str, position: int, *, quoted: bool, depth: int) -> tuple[Part, int]:
    """Return what begins with a dollar sign or a backquote at `position`."""
    if text[position] == "`":
        end = closing(text, "`", position + 1)
        script = re.sub(r"\\([$`\\])", r"\1", text[position + 1 : end])
        return Substitution(script, quoted), end + 1
    if text.startswith("$((", position):
        end = end_of_parentheses(text, position + 2)
        inner = end_of_parentheses(text, position + 3)
        if inner + 1 == end:
            return ShellArithmetic(read_quoted(text[position + 3 : inner], depth + 1), quoted), end + 1
    if text.startswith("$(", position):
        end = end_of_parentheses(text, position + 2)
        return Substitution(text[position + 2 : end], quoted), end + 1
    if text.startswith("${", position):
        end = end_of_braces(text, position + 2)
        return _braced(text[position + 2 : end], position, quoted=quoted, depth=depth), end + 1
    match = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]").match(text, position + 1)
    if match is None:
        return Text("$", quoted), position + 1
    return Reference(match[0], quoted=quoted), match.end()


def _braced(body: str, position: int, *, quoted: bool, depth: int) -> Reference:
    """Return the reference that stands between braces."""
    match = REFERENCE.match(body)
    if match is not None and match["prefix"] and match.end() == len(match["prefix"]):
        match = None
    if match is None:
        raise ShellSyntaxError(f"${{{body[:30]}}}: bad substitution", position)
    prefix, name, rest = match["prefix"], match["name"], body[match.end() :]
    index = None
    if rest.startswith("["):
        end = end_of_brackets(rest, 1)
        index, rest = read_quoted(rest[1:end], depth + 1), rest[end + 1 :]
    if not rest:
        return Reference(name, prefix, index, quoted=quoted)
    operator = next((sign for sign in OPERATORS if rest.startswith(sign)), None)
    if operator is None:
        raise ShellSyntaxError(f"${{{body[:30]}}}: bad substitution", position)
    operand = _operand(rest[len(operator) :], quoted=quoted, depth=depth)
    return Reference(name, prefix, index, operator, operand, quoted)


def _operand(text: str, *, quoted: bool, depth: int) -> ShellWord:
    """Between double quotes, quotes inside of braces still quote, and are removed."""
    if quoted and "'" in text and '"' not in text:
        return read_quoted(text, depth + 1)
    word, _ = read_word(text, 0, "", depth + 1)
    return word


def _ansi(text: str, start: int) -> tuple[str, int]:
    """Return the value of `$'…'`, and the position after it."""
    value, position = [], start
    while position < len(text) and text[position] != "'":
        if text[position] == "\\" and position + 1 < len(text):
            value.append(ANSI.get(text[position + 1], "\\" + text[position + 1]))
            position += 1
        else:
            value.append(text[position])
        position += 1
    if position >= len(text):
        raise unclosed("'", start - 1)
    return "".join(value), position + 1


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
