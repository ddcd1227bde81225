"""The page holds the figures of the plan's JSON, needs nothing else, and lets no name break out of it."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.chromium import CHROMIUM, chromium
from tests.cli.running import run

import shardwright
from shardwright import Ranking, SpecError, report
from shardwright.plans.document import to_document
from shardwright.plans.mesh import is_mesh
from shardwright.reports.documents.ranking import ranking_document
from shardwright.reports.html.plan_sections import memory_section
from shardwright.reports.text.explain import value
from shardwright.search.planner import on_fewer, plan, predict
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster

PRICED = {"A100-SXM-40": 20.0, "V100-SXM2": 8.0}
MOST_BYTES, LONGEST_SECONDS = 5_000_000, 2.0
TWO_TYPES = "1024x8xH100-SXM+1024x8xA100-SXM-80"


@cache
def ranking() -> Ranking:
    model, cluster = shardwright.load_model("gpt2-medium"), shardwright.load_cluster("1x8xA100-SXM-40+2x8xV100-SXM2")
    return shardwright.plan(
        model, cluster, shardwright.make_job(global_batch=64, seq_len=1024, tokens=1e9, precision="fp16")
    )


class Text(HTMLParser):
    """The JSON of a page by name, the words of its tables, and what it asks others for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.cells: list[str] = []
        self.asked: list[str] = []
        self.labels = 0
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._inside = found.get("id") or "" if tag == "script" else tag
        self.asked += [value for name, value in attrs if name in ("src", "href", "action") and value]
        self.labels += "data-chart" in found and bool(found.get("aria-label"))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("charts", "files"):
            self.data[self._inside] = json.loads(data)
        elif self._inside in ("td", "dd"):
            self.cells.append(data)


@cache
def page() -> Text:
    return Text(report(ranking()))


def test_charts_have_the_figures_of_the_plan() -> None:
    prediction = to_document(ranking().best)["prediction"]
    charts = page().data["charts"]
    memory = [stage for row in prediction["memory"] for stage in row]
    assert charts["memory"]["limits"] == [stage["capacity_bytes"] for stage in memory]
    for values, stage in zip(charts["memory"]["values"], memory, strict=True):
        assert values == [stage[f"{kind}_bytes"] for kind in charts["memory"]["kinds"]]
    told = {
        name: value for name, value in prediction["time"].items() if value >= 5e-4 * prediction["iteration_seconds"]
    }
    assert charts["time"]["values"] == [list(told.values())]
    assert charts["alternatives"]["values"][0] == [prediction["iteration_seconds"]]
    assert charts["timeline"]["seconds"] == pytest.approx(prediction["iteration_seconds"], rel=1e-9)


def test_the_front_has_the_figures_of_the_document() -> None:
    best = ranking().best
    document = ranking_document(replace(ranking(), fewer=on_fewer(best)))
    assert document["fewer"]
    found = Text(report(document))
    series = found.data["charts"]["front"]["series"]
    (here,) = next(each["points"] for each in series if each["name"] == "this plan")
    assert here[2] == "1 × 8 A100-SXM-40 + 2 × 8 V100-SXM2"
    total = best.predicted
    assert total.hours_total is not None
    assert here[:2] == [total.hours_total / 24.0, total.dollars_total]
    points = [point[:2] for each in series for point in each["points"] if point is not here]
    rows: Any = document["fewer"]
    assert sorted(points) == sorted([row["hours"] / 24.0, row["dollars"]] for row in rows)
    assert {f"{row['gpus']:,}" for row in rows} <= set(found.cells)
    front = [point for each in series if each["name"] != "another is better in both" for point in each["points"]]
    assert not any(other[0] < point[0] and other[1] < point[1] for point in front[1:] for other in points)


def test_a_front_without_a_length_is_of_seconds_and_gpus() -> None:
    best = predict(replace(ranking().best, job=replace(ranking().best.job, tokens=None)))
    chart = Text(report(best, fewer=True)).data["charts"]["front"]
    assert (chart["x"]["unit"], chart["y"]["unit"]) == ("seconds", "GPUs")
    (here,) = next(each["points"] for each in chart["series"] if each["name"] == "this plan")
    assert here[:2] == [best.iteration_seconds, best.gpus]


