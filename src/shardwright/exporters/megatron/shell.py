"""The words of a launch script, without running it.

Read are assignments, arrays, line continuations, comments and quotes, and references to variables that the text
assigns. A reference to anything else, and whatever a shell would compute, stays in its word as `${NAME}`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from shardwright.errors import bad

COMPUTED = "${computed by the shell}"
SHELL_COMPUTES = re.compile(r"\$\(\(.*?\)\)|\$\([^()]*\)|`[^`]*`", re.S)
COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.M)
CONTINUATION = re.compile(r"\\\r?\n")
ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<append>\+?)=(?P<value>.*)", re.S)
REFERENCE = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:\[[@*]\])?(?:(?P<mark>:?[-=?])(?P<default>[^{}]*))?\})"
)
UNRESOLVED = re.compile(r"\$[{A-Za-z_@*0-9]")
MOST_WORDS = 20_000
LONGEST_WORD = 100_000
MOST_CHARACTERS = 4_000_000  # of all words and variables with references put in


@dataclass(frozen=True, slots=True)
class Script:
    """The words of the commands in a script, in order, and the words of each variable and array it assigns."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, tuple[str, ...]], ...]


def read_script(text: str, name: str) -> Script:
    """Return the words of `text` with variables put in. Raises SpecError for quotes that do not close, and for text
    that grows beyond all reason."""
    text = CONTINUATION.sub(" ", COMMENT_LINE.sub("", text))
    lexer = shlex.shlex(SHELL_COMPUTES.sub(COMPUTED, text), posix=True, punctuation_chars="();&|")
    lexer.whitespace_split = True
    try:
        raw = list(lexer)
    except ValueError as error:
        raise bad(name, f"not readable as shell text: {error}", "close the quotes") from None
    variables: dict[str, tuple[str, ...]] = {}
    words: list[str] = []
    position = written = 0
    while position < len(raw):
        assignment = ASSIGNMENT.fullmatch(raw[position])
        if assignment is None:
            value = expand(raw[position], variables)
            words += value
            position += 1
        else:
            value, position = _assigned(raw, position, assignment["value"], variables, name)
            value = variables.get(assignment["name"], ()) * bool(assignment["append"]) + value
            variables[assignment["name"]] = value
        written += sum(map(len, value))
        _require_reason(len(words), len(value), written, name)
    return Script(words=tuple(words), variables=tuple(variables.items()))


def _require_reason(words: int, assigned: int, characters: int, name: str) -> None:
    """Raise SpecError for more words and characters than a launch script has, as where each line doubles an array."""
    if max(words, assigned) > MOST_WORDS:
        raise bad(name, f"has more than {MOST_WORDS:,} words", "is this the right file?")
    if characters > MOST_CHARACTERS:
        raise bad(name, f"expands to more than {MOST_CHARACTERS:,} characters", "is this the right file?")


def unresolved(word: str) -> str | None:
    """Return the name of a variable in `word` that the script does not assign, or None."""
    match = UNRESOLVED.search(word)
    if match is None:
        return None
    rest = word[match.start() :]
    named = re.match(r"\$\{?([^}\[:$]+)", rest)
    return named[1] if named else rest


def is_reference(word: str) -> bool:
    """Whether `word` is nothing but one reference, so that it may stand for several words."""
    return word == COMPUTED or REFERENCE.fullmatch(word) is not None


def expand(word: str, variables: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return `word` with the references that `variables` knows put in; a lone reference may become several words."""
    lone = REFERENCE.fullmatch(word)
    if lone is not None:
        value = _value(lone, variables)
        return (word,) if value is None else tuple(part for item in value for part in _split(item))
    parts: list[str] = []
    position = length = 0
    for match in REFERENCE.finditer(word):
        value = _value(match, variables)
        parts += (word[position : match.start()], match[0] if value is None else " ".join(value))
        position, length = match.end(), length + len(parts[-2]) + len(parts[-1])
        if length > LONGEST_WORD:
            break
    return ("".join([*parts, word[position:]])[:LONGEST_WORD],)


def _value(match: re.Match[str], variables: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The words of a reference: what is assigned, or the default that `${NAME:-default}` gives."""
    value = variables.get(match["plain"] or match["name"])
    if value is None and match["mark"] and match["mark"].endswith(("-", "=")):
        return (match["default"],)
    return value


def _split(item: str) -> list[str]:
    """A variable may hold several arguments: the shell splits it where it is not quoted."""
    try:
        return shlex.split(item)
    except ValueError:
        return item.split()


def _assigned(
    raw: list[str], position: int, value: str, variables: dict[str, tuple[str, ...]], name: str
) -> tuple[tuple[str, ...], int]:
    """Return the words that an assignment at `position` gives its variable, and the position after it."""
    follower = raw[position + 1] if position + 1 < len(raw) else ""
    if value or not follower.startswith("("):
        words = expand(value, variables)
        return words, position + 1
    items: list[str] = []
    end, written = position + 2, 0
    while end < len(raw) and not raw[end].startswith(")"):
        more = expand(raw[end], variables)
        items += more
        written += sum(map(len, more))
        _require_reason(0, len(items), written, name)
        end += 1
    return tuple(items), end + 1
