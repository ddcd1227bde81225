"""The picture of a plan shows every pass where the simulation has it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

import shardwright
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.iteration.mixed import mixed_iteration, pipeline_timeline
from shardwright.cost.pipeline.schedule import FORWARD
from shardwright.reports.svg.timeline import COLOURS, LEFT, WIDTH, picture


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
    drawn = {colour for pair in COLOURS for colour in pair}
    paths = [path.attrib["d"] for path in root.iter() if path.get("stroke") in drawn]
    stages = sum(len(replica.stages) for replica in plan.replicas)
    assert len(paths) == 2 * stages  # forward and backward passes
    strokes = [re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", path) for path in paths]
    assert all(strokes)
    assert all(float(x) >= LEFT and float(x) + float(w) <= LEFT + WIDTH + 1 for path in strokes for x, w in path)
    assert re.search(r"one step takes [\d.]+ m?s", "".join(root.itertext()))
