"""The server of the what-if page: the library's figures, nothing but the page's own questions, and no search longer than
it is wanted."""

from __future__ import annotations

import io
import json
import multiprocessing
import shlex
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection

import pytest
from tests.cli.running import answered
from tests.serving.what_if import SMALL, answers, ask, served

from shardwright.cli.tools import toolbox
from shardwright.cost.calibrate import Measured, calibrate
from shardwright.plans.document import dumps, from_document
from shardwright.serving.answers import Answer, plan_figures
from shardwright.serving.requests import plan_request, planned
from shardwright.serving.what_if import server as module
from shardwright.serving.what_if.downloads import download
from shardwright.serving.what_if.server import MOST_AT_ONCE, MOST_BYTES, Server
from shardwright.serving.what_if.steps import steps
from shardwright.serving.worker import answer_within, asked

LONG = SMALL | {"model": "llama-3.1-405b", "precision": "bf16", "global_batch": 4096, "tokens": "1T"}
LONG["cluster"] = "512x8xH100-SXM+512x8xA100-SXM-80+512x8xH200+512x8xB200"


def test_first_plans_then_the_front_then_the_best_with_the_library_s_figures(server: Server) -> None:
    told = answers(server, SMALL)
    steps = [answer["step"] for answer in told]
    assert steps == [*["first"] * steps.count("first"), "front", "best", "front"] and steps.count("first") > 0
    best = planned(plan_request(SMALL), top=1).best
    last = told[-2]
    figures = json.loads(json.dumps(plan_figures(best)))
    assert {name: last["figures"][name] for name in figures} == figures
    capacities = [stage.capacity_bytes for row in best.predicted.memory for stage in row]
    assert last["charts"]["memory"]["limits"] == capacities
    times = [answer["figures"]["iteration_seconds"] for answer in told if "figures" in answer]
    assert times == sorted(times, reverse=True)


def test_a_front_has_no_point_that_another_beats(server: Server) -> None:
    series = answers(server, SMALL)[-1]["charts"]["front"]["series"]
    front = [point for each in series if each["name"] != "another is better in both" for point in each["points"]]
    everything = [point for each in series for point in each["points"]]
    here = [each["points"][0] for each in series if each["name"] == "this plan"]
    assert len(here) == 1 and len(everything) > 4
    for days, dollars, _ in [point for point in front if point not in here]:
        assert not any(other[0] <= days and other[1] < dollars for other in everything)


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"model": "/etc/passwd"}, "model"),
        ({"model": 7}, "model"),
        ({"cluster": "cluster.yaml"}, "cluster"),
        ({"cluster": "8x8xNoSuchGPU"}, "cluster"),
        ({"cluster": "9999999x8xH100-SXM"}, "cluster"),
        ({"cluster": None}, "cluster"),
        ({"global_batch": "__import__('os')"}, "global_batch"),
        ({"global_batch": 0}, "global_batch"),
        ({"global_batch": 1e400}, ""),
        ({"seq_len": 2.5}, "seq_len"),
        ({"tokens": "many"}, "tokens"),
        ({"tokens": None, "deadline_hours": 5}, "deadline_hours"),
        ({"budget_dollars": -3}, "budget_dollars"),
        ({"precision": "int3"}, "precision"),
        ({"objective": "beauty"}, "objective"),
        ({"rules": "$tp > 8"}, "rules"),
    ],
)
def test_what_is_wrong_is_told_by_its_field(server: Server, told: dict[str, object], field: str) -> None:
    response = ask(server, "/answer", SMALL | told)
    if not field:
        assert response.status == 400  # no JSON
        return
    (answer,) = [json.loads(line) for line in response.read().splitlines()]
    assert answer["step"] == "errors"
    assert field in [error["field"] for error in answer["errors"]] and answer["errors"][0]["message"]


