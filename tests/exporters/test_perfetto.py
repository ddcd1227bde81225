"""The trace of a plan: what its parser needs, every pass once, and the seconds of the prediction."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import cache
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.exporters.perfetto import HOST, MeasuredSpan, RankTrace, complete, measured_events, measured_trace
from shardwright.plans.plan import Plan
from shardwright.search.space.axes import parse_pins

NUMBER, TEXT, TIME = (
    {"type": "integer", "minimum": 0},
    {"type": "string", "minLength": 1},
    {"type": "number", "minimum": 0},
)


def _event(needed: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an event that has the fields `needed` and may have `more`."""
    return {"properties": {**needed, **more}, "required": [*needed], "additionalProperties": False}


def _metadata(name: str, about: str, value: dict[str, Any], where: tuple[str, ...]) -> dict[str, Any]:
    args = {"properties": {about: value}, "required": [about], "additionalProperties": False}
    return _event({"ph": {"const": "M"}, "name": {"const": name}, "args": args} | dict.fromkeys(where, NUMBER), {})


# The parts of the trace-event format that a trace may have: the object form, complete events and the metadata of names
# and places; the fields and units are those of the document that `shardwright.exporters.perfetto` cites.
COMPLETE = _event(
    {"ph": {"const": "X"}, "name": TEXT, "cat": TEXT, "ts": TIME, "dur": TIME, "pid": NUMBER, "tid": NUMBER},
    {"args": {"type": "object"}},
)
METADATA = [
    _metadata(f"{what}_{kind}", about, value, where)
    for what, where in (("process", ("pid",)), ("thread", ("pid", "tid")))
    for kind, about, value in (("name", "name", TEXT), ("sort_index", "sort_index", NUMBER))
]
TRACE = {
    "type": "object",
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {"type": "array", "minItems": 1, "items": {"type": "object", "oneOf": [COMPLETE, *METADATA]}},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}


@cache
def plan() -> Plan:
    model, cluster = shardwright.load_model("opt-350m"), shardwright.load_cluster("1x8xA100-SXM-40+2x8xV100-SXM2")
    job = shardwright.make_job(global_batch=64, seq_len=1024, precision="fp16")
    return shardwright.plan(model, cluster, job).best


@cache
def events() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(shardwright.export(plan(), "perfetto").main)["traceEvents"])


def test_the_trace_is_one_of_the_format() -> None:
    ranks = [
        RankTrace(
            rank=rank,
            process=(0, 0),
            name="stage 0",
            wall_seconds=float(rank),
            spans=[MeasuredSpan(name="x", kind="operator", begin=0.0, end=0.5, lane=HOST)],
        )
        for rank in range(2)
    ]
    jsonschema.validate(json.loads(shardwright.export(plan(), "perfetto").main), TRACE)
    jsonschema.validate(json.loads(measured_trace(plan(), ranks)), TRACE)


def test_an_event_without_a_field_is_not_of_the_format() -> None:
    for field in ("ph", "name", "ts", "dur", "pid", "tid"):
        event = {name: value for name, value in complete(0, 0, "x", "y", 0.0, 1.0, {}).items() if name != field}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"traceEvents": [event]}, TRACE)


def test_events_of_a_thread_stand_inside_each_other_or_apart() -> None:
    threads: dict[Any, list[tuple[float, float]]] = {}
    for event in events():
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["ts"] - event["dur"]))
    for spans in threads.values():
        ends: list[float] = []
        for start, end in sorted(spans):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or -end <= ends[-1]
            ends.append(-end)


def test_every_pass_is_there_once() -> None:
    counts = Counter((each["pid"], each["tid"], each["cat"]) for each in events() if each["ph"] == "X")
    for number, replica in enumerate(plan().replicas):
        for place in range(len(replica.stages)):
            for kind in ("forward", "backward"):
                assert counts[number, place, kind] == replica.micro_batches * plan().schedule.virtual_stages


def test_the_trace_ends_with_the_iteration() -> None:
    found = plan().predicted
    end = max(each["ts"] + each["dur"] for each in events() if each["ph"] == "X") / 1e6
    assert end == pytest.approx(found.iteration_seconds, rel=1e-6)  # rounded to thousandths of a microsecond


def test_events_of_a_thread_do_not_overlap() -> None:
    passes = [each for each in events() if each["ph"] == "X" and each["cat"] != "synchronise"]
    for thread in {(each["pid"], each["tid"]) for each in passes}:
        own = sorted((each["ts"], each["ts"] + each["dur"]) for each in passes if (each["pid"], each["tid"]) == thread)
        assert all(start > end for (_, end), (start, _) in itertools.pairwise(own))


def test_processes_and_threads_have_names() -> None:
    named = {(each["pid"], each.get("tid")) for each in events() if each["ph"] == "M"}
    assert {(each["pid"], each["tid"]) for each in events() if each["ph"] == "X"} <= named


def test_computing_and_communication_of_a_stage_are_those_of_the_prediction() -> None:
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("1x8xA100-SXM-80")
    job, space = shardwright.make_job(global_batch=16, seq_len=2048), parse_pins(["tp=4", "pp=2", "recompute=full"])
    found = shardwright.plan(model, cluster, job, space=space).best
    time = found.predicted.time
    seconds: Counter[tuple[int, str]] = Counter()
    for each in json.loads(shardwright.export(found, "perfetto").main)["traceEvents"]:
        if each["ph"] == "X":
            seconds[each["tid"], each["cat"]] += each["dur"] / 1e6
    stage = max(range(2), key=lambda place: sum(value for (at, _), value in seconds.items() if at == place))
    assert seconds[stage, "forward"] == pytest.approx(time.forward_seconds, rel=1e-3)
    assert seconds[stage, "backward"] == pytest.approx(time.backward_seconds, rel=1e-3)
    assert seconds[stage, "recompute"] == pytest.approx(time.recompute_seconds, rel=1e-3, abs=1e-6)
    assert seconds[stage, "communicate"] >= time.tensor_parallel_seconds > 0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 1)), max_size=30))
def test_what_overlaps_stands_beside_and_nothing_is_lost(times: list[tuple[int, int, int]]) -> None:
    spans = [
        MeasuredSpan(name="x", kind="operator", begin=begin / 7, end=(begin + length) / 7, lane=HOST, thread=thread)
        for begin, length, thread in times
    ]
    rank = RankTrace(rank=0, process=(0, 0), name="stage 0", wall_seconds=0.0, spans=spans)
    found: dict[Any, list[tuple[float, float]]] = {}
    for event in measured_events([rank]):
        if event["ph"] == "X":
            start: Any = event["ts"]
            length: Any = event["dur"]
            found.setdefault((event["pid"], event["tid"]), []).append((start, start + length))
    assert sum(map(len, found.values())) == len(spans)
    for thread in found.values():
        for one, other in itertools.combinations(sorted(thread, key=lambda each: (each[0], -each[1])), 2):
            assert other[0] >= one[1] or other[1] <= one[1] + 1e-4  # after it, or inside
