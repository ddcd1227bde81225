from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright.errors import SpecError
from shardwright.files import replacing, write_atomically
from shardwright.spec.text.reading import parse_json, parse_yaml, read_text

DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(-1e6, 1e6) | st.text("abcxyz é", max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(DATA)
@settings(max_examples=examples(60))
def test_what_is_dumped_is_read_back(data: object) -> None:
    assert parse_json(json.dumps(data), "x.json") == data
    dumped = yaml.safe_dump({"a": data})
    assert parse_yaml(dumped, "x.yaml") == json.loads(json.dumps(yaml.safe_load(dumped)))


@given(st.text(alphabet="ab:{}[]&*!-?,'\"\n #<|1.e\x00\ud800", max_size=60))
@settings(max_examples=examples(200))
def test_noise_raises_nothing_but_spec_error(text: str) -> None:
    for parse in (parse_json, parse_yaml):
        try:
            parse(text, "noise")
        except SpecError as error:
            assert error.problems[0].path.startswith("noise")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1,\n "b": ', "line 2, column 7"),
        ('{"a": ', "cut off"),
        ("", "empty"),
        ('{"a": NaN}', "x.json: a: nan is not a finite number"),
        ('[{"b": -Infinity}]', "x.json: [0].b"),
        ("1e999", "not a finite"),
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ("[" * 500 + "]" * 500, "levels deep"),
        ("[" * 100_000, "levels deep"),
        ("9" * 5000, "too many digits"),
        ("1" + "0" * 400, "too large"),
    ],
)
def test_bad_json_is_named(text: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_json(text, "x.json")
    assert part in str(caught.value)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1,\nb: }", "line 2"),
        ("a: 1\na: 2", "line 2, column 1: the key 'a' appears twice"),
        ("a: &a [*a]", "inside its own anchor"),
        ("a: &a\n  b: {c: *a}", "inside its own anchor"),
        (LAUGHS, "aliases expand"),
        ("a: .nan", "x.yaml: a: nan"),
        ("n: [{b: .inf}]", "x.yaml: n[0].b"),
        ("a: !!python/object/apply:os.system [ls]", "not allowed"),
        ("a: !!binary aGk=", "not allowed"),
        ("--- 1\n--- 2", "more than one document"),
        ("[" * 500 + "]" * 500, "levels deep"),
        ("[" * 100_000, "levels deep"),
        ("? [a]\n: b", "a key is a list"),
        ("a: *nowhere", "undefined alias"),
        ("a: \x01", "not valid YAML"),
    ],
)
def test_bad_yaml_is_named(text: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "x.yaml")
    assert part in str(caught.value)


def test_yaml_is_read_as_people_mean_it() -> None:
    text = "base: &b {x: 1, y: 2}\nm: {<<: *b, y: 3}\nt: 1e12\nd: 2024-01-02\nr: 1:30\n7: seven\ns: '8'\n"
    assert parse_yaml(text, "x") == {
        "base": {"x": 1, "y": 2},
        "m": {"x": 1, "y": 3},
        "t": 1e12,
        "d": "2024-01-02",
        "r": "1:30",
        "7": "seven",
        "s": "8",
    }
    assert parse_yaml("", "x") is None


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "big").write_text("x" * 101)
    for path, part in (
        (tmp_path / "missing", "no such file"),
        (tmp_path, "folder"),
        (tmp_path / "noise", "not UTF-8"),
        (tmp_path / "nul", "binary"),
        (tmp_path / "big", "larger than 100 bytes"),
        (tmp_path / ("n" * 3000), "cannot be read"),
    ):
        with pytest.raises(SpecError) as caught:
            read_text(path, limit_bytes=100 if part.startswith("larger") else 4_000_000)
        assert part in str(caught.value)


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(tmp_path / "a.json") == "{}"


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "old")
    path.chmod(0o640)
    write_atomically(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert path.stat().st_mode & 0o777 == 0o640
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_writing_where_one_cannot_is_bad_input(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "plan.json"):
        with pytest.raises(SpecError):
            write_atomically(path, "x")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


def test_what_replaces_a_file_is_as_open_would_make_it(tmp_path: Path) -> None:
    """The process's umask counts for a new file, and one that fails while it is written leaves nothing."""
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "weights") as temporary:
            temporary.write_bytes(b"values")
    finally:
        os.umask(before)
    with suppress(KeyError), replacing(tmp_path / "weights") as temporary:
        temporary.write_bytes(b"a part")
        raise KeyError
    assert (tmp_path / "weights").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "weights").read_bytes() == b"values"
    assert [item.name for item in tmp_path.iterdir()] == ["weights"]
