"""What rules mean: truth tables, and random rules against an interpreter that takes one candidate at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright.search.rules.evaluation import Column
from shardwright.search.rules.rules import parse_rules

Value = float | bool | str | None
Row = Mapping[str, Value]


def column(values: list[Value], words: tuple[str, ...] = (), axis: int = 0) -> Column:
    """Return `values` as a column of shape [n, 1] (axis 0) or [1, n] (axis 1)."""
    shape = (-1, 1) if axis == 0 else (1, -1)
    none = np.array([value is None for value in values]).reshape(shape)
    if words:
        codes = np.array([0 if value is None else words.index(str(value)) for value in values])
        return Column(values=codes.reshape(shape), words=words, none=none if none.any() else None)
    numbers = np.array([7 if value is None else value for value in values])
    return Column(values=numbers.reshape(shape), words=None, none=none if none.any() else None)


def truths(text: str, **columns: Column) -> list[bool]:
    (rule,) = parse_rules(text, "r")
    result = rule.holds(columns)
    assert result.dtype == np.bool
    return [bool(value) for value in result.ravel()]


BOTH = {
    "sequence_parallel": column([False, False, True, True]),
    "use_flash_attn": column([False, True, False, True]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$sequence_parallel && $use_flash_attn", [0, 0, 0, 1]),
        ("$sequence_parallel and $use_flash_attn", [0, 0, 0, 1]),
        ("$sequence_parallel || $use_flash_attn", [0, 1, 1, 1]),
        ("$sequence_parallel or $use_flash_attn", [0, 1, 1, 1]),
        ("!$sequence_parallel", [1, 1, 0, 0]),
        ("not $sequence_parallel || $use_flash_attn", [1, 1, 0, 1]),
        ("!($sequence_parallel || $use_flash_attn)", [1, 0, 0, 0]),
        ("$sequence_parallel == $use_flash_attn", [1, 0, 0, 1]),
        ("$sequence_parallel != $use_flash_attn", [0, 1, 1, 0]),
        ("$sequence_parallel == True", [0, 0, 1, 1]),
        ("$sequence_parallel == 0", [1, 1, 0, 0]),
        ("$sequence_parallel == None", [1, 1, 0, 0]),
        ("$sequence_parallel != None", [0, 0, 1, 1]),
        ("$use_flash_attn in [True]", [0, 1, 0, 1]),
        ("$use_flash_attn || $sequence_parallel && False", [0, 1, 0, 1]),
        ("($use_flash_attn || $sequence_parallel) && False", [0, 0, 0, 0]),
    ],
)
def test_logic(text: str, expected: list[int]) -> None:
    assert truths(text, **BOTH) == [bool(value) for value in expected]


NUMBERS = {"tensor_model_parallel_size": column([0, 1, 2, 8])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$tp == 2", [0, 0, 1, 0]),
        ("$tp != 2", [1, 1, 0, 1]),
        ("$tp < 2", [1, 1, 0, 0]),
        ("$tp <= 2", [1, 1, 1, 0]),
        ("$tp > 2", [0, 0, 0, 1]),
        ("2 <= $tp", [0, 0, 1, 1]),
        ("$tp == 2.0", [0, 0, 1, 0]),
        ("$tp in [1, 8, 3]", [0, 1, 0, 1]),
        ("$tp not in [1, 8]", [1, 0, 1, 0]),
        ("$tp in [$tp]", [1, 1, 1, 1]),
        ("$tp * 2 + 1 == 5", [0, 0, 1, 0]),
        ("2 + 2 * $tp == 2 * $tp + 2", [1, 1, 1, 1]),
        ("10 - $tp - 1 == 1", [0, 0, 0, 1]),
        ("-$tp < -1", [0, 0, 1, 1]),
        ("--$tp == $tp", [1, 1, 1, 1]),
        ("$tp // 3 == 2", [0, 0, 0, 1]),
        ("-$tp // 3 == -1", [0, 1, 1, 0]),
        ("$tp % 3 == 2", [0, 0, 1, 1]),
        ("-$tp % 3 == 2", [0, 1, 0, 0]),
        ("$tp / 4 == 0.5", [0, 0, 1, 0]),
        ("8 / $tp / 2 == 2", [0, 0, 1, 0]),
        # Division by zero has no value.
        ("8 / $tp > 0", [0, 1, 1, 1]),
        ("8 // $tp != 8", [0, 0, 1, 1]),
        ("8 % $tp == 8 % $tp", [0, 1, 1, 1]),
        ("8 / $tp in [4, 1, 8]", [0, 1, 1, 1]),
        ("!(8 / $tp > 0)", [1, 0, 0, 0]),
        ("0 / $tp != None", [0, 1, 1, 1]),
        ("1e308 * 10 * $tp > 1", [0, 1, 1, 1]),
    ],
)
def test_numbers(text: str, expected: list[int]) -> None:
    assert truths(text, **NUMBERS) == [bool(value) for value in expected]


MISSING = {
    "recompute_granularity": column(["none", "selective", "full", "full"], ("none", "selective", "full")),
    "recompute_method": column([None, None, "uniform", "block"], ("uniform", "block")),
    "recompute_num_layers": column([None, None, 1, 4]),
    "gpu": Column(values=np.asarray(0), words=("A100-SXM-80",)),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$recompute_granularity == selective", [0, 1, 0, 0]),
        ("$recompute_granularity != 'selective'", [1, 0, 1, 1]),
        ("$recompute_granularity == none", [1, 0, 0, 0]),
        ("$recompute_granularity == None", [1, 0, 0, 0]),
        ("$recompute_granularity in [full, None]", [1, 0, 1, 1]),
        ("$recompute_method == None", [1, 1, 0, 0]),
        ("None != $recompute_method", [0, 0, 1, 1]),
        ("$recompute_method == uniform", [0, 0, 1, 0]),
        ("$recompute_method != uniform", [1, 1, 0, 1]),
        ("$recompute_method in [uniform, block]", [0, 0, 1, 1]),
        ("None in [$recompute_method]", [1, 1, 0, 0]),
        ("$recompute_method == $recompute_granularity", [0, 0, 0, 0]),
        ("$recompute_method == $recompute_method", [1, 1, 1, 1]),
        ("$recompute_num_layers > 1", [0, 0, 0, 1]),
        ("$recompute_num_layers <= 1", [0, 0, 1, 0]),
        ("!($recompute_num_layers > 1)", [1, 1, 1, 0]),
        ("$recompute_num_layers == 7", [0, 0, 0, 0]),
        ("$recompute_num_layers != 1", [1, 1, 0, 1]),
        ("$recompute_num_layers == None", [1, 1, 0, 0]),
        ("$recompute_num_layers + 1 != 2", [0, 0, 0, 1]),
        ("$recompute_num_layers in [1, None]", [1, 1, 1, 0]),
        ("$gpu == A100-SXM-80 && $recompute_num_layers == 4", [0, 0, 0, 1]),
        ("$gpu == H100-SXM || $recompute_num_layers == 4", [0, 0, 0, 1]),
        ("$recompute_granularity == 1", [0, 0, 0, 0]),
    ],
)
def test_words_and_none(text: str, expected: list[int]) -> None:
    assert truths(text, **MISSING) == [bool(value) for value in expected]


def test_words_compare_by_name_whatever_their_codes() -> None:
    columns = {
        "gpu": Column(values=np.array([0, 1, 2]), words=("a", "b", "none")),
        "rank_order": Column(values=np.array([1, 0, 0]), words=("c", "a")),
    }
    assert truths("$gpu == $rank_order", **columns) == [True, False, False]
    assert truths("$gpu != $rank_order", **columns) == [False, True, True]
    assert truths("$gpu == None", **columns) == [False, False, True]


def test_the_result_has_the_shape_of_the_variables_that_are_used() -> None:
    columns = {
        "tensor_model_parallel_size": column([1, 2, 4], axis=0),
        "pipeline_model_parallel_size": column([1, 2], axis=1),
        "num_layers": Column(values=np.asarray(32)),
    }
    shapes = {
        text: parse_rules(text, "r")[0].holds(columns).shape
        for text in (
            "$tp > 1",
            "$pp > 1",
            "$tp * $pp > 4",
            "$num_layers > 4",
            "1 == 1",
            "$tp == wide",
            "$tp > 1 || $pp > 1",
        )
    }
    assert shapes == {
        "$tp > 1": (3, 1),
        "$pp > 1": (1, 2),
        "$tp * $pp > 4": (3, 2),
        "$num_layers > 4": (),
        "1 == 1": (),
        "$tp == wide": (3, 1),
        "$tp > 1 || $pp > 1": (3, 2),
    }


def test_columns_stay_as_they_are() -> None:
    values = np.array([0, 1, 2])
    values.flags.writeable = False
    columns = {"tensor_model_parallel_size": Column(values=values, none=np.array([True, False, False]))}
    assert truths("$tp / $tp == 1 && !($tp > 1)", **columns) == [False, True, False]
    assert values.tolist() == [0, 1, 2]


# The reference: a rule is made together with a function from a row to its value, so that it shares no code with what it
# checks. NOT_SET is the literal None; a missing value is None, a value that does not exist is NaN.
class NotSet:
    pass


NOT_SET = NotSet()
Reference = Callable[[Row], object]
WORDS = {
    "recompute_granularity": ("none", "selective", "full"),
    "recompute_method": ("uniform", "block"),
    "gpu": ("A", "B-1"),
}
VALUES: dict[str, st.SearchStrategy[Value]] = {
    "tensor_model_parallel_size": st.integers(0, 4),
    "recompute_num_layers": st.none() | st.integers(0, 3),
    "optimizer_offload_fraction": st.sampled_from([0.0, 0.1, 0.25, 1.0]),
    "sequence_parallel": st.booleans(),
    "recompute_granularity": st.sampled_from(WORDS["recompute_granularity"]),
    "recompute_method": st.none() | st.sampled_from(WORDS["recompute_method"]),
    "gpu": st.sampled_from(WORDS["gpu"]),
}
AXES = {name: position % 2 for position, name in enumerate(VALUES)}
OR, AND, NOT, COMPARISON, SUM, PRODUCT, UNARY, ATOM = range(8)


def is_unset(value: object) -> bool:
    return value is None or value is NOT_SET or value is False or value == "none"


def number(value: object) -> float:
    return float(value) if isinstance(value, (bool, int, float)) else math.nan


def is_true(value: object) -> bool:
    if isinstance(value, str):
        return not is_unset(value)
    return number(value) != 0 and not math.isnan(number(value))


def equals(left: object, right: object) -> bool:
    if left is NOT_SET or right is NOT_SET:
        return is_unset(right if left is NOT_SET else left)
    if left is None or right is None:
        return left is right
    if isinstance(left, str) or isinstance(right, str):
        return isinstance(left, str) and isinstance(right, str) and left == right
    return number(left) == number(right)


def differs(left: object, right: object) -> bool:
    exist = not any(isinstance(value, float) and math.isnan(value) for value in (left, right))
    return exist and not equals(left, right)


def divided(divide: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda left, right: math.nan if right == 0 else divide(left, right)


ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": divided(operator.truediv),
    "//": divided(operator.floordiv),
    "%": divided(operator.mod),
}
ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Made:
    """A form of the grammar at precedence `level`, with its meaning for one row."""

    level: int
    text: str
    of: Reference

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def atoms() -> st.SearchStrategy[Made]:
    def variable(name: str) -> Made:
        return Made(ATOM, f"${name}", lambda row: row[name])

    def literal(text: str, value: object) -> Made:
        return Made(ATOM, text, lambda row: value)

    words = [literal(word, word) for words in WORDS.values() for word in words]
    others = [literal("True", True), literal("false", False), literal("None", NOT_SET), literal('"B-1"', "B-1")]
    numbers = [literal(text, float(text)) for text in ("0", "1", "2", "3", "0.5", ".25", "1e3", "7.")]
    return st.sampled_from([variable(name) for name in VALUES]) | st.sampled_from(words + others + numbers)


def larger(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
    def negative(a: Made) -> Made:
        return Made(UNARY, f"-{a.at(UNARY)}", lambda row: -number(a.of(row)))

    def arithmetic(sign: str, a: Made, b: Made) -> Made:
        level = SUM if sign in "+-" else PRODUCT
        text = f"{a.at(level)} {sign} {b.at(level + 1)}"
        return Made(level, text, lambda row: ARITHMETIC[sign](number(a.of(row)), number(b.of(row))))

    def ordered(sign: str, a: Made, b: Made) -> Made:
        text = f"{a.at(SUM)} {sign} {b.at(SUM)}"
        return Made(COMPARISON, text, lambda row: ORDER[sign](number(a.of(row)), number(b.of(row))))

    def equal(a: Made, b: Made) -> Made:
        return Made(COMPARISON, f"{a.at(SUM)}=={b.at(SUM)}", lambda row: equals(a.of(row), b.of(row)))

    def different(a: Made, b: Made) -> Made:
        return Made(COMPARISON, f"{a.at(SUM)} !={b.at(SUM)}", lambda row: differs(a.of(row), b.of(row)))

    def within(a: Made, choices: list[Made], positive: bool) -> Made:
        text = f"{a.at(SUM)} {'' if positive else 'not '}in [{','.join(choice.at(SUM) for choice in choices)}]"
        return Made(COMPARISON, text, lambda row: any(equals(a.of(row), c.of(row)) for c in choices) is positive)

    def negated(word: str, a: Made) -> Made:
        return Made(NOT, f"{word} {a.at(NOT)}", lambda row: not is_true(a.of(row)))

    def both(word: str, a: Made, b: Made) -> Made:
        return Made(AND, f"{a.at(AND)} {word} {b.at(AND)}", lambda row: is_true(a.of(row)) and is_true(b.of(row)))

    def either(word: str, a: Made, b: Made) -> Made:
        return Made(OR, f"{a.at(OR)} {word} {b.at(OR)}", lambda row: is_true(a.of(row)) or is_true(b.of(row)))

    return st.one_of(
        st.builds(negative, inner),
        st.builds(arithmetic, st.sampled_from(sorted(ARITHMETIC)), inner, inner),
        st.builds(ordered, st.sampled_from(sorted(ORDER)), inner, inner),
        st.builds(equal, inner, inner),
        st.builds(different, inner, inner),
        st.builds(within, inner, st.lists(inner, min_size=1, max_size=3), st.booleans()),
        st.builds(negated, st.sampled_from(["!", "not"]), inner),
        st.builds(both, st.sampled_from(["&&", "and"]), inner, inner),
        st.builds(either, st.sampled_from(["||", "or"]), inner, inner),
    )


@settings(max_examples=examples(300))
@given(
    st.recursive(atoms(), larger, max_leaves=12),
    st.fixed_dictionaries({n: st.lists(v, min_size=3, max_size=3) for n, v in VALUES.items()}),
)
def test_random_rules_equal_the_interpreter_row_by_row(made: Made, table: dict[str, list[Value]]) -> None:
    (rule,) = parse_rules(made.text, "r")
    columns = {name: column(values, WORDS.get(name, ()), AXES[name]) for name, values in table.items()}
    found = np.broadcast_to(rule.holds(columns), (3, 3))
    expected = [
        [is_true(made.of({name: values[(i, j)[AXES[name]]] for name, values in table.items()})) for j in range(3)]
        for i in range(3)
    ]
    assert found.tolist() == expected
