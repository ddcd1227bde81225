"""What a vision tower adds to the first stage of a model: seconds, weights, gradients, state and what it keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright import Model, export, load_cluster, load_model, make_job, plan
from shardwright.cost.compute.efficiency import Analytic
from shardwright.cost.context import Context, layer_rows
from shardwright.cost.iteration.footprint import Footprint, footprint
from shardwright.cost.iteration.step import StageTimes, stage_times
from shardwright.cost.strategies import BLOCK, NONE, UNIFORM, UNSHARDED, ZERO1, ZERO2, ZERO3, boundaries, strategies
from shardwright.plans.document import dumps, from_document, to_document
from shardwright.search.sizing import fit
from shardwright.spec.adapter import FROZEN_BYTES, Frozen
from shardwright.spec.images import trained_parameters

CLUSTER = load_cluster("1x8xA100-SXM-80")
SEEING = load_model("qwen2.5-vl-7b")
TEXT = replace(SEEING, tower=None)
RANKS = 4
IMAGES = {"images_per_sequence": 2, "image_size": 448}


def account(model: Model, *, row: dict[str, object], **asked: object) -> tuple[StageTimes, Footprint]:
    """Return seconds and bytes of stages of 14 layers, [1, 1, P] and [1, P]."""
    depth = int(str(row.get("pp", 1)))
    job = make_job(global_batch=32, seq_len=2048, framework="fsdp", **(IMAGES if model.tower else {}), **asked)
    where = Context(model=model, pool=CLUSTER.pools[0], job=job, efficiency=Analytic())
    half = len(model.layers) // depth
    rows = strategies([{"dp": RANKS, "flash": True, "first_layers": half, "last_layers": half, **row}])
    starts = boundaries(len(model.layers), depth, rows.first_layers, rows.last_layers)
    shards = layer_rows(where, rows)
    return stage_times(where, rows, shards, starts), footprint(where, rows, shards, starts)


def more(term: str, row: dict[str, object], **asked: object) -> float:
    """Return the bytes that a tower adds to a term of the first stage, beside nothing on the second."""
    with_images, without = (account(model, row=row, **asked)[1] for model in (SEEING, TEXT))
    difference = getattr(with_images, term) - getattr(without, term)
    assert (difference[0, 1:] == 0.0).all()
    return float(difference[0, 0])


# Bytes of a trained weight in bf16 with Adam, and of a frozen one: of weight, gradient and state, of how many ranks.
@pytest.mark.parametrize(
    ("sharding", "weight", "gradient", "state", "frozen"),
    [
        (UNSHARDED, 2.0, 2 * 4.0, 12.0, 2.0),  # and buckets of DistributedDataParallel
        (ZERO1, 2.0, 4.0, 12.0 / RANKS, 2.0),
        (ZERO2, 2.0, 4.0 / RANKS, 12.0 / RANKS, 2.0 + 2.0 / RANKS),  # FSDP2's shards, too
        (ZERO3, 0.0, 4.0 / RANKS, 12.0 / RANKS, 2.0 / RANKS),
    ],
)
@pytest.mark.parametrize("pp", [1, 2])
def test_weights_of_a_tower_are_on_the_first_stage(
    sharding: int, weight: float, gradient: float, state: float, frozen: float, pp: int
) -> None:
    assert SEEING.tower is not None
    encoder, projector = SEEING.tower.encoder_parameters, SEEING.tower.projector_parameters
    row = {"pp": pp, "sharding": sharding}
    for part, trained in ((None, encoder + projector), ("vision", projector), ("vision+projector", 0)):
        kept = encoder + projector - trained
        assert more("weights", row, freeze=part) == pytest.approx(weight * trained + frozen * kept)
        assert more("gradients", row, freeze=part) == pytest.approx(gradient * trained)
        assert more("optimizer", row, freeze=part) == pytest.approx(state * trained)


@pytest.mark.parametrize(("form", "frozen"), [("lora:8", "16-bit"), ("lora8bit:8", "int8"), ("qlora:8", "nf4")])
def test_beside_adapters_a_tower_is_frozen(form: str, frozen: Frozen) -> None:
    assert SEEING.tower is not None
    row = {"sharding": UNSHARDED}
    assert more("weights", row, adapter=form) == pytest.approx(FROZEN_BYTES[frozen] * SEEING.tower.parameters)
    for term in ("gradients", "optimizer", "activations"):
        assert more(term, row, adapter=form) == 0.0


def test_what_is_frozen_has_no_backward_pass() -> None:
    many = {"micro_batch": 4}  # for which the host launches faster than the GPU runs
    times = {part: account(SEEING, row=many, freeze=part)[0] for part in (None, "vision", "vision+projector")}
    text = account(TEXT, row=many)[0]
    forward = {part: float(of.forward[0, 0, 0] - text.forward[0, 0, 0]) for part, of in times.items()}
    backward = {part: float(of.backward[0, 0, 0] - text.backward[0, 0, 0]) for part, of in times.items()}
    assert forward["vision"] == pytest.approx(forward[None])
    assert forward["vision+projector"] == pytest.approx(forward[None])
    assert backward[None] > 1.8 * forward[None]
    assert 0.0 < backward["vision"] < 0.1 * backward[None]
    assert backward["vision+projector"] == pytest.approx(0.0, abs=1e-12)


WAYS = {NONE: 0, BLOCK: 14, UNIFORM: 1}


def again(model: Model, mode: int, **asked: object) -> list[float]:
    """Return the seconds of each of two stages that run again."""
    row = {"pp": 2, "recompute": mode, "recompute_layers": WAYS[mode]}
    return [float(seconds) for seconds in account(model, row=row, **asked)[0].recompute[0, 0]]


def test_layers_of_a_tower_run_again_where_all_layers_do() -> None:
    """transformers' gradient checkpointing is of every layer, those of the tower too."""
    forward = account(SEEING, row={"pp": 2})[0].forward - account(TEXT, row={"pp": 2})[0].forward
    kept = {
        mode: more("activations", {"pp": 2, "recompute": mode, "recompute_layers": count})
        for mode, count in WAYS.items()
    }
    assert again(SEEING, NONE) == again(TEXT, NONE)
    assert again(SEEING, BLOCK) == pytest.approx(again(TEXT, BLOCK))
    first, second = again(SEEING, UNIFORM)
    assert second == pytest.approx(again(TEXT, UNIFORM)[1])
    assert 0.85 * forward[0, 0, 0] < first - again(TEXT, UNIFORM)[0] < forward[0, 0, 0]
    assert kept[BLOCK] == pytest.approx(kept[NONE])
    assert kept[UNIFORM] < 0.3 * kept[NONE]
    assert again(SEEING, UNIFORM, freeze="vision") == pytest.approx(again(TEXT, UNIFORM))


