"""Printing of JSON documents."""

from __future__ import annotations

import json


def print_json(document: object) -> None:
    """Print one document on standard output."""
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))
