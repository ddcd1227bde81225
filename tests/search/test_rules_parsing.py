"""Reading and checking of rules: what is accepted, and where and how what is not is reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import SpecError
from shardwright.search.rules.check import CANONICAL, schema_with_gpus
from shardwright.search.rules.parser import MAX_DEPTH
from shardwright.search.rules.rules import MAX_CHARACTERS, MAX_PROBLEMS, check_rules, load_rules, parse_rules
from shardwright.search.rules.tree import Arithmetic, Compare, Logic, Not, Within
from shardwright.search.space.parameters import PARAMETERS
from shardwright.spec.catalog.gpus import gpus

ROOT = Path(__file__).parents[2]
GPUS = ("A100-SXM-80", "H100-SXM", "V100-SXM2")
SCHEMA = schema_with_gpus(GPUS)


def errors_of(text: str) -> list[tuple[str, str, str]]:
    """Return path, message and hint of each problem in `text`, or fail where there is none."""
    with pytest.raises(SpecError) as caught:
        check_rules(parse_rules(text, "r"), SCHEMA)
    return [(problem.path, problem.message, problem.hint) for problem in caught.value.problems]


def test_a_file_has_named_and_unnamed_rules_blank_lines_and_comments() -> None:
    text = (
        "\ufeff# first\r\n\r\n  wide tp : $tp > 8  # too wide\r\n\t$pp == 3\n"
        'odd: $gpu == "a # b: c" || $sequence_parallel'
    )
    rules = parse_rules(text, "r")
    assert [(rule.name, rule.text, rule.line) for rule in rules] == [
        ("wide tp", "$tp > 8", 3),
        ("$pp == 3", "$pp == 3", 4),
        ("odd", '$gpu == "a # b: c" || $sequence_parallel', 5),
    ]
    assert [rule.variables for rule in rules] == [
        {"tensor_model_parallel_size"},
        {"pipeline_model_parallel_size"},
        {"gpu", "sequence_parallel"},
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n   # more", "\ufeff"])
def test_a_file_may_have_no_rule(text: str) -> None:
    assert parse_rules(text, "r") == ()


def test_a_synonym_is_its_canonical_name() -> None:
    for parameter in PARAMETERS:
        for name in {parameter.name, parameter.synonym or parameter.name}:
            (rule,) = parse_rules(f"${name} == None", "r")
            assert rule.variables == {parameter.name}
    assert len(CANONICAL) == len({name for row in PARAMETERS for name in (row.name, row.synonym) if name})


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("$tp == 1 || $pp == 1 && $dp == 1", Logic),
        ("!$tp == 1", Not),
        ("not $tp in [1]", Not),
        ("$tp not in [1]", Not),
        ("$tp in [1, 2+2, $pp]", Within),
        ("$tp + 1 == 2", Compare),
    ],
)
def test_the_outermost_form(text: str, form: type) -> None:
    (rule,) = parse_rules(text, "r")
    assert isinstance(rule.expression, form)


def test_operators_of_one_level_apply_from_left_to_right() -> None:
    (rule,) = parse_rules("8 - 4 - 2 * 3 // 2 == $tp", "r")
    assert isinstance(rule.expression, Compare)
    left = rule.expression.left
    assert isinstance(left, Arithmetic)
    assert [operator for operator, _ in left.rest] == ["-", "-"]
    assert parse_rules("8 - 4 - 2 * 3 // 2 == 1", "r")[0].holds({})


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("$tpp > 8", 1, "no variable $tpp", "$tp"),
        ("a: $pipeline_paralel > 8", 4, "no variable", "$pipeline_model_parallel_size"),
        ("1 < $tp < 8", 9, "do not chain", "1 < $tp && $tp < 8"),
        ("$tp in [1] in [2]", 12, "do not chain", "parentheses"),
        ("$tp = 8", 5, "= is no operator", "=="),
        ("$tp => 8", 5, "=> is no operator", ">="),
        ("$tp <> 8", 5, "<> is no operator", "!="),
        ("$tp ** 2 > 8", 5, "** is no operator", "*"),
        ("$tp == 8 & $pp == 1", 10, "& is no operator", "&&"),
        ("$tp == 8 | $pp == 1", 10, "| is no operator", "||"),
        ("$tp ≤ 8", 5, "≤ is no operator", "<="),
        ("$ tp > 8", 1, "$ is no operator", "$tp"),
        ("${tp} > 8", 1, "$ is no operator", "$tp"),
        ("2wide: $tp > 8", 6, ": is no operator", "name before the colon"),
        ("$gpu == 4090D", 9, "not a number", "quotes"),
        ("-wide: $tp > 8", 6, ": is no operator", "name before the colon"),
        ("\x07$tp > 8", 1, "U+0007", ""),
        ("$gpu == 'x", 9, "string that does not end", "quote"),
        ("$tp > 1_000", 7, "not a number", ""),
        ("$tp > 1e999", 7, "too large", "1e308"),
        ("$tp == 8 $pp", 10, "after a complete rule", "&&"),
        ("$tp == 8 wide", 10, "after a complete rule", "&&"),
        ("($tp == 8", 1, "never closed", ")"),
        ("(($tp == 8) && 1 == $pp", 1, "never closed", ")"),
        ("($tp == 8 $pp)", 11, "after a complete value", ")"),
        ("$tp == 8)", 9, "closes nothing", "remove"),
        ("$tp in 8", 8, "list is expected", "[1, 2, 4]"),
        ("$tp in [1, 2", 8, "not closed", "]"),
        ("$tp in []", 9, "']' where a value", ""),
        ("[1] == $tp", 1, "only after 'in'", "in ["),
        ("$tp == ", 7, "rule ends", "complete"),
        ("$tp && ", 7, "rule ends", "complete"),
        ("$tp == && 1", 8, "'&&' where a value", ""),
        ("$tp == !$pp", 8, "negation", "parentheses"),
        ("max($tp, 2) > 1", 4, "'('", "no functions"),
        ("name:", 6, "no expression", "after the colon"),
        ("name: # comment", 7, "no expression", "after the colon"),
        ("-" * (MAX_DEPTH + 1) + "1 < $tp", MAX_DEPTH + 1, "nested deeper", "split"),
    ],
)
def test_what_is_no_rule_is_an_error_at_its_place(text: str, column: int, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_rules(text, "r")
    (problem,) = caught.value.problems
    assert problem.path == f"r:1:{column}"
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("$gpu == 4090", 9, "a number is compared with a word", "one of A100-SXM-80"),
        ("$tp == selective", 8, "a word is compared with a number", "number"),
        ("tp == 2", 1, "a word is compared with a number", "did you mean $tp?"),
        ("2 == tp", 6, "a word is compared with a number", "did you mean $tp?"),
        ("tp > 2", 1, "a word where a number", "did you mean $tp?"),
        ("$sequence_parallel == on", 23, "a word is compared with true or false", "True or False"),
        ("$sequence_parallel == 2", 23, "a number is compared with true or false", "True or False"),
        ("$sequence_parallel > 0", 1, "true or false where a number", "=="),
        ("$tp == True", 8, "true or false is compared with a number", "number"),
        ("$recompute_granularity == ful", 27, "never 'ful'", "none, selective, full"),
        ("$recompute_method == none", 22, "never 'none'", "None where it is not set"),
        ("$gpu in [H100-SXM, H100-SXMM]", 20, "never 'H100-SXMM'", "H100-SXM"),
        ("$tp in [1, zero1]", 12, "a word is compared with a number", "number"),
        ("uniform == block", 1, "two words", "$"),
        ("tp == dp", 1, "two words", "$tp"),
        ("$tp == None", 1, "never None", "remove"),
        ("None != $tp + 1", 9, "never None", "remove"),
        ("$recompute_num_layers < None", 25, "None where a number", "== None"),
        ("$tp", 1, "a number where a condition", "$tp > 8"),
        ("$pp > 1 && $tp", 12, "a number where a condition", "$tp > 8"),
        ("!$gpu", 2, "a word where a condition", "compare"),
        ("x: wide", 4, "a word where a condition", "compare"),
        ("-$gpu < 3", 2, "a word where a number", "=="),
        ("$tp * ($pp == 2) > 1", 8, "true or false where a number", "=="),
        ("1 == 1", 1, "without a variable", ""),
        ("True", 1, "without a variable", ""),
    ],
)
def test_a_comparison_that_means_nothing_is_an_error_at_its_place(
    text: str, column: int, message: str, hint: str
) -> None:
    assert len(parse_rules(text, "r")) == 1
    ((path, said, remedy),) = errors_of(text)
    assert path == f"r:1:{column}"
    assert message in said
    assert hint in remedy


@pytest.mark.parametrize(
    "text",
    [
        "$sequence_parallel == 1",
        "0 != $use_flash_attn",
        "$use_flash_attn == ($tp > 1)",
        "$recompute_method == None",
        "None == $recompute_num_layers",
        "$use_flash_attn != None && $recompute_granularity == selective",
        "$sharding in [None, zero1]",
        "$gpu == 'H100-SXM' or $gpu == H100-SXM",
        "$rank_order == tp-cp-ep-dp-pp",
        "$tp-1 > 8-$pp",
        "$num_gpus % ($pipeline_model_parallel_size * $tensor_model_parallel_size) != 0",
        "$recompute_num_layers > $num_layers / $pipeline_model_parallel_size",
        "($tp in [1, 2]) == ($pp in [1, 2])",
        "true && $tp == 1",
    ],
)
def test_what_means_something_passes(text: str) -> None:
    check_rules(parse_rules(text, "r"), SCHEMA)
    assert len(parse_rules(text, "r")) == 1


def test_any_word_may_be_a_gpu_where_the_names_are_not_given() -> None:
    rules = parse_rules("$gpu == MyGPU", "r")
    check_rules(rules)
    with pytest.raises(SpecError, match="never 'MyGPU'"):
        check_rules(rules, SCHEMA)


def test_the_message_points_at_the_place() -> None:
    ((path, message, _),) = errors_of("ok: $pp > 1\nwide:\t$tp > 8 && $dpp == 1")
    assert path == "r:2:18"
    assert message.split("\n") == [
        "there is no variable $dpp",
        "    wide: $tp > 8 && $dpp == 1",
        "                     ^^^^",
    ]


def test_the_excerpt_of_a_long_line_is_short_and_points_at_the_place() -> None:
    ((path, message, _),) = errors_of("$tp == 1 || " * 500 + "$nope == 1" + " && $pp == 2" * 500)
    assert path == "r:1:6001"
    _, excerpt, carets = message.split("\n")
    assert len(excerpt) < 120
    assert excerpt[carets.index("^") : carets.rindex("^") + 1] == "$nope"


def test_every_bad_line_is_reported_up_to_a_limit() -> None:
    assert [path for path, _, _ in errors_of("$a > 1\n$tp > 1\n$b > 1")] == ["r:1:1", "r:3:1"]
    assert len(errors_of("$a > 1\n" * (MAX_PROBLEMS + 5))) == MAX_PROBLEMS
    assert len(errors_of("\n".join(f"r{n}: $tp" for n in range(MAX_PROBLEMS + 5)))) == MAX_PROBLEMS


def test_one_rule_may_have_several_wrong_comparisons() -> None:
    assert [path for path, _, _ in errors_of("$gpu == 3 || $tp == wide || $sharding == x")] == [
        "r:1:9",
        "r:1:21",
        "r:1:42",
    ]


def test_a_name_may_stand_only_once() -> None:
    ((path, message, _),) = errors_of("a: $tp > 1\nb: $tp > 1\n a : $tp > 2")
    assert path == "r:3:6"
    assert "'a' stands in line 1" in message
    ((path, message, _),) = errors_of("$tp > 1\n$tp > 1 # again")
    assert path == "r:2:1"
    assert "line 1" in message


def test_size_and_depth_are_limited() -> None:
    with pytest.raises(SpecError, match="longer than 1,000,000 characters"):
        parse_rules("#" * (MAX_CHARACTERS + 1), "r")
    for opening, closing in (("(", ")"), ("!", ""), ("-", ""), ("!(", ")")):
        for depth in (MAX_DEPTH // len(opening), MAX_DEPTH + 1, 20_000):
            text = f"{opening * depth}1{closing * depth}"
            if depth > MAX_DEPTH // len(opening):
                with pytest.raises(SpecError, match="nested deeper than"):
                    parse_rules(text, "r")
            else:
                assert parse_rules(text, "r")[0].holds({}).shape == ()


@pytest.mark.parametrize(
    "text", ["a" + " " * 100_000, "a " * 50_000, "$tp" + "+1" * 20_000, "$tp>1" + "||$tp>1" * 10_000]
)
def test_a_long_line_is_read_or_refused(text: str) -> None:
    try:
        rules = parse_rules(text, "r")
    except SpecError as error:
        assert error.problems
    else:
        assert len(rules) == 1


def test_nested_lists_are_checked_and_evaluated_once() -> None:
    text = "$tp"
    for _ in range(MAX_DEPTH - 2):
        text = f"({text} in [1, 2, 3, 4])"
    (rule,) = parse_rules(text, "r")
    assert rule.variables == {"tensor_model_parallel_size"}
    assert errors_of(text)


def test_a_file_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("$gpu == H100-SXM\n", encoding="utf-8")
    assert [rule.name for rule in load_rules(path, GPUS)] == ["$gpu == H100-SXM"]
    with pytest.raises(SpecError, match=r"rules.txt:1:9: \$gpu is never 'H100-SXM'"):
        load_rules(path, GPUS[:1])
    with pytest.raises(SpecError, match="no such file"):
        load_rules(tmp_path / "none.txt", GPUS)


SCRAPS = st.sampled_from(
    [
        *"()[]!<>=+-*/%,:#'\"$&|\n\t\\ 7.",
        *("&&", "||", "==", "!=", "//", "in", "not", "and", "name: ", "1e5", "0", "9" * 400),
        *("$tp", "$gpu", "$recompute_method", "$sequence_parallel", "None", "True", "none", "full", "A100-SXM-80"),
    ]
)


@given(
    st.one_of(
        st.text(max_size=80), st.lists(SCRAPS, max_size=25).map("".join), st.lists(SCRAPS, max_size=15).map(" ".join)
    )
)
def test_any_text_gives_rules_or_a_spec_error(text: str) -> None:
    try:
        rules = parse_rules(text, "r")
        check_rules(rules, SCHEMA)
    except SpecError as error:
        assert all(re.match(r"r:\d+:\d+$", problem.path) and problem.message for problem in error.problems)
        return
    assert all(rule.variables and rule.text in text for rule in rules)


def documented_rules() -> str:
    """Return the examples of the documentation, the fenced blocks marked `rules`."""
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```rules\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))


def test_the_examples_of_the_documentation_are_rules() -> None:
    rules = parse_rules(documented_rules(), "rules.md")
    check_rules(rules, schema_with_gpus(gpus()))
    assert len(rules) >= 10


def test_the_example_file_has_rules() -> None:
    assert len(load_rules(ROOT / "examples" / "rules.txt", gpus())) == 7


def test_the_documentation_lists_every_variable() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `\$(\w+)` \| (?:`\$(\w+)`)? ?\| ", text, flags=re.MULTILINE)
    assert listed == [(parameter.name, parameter.synonym) for parameter in PARAMETERS]


def test_the_documentation_shows_the_messages_as_they_are() -> None:
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```error\n(.*?)\n```$", text, flags=re.DOTALL | re.MULTILINE)
    assert shown
    for block in shown:
        source = re.search(r"^    (.*)$", block, flags=re.MULTILINE)
        assert source is not None
        line = int(block.split(":")[1])
        with pytest.raises(SpecError) as caught:
            check_rules(parse_rules("\n" * (line - 1) + source.group(1), "rules.txt"), SCHEMA)
        assert str(caught.value) == block
