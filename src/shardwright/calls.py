"""The library as it is called from outside: an argument of another kind than its annotation is refused by its name.
None leaves an argument at its default.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from typing import Any

from shardwright.errors import Problem, reject

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
WORDS = {str: "text", int: "whole number", float: "number", types.NoneType: "None"}
# What makes the values of a class.
MAKERS = {
    "Model": 'shardwright.load_model("llama-3.1-8b") makes one',
    "Cluster": 'shardwright.load_cluster("1x8xH100-SXM") makes one',
    "Job": "shardwright.make_job(global_batch=64, seq_len=4096) makes one",
    "Plan": "shardwright.load_plan(path) makes one; a Ranking has one as `.best`, an Evaluation as `.plan`",
    "Offers": 'shardwright.load_offers("offers.yaml") makes one',
    "Efficiency": "shardwright.calibrated, profiled and measured_layers make one",
    "SiteCalibration": "shardwright.calibrate and load_calibration make one",
    "MachineProfile": "shardwright.load_profile makes one",
    "LayerProfile": "shardwright.load_layer_profile makes one",
    "MeasuredRun": "shardwright.read_run makes one",
    "Measured": "shardwright.Measured(plan=plan, seconds=9.5) makes one",
    "Rule": 'write it as text: "$tp > 8"',
    "Space": 'shardwright.Space(pins={"tp": (8,)}) makes one',
}


@cache
def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a public function that refuses arguments of another kind with SpecError."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        named = require_kinds(function, named)
        try:
            arguments = signature.bind(*given, **named).arguments
        except TypeError:  # whose own words name what is missing or unknown
            return function(*given, **named)
        require_kinds(function, arguments)
        return function(*given, **named)

    call.__module__ = "shardwright"  # where pickle looks for it
    return call


def require_kinds(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by name without those that None leaves at another default. Raises SpecError for those of
    another kind than `function` says; names that it does not have are left to Python."""
    takes = {name: item for name, item in inspect.signature(function).parameters.items() if item.kind in BY_NAME}
    kinds = typing.get_type_hints(function)
    silent = {name for name, item in takes.items() if item.default not in (None, inspect.Parameter.empty)}
    spoken = {name: value for name, value in arguments.items() if value is not None or name not in silent}
    wrong = (name for name, value in spoken.items() if name in takes and not fits(value, kinds[name]))
    reject(_problem(function, name, spoken[name], kinds[name]) for name in wrong)
    return spoken


def fits(value: object, kind: Any) -> bool:
    """Return whether a value is of the kind that an annotation says."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in inner)
    if kind in (int, float):
        right = isinstance(value, Integral if kind is int else Real)
        return right and not isinstance(value, bool) and value == value  # no NaN
    if origin is None or origin is Callable:
        return callable(value) if origin else isinstance(value, kind)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(fits, value, inner))
    if isinstance(value, Mapping):
        return issubclass(origin, Mapping) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    several = isinstance(value, Collection) and not isinstance(value, str | bytes) and not issubclass(origin, Mapping)
    return several and all(fits(item, inner[0]) for item in typing.cast("Collection[object]", value))


def _problem(function: Callable[..., Any], name: str, value: object, kind: Any) -> Problem:
    nouns = list(dict.fromkeys(_nouns(kind)))
    makers = [MAKERS[noun] for word in nouns if (noun := word.removeprefix("list of ")) in MAKERS]
    if makers:
        nouns = [word for word in nouns if word.removeprefix("list of ") in MAKERS]
    hint = makers[0] if makers else f"help(shardwright.{function.__name__}) says what it takes"
    return Problem(f"`{name}=`", f"{value!r:.60} is no {' or '.join(nouns)}", hint)


def _nouns(kind: Any) -> list[str]:
    """Return what an annotation asks for, in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [noun for choice in inner if choice is not types.NoneType for noun in _nouns(choice)]
    if origin is None or origin is Callable or issubclass(origin, Mapping):
        return [WORDS.get(kind, getattr(origin or kind, "__name__", str(kind)))]
    return [f"list of {noun}" for noun in _nouns(inner[0])]
