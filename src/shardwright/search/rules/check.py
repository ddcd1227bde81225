"""What a rule may compare with what: every combination that could never mean anything is an error up front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from shardwright.errors import suggestion
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
    Variable,
    Within,
    Word,
    operands,
    variables,
)
from shardwright.search.space.parameters import PARAMETERS, Parameter

Kind = Literal["number", "condition", "word", "none", "unknown"]
Schema = Mapping[str, Parameter]
Typed = tuple[Expression, Kind]
_A_KIND = {"number": "a number", "condition": "true or false", "word": "a word", "none": "None", "unknown": "unclear"}


def faults(expression: Expression, schema: Schema) -> list[RuleError]:
    """Return what is wrong with the kinds of values in a rule, in the order of the text.

    A rule must be a condition that depends on a variable. Arithmetic and order need numbers; equality needs two
    values of one kind, and words that the variable can take; only what may be unset compares with None.
    """
    errors: list[RuleError] = []
    _require(expression, "condition", schema, errors)
    if not errors and not variables(expression):
        errors.append(
            RuleError(expression.span, "a rule without a variable is always true or always false", "name one")
        )
    return sorted(errors, key=lambda fault: fault.span.start)


_RESULT: Mapping[type[Expression], Kind] = MappingProxyType(
    {Number: "number", Negative: "number", Arithmetic: "number", Word: "word", Nothing: "none"}
)  # all others are conditions


def _kind(node: Expression, schema: Schema, errors: list[RuleError]) -> Kind:
    """Return the kind of `node`, `unknown` where a fault inside it has been added to `errors`."""
    if isinstance(node, Variable):
        given = schema[node.name].kind
        return "condition" if given == "switch" else given
    before = len(errors)
    match node:
        case Within() | Compare(operator="==" | "!="):
            left, *others = operands(node)
            sought = _kind(left, schema, errors)
            for other in others:
                _equality((left, sought), (other, _kind(other, schema, errors)), schema, errors)
        case _:
            wanted: Kind = "condition" if isinstance(node, Not | Logic) else "number"
            for operand in operands(node):
                _require(operand, wanted, schema, errors)
    return _RESULT.get(type(node), "condition") if len(errors) == before else "unknown"


def _require(node: Expression, wanted: Kind, schema: Schema, errors: list[RuleError]) -> None:
    kind = _kind(node, schema, errors)
    if kind in (wanted, "unknown"):
        return
    if wanted == "number":
        message = f"this is {_A_KIND[kind]} where a number is needed"
        hint = "words and switches compare with == and != only" if kind != "none" else "compare with == None or != None"
    else:
        message = f"this is {_A_KIND[kind]} where a condition is needed"
        hint = "compare it with something, as $tp > 8"
    errors.append(RuleError(node.span, message, _meant(node) or hint))


def _equality(left: Typed, right: Typed, schema: Schema, errors: list[RuleError]) -> None:
    kinds = {left[1], right[1]}
    if "unknown" in kinds:
        return
    if "none" in kinds:
        other = left[0] if isinstance(right[0], Nothing) else right[0]
        if not (isinstance(other, Variable) and schema[other.name].may_be_unset):
            errors.append(RuleError(other.span, "this is never None", "remove the comparison"))
    elif kinds == {"word"}:
        _words(left[0], right[0], schema, errors)
    elif len(kinds) == 2 and not (kinds == {"number", "condition"} and (_is_bit(left[0]) or _is_bit(right[0]))):
        errors.append(_mismatch(left, right, schema))


def _is_bit(node: Expression) -> bool:
    return isinstance(node, Number) and node.value in (0.0, 1.0)


def _words(left: Expression, right: Expression, schema: Schema, errors: list[RuleError]) -> None:
    if isinstance(left, Word) and isinstance(right, Word):
        errors.append(
            RuleError(left.span, "two words are compared, no variable", _meant(left) or "a variable begins with $")
        )
    for variable, word in ((left, right), (right, left)):
        if isinstance(variable, Variable) and isinstance(word, Word):
            known = schema[variable.name].words
            if known and word.text not in known:
                message = f"${variable.name} is never {word.text!r}"
                errors.append(RuleError(word.span, message, _meant(word) or _choice(word.text, schema[variable.name])))


def _mismatch(left: Typed, right: Typed, schema: Schema) -> RuleError:
    """Return the fault of comparing two kinds, at the word that lacks a `$` or else at the side that is no variable."""
    left_is_wrong = not _meant(right[0]) and (bool(_meant(left[0])) or isinstance(right[0], Variable))
    (wrong, kind), (other, other_kind) = (left, right) if left_is_wrong else (right, left)
    hint = _meant(wrong) or "compare values of one kind"
    if isinstance(other, Variable) and not _meant(wrong):
        words = schema[other.name].words
        remedies = {"condition": "compare it with True or False", "number": "compare it with a number"}
        hint = remedies.get(other_kind, f"one of {', '.join(words[:8])}" if words else "compare it with a word")
    return RuleError(wrong.span, f"{_A_KIND[kind]} is compared with {_A_KIND[other_kind]}", hint)


def _choice(text: str, parameter: Parameter) -> str:
    words = parameter.words
    choice = f"one of {', '.join(words)}" if len(words) <= 4 else suggestion(text, words)
    return f"{choice}; None where it is not set" if parameter.optional else choice


def _meant(node: Expression) -> str:
    """Return the hint that a word is the name of a variable, or empty."""
    return f"did you mean ${node.text}?" if isinstance(node, Word) and node.text in CANONICAL else ""


SCHEMA: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in PARAMETERS})
"""Each variable by its canonical name."""

CANONICAL: Mapping[str, str] = MappingProxyType(
    {name: row.name for row in PARAMETERS for name in (row.name, row.synonym) if name}
)
"""Every name that a rule may use, and the canonical one it stands for."""


def schema_with_gpus(gpus: Iterable[str]) -> Mapping[str, Parameter]:
    """Return the schema in which `$gpu` takes only the names in `gpus`."""
    return MappingProxyType({**SCHEMA, "gpu": replace(SCHEMA["gpu"], words=tuple(gpus))})
