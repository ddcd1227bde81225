"""The three surfaces ask the same: the command line, the library, and the tools of `mcp` and `serve`. What differs is a
row of a table, with its reason."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import jsonschema
import pytest
from tests.serving.what_if import SMALL, ask, served

import shardwright
from shardwright.cli.app import COMMANDS
from shardwright.cli.tools import DOCUMENTS, NO_TOOLS, parameters, toolbox
from shardwright.reports.documents.schemas import document_names
from shardwright.serving.requests import PlanRequest
from shardwright.serving.tools import page_schema
from shardwright.serving.what_if.server import Server

TOOLS = {tool.name: tool for tool in toolbox().tools}

# Parameters that tools leave to the command line.
SCREEN = {"json": "a tool answers with JSON alone", "details": "JSON has everything"}
# Parameters that the command line lacks.
SENT = {"files": "a program sends texts, where a person names files"}

# Calls of the library that take what a command takes.
CALLS: dict[str, tuple[Callable[..., Any], ...]] = {
    "plan": (shardwright.plan, shardwright.make_job, shardwright.load_model, shardwright.load_cluster),
    "shop": (shardwright.shop, shardwright.make_job, shardwright.load_model),
    "fit": (shardwright.fit, shardwright.make_job, shardwright.load_model),
    "evaluate": (shardwright.evaluate, shardwright.load_model),
    "support": (shardwright.support, shardwright.load_model),
    "diagnose": (shardwright.diagnose, shardwright.load_model),
    "discover": (shardwright.discover,),
}
# What a command calls otherwise than the library, and why.
EVERYWHERE = {
    "out": "a result is saved by `save`",
    "json": "results are values",
    "details": "results are values",
    "set": "`pins` and `space`, as Python has values for them",
    "budget": "`budget_dollars`: a number, so its name has the unit",
    "deadline": "`deadline_hours`: a number, so its name has the unit",
    "profile": "`efficiency=profiled(…)` or `measured_layers(…)`",
    "calibration": "`efficiency=calibrated(…)`",
    "launch": "a launch is read by `importers`, into a plan",
    "env": "as launch",
    "measured": "`step_seconds`: a number, so its name has the unit",
}
DIFFERENT: dict[str, dict[str, str]] = {
    "plan": {
        "mask_documents": "`document_tokens`, their mean length",
        "programs": "`planner.with_program` adds one to a ranking",
        "fewer": "`planner.on_fewer` adds them to a ranking",
        "time_limit": "`progress.until` ends a search by any condition",
    },
    "shop": {
        **dict.fromkeys(("gpu", "market", "provider", "region", "max_gpus", "prices"), "`load_offers` and what it has"),
        "mask_documents": "`document_tokens`, their mean length",
    },
    "fit": {
        "gpu": "a cluster",
        "gpus": "a cluster",
        "nodes": "a cluster",
        "micro_batch": "`global_batch` of the job, over the GPUs",
        "recipe": "`exporters.recipes.recipe` of a sizing",
    },
    "evaluate": {
        "words": "`user_plan`, or the arguments of a launch",
        "cluster": "as launch",
        "model": "as launch",
        "seq_len": "as launch",
        "preference": "as launch",
    },
    "support": {},
    "diagnose": dict.fromkeys(("cluster", "model", "seq_len", "preference"), "as launch"),
    "discover": {"from": "`source`: `from` is a word of Python's own", "from_file": "`files`"},
}


def names_of(calls: tuple[Callable[..., Any], ...]) -> set[str]:
    """Return the parameters of some calls, and of the search that they hand further arguments to."""
    names = {name for call in calls for name in inspect.signature(call).parameters}
    if "asked" in names:
        from shardwright.search.market.shop import shop
        from shardwright.search.planner import plan

        further = shop if shardwright.shop in calls else plan
        names |= set(inspect.signature(further).parameters)
    return names | set(inspect.signature(shardwright.Space).parameters)


def test_every_command_is_a_tool_or_says_why_not() -> None:
    assert {*DOCUMENTS, *NO_TOOLS} == set(COMMANDS) and not set(DOCUMENTS) & set(NO_TOOLS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_tool_has_the_parameters_of_its_command(name: str) -> None:
    schema = TOOLS[name].parameters
    jsonschema.Draft202012Validator.check_schema(schema)
    assert TOOLS[name].document in document_names()  # whose schemas tests of the command line look at
    assert set(parameters(name)) - set(schema["properties"]) <= set(SCREEN)
    assert set(schema["properties"]) - set(parameters(name)) == set(SENT)
    assert schema["required"] == [key for key, parameter in parameters(name).items() if parameter.required]


@pytest.mark.parametrize("name", CALLS)
def test_the_library_has_the_parameters_of_the_command(name: str) -> None:
    table = {**EVERYWHERE, **DIFFERENT[name]}
    missing = set(parameters(name)) - names_of(CALLS[name])
    assert missing <= set(table), "a parameter of the command line alone has its reason here"
    stale = set(DIFFERENT[name]) - missing - {"cluster", "model", "seq_len"}
    assert not stale, "a reason for a difference that is none"


def test_the_page_asks_by_the_names_of_the_library() -> None:
    names = names_of(CALLS["plan"])
    assert set(page_schema()["properties"]) <= names
    assert set(page_schema()["required"]) == {"model", "cluster", "global_batch", "seq_len"}
    assert set(page_schema()["properties"]) == set(PlanRequest.__dataclass_fields__)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served(toolbox()) as running:
        yield running


def described(server: Server) -> Any:
    connection = HTTPConnection("127.0.0.1", int(server.server_address[1]))
    connection.request("GET", "/openapi.json")
    return json.loads(connection.getresponse().read())


NODES = "NodeName=gpu01 CPUTot=64 RealMemory=1000000 Gres=gpu:h100:8 State=IDLE\n\n"
ASKED: Mapping[str, tuple[int, dict[str, Any]]] = {
    "plan": (200, {key: SMALL[key] for key in ("model", "cluster", "global_batch", "seq_len", "precision")}),
    "fit": (200, {"model": "llama-3.1-8b", "gpu": "RTX3090", "adapter": "lora:8"}),
    "support": (200, {"model": "gemma-3-27b"}),
    "discover": (200, {"from_file": ["nodes.txt"], "files": {"nodes.txt": NODES}}),
    "gpus": (200, {"name": "T4"}),
    "prices": (422, {"nothing": "of that name"}),
    "export": (422, {"plan": "/etc/hostname", "to": "megatron"}),
    "check": (422, {"plan": "../../etc/hostname"}),
    "evaluate": (422, {"words": ["plan.json"], "files": {"../plan.json": "{}"}}),
}


@pytest.mark.parametrize("name", ASKED)
def test_serve_answers_as_its_openapi_document_says(server: Server, name: str) -> None:
    status, arguments = ASKED[name]
    operation = described(server)["paths"][f"/api/{name}"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    response = ask(server, f"/api/{name}", arguments)
    document = json.loads(response.read())
    assert response.status == status, document
    if status == 200:
        jsonschema.validate(arguments, body)
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(document)
    else:
        assert all(problem["message"] for problem in document["errors"])


@pytest.mark.parametrize(("change", "steps"), [({}, {"first", "front", "best"}), ({"seq_len": 0}, {"errors"})])
def test_the_page_is_answered_as_the_openapi_document_says(
    server: Server, change: dict[str, Any], steps: set[str]
) -> None:
    operation = described(server)["paths"]["/answer"]["post"]
    (content,) = operation["responses"]["200"]["content"].values()
    fields = {key: SMALL[key] for key in ("model", "cluster", "global_batch", "seq_len", "precision")} | change
    lines = [json.loads(line) for line in ask(server, "/answer", fields).read().splitlines()]
    assert {line["step"] for line in lines} == steps
    validator = jsonschema.Draft202012Validator(content["schema"])
    if not change:
        validator.check_schema(content["schema"])
    for line in lines:
        validator.validate(line)


def test_the_openapi_document_has_an_address_for_each_tool(server: Server) -> None:
    document = described(server)
    assert document["openapi"].startswith("3.1.") and document["info"]["version"] == shardwright.__version__
    assert set(document["paths"]) == {*(f"/api/{name}" for name in DOCUMENTS), "/answer", "/download"}
    operations = [path["post"]["operationId"] for path in document["paths"].values()]
    assert len(set(operations)) == len(operations)
    assert ask(server, "/api/train", {}).status == 404


def test_a_text_is_a_file_for_the_command_that_it_goes_with(server: Server) -> None:
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 2048}
    asked = {"model": "config.json", "gpu": "RTX3090", "files": {"config.json": json.dumps(config)}}
    response = ask(server, "/api/fit", asked)
    assert response.status == 200 and json.loads(response.read())["ways"]
    again = ask(server, "/api/fit", {**asked, "files": {}})
    assert again.status == 422, "files of a request are gone with it"
