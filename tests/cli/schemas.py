"""Documents held against their schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema
from tests.cli.running import answered


def schema(name: str) -> Any:
    """Return the schema that `shardwright schema NAME` prints."""
    return answered(["schema", name])


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    """Return what holds documents against a schema, which is one (`tests/cli/test_schema.py`)."""
    return jsonschema.Draft202012Validator(schema(name))


def holds(name: str, document: Any) -> None:
    """Fail where a document is not as its schema says."""
    validator(name).validate(document)
