"""What each key of a trainer's configuration means for a plan: it is read, changes nothing, is not modelled, or makes
another run of it.

`data/<trainer>.csv` has a row for keys of one meaning; `tests/importers/test_keys.py` holds it against the schema of
the trainer's own package. Keys are paths with dots, a section for all that is in it, or a last part alone:

* `effect`: `read`; `none` (`words` say why it moves nothing); `uncounted` (it moves time or memory and is not modelled)
  or `refused` (the run is another); `holds` where it only holds keys with rows of their own; `default`, whose `usual`
  is what the trainer takes where the key is missing
* `usual`: of `read` the values that are described, all where there are none; of `uncounted` and `refused` the values
  with which nothing changes, beside none at all (and false and 0 where there are no others)
* `means`: the key of another table that it is read as; `not key` for its opposite, `key a=b` with b for the value a
* `words`: what it changes, or why it changes nothing
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, cast

from shardwright.errors import Problem, slip_of
from shardwright.files import shipped_table
from shardwright.importers.megatron.flags import explained
from shardwright.importers.python_values import COMPUTED, Path
from shardwright.importers.shell.unknown import is_known, shown

Effect = Literal["read", "none", "uncounted", "refused", "holds"]
NOTHING = ("none", "null", "", "[]", "{}")
# The length of a run decides nothing about the plan, and the launcher knows how many processes run.
OPEN = ("max_steps", "steps", "num_processes", "num_machines")
LEAVE_OUT = "leave it out to judge the run without it"


@dataclass(frozen=True, slots=True)
class Key:
    """A row of a table, for one of its keys."""

    effect: Effect
    usual: tuple[str, ...]
    means: str
    words: str

    def is_usual(self, value: Any) -> bool:
        """Return whether a value is among the usual ones, or says nothing."""
        text = _plain(value)
        return text in NOTHING or text in map(_plain, self.usual) or (not self.usual and value in (False, 0))


@dataclass(frozen=True, slots=True)
class Accounted:
    """The fields of a configuration that are read, by the names under which they are, and what is not counted."""

    values: Mapping[Path, Any]
    uncounted: tuple[str, ...]


@cache
def known_keys(trainer: str) -> Mapping[str, Key]:
    """Return the keys of a trainer's table."""
    rows = [row for row in shipped_table("shardwright.importers", f"{trainer}.csv") if row["effect"] != "default"]
    return MappingProxyType(
        {
            key: Key(
                effect=cast("Effect", row["effect"]),
                usual=tuple(row["usual"].split()),
                means=row["means"],
                words=row["words"],
            )
            for row in rows
            for key in row["keys"].split()
        }
    )


@cache
def defaults(trainer: str) -> Mapping[str, str]:
    """Return what a trainer takes where a key that decides a plan is missing."""
    rows = [row for row in shipped_table("shardwright.importers", f"{trainer}.csv") if row["effect"] == "default"]
    return MappingProxyType({row["keys"]: row["usual"] for row in rows})


def key_of(path: Path, trainers: Sequence[str]) -> Key | None:
    """Return the row of a field: of its path, of the section that it is in, or of its last part, in the first table
    that has one."""
    names = [".".join(path), *(".".join(path[:end]) for end in range(len(path) - 1, 0, -1)), path[-1]]
    for trainer in trainers:
        known = known_keys(trainer)
        exact = known.get(names[0]) or known.get(path[-1])
        section = next((known[name] for name in names[1:-1] if name in known and _is_whole(known[name])), None)
        if key := exact or section:
            return key
    return None


def _is_whole(key: Key) -> bool:
    """Return whether a row for a section is one for all that is in it."""
    return key.effect not in ("read", "holds")


def accounted(
    values: Mapping[Path, Any],
    trainers: Sequence[str],
    name: str,
    problems: list[Problem],
    why: Mapping[str, str] = MappingProxyType({}),
) -> Accounted:
    """Return the fields of a configuration that are read, its trainer's defaults among them. A field that makes another
    run goes to `problems`, by name; `why` says of a script's variables why they are not known."""
    fields: dict[Path, Any] = {}
    uncounted: list[str] = []
    said = {path: value for path, value in values.items() if value is not None}
    for path, value in [*_defaults(said, trainers), *said.items()]:
        place, key = f"{name}: {'.'.join(path)}", key_of(path, trainers)
        if key is None:
            _unknown(path, trainers, place, problems, uncounted)
        elif key.effect in ("none", "holds"):
            continue
        elif not _is_said(value):
            problems += _unsaid(path, value, key, place, why)
        elif key.effect == "read":
            if key.usual and not key.is_usual(value):
                problems.append(Problem(place, f"is {value}, {key.words}", f"use {', '.join(key.usual)}"))
            fields |= _renamed(path, value, key.means)
        elif not key.is_usual(value):
            told = "" if value is True else f"is {value}: "
            if key.effect == "refused":
                problems.append(Problem(place, told + key.words, LEAVE_OUT))
            else:
                uncounted.append(f"{'.'.join(path)} ({key.words})" if value is True else _shown(path, value, key))
    return Accounted(fields, tuple(dict.fromkeys(uncounted)))


def _shown(path: Path, value: Any, key: Key) -> str:
    return f"{'.'.join(path)} {value} ({key.words})"


def _plain(value: Any) -> str:
    return "".join(str(value).casefold().split()).replace('"', "'")


def _is_said(value: Any) -> bool:
    return value is not COMPUTED and (not isinstance(value, str) or is_known(value))


def _unsaid(path: Path, value: Any, key: Key, place: str, why: Mapping[str, str]) -> Iterator[Problem]:
    """A value that is known only when the file or the script runs, of a key that counts."""
    if path[-1] in OPEN or key.effect == "uncounted":
        return
    if value is COMPUTED:
        yield Problem(place, "is computed when the file runs", "write the value itself")
    else:
        message = f"its value is {shown(value)}, which the text does not assign"
        yield Problem(place, *explained(value, message, why))


def _defaults(values: Mapping[Path, Any], trainers: Sequence[str]) -> Iterator[tuple[Path, Any]]:
    """Yield the defaults of the trainer, `not key` the opposite of another field."""
    said = {path[-1]: value for path, value in values.items()}
    for key, text in defaults(trainers[0]).items():
        path = tuple(key.split("."))
        if not any(other == path or (len(path) == 1 and other[-1] == key) for other in values):
            opposite = text.removeprefix("not ")
            yield path, not said.get(opposite) if opposite != text else _literal(text)


def _literal(text: str) -> Any:
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def _renamed(path: Path, value: Any, means: str) -> dict[Path, Any]:
    """Return a field as the one that it is read as."""
    if not means:
        return {path: value}
    if means.startswith("not "):
        return {(means.removeprefix("not "),): not value}
    target, *pairs = means.split()
    values = dict(pair.split("=") for pair in pairs)
    return {tuple(target.split(".")): _literal(values[_plain(value)]) if _plain(value) in values else value}


def _unknown(path: Path, trainers: Sequence[str], place: str, problems: list[Problem], uncounted: list[str]) -> None:
    """Refuse a key that is a slip of one that counts; name any other."""
    known = {key.rsplit(".", 1)[-1] for trainer in trainers for key, row in known_keys(trainer).items() if _counts(row)}
    if meant := slip_of(path[-1], known):
        problems.append(Problem(place, "is no key of this trainer", f"did you mean {meant}?"))
    else:
        uncounted.append(f"{'.'.join(path)} (not known here)")


def _counts(key: Key) -> bool:
    return key.effect not in ("none", "holds")
