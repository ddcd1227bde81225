"""Tools for other programs, described once: an assistant lists them (`assistant`), and `serve` has an address for each
and an OpenAPI document of all (https://spec.openapis.org/oas/v3.1.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any

from shardwright.records import record
from shardwright.reports.documents.schemas import document_schema
from shardwright.serving.answers import Answer
from shardwright.serving.requests import REQUEST_SIZES, REQUEST_TEXTS, PlanRequest

Schema = dict[str, Any]
API = "/api/"
MOST_TOOL_BYTES = 8_000_000  # of a request with its files
PROBLEM: Schema = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("path", "message", "hint")},
    "required": ["message"],
}
ERRORS: Schema = {
    "type": "object",
    "properties": {"errors": {"type": "array", "items": PROBLEM, "minItems": 1}},
    "required": ["errors"],
}
JSON_LINES = "application/x-ndjson"


@record
class Tool:
    """Something that can be asked for: its parameters as a JSON schema, and the name of the document that answers, as
    `shardwright schema` knows it."""

    name: str
    title: str
    words: str
    parameters: Schema
    document: str

    @property
    def result(self) -> Schema:
        """The schema of the document that answers."""
        return document_schema(self.document)


@record
class Toolbox:
    """Tools, and a module's function that answers: `ask(name, arguments, folder)` runs a tool in a folder and returns
    `{"document": …, "notes": […]}` or `{"errors": […]}`."""

    tools: Sequence[Tool]
    ask: Callable[[str, Mapping[str, Any], str], Answer]

    def tool(self, name: str) -> Tool | None:
        """Return the tool of a name, if there is one."""
        return next((tool for tool in self.tools if tool.name == name), None)


def openapi(tools: Sequence[Tool], version: str, downloads: Sequence[str]) -> Schema:
    """Return the OpenAPI 3.1 document of what `serve` answers: the tools, and what the page itself asks (`downloads`
    are the kinds of file that it can have)."""
    asked = page_schema()
    downloaded = {**asked, "properties": {**asked["properties"], "to": {"enum": list(downloads)}}}
    downloaded["required"] = [*asked["required"], "to"]
    paths = {
        f"{API}{tool.name}": _post(tool.name, tool.title, tool.parameters, {"application/json": tool.result})
        for tool in tools
    }
    line = document_schema("answer")
    paths["/answer"] = _post("answer", "Plans for the page, better ones as they are there.", asked, {JSON_LINES: line})
    paths["/download"] = _post(
        "download", "The best plan as a file.", downloaded, {"application/octet-stream": {"format": "binary"}}
    )
    words = "Answers are the documents that the command line prints. Only this machine, and no other origin, may ask."
    licence = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    return {
        "openapi": "3.1.1",
        "info": {"title": "Shardwright", "version": version, "description": words, "license": licence},
        "servers": [{"url": "/"}],
        "security": [],
        "paths": paths,
        "components": {"schemas": {"Errors": ERRORS}},
    }


REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "400": "The body is no JSON, and why.",
        "403": "Another host or origin asks.",
        "413": "The body is empty or too large.",
        "415": "The body is not application/json.",
        "503": "Too many searches run at once.",
    }
)


def page_schema() -> Schema:
    """Return the schema of a `PlanRequest`."""
    kinds = dict.fromkeys(REQUEST_TEXTS, "string") | dict.fromkeys(REQUEST_SIZES, "integer")
    items = fields(PlanRequest)
    return {
        "type": "object",
        "properties": {item.name: {"type": kinds.get(item.name, "number")} for item in items},
        "required": [item.name for item in items if item.default is MISSING],
        "additionalProperties": False,
    }


def _post(name: str, title: str, body: Schema, answers: Mapping[str, Schema]) -> Schema:
    content = {kind: {"schema": schema} if schema else {} for kind, schema in answers.items()}
    errors = {"application/json": {"schema": {"$ref": "#/components/schemas/Errors"}}}
    responses = {
        "200": {"description": "The answer.", "content": content},
        **{code: {"description": words} for code, words in REFUSALS.items()},
        "422": {"description": "What is wrong with the request, each with its remedy.", "content": errors},
    }
    request = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": {"operationId": name, "summary": title, "requestBody": request, "responses": responses}}
