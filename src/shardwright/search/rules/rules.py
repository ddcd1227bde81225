"""The user's rules: what is true of a candidate drops it. Reading, checking and vectorised evaluation.

A file has one rule in a line, `name: expression` or just an expression; `#` begins a comment. `rule_parser` has the
grammar, `rule_values` the variables, `rule_check` what may be compared with what, `rule_evaluation` what it means.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardwright.arrays import Bools
from shardwright.errors import Problem, SpecError, bad, reject
from shardwright.plans.findings import RareSwitch
from shardwright.records import record
from shardwright.search.rules.check import SCHEMA, faults, schema_with_gpus
from shardwright.search.rules.evaluation import Column, holds
from shardwright.search.rules.parser import parse_expression
from shardwright.search.rules.tree import Expression, Location, RuleError, Span, variables
from shardwright.search.space.parameters import PARAMETERS, Parameter
from shardwright.spec.text.reading import read_text

MAX_CHARACTERS = 1_000_000  # of a file
MAX_PROBLEMS = 20  # told at once
_OPENING = re.compile(r"\s*(?:(?P<name>[A-Za-z][\w ./-]*):)?\s*", re.ASCII)


@record
class Rule:
    """A condition on candidates. `text` is the expression as written, and the name where none is given.

    `variables` has canonical names.
    """

    name: str
    text: str
    line: int
    expression: Expression
    variables: frozenset[str]
    place: Location

    def holds(self, columns: Mapping[str, Column]) -> Bools:
        """Return for which candidates the rule is true, in the broadcast shape of the columns it uses (`()` for none).

        `columns` are keyed by canonical name and hold at least the rule's variables.
        """
        return holds(self.expression, columns)


def load_rules(path: Path, gpus: Iterable[str]) -> tuple[Rule, ...]:
    """Return the checked rules of the file `path`; a rule may compare `$gpu` with the names in `gpus`: those of the
    catalogue and of the cluster, so that one file serves many clusters.

    Raises SpecError as `read_text`, `parse_rules` and `check_rules` do.
    """
    rules = parse_rules(read_text(path, limit_bytes=MAX_CHARACTERS), str(path))
    check_rules(rules, schema_with_gpus(gpus))
    return rules


def parse_rules(text: str, name: str) -> tuple[Rule, ...]:
    """Return the rules in `text`; `name` stands for it in messages.

    Raises SpecError with a problem for each line that is no rule (at most `MAX_PROBLEMS`), at its line and column, and
    for a name or an unnamed rule that stands there twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise bad(name, f"is longer than {MAX_CHARACTERS:,} characters", "is this a file of rules?")
    rules: dict[str, Rule] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rule = _rule(name, number, line)
            if (first := rules.setdefault(rule.name, rule)) is not rule:
                message = f"the rule {rule.name[:100]!r} stands in line {first.line} already"
                repeated = RuleError(Span(0, len(rule.text)), message, "rename or remove one of the two")
                raise SpecError(rule.place.problem(repeated))
        except SpecError as error:
            problems += error.problems
        if len(problems) == MAX_PROBLEMS:
            break
    reject(problems)
    return tuple(rules.values())


def rules_against(switches: Iterable[RareSwitch]) -> tuple[Rule, ...]:
    """Return rules that drop every candidate with one of these switches."""
    parameters = {row.axis: row for row in reversed(PARAMETERS) if row.axis}
    lines = (_line_against(switch, parameters[switch.axis]) for switch in switches)
    return parse_rules("\n".join(lines), "rare switches")


def _line_against(switch: RareSwitch, parameter: Parameter) -> str:
    if parameter.kind == "switch":
        return f"${parameter.name}"
    if parameter.kind == "word":
        return f"${parameter.name} == {parameter.words[int(switch.least)]}"
    return f"${parameter.name} >= {switch.least!r} && ${parameter.name} <= {switch.most!r}"


def _rule(file: str, number: int, line: str) -> Rule:
    opening = _OPENING.match(line)
    column = opening.end() if opening else 0
    given = opening.group("name") if opening else None
    place = Location(file=file, line=number, text=line, column=column)
    try:
        expression, end = parse_expression(line[column:])
    except RuleError as error:
        raise SpecError(place.problem(error)) from None
    text = line[column : column + end]
    return Rule(
        name=given.strip() if given else text,
        text=text,
        line=number,
        expression=expression,
        variables=variables(expression),
        place=place,
    )


def check_rules(rules: Iterable[Rule], schema: Mapping[str, Parameter] = SCHEMA) -> None:
    """Raise SpecError for the rules that compare what cannot be compared, with line and column of each place (the
    first `MAX_PROBLEMS`)."""
    problems = (rule.place.problem(error) for rule in rules for error in faults(rule.expression, schema))
    reject(itertools.islice(problems, MAX_PROBLEMS))
