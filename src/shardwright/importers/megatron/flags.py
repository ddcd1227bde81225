"""The arguments of Megatron-LM (core_v0.19) and of what is made of it on a command line, and what each means for a
plan.

`data/flags.csv` has a row for each that the parser of core_v0.19.2 prints, and for those of older releases and other
trainers of the family (`source`):

* `values`: how many words follow it, `*` for any number
* `effect`: empty (a plan is not moved by it, or it is read), `uncounted` (moves time or memory, not modelled) or
  `refused` (the run is another); `words` say what it changes, or why it moves nothing
* `reads`: how its value is read (`READERS`), or `switch`; empty where it is not
* `default`: what its source takes where it is missing; switches are off
* `choices`: the values that can be read, where not every one can
* `usual`: values with which an `uncounted` argument changes nothing
* `means`: the argument of core_v0.19.2 that it is another name of
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, cast

from shardwright.errors import Problem, slip_of, suggestion
from shardwright.files import shipped_table
from shardwright.importers.shell.unknown import is_known, is_lone, shown, unknowns, variable_of
from shardwright.records import record
from shardwright.spec.text.fields import shown as quoted

# Switches that say what another argument says with a value.
IMPLIED = {
    "--use-rms-norm": ("--normalization", "RMSNorm"),
    "--fp8-hybrid": ("--fp8-format", "hybrid"),
    "--fp8-e4m3": ("--fp8-format", "e4m3"),
    "--num-attention-heads-kv": ("--group-query-attention", True),
    "--num-key-value-heads": ("--group-query-attention", True),
}
# The length of the run decides nothing about the plan: a script may leave it to its caller.
LENGTHS = ("--train-iters", "--train-samples", "--train-tokens")
LISTS = ("--recompute-modules", "--moe-router-load-balancing-type")
OF_THE_USER = ("--tokenizer-type", "--tokenizer-model", "--patch-tokenizer-type", "--vocab-file")
Effect = Literal["", "uncounted", "refused"]
SWITCH = "switch"
LARGEST_COUNT = 10**18
PATTERN_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
MOST_PATTERN = 100_000


@record(kw_only=False)
class Flags:
    """What a command line says: values and switches by flag; `ignored` are flags that move nothing, `uncounted` those
    that move time or memory without being modelled, with what they change."""

    given: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __getitem__(self, flag: str) -> Any:
        """The value of a flag, or Megatron's default for it; for a switch whether it is on."""
        known = known_flags()[flag]
        return flag in self.given if known.reads == SWITCH else self.given.get(flag, default_of(flag))


@cache
def default_of(flag: str) -> Any:
    """Return the default of an argument that takes a value, None where it has none."""
    known = known_flags()[flag]
    return value_of(known, known.default) if known.default else None


@dataclass(slots=True)
class _Scan:
    """Flags found so far. `why` says of variables why they are not known."""

    name: str
    problems: list[Problem]
    why: Mapping[str, str]
    given: dict[str, Any]
    ignored: list[str]
    uncounted: dict[str, str]


def scan(
    words: Sequence[str], name: str, problems: list[Problem], why: Mapping[str, str] = MappingProxyType({})
) -> Flags:
    """Read the flags of a plan off `words`; faults go to `problems`, every one. A later flag overrides an earlier."""
    found = _Scan(name, problems, why, {}, [], {})
    position = 0
    while position < len(words):
        flag, separator, attached = words[position].partition("=")
        position += 1
        if not flag.startswith("--"):
            refuse_hidden(flag, f"{name}: {shown(flag)}", found.problems, found.why)
            continue
        values = [attached] if separator else []
        while not separator and position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        _read(hyphenated(flag), values, flag, found)
    given = {flag: value for flag, value in found.given.items() if value is not None}
    uncounted = tuple(f"{flag} ({text})" if text else flag for flag, text in found.uncounted.items())
    return Flags(given, tuple(found.ignored), uncounted)


def _read(flag: str, values: list[str], written: str, scan: _Scan) -> None:
    """Read one flag with its values."""
    place = f"{scan.name}: {written}"
    known = known_flags().get(flag)
    if flag in IMPLIED:
        other, value = IMPLIED[flag]
        scan.given[other] = value
    today = read_as(flag)
    read = known_flags().get(today)
    if read is not None and read.reads == SWITCH:
        scan.given[today] = True
        for value in values:
            refuse_hidden(value, place, scan.problems, scan.why)
        if known is not None and known.effect == "uncounted":
            scan.uncounted[written] = known.words
    elif read is not None and read.reads:
        value = _value(today, read, values, place, scan)
        scan.given[today] = value
        if read.usual and not set(_parts(today, value)) <= set(read.usual):
            scan.uncounted[f"{written} {value}"] = read.words
    elif known is not None and known.effect == "refused" and not (values and set(values) <= set(known.usual)):
        scan.problems.append(Problem(place, known.words, "leave the flag out, or describe the plan in a plan file"))
    else:
        _pass_over(written, values, known, scan)


def _parts(flag: str, value: Any) -> list[Any]:
    """The values of an argument: of several words where it takes a list."""
    if value is None:
        return []
    return value.replace(",", " ").split() if flag == "--recompute-modules" else [value]


