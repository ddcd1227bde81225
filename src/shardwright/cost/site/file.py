"""The file of a calibration: versioned JSON that holds no plan and, if asked, no name of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.cost.site.calibration import MOST_RUNS, SiteCalibration
from shardwright.errors import Problem, bad, reject
from shardwright.plans.codec import decode_fields, encode
from shardwright.plans.document import Schema, schema_of
from shardwright.spec.text.fields import shown
from shardwright.spec.text.reading import parse_json, read_text

VERSION = 2  # numeric
FORMAT = "shardwright-calibration"
REMEDY = "make one with `shardwright calibrate RUNS -o site.json`"


def to_document(calibration: SiteCalibration) -> dict[str, Any]:
    """Return a calibration as plain JSON data, in the order of the file."""
    fields: dict[str, Any] = encode(calibration, SiteCalibration)
    return {"format": FORMAT, "version": VERSION} | fields


def from_document(data: object, name: str = "calibration") -> SiteCalibration:
    """Return the calibration that JSON data hold; `name` stands for the file in messages. Raises SpecError for another
    version or document, with every fault of its fields, and for one without runs or with more than 50."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise bad(name, "is no calibration", REMEDY)
    if data.get("version") != VERSION or isinstance(data.get("version"), bool):
        hint = f"this release reads version {VERSION}; calibrate again on the same runs"
        raise bad(f"{name}: version", f"is {shown(data.get('version'))}", hint)
    problems: list[Problem] = []
    fields = {key: value for key, value in data.items() if key not in ("format", "version")}
    calibration = decode_fields(fields, SiteCalibration, name, problems)
    if not problems:
        problems += _faults(calibration, name)
    reject(problems)
    assert isinstance(calibration, SiteCalibration)
    return calibration


def _faults(calibration: SiteCalibration, name: str) -> list[Problem]:
    count = len(calibration.runs)
    if not 0 < count <= MOST_RUNS:
        return [Problem(f"{name}: runs", f"are {count}", f"1 to {MOST_RUNS}; {REMEDY}")]
    problems = []
    for place, run in enumerate(calibration.runs):
        setting = run.setting
        whole = {key: getattr(setting, key) for key in ("tp", "pp", "micro_batch", "gpus", "hidden")}
        positive = whole | {key: getattr(run, key) for key in ("measured_seconds", "predicted_seconds", "spread")}
        problems += [
            Problem(f"{name}: runs[{place}].{key}", "is 0", "a number above zero")
            for key, value in positive.items()
            if not value > 0
        ]
    return problems


def calibration_schema() -> Schema:
    """Return the JSON schema of the file."""
    schema = schema_of(SiteCalibration)
    head: Schema = {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    schema["properties"] = head | schema["properties"]
    schema["required"] = ["format", "version", *schema["required"]]
    return schema


def dumps(calibration: SiteCalibration) -> str:
    """Return the text of the file of a calibration."""
    return json.dumps(to_document(calibration), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def load_calibration(path: str | Path) -> SiteCalibration:
    """Return the calibration that a file holds. Raises SpecError for any other file."""
    return from_document(parse_json(read_text(Path(path)), str(path)), str(path))
