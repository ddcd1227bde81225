"""From the text of one rule to its syntax tree: a tokenizer and a recursive-descent parser. There is no `eval`.

rule    := or
or      := and (('||' | 'or') and)*
and     := not (('&&' | 'and') not)*
not     := ('!' | 'not') not | compare
compare := sum (('==' | '!=' | '<=' | '>=' | '<' | '>') sum | ['not'] 'in' '[' sum (',' sum)* ']')?
sum     := product (('+' | '-') product)*
product := unary (('*' | '/' | '//' | '%') unary)*
unary   := '-' unary | atom
atom    := NUMBER | STRING | WORD | '$' NAME | 'None' | 'True' | 'False' | '(' or ')'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import MappingProxyType

from shardwright.errors import suggestion
from shardwright.records import record
from shardwright.search.rules.check import CANONICAL
from shardwright.search.rules.tree import (
    Arithmetic,
    Compare,
    Expression,
    Logic,
    Negative,
    Not,
    Nothing,
    Number,
    RuleError,
    Span,
    Truth,
    Variable,
    Within,
    Word,
)

# A level of parentheses takes eight Python frames here, far from the interpreter's limit of 1,000.
MAX_DEPTH = 32
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")

# A word may hold hyphens (A100-SXM-80, tp-cp-ep-dp-pp), a variable may not: $tp-1 is a difference.
_TOKEN = re.compile(
    r"""(?P<space>\s+) | (?P<comment>\#.*)
    | (?P<variable>\$[A-Za-z_]\w*)
    | (?P<number>(?:[0-9]|\.[0-9])(?:[eE][+-]?[0-9]|[\w.])*)
    | (?P<word>[A-Za-z_][\w.]*(?:-[\w.]+)*)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<foreign>===|!==|=<|=>|<>|\*\*)
    | (?P<operator>\|\||&&|==|!=|<=|>=|//|[-+*/%<>!()\[\],])
    | (?P<stray>.)""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_KEYWORDS = MappingProxyType({"and": "&&", "or": "||", "not": "!", "in": "in"})
_LITERALS = MappingProxyType({"None": None, "True": True, "true": True, "False": False, "false": False})
_REMEDIES = MappingProxyType(
    {
        "=": "compare with ==",
        "===": "compare with ==",
        "!==": "compare with !=",
        "=<": "write <=",
        "=>": "write >=",
        "<>": "write !=",
        "**": "multiply with *",
        "&": "write && between conditions",
        "|": "write || between conditions",
        "≤": "write <=",
        "≥": "write >=",
        "≠": "write !=",
        "×": "write *",
        "$": "a variable is $ and a name, as $tp",
        '"': "close the string with another quote",
        "'": "close the string with another quote",
        "{": "write $tp, without braces",
        ":": "a name before the colon has letters, digits, blanks and - . / _ only",
        ";": "write one rule in a line",
    }
)


@record(kw_only=False)
class Token:
    """`symbol` is the operator that a token stands for, or empty; `kind` and `text` are as written."""

    kind: str
    text: str
    symbol: str
    span: Span


def parse_expression(text: str) -> tuple[Expression, int]:
    """Return the tree of `text` and the offset at which its last token ends (a comment may follow).

    Raises RuleError for anything that the grammar does not allow, for an unknown variable, and for parentheses and
    signs nested deeper than `MAX_DEPTH`.
    """
    tokens = _tokens(text)
    if not tokens:
        raise RuleError(Span(0, 0), "the rule has no expression", "write a condition after the colon")
    end = tokens[-1].span.end
    parser = _Parser([*tokens, Token("end", "", "", Span(end, end))])
    expression = parser.disjunction()
    parser.expect_end()
    return expression, end


def _tokens(text: str) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(text):
        kind, written = str(match.lastgroup), match.group()
        span = Span(*match.span())
        if kind in ("stray", "foreign"):
            name = written if written.isprintable() else f"U+{ord(written):04X}"
            hint = _REMEDIES.get(written, "put a word with unusual characters in quotes")
            what = "a string that does not end" if written in ('"', "'") else f"{name} is no operator of a rule"
            raise RuleError(span, what, hint)
        if kind not in ("space", "comment"):
            symbol = written if kind == "operator" else _KEYWORDS.get(written, "") if kind == "word" else ""
            tokens.append(Token(kind, written, symbol, span))
    return tokens


class _Parser:
    """A cursor over tokens. Each method reads one form of the grammar and returns its tree."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._position]

    def _accept(self, *symbols: str) -> Token | None:
        token = self._next
        if token.symbol not in symbols:
            return None
        self._position += 1
        return token

    def _nested(self, read: Callable[[], Expression], opening: Token) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RuleError(opening.span, f"nested deeper than {MAX_DEPTH} levels", "split it into several rules")
        result = read()
        self._depth -= 1
        return result

    def expect_end(self) -> None:
        token = self._next
        if token.kind == "end":
            return
        if token.symbol == ")":
            raise RuleError(token.span, "')' closes nothing", "remove it, or add the '(' that it should close")
        if token.symbol == "(":
            raise RuleError(
                token.span, "'(' after a complete value", "a rule has no functions; join conditions with &&"
            )
        raise RuleError(token.span, f"{token.text!r} after a complete rule", "join conditions with && or ||")

    def disjunction(self) -> Expression:
        return self._logic("||", self._conjunction)

    def _conjunction(self) -> Expression:
        return self._logic("&&", self._negation)

    def _logic(self, symbol: str, read: Callable[[], Expression]) -> Expression:
        operands = [read()]
        while self._accept(symbol):
            operands.append(read())
        if len(operands) == 1:
            return operands[0]
        return Logic(operator=symbol, operands=tuple(operands), span=_around(operands[0], operands[-1]))

    def _negation(self) -> Expression:
        if sign := self._accept("!"):
            operand = self._nested(self._negation, sign)
            return Not(operand=operand, span=Span(sign.span.start, operand.span.end))
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        expression = left
        if operator := self._accept(*COMPARISONS):
            right = self._sum()
            expression = Compare(operator=operator.symbol, left=left, right=right, span=_around(left, right))
        elif self._next.symbol == "!" and self._tokens[self._position + 1].symbol == "in":
            self._position += 1
            within = self._membership(left)
            expression = Not(operand=within, span=within.span)
        elif self._next.symbol == "in":
            expression = self._membership(left)
        if self._next.symbol in (*COMPARISONS, "in"):
            hint = "write 1 < $tp && $tp < 8, or use parentheses"
            raise RuleError(self._next.span, "comparisons do not chain", hint)
        return expression

    def _membership(self, item: Expression) -> Expression:
        self._position += 1
        opening = self._accept("[")
        if opening is None:
            raise RuleError(self._next.span, "a list is expected after 'in'", "write it in brackets, as [1, 2, 4]")
        choices = [self._nested(self._sum, opening)]
        while self._accept(","):
            choices.append(self._nested(self._sum, opening))
        closing = self._accept("]")
        if closing is None:
            raise RuleError(opening.span, "this list is not closed", "separate values with ',' and close it with ']'")
        return Within(item=item, choices=tuple(choices), span=Span(item.span.start, closing.span.end))

    def _sum(self) -> Expression:
        return self._arithmetic(("+", "-"), self._product)

    def _product(self) -> Expression:
        return self._arithmetic(("*", "/", "//", "%"), self._unary)

    def _arithmetic(self, symbols: tuple[str, ...], read: Callable[[], Expression]) -> Expression:
        first = read()
        rest = []
        while operator := self._accept(*symbols):
            rest.append((operator.symbol, read()))
        return Arithmetic(first=first, rest=tuple(rest), span=_around(first, rest[-1][1])) if rest else first

    def _unary(self) -> Expression:
        if sign := self._accept("-"):
            operand = self._nested(self._unary, sign)
            return Negative(operand=operand, span=Span(sign.span.start, operand.span.end))
        return self._atom()

    def _atom(self) -> Expression:
        token = self._next
        if opening := self._accept("("):
            inner = self._nested(self.disjunction, opening)
            if self._accept(")"):
                return inner
            if self._next.kind == "end":
                raise RuleError(opening.span, "'(' is never closed", "add the missing ')'")
            hint = "close the parenthesis with ')' or join conditions with && or ||"
            raise RuleError(self._next.span, f"{self._next.text!r} after a complete value", hint)
        if token.symbol or token.kind == "end":
            raise _no_value(token)
        self._position += 1
        if token.kind == "variable":
            return _variable(token)
        if token.kind == "number":
            return _number(token)
        if token.kind == "string":
            return Word(text=token.text[1:-1], span=token.span)
        if token.text not in _LITERALS:
            return Word(text=token.text, span=token.span)
        value = _LITERALS[token.text]
        return Nothing(span=token.span) if value is None else Truth(value=value, span=token.span)


def _around(first: Expression, last: Expression) -> Span:
    return Span(first.span.start, last.span.end)


def _no_value(token: Token) -> RuleError:
    if token.kind == "end":
        return RuleError(
            token.span, "the rule ends where a value should follow", "complete it, or remove the last operator"
        )
    if token.symbol == "[":
        return RuleError(token.span, "a list may stand only after 'in'", "write $tp in [1, 2, 4]")
    if token.symbol == "!":
        return RuleError(token.span, "a negation may not stand inside a comparison", "put it in parentheses, as (!$x)")
    return RuleError(
        token.span, f"{token.text!r} where a value should stand", "a value is a number, a word or a $variable"
    )


def _variable(token: Token) -> Variable:
    name = token.text[1:]
    if name not in CANONICAL:
        hint = suggestion(token.text, [f"${known}" for known in CANONICAL])
        raise RuleError(token.span, f"there is no variable {token.text}", hint)
    return Variable(name=CANONICAL[name], span=token.span)


def _number(token: Token) -> Number:
    try:
        value = math.nan if "_" in token.text else float(token.text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise RuleError(token.span, f"{token.text!r} is not a number", "a word that begins with a digit needs quotes")
    if math.isinf(value):
        raise RuleError(token.span, f"{token.text} is too large a number", "numbers go up to 1e308")
    return Number(value=value, span=token.span)
