"""Records are what the standard library's frozen dataclasses are: the same class, made both ways, behaves alike."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, astuple, dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import pytest

from shardwright.records import record


class Stage:
    """A stage."""

    KINDS: ClassVar[tuple[str, ...]] = ("first", "last")

    gpus: int
    name: str = "first"
    layers: list[int] = field(default_factory=lambda: [1, 2])
    seconds: float = field(default=0.0, compare=False)
    secret: str = field(default="", repr=False)
    count: int = field(init=False, default=7)
    twice: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError("no GPUs")
        object.__setattr__(self, "count", 2 * self.gpus)


class Point:
    """A place."""

    x: float
    y: float = 0.0


class Alone:
    """A value of one field."""

    value: object


class Nothing:
    """No field."""


class Spoken:
    """A value with its own words and its own equality."""

    words: str

    def __repr__(self) -> str:
        return f"<{self.words}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spoken) and self.words.lower() == other.words.lower()

    def __hash__(self) -> int:
        return hash(self.words.lower())


WAYS: dict[str, dict[str, bool]] = {
    "by name": {},
    "in order": {"kw_only": False},
    "with a dictionary": {"slots": False},
    "alone": {"eq": False},
}


def both(plain: type[Any], **ways: bool) -> tuple[Any, Any]:
    """Return a class made by the standard library and as a record."""
    copies = [type(plain.__name__, (), {key: value for key, value in vars(plain).items() if key not in ("__dict__", "__weakref__")}) for _ in range(2)]  # fmt: skip
    standard = {"kw_only": True, "slots": True, **ways}
    return dataclass(frozen=True, **standard)(copies[0]), record(**ways)(copies[1])


def answer(act: Callable[[], object]) -> object:
    """Return what an act returns, or the error that it ends in."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("plain", "values", "others"),
    [
        (Stage, {"gpus": 2}, {"gpus": 2, "seconds": 1.0}),
        (Stage, {"gpus": 2, "layers": [3], "secret": "s"}, {"gpus": 2}),
        (Point, {"x": 1.0}, {"x": 1.0, "y": 0.0}),
        (Point, {"x": float("nan")}, {"x": 1.0}),
        (Alone, {"value": (1,)}, {"value": (1,)}),
        (Alone, {"value": [1]}, {"value": 1}),
        (Nothing, {}, {}),
        (Spoken, {"words": "Yes"}, {"words": "yes"}),
    ],
)
def test_a_record_is_a_frozen_dataclass(
    plain: type[Any], values: dict[str, Any], others: dict[str, Any], ways: dict[str, bool]
) -> None:
    def shown(cls: Any) -> dict[str, object]:
        made, other, again = cls(**values), cls(**others), cls(**values)
        names = [item.name for item in fields(cls)]
        facts: dict[str, object] = {
            "dataclass": is_dataclass(cls),
            "fields": [(item.name, item.type, item.init, item.kw_only) for item in fields(cls)],
            "parameters": {
                name: str(said) for name, said in inspect.signature(cls).parameters.items() if name != "layers"
            },
            "match": cls.__match_args__,
            "frozen": cls.__dataclass_params__.frozen,
            "dictionary": hasattr(made, "__dict__"),
            "values": (asdict(made), astuple(made), asdict(copy.deepcopy(made))),
            "replaced": answer(lambda: asdict(replace(made, **others))),
            "replaced wrongly": answer(lambda: replace(made, count=1)),
            "set": [answer(partial(setattr, made, name, 1)) for name in names],
            "deleted": [answer(partial(delattr, made, name)) for name in names],
            "unknown field": answer(lambda: cls(**values, unknown=1)),
            "in order": answer(lambda: asdict(cls(*list(values.values())[:1]))),
            "refused": answer(lambda: asdict(cls(**{**values, "gpus": 0}))),
        }
        if ways.get("eq", True):
            facts["text"] = repr(made)
            facts["equal"] = (made == other, made != other, made == made, made == 1)
            facts["hash"] = (answer(lambda: hash(made) == hash(other)), answer(lambda: hash(made) == hash(again)))
        return facts

    standard, made = both(plain, **ways)
    assert shown(made) == shown(standard)


def test_lists_of_records_are_their_own() -> None:
    _, made = both(Stage)
    assert made(gpus=1).layers is not made(gpus=1).layers
    with pytest.raises(ValueError, match="mutable default"):
        record(type("Wrong", (), {"__module__": __name__, "__annotations__": {"names": "list[str]"}, "names": []}))


def test_a_missing_field_is_named_with_its_class() -> None:
    standard, made = both(Point)
    assert (
        answer(made)
        == answer(standard)
        == (TypeError, "Point.__init__() missing 1 required keyword-only argument: 'x'")
    )


@record
class Kept:
    """A record that a pickle finds by name."""

    gpus: int
    names: tuple[str, ...] = ()


@record(slots=False)
class Counted:
    """A record with a property that is computed once."""

    gpus: int

    @cached_property
    def half(self) -> float:
        return self.gpus / 2


@pytest.mark.parametrize("value", [Kept(gpus=2, names=("a",)), Counted(gpus=3)], ids=["slots", "dictionary"])
def test_a_record_comes_back_from_a_pickle(value: Any) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(value, protocol)) == value
    assert copy.copy(value) == value


def test_a_cached_property_is_kept_beside_the_fields() -> None:
    counted = Counted(gpus=3)
    assert counted.half == 1.5 and vars(counted)["half"] == 1.5
    with pytest.raises(FrozenInstanceError):
        counted.half = 2.0  # type: ignore[misc]


def test_a_record_without_equality_is_itself_alone() -> None:
    _, made = both(Point, eq=False)
    point = made(x=1.0)
    assert point == point and point != made(x=1.0) and len({point, made(x=1.0)}) == 2


def test_what_is_made_later_belongs_to_the_class_that_has_it() -> None:
    """Where a subclass has its own method and asks for the record's, it gets that one, the first time too."""

    @record
    class Named:
        name: str

    class Titled(Named):
        def __init__(self, title: str) -> None:
            super().__init__(name=title.title())

        def __eq__(self, other: object) -> bool:
            return super().__eq__(other)

        def __hash__(self) -> int:
            return super().__hash__() + 1

    titled = Titled("second stage")
    assert titled == Titled("Second Stage") and titled.name == "Second Stage"
    assert hash(titled) == hash(Named(name="Second Stage")) + 1


def test_a_method_that_is_made_later_is_bound_as_a_function_is() -> None:
    """`inspect.signature` of Python 3.13 binds the method to the class itself."""
    _, made = both(Point)
    later = vars(made)["__init__"]
    assert [*inspect.signature(later.__get__(made, type(made))).parameters] == ["x", "y"]
