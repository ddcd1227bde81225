"""The syntax tree of a rule, and how a place in a rule is shown to its author."""

from __future__ import annotations

from shardwright.errors import Problem
from shardwright.records import record

EXCERPT_CHARACTERS = 100


@record(kw_only=False)
class Span:
    """Half-open range of characters in the text of a rule, counted from 0."""

    start: int
    end: int


@record
class Number:
    value: float
    span: Span


@record
class Truth:
    """The literal True or False."""

    value: bool
    span: Span


@record
class Word:
    """A bare word or a string: the name of a choice, as `selective`."""

    text: str
    span: Span


@record
class Nothing:
    """The literal None: not set."""

    span: Span


@record
class Variable:
    """A parameter by its canonical name."""

    name: str
    span: Span


@record
class Negative:
    operand: Expression
    span: Span


@record
class Not:
    operand: Expression
    span: Span


@record
class Arithmetic:
    """Operators of one precedence, applied from left to right: `first`, then each operator with its operand."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]
    span: Span


@record
class Compare:
    operator: str
    left: Expression
    right: Expression
    span: Span


@record
class Within:
    """Whether `item` equals one of `choices`."""

    item: Expression
    choices: tuple[Expression, ...]
    span: Span


@record
class Logic:
    """`operands` joined by `&&` or `||`."""

    operator: str
    operands: tuple[Expression, ...]
    span: Span


Expression = Number | Truth | Word | Nothing | Variable | Negative | Not | Arithmetic | Compare | Within | Logic


def operands(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions that `expression` is made of, from left to right."""
    match expression:
        case Negative(operand=operand) | Not(operand=operand):
            return (operand,)
        case Arithmetic(first=first, rest=rest):
            return (first, *(operand for _, operand in rest))
        case Compare(left=left, right=right):
            return (left, right)
        case Within(item=item, choices=choices):
            return (item, *choices)
        case Logic(operands=joined):
            return joined
        case _:
            return ()


def variables(expression: Expression) -> frozenset[str]:
    """Return the canonical names of the variables in `expression`."""
    if isinstance(expression, Variable):
        return frozenset({expression.name})
    return frozenset[str]().union(*map(variables, operands(expression)))


class RuleError(Exception):
    """Something wrong at one place of a rule. It never leaves the rule modules, which turn it into a `SpecError`."""

    def __init__(self, span: Span, message: str, hint: str) -> None:
        super().__init__(message)
        self.span = span
        self.message = message
        self.hint = hint


@record
class Location:
    """Where a rule stands: file, line (from 1), its text, and the column (from 0) at which the expression begins."""

    file: str
    line: int
    text: str
    column: int

    def problem(self, error: RuleError) -> Problem:
        """Return `error` with line and column, both from 1, and the text with carets under the place."""
        start = min(self.column + error.span.start, len(self.text))
        first = max(0, start - EXCERPT_CHARACTERS // 2)
        shown = self.text[first : first + EXCERPT_CHARACTERS].rstrip()
        shown = "".join(character if character.isprintable() else " " for character in shown)
        carets = max(1, min(error.span.end - error.span.start, len(shown) - (start - first)))
        excerpt = f"\n    {shown}\n    {' ' * (start - first)}{'^' * carets}"
        return Problem(f"{self.file}:{self.line}:{start + 1}", error.message + excerpt, error.hint)
