"""Integer arithmetic as `$((…))` and `((…))` do it."""

from __future__ import annotations

import operator as op
import re
from collections.abc import Callable, Mapping

from shardwright.importers.shell.unknown import is_known

TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d[\d_]*(?:#\w+)?)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\*\*|<<=|>>=|\+\+|--|&&|\|\||<<|>>|[<>=!+\-*/%&|^]=|[-+*/%<>!~&|^?:=(),]))"
)
PRECEDENCE = (
    *(("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<=", ">=", "<", ">"), ("<<", ">>"), ("+", "-")),
    ("*", "/", "%"),
)
ASSIGNING = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="))
LARGEST = 2**63
DEEPEST = 60


class ArithmeticFaultError(ValueError):
    """An expression that the shell would not compute."""


class UnknownValueError(ValueError):
    """An expression that depends on what is not known."""


def compute(text: str, get: Callable[[str], str], put: Callable[[str, str], None], depth: int = 0) -> int:
    """Return the value of an expression; `get` and `put` are the shell's variables. Raises UnknownValueError where it
    depends on what is not known, ArithmeticFaultError where it makes no sense."""
    if depth > DEEPEST:
        raise ArithmeticFaultError("variables refer to each other")
    if not is_known(text):
        raise UnknownValueError(text)
    tokens, position = [], 0
    text = text.strip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ArithmeticFaultError(f"{text!r} is no arithmetic")
        tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
        position = match.end()
    if not tokens:
        return 0
    reader = _Reader(tokens, get, put, depth)
    value = reader.comma()
    if reader.position < len(tokens):
        raise ArithmeticFaultError(f"{text!r} is no arithmetic")
    return value


class _Reader:
    """Evaluates as it parses, with C's precedence; `active` is false in the branch that is not taken."""

    def __init__(
        self, tokens: list[tuple[str, str]], get: Callable[[str], str], put: Callable[[str, str], None], depth: int
    ) -> None:
        self.tokens, self.get, self.put, self.depth = tokens, get, put, depth
        self.position = 0
        self.active = True

    def sign(self) -> str:
        if self.position < len(self.tokens) and self.tokens[self.position][0] == "sign":
            return self.tokens[self.position][1]
        return ""

    def comma(self) -> int:
        value = self.assignment()
        while self.sign() == ",":
            self.position += 1
            value = self.assignment()
        return value

    def assignment(self) -> int:
        here = self.tokens[self.position : self.position + 2]
        if len(here) == 2 and here[0][0] == "name" and here[1][1] in ASSIGNING:
            self.position += 2
            value = self.assignment()
            operator = here[1][1][:-1]
            if operator:
                value = self.apply(operator, self.variable(here[0][1]), value)
            self.store(here[0][1], value)
            return value
        return self.choice()

    def choice(self) -> int:
        condition = self.binary(0)
        if self.sign() != "?":
            return condition
        self.position += 1
        active = self.active
        self.active = active and condition != 0
        yes = self.assignment()
        if self.sign() != ":":
            raise ArithmeticFaultError("? needs a :")
        self.position += 1
        self.active = active and condition == 0
        no = self.assignment()
        self.active = active
        return yes if condition else no

    def binary(self, level: int) -> int:
        if level == len(PRECEDENCE):
            return self.power()
        value = self.binary(level + 1)
        while (operator := self.sign()) in PRECEDENCE[level]:
            self.position += 1
            active = self.active
            if operator == "&&" or operator == "||":
                self.active = active and (value != 0) == (operator == "&&")
            right = self.binary(level + 1)
            self.active = active
            value = self.apply(operator, value, right)
        return value

    def power(self) -> int:
        base = self.unary()
        if self.sign() != "**":
            return base
        self.position += 1
        return self.apply("**", base, self.power())

    def unary(self) -> int:
        sign = self.sign()
        if sign in ("++", "--"):
            self.position += 1
            name = self.name()
            value = self.variable(name) + (1 if sign == "++" else -1)
            self.store(name, value)
            return value
        if sign in ("-", "+", "!", "~"):
            self.position += 1
            value = self.unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[sign]
        return self.atom()

    def atom(self) -> int:
        if self.sign() == "(":
            self.position += 1
            value = self.comma()
            if self.sign() != ")":
                raise ArithmeticFaultError("the ( is not closed")
            self.position += 1
            return value
        if self.position >= len(self.tokens):
            raise ArithmeticFaultError("an operand is missing")
        kind, text = self.tokens[self.position]
        if kind == "number":
            self.position += 1
            return self.number(text)
        name = self.name()
        value = self.variable(name)
        if (sign := self.sign()) in ("++", "--"):
            self.position += 1
            self.store(name, value + (1 if sign == "++" else -1))
        return value

    def name(self) -> str:
        if self.position >= len(self.tokens) or self.tokens[self.position][0] != "name":
            raise ArithmeticFaultError("an operand is missing")
        self.position += 1
        return self.tokens[self.position - 1][1]

    def number(self, text: str) -> int:
        if "#" in text:
            base, digits = text.split("#", 1)
            return int(digits, int(base))
        if "_" in text:
            raise ArithmeticFaultError(f"{text} is no number")
        if text[:2] in ("0x", "0X"):
            return int(text, 16)
        return int(text, 8) if len(text) > 1 and text[0] == "0" else int(text)

    def variable(self, name: str) -> int:
        text = self.get(name)
        return compute(text, self.get, self.put, self.depth + 1) if text.strip() and self.active else 0

    def store(self, name: str, value: int) -> None:
        if self.active:
            self.put(name, str(value))

    def apply(self, operator: str, left: int, right: int) -> int:
        return _wrapped(int(OPERATIONS[operator](left, right))) if self.active else 0


def _wrapped(value: int) -> int:
    """An integer of 64 bits, as it overflows."""
    return (value + LARGEST) % (2 * LARGEST) - LARGEST


def _quotient(left: int, right: int) -> int:
    """Division towards zero."""
    if right == 0:
        raise ArithmeticFaultError("a division by 0")
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent <= 63:
        raise ArithmeticFaultError("an exponent out of range")
    return int(base**exponent)


OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": op.add, "-": op.sub, "*": op.mul, "&": op.and_, "|": op.or_, "^": op.xor, "==": op.eq, "!=": op.ne,
    "<": op.lt, ">": op.gt, "<=": op.le, ">=": op.ge, "/": _quotient, "**": _power,
    "%": lambda left, right: left - _quotient(left, right) * right,
    "<<": lambda left, right: left << (right & 63), ">>": lambda left, right: left >> (right & 63),
    "&&": lambda left, right: bool(left and right), "||": lambda left, right: bool(left or right),
}  # fmt: skip
