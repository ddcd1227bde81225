"""Towers of sound: weights, FLOPs and kept bytes against Hugging Face transformers, and the sounds of a job.

`transformers_sounds.json` is made by `count_sounds_with_transformers.py`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.spec.test_towers import ONE, job, label, problems

from shardwright import SpecError, export, load_cluster, load_model, make_job, plan
from shardwright.cost.compute.flops import image_flops, job_flops, stem_flops
from shardwright.cost.memory.activations import tower_kept_bytes
from shardwright.plans.document import from_document, to_document
from shardwright.reports.text.question import images_line, model_line
from shardwright.spec.images import parts_of, taken_of, tower_parameters
from shardwright.spec.read.huggingface import TEXT_ALONE, model_of_config
from shardwright.spec.sounds import sounds_of

DATA = json.loads(Path(__file__).with_name("transformers_sounds.json").read_text(encoding="utf-8"))
ROWS = DATA["models"]
HEARING, OMNI = "qwen2-audio-7b", "qwen2.5-omni-7b"


@pytest.mark.parametrize("row", ROWS, ids=label)
@pytest.mark.parametrize("form", ["given", "config"])
def test_parts_have_as_many_weights_as_in_transformers(row: dict[str, Any], form: str) -> None:
    model = model_of_config(row[form], "config.json")
    assert model.audio is not None
    assert model.audio.encoder_parameters == row["encoder"]
    assert model.audio.projector_parameters == row["projector"]
    assert model.parameters == row["parameters"]
    assert (model.assumed, model.guesses) == ((), ())


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_sound_has_as_many_flops_and_kept_bytes_as_in_pytorch(row: dict[str, Any]) -> None:
    audio, asked = model_of_config(row["given"], "config.json").audio, job(sound_seconds=DATA["seconds"])
    assert audio is not None
    sounds = taken_of(audio, asked)
    assert sounds.count * sum(image_flops(audio, sounds)) == row["flops"]
    depths = (audio, replace(audio, depth=audio.depth + 1))
    less, kept = (float(tower_kept_bytes(tower, ONE, asked)[0][0]) for tower in depths)
    assert kept - less == pytest.approx(row["kept"], rel=0.03)


@pytest.mark.parametrize(
    ("name", "seconds", "segments", "positions", "tokens"),
    [
        (HEARING, None, 1, 1500, 750),  # of 25 a second, as its report has it (arXiv 2407.10759 §2)
        (HEARING, 10.0, 1, 1500, 250),
        ("voxtral-mini-3b", 10.0, 1, 1500, 375),  # padded to 30 seconds (arXiv 2507.13264 §2)
        ("voxtral-mini-3b", 75.0, 3, 1500, 3 * 375),
        (OMNI, 75.0, 1, 3750, 1875),  # a token for 40 ms (arXiv 2503.20215 §2.2)
        (OMNI, 0.001, 1, 2, 1),
        ("qwen3-omni-30b-a3b", 30.0, 1, 390, 390),  # 13 tokens a second (arXiv 2509.17765 §2)
    ],
)
def test_sounds_of_a_sequence(name: str, seconds: float | None, segments: int, positions: int, tokens: int) -> None:
    audio = load_model(name).audio
    assert audio is not None
    sounds = sounds_of(audio, job(sounds_per_sequence=2, sound_seconds=seconds))
    assert (sounds.segments, sounds.positions, sounds.tokens) == (segments, positions, tokens)
    assert sounds.all_tokens == 2 * tokens
    assert taken_of(audio, job(sounds_per_sequence=2, sound_seconds=seconds)).count == 2 * segments


def test_sounds_that_a_model_cannot_take() -> None:
    hearing, text, omni = load_model(HEARING), load_model("qwen2.5-7b"), load_model(OMNI)
    assert problems(hearing, job()) == []
    assert problems(hearing, job(sound_seconds=31)) == [("`sound_seconds=`", f"{HEARING} hears 30 seconds of a sound")]
    assert problems(text, job(sound_seconds=5)) == [("`sound_seconds=`", "qwen2.5-7b hears no sounds")]
    assert [path for path, _ in problems(hearing, job(image_size=5))] == ["`image_size=`"]
    assert problems(omni, job(sounds_per_sequence=3)) == []
    (path, words), *rest = problems(omni, job(sounds_per_sequence=4))
    assert (path, rest) == ("`seq_len=`", [])
    assert "sounds of a sequence (4 of 30 s)" in words and "4,225 tokens" in words  # 1,225 of an image
    with pytest.raises(SpecError, match="sound_seconds"):
        job(sound_seconds=-1)


def test_a_part_that_is_frozen() -> None:
    omni, hearing = load_model(OMNI), load_model(HEARING)
    assert omni.tower is not None and omni.audio is not None
    assert parts_of(omni) == ("vision", "audio", "projector", "language")
    assert parts_of(hearing) == ("audio", "projector", "language")
    trained, frozen = tower_parameters(omni, job(freeze="audio+projector"))
    assert trained == omni.tower.encoder_parameters
    assert trained + frozen == omni.tower.parameters + omni.audio.parameters
    assert [path for path, _ in problems(hearing, job(freeze="vision"))] == ["`freeze=`"]
    assert [path for path, _ in problems(hearing, job(freeze="audio+projector+language"))] == ["`freeze=`"]
    sounds = taken_of(omni.audio, job())
    encoder, projector = image_flops(omni.audio, sounds)
    spared = 2.0 * encoder - stem_flops(omni.audio, sounds)[0] + projector  # whose input needs no gradient
    everything, without = (job_flops(omni, job(freeze=part)) for part in (None, "audio"))
    assert everything - without == pytest.approx(8 * spared)


def test_what_is_heard_is_said() -> None:
    omni = load_model(OMNI)
    assert "a vision tower of 32" in model_line(omni) and "a tower of sound of 32" in model_line(omni)
    words = images_line(omni, job(sounds_per_sequence=2, freeze="audio"))
    assert "2 sounds of 30 s in a sequence, 1,500 of its tokens (assumed: --sound-seconds says otherwise)" in words
    assert words.endswith("; frozen: audio")
    whole = {"model_type": "qwen2_5_omni", "thinker_config": ROWS[-1]["given"], "talker_config": {}}
    model = model_of_config(whole, "config.json")
    assert model.parameters == ROWS[-1]["parameters"]
    assert model.assumed == ("the thinker alone is described, without what speaks",)
    unknown = {**ROWS[0]["given"], "model_type": "llava"}
    assert model_of_config(unknown, "config.json").assumed[0] == TEXT_ALONE


def test_a_plan_with_sounds_is_exported() -> None:
    asked = make_job(global_batch=64, seq_len=4096, freeze="audio", sound_seconds=20)
    ranking = plan(load_model(HEARING), load_cluster("1x8xA100-SXM-80"), asked)
    best = ranking.best
    assert from_document(to_document(best)) == best
    assert best.job.framework in ("fsdp", "deepspeed")
    script = export(best, ranking.trainers[0][0]).files["run.sh"]
    assert "requires_grad_(False) on the audio tower" in script
