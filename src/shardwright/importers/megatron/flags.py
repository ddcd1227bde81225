"""The arguments of Megatron-LM (core_v0.19) on a command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from shardwright.errors import Problem, slip_of, suggestion
from shardwright.importers.megatron.flag_table import SWITCH, Known, hyphenated, known_flags, read_as, value_of
from shardwright.importers.shell.unknown import is_known, is_lone, shown, unknowns, variable_of
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
OF_THE_USER = ("--tokenizer-type", "--tokenizer-model", "--patch-tokenizer-type", "--vocab-file")


@dataclass(frozen=True, slots=True)
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
            _refuse_hidden(flag, f"{name}: {shown(flag)}", found)
            continue
        values = [attached] if separator else []
        while not separator and position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        _read(hyphenated(flag), values, flag, found)
    given = {flag: value for flag, value in found.given.items() if value is not None}
    uncounted = tuple(f"{flag} ({text})" if text else flag for flag, text in found.uncounted.items())
    return Flags(given, tuple(found.ignored), uncounted)


def _read(flag: str, values: list[str], written: str, found: _Scan) -> None:
    """Read one flag with its values."""
    place = f"{found.name}: {written}"
    known = known_flags().get(flag)
    if flag in IMPLIED:
        other, value = IMPLIED[flag]
        found.given[other] = value
    own = read_as(flag)
    read = known_flags().get(own)
    if read is not None and read.reads == SWITCH:
        found.given[own] = True
        for value in values:
            _refuse_hidden(value, place, found)
        if known is not None and known.effect == "uncounted":
            found.uncounted[written] = known.words
    elif read is not None and read.reads:
        value = _value(own, read, values, place, found)
        found.given[own] = value
        if read.usual and not set(_parts(own, value)) <= set(read.usual):
            found.uncounted[f"{written} {value}"] = read.words
    elif known is not None and known.effect == "refused":
        found.problems.append(Problem(place, known.words, "leave the flag out, or describe the plan in a plan file"))
    else:
        _pass_over(written, values, known, found)


def _parts(flag: str, value: Any) -> list[Any]:
    """The values of an argument: of several words where it takes a list."""
    if value is None:
        return []
    return value.replace(",", " ").split() if flag == "--recompute-modules" else [value]


def _pass_over(written: str, values: list[str], known: Known | None, found: _Scan) -> None:
    """Note a flag that is not read; variables of unknown content behind it may hold any other."""
    if known is None and (meant := slip_of(hyphenated(written), counting_flags())):
        place, hint = f"{found.name}: {written}", f"did you mean {meant}?"
        found.problems.append(Problem(place, "is no argument of Megatron-LM", hint))
    elif known is None:
        found.uncounted[written] = "not known here"
    elif known.effect == "uncounted":
        found.uncounted[written] = known.words
    elif written not in IMPLIED:
        found.ignored.append(written)
    taken = 1 if known is None else len(values) if known.values is None else known.values
    for value in values[taken:]:
        _refuse_hidden(value, f"{found.name}: {written}", found)


@cache
def counting_flags() -> tuple[str, ...]:
    """Return the arguments that say something about a plan or its price."""
    return tuple(sorted(flag for flag, known in known_flags().items() if known.reads or known.effect or known.means))


def _value(flag: str, known: Known, values: list[str], place: str, found: _Scan) -> Any:
    """The value of a known flag, or None after naming what is wrong."""
    if not values:
        found.problems.append(Problem(place, "has no value", "write it after the flag"))
        return None
    if flag == "--rampup-batch-size":
        return " ".join(map(shown, values))
    if not is_known(values[0]):
        if flag not in LENGTHS and flag not in OF_THE_USER:
            message = f"its value is {shown(values[0])}, which the text does not assign"
            found.problems.append(Problem(place, *explained(values[0], message, found.why)))
        return shown(values[0]) if flag in OF_THE_USER else None
    for value in values[1:]:
        _refuse_hidden(value, place, found)
    text = " ".join(values) if flag == "--moe-layer-freq" else values[0]
    if flag == "--recompute-modules":
        return " ".join(values)
    if known.choices and text not in known.choices:
        found.problems.append(
            Problem(place, f"{quoted(text)} is not a value that can be read", suggestion(text, known.choices))
        )
        return None
    try:
        return value_of(known, text)
    except (ValueError, OverflowError):
        found.problems.append(Problem(place, f"{quoted(text)} cannot be read", "write what Megatron-LM would accept"))
        return None


def _refuse_hidden(word: str, place: str, found: _Scan) -> None:
    """A variable of unknown content, where arguments stand, may hold any of them."""
    if is_lone(word):
        message = f"{shown(word)} may hold arguments, but the text does not assign it"
        found.problems.append(Problem(place, *explained(word, message, found.why)))


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
