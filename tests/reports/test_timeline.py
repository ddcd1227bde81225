"""The picture of a plan shows every pass where the simulation has it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.mixed import mixed_iteration, pipeline_timeline
from shardwright.cost.iteration.timeline import events
from shardwright.cost.pipeline.schedule import FORWARD
from shardwright.reports import palette
from shardwright.reports.html.render import asset
from shardwright.reports.html.timeline import KINDS
from shardwright.reports.palette import BUBBLE, DONE, HUES, on_paper
from shardwright.reports.svg.timeline import LEFT, TICKS, WIDTH, picture, ticks
from shardwright.reports.text import outcome


@pytest.fixture(scope="module")
def plan():  # type: ignore[no-untyped-def]
    model, cluster = shardwright.load_model("llama-2-7b"), shardwright.load_cluster("1x8xA100-SXM-80+1x8xV100-SXM2-32")
    job = shardwright.make_job(global_batch=16, seq_len=2048, precision="fp16")
    return shardwright.plan(model, cluster, job).best


def test_the_timeline_has_every_pass_once_and_ends_with_the_pipeline(plan) -> None:  # type: ignore[no-untyped-def]
    found = mixed_iteration(plan, Analytic())
    for replica, times in zip(plan.replicas, found.replicas, strict=True):
        when = pipeline_timeline(plan, replica, times)
        assert len(when.rank) == 2 * len(replica.stages) * replica.micro_batches * plan.schedule.virtual_stages
        assert when.end_seconds.max() == pytest.approx(times.pipeline_seconds)
        assert (when.kind == FORWARD).sum() * 2 == len(when.kind)


def test_the_picture_is_svg_with_all_passes_inside_its_frame(plan) -> None:  # type: ignore[no-untyped-def]
    root = ElementTree.fromstring(picture(plan, Analytic()))
    paths = [path.attrib["d"] for path in root.iter() if path.get("stroke-opacity")]
    stages = sum(len(replica.stages) for replica in plan.replicas)
    kinds = {(event.replica, event.stage, event.kind) for event in events(plan, mixed_iteration(plan, Analytic()))}
    assert 2 * stages < len(paths) <= len(kinds)  # forward and backward passes, communication, the optimizer
    strokes = [re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", path) for path in paths]
    assert all(strokes)
    assert all(float(x) >= LEFT and float(x) + float(w) <= LEFT + WIDTH + 1 for path in strokes for x, w in path)
    assert re.search(r"one step takes [\d.]+ m?s", "".join(root.itertext()))


def test_the_picture_names_bubble_and_communication_and_its_colours_are_those_of_the_page(plan) -> None:  # type: ignore[no-untyped-def]
    svg = picture(plan, Analytic())
    words = "".join(ElementTree.fromstring(svg).itertext())
    css = asset("page.css")
    for name, hue, opacity in (*DONE.values(), BUBBLE):
        assert name in words and f'fill="{on_paper(hue)}" fill-opacity="{opacity:g}"' in svg
    for kind, (name, hue, opacity) in zip(KINDS, DONE.values(), strict=True):
        assert (kind["name"], kind["opacity"]) == (name, opacity)
        assert (
            css.count(f"--c{kind['colour']}: {HUES[hue][0]};")
            == css.count(f"--c{kind['colour']}: {HUES[hue][1]};")
            == 1
        )


@given(st.floats(1e-4, 1e4))
def test_ticks_are_round_and_as_many_as_one_can_read(seconds: float) -> None:
    found = ticks(seconds)
    assert found[0] == 0 and 3 <= len(found) <= TICKS + 1 and found[-1] <= seconds < found[-1] + found[1] * (1 + 1e-9)
    assert f"{found[1]:.3e}"[:5] in ("1.000", "2.000", "5.000")


def test_what_stands_in_a_chart_has_a_colour_which_nothing_else_in_it_has() -> None:
    assert set(palette.TERMS) == set(outcome.TERMS) and set(palette.MEMORY) == set(outcome.MEMORY_TERMS)
    for colours in (palette.TERMS, palette.MEMORY, {kind: colour[1:] for kind, colour in DONE.items()}):
        assert len(set(colours.values())) == len(colours)
    assert palette.TERMS["optimizer_seconds"] == palette.MEMORY["optimizer"] == DONE["optimizer"][1:]
