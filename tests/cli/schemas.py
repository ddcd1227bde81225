"""Documents held against their schemas."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
from tests.cli.running import run


def schema(name: str) -> Any:
    """Return the schema that `shardwright schema NAME` prints."""
    outcome = run(["schema", name])
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return what holds documents against a schema, which is one (`tests/cli/test_schema.py`)."""
    return jsonschema.Draft202012Validator(schema(name))


def holds(name: str, document: Any) -> None:
    """Fail where a document is not as its schema says."""
    validator(name).validate(document)