def test_the_map_gives_every_gpu_the_stage_it_has() -> None:
    best, data = ranking().best, page().data["charts"]["map"]
    assert len(data["cells"]) == best.cluster.gpus
    assert sum(cell >= 0 for cell in data["cells"]) == best.gpus
    types = [machine["gpu"] for machine in data["machines"] for _ in range(machine["gpus"])]
    assert all(best.stages[cell].gpu == gpu for cell, gpu in zip(data["cells"], types, strict=True) if cell >= 0)


def test_the_timeline_has_every_pass_once_and_none_overlap() -> None:
    best, data = ranking().best, page().data["charts"]["timeline"]
    passes = [bar for bar in data["bars"] if data["kinds"][bar[1]]["name"] in ("forward", "backward")]
    expected = sum(2 * len(replica.stages) * replica.micro_batches for replica in best.replicas)
    assert len(passes) == expected
    for row in range(len(data["rows"])):
        own = sorted((bar[2], bar[3]) for bar in passes if bar[0] == row)
        assert all(before[1] <= after[0] + 1e-4 * data["seconds"] for before, after in itertools.pairwise(own))


def test_the_plan_can_be_saved_from_the_page() -> None:
    assert json.loads(page().data["files"]["plan.json"]) == to_document(ranking().best)


def test_what_to_do_next_is_what_runs_the_plan() -> None:
    best = ranking().best
    names = {"megatron": "shardwright export plan.json --to megatron", "train": "shardwright train plan.json --data"}
    mine, other = (names.pop("megatron" if is_mesh(best) else "train"), *names.values())
    text = report(ranking())
    assert mine in text and other not in text
    assert "shardwright check plan.json" in report(best)


def test_a_page_asks_no_one_for_anything() -> None:
    assert [target for target in page().asked if not target.startswith(("#", "data:"))] == []
    assert not re.search(r"(?:fetch|XMLHttpRequest|WebSocket|sendBeacon)\s*\(", report(ranking()))


def test_every_chart_has_a_label_and_a_table() -> None:
    charts = page().data["charts"]
    assert page().labels == len(charts) > 4


def test_no_name_ends_the_script_or_starts_a_tag() -> None:
    best = ranking().best
    name = "</script><img src=x onerror=alert(1)>"
    text = report(replace(best, model=replace(best.model, name=name)))
    assert "<img" not in text
    assert name in json.loads(Text(text).data["files"]["plan.json"])["model"]["name"]


def test_two_plans_side_by_side() -> None:
    first, second = ranking().plans[0], ranking().plans[1]
    found = Text(report(first, second, names=("mine", "theirs")))
    totals = [sum(row) for row in found.data["charts"]["time"]["values"]]
    expected = [plan.iteration_seconds for plan in (first, second)]
    assert totals == pytest.approx(expected, rel=2e-3)  # small terms have no bar
    assert {"memory-1", "memory-2", "timeline-1", "timeline-2"} <= found.data["charts"].keys()


def test_plans_whose_steps_do_different_work_are_not_compared() -> None:
    best = ranking().best
    for other, words in (
        (replace(best, model=replace(best.model, name="another")), "models, gpt2-medium and another"),
        (replace(best, job=replace(best.job, objective="cost")), "objectives, time and cost"),
    ):
        with pytest.raises(SpecError, match=words):
            report(best, other)


def test_least_money_is_proved_and_compared_in_dollars_and_failures_are_named() -> None:
    fast, slow = ({"count": 1, "gpu": gpu, "gpus": 8, "price_per_hour": price} for gpu, price in PRICED.items())
    job = shardwright.make_job(global_batch=64, seq_len=1024, tokens=1e9, precision="fp16", objective="cost")
    found = plan(shardwright.load_model("opt-350m"), build_cluster({"nodes": [fast, slow]}, "c"), job, top=1)
    text = unescape(report(found))
    assert found.search.lower_bound_dollars is not None
    assert f"no plan of the space costs less than ${found.search.lower_bound_dollars:.4g} an iteration" in text
    assert "including failures and restarts" in text and "money against the best" in text
    rivals = json.loads(json.dumps(ranking_document(found)))["baselines"]
    dearest = max(entry["dollars"] for entry in rivals if entry["dollars"] is not None)
    assert f"{dearest / value(found.best):.3f}×" in Text(report(found)).cells


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "has no page"),
        ('{"plans": [], "infeasible": {"reason": "too big"}}', "too big"),
        ('{"front": []}', "front"),
        ('{"front": [{"gpus": 8}]}', "printed with --json"),
        ('{"plans": 7}', "printed with --json"),
    ],
)
def test_what_is_no_result_is_one_message(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "x.json").write_text(content, encoding="utf-8")
    done = run(["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")])
    assert done.code == 2 and words in done.err and not (tmp_path / "x.html").exists()


