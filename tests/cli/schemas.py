"""Documents held against their schemas."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from tests.cli.running import run


def schema(name: str) -> Any:
    """Return the schema that `shardwright schema NAME` prints."""
    outcome = run(["schema", name])
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def holds(name: str, document: Any) -> None:
    """Fail where a document is not as its schema says."""
    jsonschema.validate(document, schema(name), cls=jsonschema.Draft202012Validator)