def test_a_frozen_tower_is_gathered_forward_alone() -> None:
    """Under ZeRO-3; from the host where FSDP2 keeps its shards there."""
    passes = {
        offload: [
            account(model, row={"sharding": sharding, "offload": offload * (sharding == ZERO3)}, freeze=freeze)[0]
            for model, freeze in ((SEEING, "vision+projector"), (TEXT, None))
            for sharding in (ZERO3, ZERO1)
        ]
        for offload in (0.0, 1.0)
    }
    added = {
        offload: float((seeing.forward - text.forward - (seeing1.forward - text1.forward))[0, 0, 0])
        for offload, (seeing, seeing1, text, text1) in passes.items()
    }
    for seeing, seeing1, text, text1 in passes.values():
        np.testing.assert_allclose(seeing.backward - text.backward, seeing1.backward - text1.backward, atol=1e-12)
    assert SEEING.tower is not None
    sent = 2.0 * SEEING.tower.parameters * (RANKS - 1) / RANKS
    assert 1.0 < added[0.0] / (sent / CLUSTER.pools[0].intra_bytes_per_second) < 2.0  # links give less than they say
    assert added[1.0] > added[0.0]


def test_two_images_take_twice_as_long_as_one() -> None:
    def of_tower(images: int) -> float:
        jobs = [
            make_job(global_batch=32, seq_len=2048, framework="fsdp", **asked)
            for asked in ({"images_per_sequence": images, "image_size": 448}, {})
        ]
        tables = [
            layer_rows(Context(model=model, pool=CLUSTER.pools[0], job=job, efficiency=Analytic()), rows).table
            for model, job in zip((SEEING, TEXT), jobs, strict=True)
        ]
        return float(tables[0].forward[0, 1] - tables[1].forward[0, 1])

    rows = strategies([{"dp": RANKS, "micro_batch": 4, "flash": True, "first_layers": 28, "last_layers": 28}])
    assert of_tower(8) == pytest.approx(2.0 * of_tower(4), rel=0.05)


def test_longer_sequences_have_no_more_images() -> None:
    """The memory of the longest sequence is that of a plan with as many images in it."""
    job = make_job(global_batch=8, seq_len=4096, framework="fsdp", images_per_sequence=3)
    sizes = {size.way.name: size for size in fit(SEEING, CLUSTER, job).sizes}
    fewer = {size.way.name: size for size in fit(SEEING, CLUSTER, replace(job, images_per_sequence=1)).sizes}
    name = "ZeRO-3 (FSDP)"
    longest = sizes[name].longest_sequence
    assert longest is not None
    assert longest > 8192
    assert longest < (fewer[name].longest_sequence or 0)
    at_most = {size.way.name: size for size in fit(SEEING, CLUSTER, replace(job, seq_len=longest)).sizes}
    assert at_most[name].fits


def test_a_plan_with_images_is_kept_in_its_file_and_exported() -> None:
    job = make_job(global_batch=64, seq_len=4096, freeze="vision", image_size="1280x720")
    ranking = plan(SEEING, CLUSTER, job)
    best = ranking.best
    assert best.job.framework in ("fsdp", "deepspeed")
    assert {stage.tensor_parallel for stage in best.stages} == {1}
    assert from_document(to_document(best)) == best
    assert '"freeze"' in dumps(best)
    name = ranking.trainers[0][0]
    script = export(best, name).files["run.sh"]
    assert "requires_grad" in script
    assert trained_parameters(SEEING, best.job) == SEEING.parameters - SEEING.tower.encoder_parameters  # type: ignore[union-attr]