def test_a_page_of_512_gpus_is_below_a_megabyte() -> None:
    model, machines = shardwright.load_model("llama-2-70b"), shardwright.load_cluster("64x8xH100-SXM")
    job, space = shardwright.make_job(global_batch=1024, seq_len=4096, tokens=1e12), parse_pins(["tp=8", "pp=4"])
    found = shardwright.plan(model, machines, job, space=space, gap=0.5)
    assert found.best.gpus == 512 and len(report(ranking_document(found)).encode()) < 1_000_000


def test_memory_of_many_stages_is_that_of_the_fullest_of_each_gpu_type() -> None:
    best = ranking().best
    stage, memory = best.stages[0], best.predicted.memory[0][0]
    gpus = [("A100-SXM-40", "V100-SXM2")[place % 2] for place in range(30)]
    needs = [replace(memory, weights_bytes=memory.weights_bytes * (1 + place * 7 % 30)) for place in range(30)]
    replicas = (replace(best.replicas[0], stages=tuple(replace(stage, gpu=name) for name in gpus)),)
    found = memory_section(replace(best, replicas=replicas, prediction=replace(best.predicted, memory=(tuple(needs),))))
    assert found.chart is not None and found.table is not None
    for name, words, values in zip(gpus, found.chart.data["rows"], found.chart.data["values"], strict=False):
        most = max(
            (need for gpu, need in zip(gpus, needs, strict=True) if gpu == name), key=lambda need: need.total_bytes
        )
        assert words == f"{name}: stage {needs.index(most)}, of 15 stages" and sum(values) == most.total_bytes
    assert len(found.chart.data["rows"]) == 2
    assert [row[0].split(": ")[1] for row in found.table.rows] == sorted(gpus)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("cluster", ["2048x8xH100-SXM", pytest.param(TWO_TYPES, marks=pytest.mark.nightly)])
def test_a_page_of_16384_gpus_is_small_and_opens_soon(cluster: str, tmp_path: Path) -> None:
    model, machines = shardwright.load_model("llama-3.1-405b"), shardwright.load_cluster(cluster)
    job = shardwright.make_job(global_batch=4096, seq_len=8192, tokens=15e12)
    space = parse_pins(["tp=8", "micro_batch=1"])
    text = report(ranking_document(shardwright.plan(model, machines, job, space=space, gap=0.5)))
    assert len(text.encode()) <= MOST_BYTES
    (tmp_path / "r.html").write_text(text, encoding="utf-8")
    with chromium(tmp_path) as found:
        found.open((tmp_path / "r.html").as_uri())
        found.wait("document.body.dataset.drawn")
        assert found.busy_seconds() <= LONGEST_SECONDS and found.wrong == []


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_chromium_draws_all_charts_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "ranking.json").write_text(json.dumps(ranking_document(ranking())), encoding="utf-8")
    assert run(["report", str(tmp_path / "ranking.json"), "-o", str(tmp_path / "r.html")]).code == 0
    assert CHROMIUM is not None
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *quiet,
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += ["--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom", (tmp_path / "r.html").as_uri()]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert 'data-drawn="yes"' in done.stdout
    assert done.stdout.count("<canvas") >= len(page().data["charts"])
    assert "CONSOLE" not in done.stderr


def test_fewer_machines_are_planned_only_where_they_are_asked_for() -> None:
    document = ranking_document(ranking())
    assert "fewer" not in document and "front" not in Text(report(document)).data["charts"]
    assert Text(report(document, fewer=True)).data["charts"]["front"]["series"]