def _pass_over(written: str, values: list[str], known: Known | None, scan: _Scan) -> None:
    """Note a flag that is not read; variables of unknown content behind it may hold any other."""
    if known is None and (meant := slip_of(hyphenated(written), counting_flags())):
        place, hint = f"{scan.name}: {written}", f"did you mean {meant}?"
        scan.problems.append(Problem(place, "is no argument of Megatron-LM", hint))
    elif known is None:
        scan.uncounted[written] = "not known here"
    elif known.effect == "uncounted":
        scan.uncounted[written] = known.words
    elif written not in IMPLIED:
        scan.ignored.append(written)
    taken = 1 if known is None else len(values) if known.values is None else known.values
    for value in values[taken:]:
        refuse_hidden(value, f"{scan.name}: {written}", scan.problems, scan.why)


@cache
def counting_flags() -> tuple[str, ...]:
    """Return the arguments that say something about a plan or its price."""
    return tuple(sorted(flag for flag, known in known_flags().items() if known.reads or known.effect or known.means))


def _value(flag: str, known: Known, values: list[str], place: str, scan: _Scan) -> Any:
    """The value of a known flag, or None after naming what is wrong."""
    if not values:
        scan.problems.append(Problem(place, "has no value", "write it after the flag"))
        return None
    if flag == "--rampup-batch-size":
        return " ".join(map(shown, values))
    if not is_known(values[0]):
        if flag not in LENGTHS and flag not in OF_THE_USER:
            message = f"its value is {shown(values[0])}, which the text does not assign"
            scan.problems.append(Problem(place, *explained(values[0], message, scan.why)))
        return shown(values[0]) if flag in OF_THE_USER else None
    for value in values[1:]:
        refuse_hidden(value, place, scan.problems, scan.why)
    text = " ".join(values) if flag == "--moe-layer-freq" else values[0]
    if flag in LISTS:
        return " ".join(values)
    if known.choices and text not in known.choices:
        scan.problems.append(
            Problem(place, f"{quoted(text)} is not a value that can be read", suggestion(text, known.choices))
        )
        return None
    try:
        return value_of(known, text)
    except (ValueError, OverflowError):
        scan.problems.append(Problem(place, f"{quoted(text)} cannot be read", "write what Megatron-LM would accept"))
        return None


def refuse_hidden(word: str, place: str, problems: list[Problem], why: Mapping[str, str]) -> None:
    """A variable of unknown content, where arguments stand, may hold any of them: add to `problems` that it does."""
    if is_lone(word):
        message = f"{shown(word)} may hold arguments, but the text does not assign it"
        problems.append(Problem(place, *explained(word, message, why)))


def explained(word: str, message: str, why: Mapping[str, str]) -> tuple[str, str]:
    """Return what is wrong with a word that is not known, and what helps."""
    for part in unknowns(word):
        variable = variable_of(part)
        if variable is not None and variable in why:
            return f"{shown(word)} hangs on {why[variable]}, which is not known here", "write the line as it is run"
        if variable is not None:
            return message, f"add --env {variable}=…"
        if part.removeprefix("$").isdigit():
            return message, "add the script's own arguments, as on its command line"
    return message, "write the value itself"


@record(kw_only=False)
class Known:
    """A row of the table. `values` is None for any number."""

    values: int | None
    effect: Effect
    words: str
    reads: str
    default: str
    choices: tuple[str, ...]
    usual: tuple[str, ...]
    means: str


@cache
def known_flags() -> Mapping[str, Known]:
    """Return all arguments by name, written with hyphens."""
    rows = shipped_table("shardwright.importers.megatron", "flags.csv")
    return MappingProxyType(
        {
            hyphenated(row["flag"]): Known(
                values=None if row["values"] == "*" else int(row["values"]),
                effect=cast("Effect", row["effect"]),
                choices=tuple(row["choices"].split()),
                usual=tuple(row["usual"].split()),
                **{name: row[name] for name in ("words", "reads", "default", "means")},
            )
            for row in rows
        }
    )


def read_as(flag: str) -> str:
    """Return the argument of core_v0.19.2 that `flag` is, itself where it is no other name of one."""
    known = known_flags().get(flag)
    return known.means or flag if known else flag


def is_read(flag: str) -> bool:
    """Return whether an argument says something about a plan."""
    return flag in known_flags() and bool(known_flags()[flag].reads)


def hyphenated(flag: str) -> str:
    """Return an argument's name with hyphens, as some trainers write it with underscores."""
    return flag.replace("_", "-")


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= LARGEST_COUNT:
        raise ValueError
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _limit(text: str) -> float | None:
    """A factor, or below 0 none (transformer_config.py 1661)."""
    return None if float(text) < 0 else _fraction(text)


def _window(text: str) -> tuple[int, int]:
    left, right = (int(part) for part in text.strip("()").split(","))
    return left, right


def _pattern(text: str) -> int | tuple[int, ...]:
    """A count N, or a list such as `([0]*3+[1]*58)*1` as numbers. Only sums and products of lists of 0 and 1."""
    flat = "".join(text.split())
    if flat.isdigit():
        return int(flat)
    outer = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", flat)
    body, times = (outer[1], int(outer[2] or 1)) if outer else (flat, 1)
    numbers: list[int] = []
    for term in body.split("+"):
        match = PATTERN_TERM.fullmatch(term)
        if match is None or len(numbers) > MOST_PATTERN:
            raise ValueError
        numbers += [int(number) for number in match[1].split(",")] * int(match[2] or 1)
    if len(numbers) * times > MOST_PATTERN:
        raise ValueError
    return tuple(numbers) * times


READERS: dict[str, Callable[[str], Any]] = {
    "count": _count,
    "fraction": _fraction,
    "limit": _limit,
    "window": _window,
    "pattern": _pattern,
    "text": str,
}


def value_of(known: Known, text: str) -> Any:
    """Return the value that `text` is for an argument that takes one. Raises ValueError or OverflowError."""
    return READERS[known.reads](text)
