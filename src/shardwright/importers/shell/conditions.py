"""`test`, `[ … ]` and `[[ … ]]`: true, false, or None where it depends on what is not known."""

from __future__ import annotations

import operator as op
import re
from collections.abc import Sequence

from shardwright.importers.shell.arithmetic import ArithmeticFaultError, UnknownValueError, compute
from shardwright.importers.shell.expansion import pattern_of, regex_of, text_of
from shardwright.importers.shell.state import ShellState
from shardwright.importers.shell.unknown import UNKNOWN, is_known
from shardwright.importers.shell.words import ShellWord, Text

NUMERIC = {"-eq": op.eq, "-ne": op.ne, "-lt": op.lt, "-le": op.le, "-gt": op.gt, "-ge": op.ge}
FILES = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
LONGEST_SUBJECT = 10_000


def test(words: Sequence[str], state: ShellState) -> bool | None:
    """Return what `[ words ]` says. As a shell does, words that make no sense together are false."""
    if "-o" in words:
        where = words.index("-o")
        return either(test(words[:where], state), test(words[where + 1 :], state))
    if "-a" in words[1:-1] and len(words) > 3:
        where = words.index("-a", 1)
        return both(test(words[:where], state), test(words[where + 1 :], state))
    if words and words[0] == "!" and len(words) > 1:
        return negated(test(words[1:], state))
    if len(words) >= 3 and words[0] == "(" and words[-1] == ")":
        return test(words[1:-1], state)
    if not words:
        return False
    if len(words) == 1:
        return nonempty(words[0])
    if len(words) == 2:
        return _unary(words[0], words[1], state)
    return _binary(words[0], words[1], words[2], state) if len(words) == 3 else False


def both(one: bool | None, other: bool | None) -> bool | None:
    """Return the conjunction of three-valued truths."""
    return False if one is False or other is False else None if one is None or other is None else True


def either(one: bool | None, other: bool | None) -> bool | None:
    """Return the disjunction of three-valued truths."""
    return True if one or other else None if one is None or other is None else False


def negated(truth: bool | None) -> bool | None:
    """Return the negation of a three-valued truth."""
    return None if truth is None else not truth


def nonempty(text: str) -> bool | None:
    """Return whether text is not empty: what is unknown in it may be nothing."""
    if is_known(text):
        return bool(text)
    return True if UNKNOWN.sub("", text) else None


def _unary(operator: str, operand: str, state: ShellState) -> bool | None:
    if operator == "-z":
        return negated(nonempty(operand))
    if operator == "-n":
        return nonempty(operand)
    if operator == "-v":
        if operand not in state.variables and operand not in state.own:
            state.assumed.setdefault(operand, "")
        return operand in state.variables
    if operator in FILES:
        return True if operand in state.files and operator in ("-e", "-f", "-r", "-s") else None
    return False


def _binary(left: str, operator: str, right: str, state: ShellState) -> bool | None:
    if operator in ("=", "==", "!=") or operator in ("<", ">"):
        if not (is_known(left) and is_known(right)):
            return None
        found = {"<": left < right, ">": left > right}.get(operator, left == right)
        return not found if operator == "!=" else found
    if operator in NUMERIC:
        return _numeric(left, operator, right, state)
    return None if operator in ("-nt", "-ot", "-ef") else False


def _numeric(left: str, operator: str, right: str, state: ShellState) -> bool | None:
    try:
        one, other = (compute(text, state.read, state.put) for text in (left, right))
    except UnknownValueError:
        return None
    except ArithmeticFaultError:
        return False
    return bool(NUMERIC[operator](one, other))


class DoubleBrackets:
    """`[[ words ]]`, read from the left; `position` is that of the next word."""

    def __init__(self, words: Sequence[ShellWord | str], state: ShellState) -> None:
        self.words, self.state = words, state
        self.position = 0

    def truth(self) -> bool | None:
        found = self.conjunction()
        while self.sign() == "||":
            self.position += 1
            found = either(found, self.conjunction())
        return found

    def conjunction(self) -> bool | None:
        found = self.term()
        while self.sign() == "&&":
            self.position += 1
            found = both(found, self.term())
        return found

    def sign(self) -> str:
        word = self.words[self.position] if self.position < len(self.words) else ""
        return word if isinstance(word, str) else ""

    def term(self) -> bool | None:
        sign = self.sign()
        if sign == "!":
            self.position += 1
            return negated(self.term())
        if sign == "(":
            self.position += 1
            found = self.truth()
            self.position += 1
            return found
        if re.fullmatch(r"-[a-zA-Z]{1,2}", sign):
            self.position += 1
            return _unary(sign, self.operand(), self.state)
        left = self.operand()
        operator = self.sign()
        if not operator or operator in ("&&", "||", ")"):
            return nonempty(left)
        self.position += 1
        if operator in ("==", "=", "!="):
            return self.matches(left, negate=operator == "!=")
        if operator == "=~":
            return self.found(left)
        return _binary(left, operator, self.operand(), self.state)

    def operand(self) -> str:
        word = self.words[self.position] if self.position < len(self.words) else ""
        self.position += 1
        return word if isinstance(word, str) else text_of(word, self.state)

    def pattern(self) -> ShellWord:
        word = self.words[self.position] if self.position < len(self.words) else ""
        self.position += 1
        return ShellWord((Text(word),)) if isinstance(word, str) else word

    def matches(self, left: str, *, negate: bool) -> bool | None:
        pattern = pattern_of(self.pattern(), self.state)
        if pattern is None or not is_known(left) or len(left) > LONGEST_SUBJECT:
            return None
        return (re.fullmatch(pattern, left, re.S) is not None) != negate

    def found(self, left: str) -> bool | None:
        pattern = regex_of(self.pattern(), self.state)
        if pattern is None or not is_known(left) or len(left) > 200 or len(pattern) > 200:
            return None
        try:
            match = re.search(pattern, left)
        except re.error:
            return None
        if match:
            groups = (match[0], *(group or "" for group in match.groups()))
            self.state.put("BASH_REMATCH", {str(number): group for number, group in enumerate(groups)})
        return match is not None