def test_only_the_page_itself_may_ask(server: Server) -> None:
    here = f"127.0.0.1:{server.server_address[1]}"
    assert ask(server, "/answer", SMALL, Host="attacker.example").status == 403
    assert ask(server, "/answer", SMALL, Host=f"attacker.example:{server.server_address[1]}").status == 403
    assert ask(server, "/answer", SMALL, Origin="http://attacker.example").status == 403
    assert ask(server, "/answer", SMALL, Content_Type="text/plain").status == 415
    assert ask(server, "/answer", b"{" * 200).status == 400
    assert ask(server, "/answer", b"x" * (MOST_BYTES + 1)).status == 413
    assert ask(server, "/secrets", SMALL).status == 404
    assert ask(server, "/download", {**SMALL, "to": "../../etc"}, Origin=f"http://{here}").status == 422


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/pyproject.toml", "//etc/passwd", "/assets/", "/page.html"]
)
def test_no_path_leads_to_a_file(server: Server, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", int(server.server_address[1]))
    connection.request("GET", path)
    assert connection.getresponse().status == 404


def test_the_page_asks_no_one_else_for_anything(server: Server) -> None:
    connection = HTTPConnection("127.0.0.1", int(server.server_address[1]))
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 200 and "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert b"https://" not in (page := response.read()) and b"http://" not in page
    assert b"<!-- " not in page  # every menu is filled


def test_a_search_that_no_one_waits_for_is_stopped(server: Server) -> None:
    for _ in range(MOST_AT_ONCE + 2):
        response = ask(server, "/answer", LONG)
        assert json.loads(response.readline())["step"] == "first"
        response.close()
    places = [server.places.acquire(timeout=60) for _ in range(MOST_AT_ONCE)]
    for _ in places:
        server.places.release()
    assert all(places)


def test_a_search_that_takes_too_long_is_stopped_and_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SECONDS", 0.0)
    told = answers(server, LONG)
    assert told[-1]["step"] == "late" and "stopped" in told[-1]["errors"][0]["message"]


def test_files_are_those_of_the_library(server: Server) -> None:
    best = planned(plan_request(SMALL), top=1).best
    response = ask(server, "/download", {**SMALL, "to": "plan"})
    assert response.headers["Content-Disposition"] == 'attachment; filename="plan.json"'
    content = response.read()
    assert content.decode() == dumps(best) and from_document(json.loads(content)) == best
    several = {**SMALL, "to": "skypilot"}
    archive = zipfile.ZipFile(io.BytesIO(ask(server, "/download", several).read()))
    assert all(archive.read(name) for name in archive.namelist())
    assert b"<!doctype html>" in ask(server, "/download", {**SMALL, "to": "report"}).read()


def test_what_a_target_cannot_express_is_told(server: Server) -> None:
    response = ask(server, "/download", {**SMALL, "to": "accelerate"})
    assert response.status == 422 and json.loads(response.read())["errors"]


def forever(request: None) -> Iterator[Answer]:
    yield {"step": "first"}
    while True:
        time.sleep(3600)


def test_a_process_ends_with_its_question() -> None:
    with asked(forever, None) as found:
        assert found.recv() == {"step": "first"}
        assert multiprocessing.active_children()
    with pytest.raises(OSError, match="closed"):
        found.recv()
    assert not multiprocessing.active_children()


def test_an_answer_that_takes_too_long_is_an_error() -> None:
    told = answer_within(0.0, partial(time.sleep, 3600))  # type: ignore[arg-type]
    assert "takes more than" in told["errors"][0]["message"]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("change", [{}, {"framework": "fsdp"}, {"objective": "cost", "precision": "fp8"}])
def test_the_command_at_the_end_prints_the_figures_of_the_page(change: dict[str, object]) -> None:
    fields = {"model": "llama-3.1-8b", "cluster": "1x8xH100-SXM", "global_batch": 64, "seq_len": 4096, "tokens": "1B"}
    (last,) = [answer for answer in steps({**fields, **change}) if answer["step"] == "best"]
    program, *words = shlex.split(last["command"])
    assert program == "shardwright" and words[-2:] == ["--out", "plan.json"]
    plan = answered([*words[:-2], "--json"])["plans"][0]
    assert plan["prediction"]["iteration_seconds"] == last["figures"]["iteration_seconds"]


@pytest.mark.parametrize("body", [b"[]", b"3", b"null", b'"x"', b"{"])
def test_a_tool_is_asked_by_an_object_alone(body: bytes) -> None:
    with served(toolbox()) as running:
        response = ask(running, "/api/gpus", body)
        assert response.status == (400 if body == b"{" else 422)
        assert json.loads(response.read())["errors"][0]["message"]


def test_plans_on_the_site_of_a_calibration_are_moved_everywhere() -> None:
    fields = {"model": "llama-3.1-8b", "cluster": "1x8xH100-SXM", "global_batch": 64, "seq_len": 4096}
    best = planned(plan_request(fields), top=1).best
    ran = Measured(plan=best, seconds=1.3 * best.iteration_seconds, name="run")
    site = calibrate([ran])
    (last,) = [answer for answer in steps(fields, site, "my site.json") if answer["step"] == "best"]
    assert "--calibration 'my site.json'" in last["command"]
    assert 1.15 < last["figures"]["iteration_seconds"] / best.iteration_seconds < 1.3
    assert "calibrated on 1 run of yours" in last["key_figures"]
    (file,) = download(fields | {"to": "plan"}, site)
    prediction = from_document(json.loads(file["content"])).predicted
    assert prediction.iteration_seconds == last["figures"]["iteration_seconds"]
