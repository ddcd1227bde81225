"""Encoder-decoders: weights against Hugging Face transformers on the meta device and against what is published, and what a
job says of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nightly import nightly

from shardwright import Job, SpecError, load_model, make_job
from shardwright.plans.check import position_problems
from shardwright.reports.text.question import images_line, model_line
from shardwright.spec.images import taken_of, tower_parameters
from shardwright.spec.read.encoder_decoders import ENCODER_DECODERS
from shardwright.spec.read.huggingface import model_of_config

# Parameters by the index of the weights at huggingface.co.
PUBLISHED = {
    "t5-large": 737_668_096, "t5-11b": 11_307_321_344, "flan-t5-xl": 2_849_757_184, "flan-t5-xxl": 11_135_332_352,
    "mt5-xxl": 12_921_057_280, "bart-large": 406_291_456, "mbart-large-50": 610_879_488, "whisper-small": 241_734_912,
    "whisper-large-v3": 1_543_490_560,
}  # fmt: skip
OFTEN = ("t5", "umt5", "bart", "mbart", "marian", "whisper")
RARELY = tuple(kind for kind in ENCODER_DECODERS if kind not in OFTEN)


def job(**more: Any) -> Job:
    return make_job(global_batch=8, seq_len=128, framework="fsdp", **more)


def test_counts_are_the_published_ones() -> None:
    assert {name: load_model(name).parameters for name in PUBLISHED} == PUBLISHED
    assert load_model("ul2").parameters == pytest.approx(20e9, rel=0.03)


def seq2seq_class(transformers: Any, kind: str) -> Any:
    return transformers.AutoModelForSpeechSeq2Seq if kind == "whisper" else transformers.AutoModelForSeq2SeqLM


@pytest.mark.parametrize("kind", [*OFTEN, *nightly(RARELY)])
def test_stacks_have_as_many_weights_as_in_transformers(kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    unlike = {"num_layers": 3, "num_decoder_layers": 2} if "t5" in kind else {"encoder_layers": 3, "decoder_layers": 2}
    config = transformers.CONFIG_MAPPING[kind](**unlike)
    with torch.device("meta"):
        theirs = seq2seq_class(transformers, kind).from_config(config)
    encoder = theirs.get_encoder()
    table = 0 if kind == "whisper" else theirs.get_input_embeddings().weight.numel()
    model = model_of_config(config.to_dict(), "config.json")
    assert model.tower is not None
    assert model.parameters == sum(weight.numel() for weight in theirs.parameters())
    assert model.tower.encoder_parameters == sum(weight.numel() for weight in encoder.parameters()) - table


def kinds() -> list[str]:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    names = (
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys() | auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.keys()
    )
    return sorted(names)


def test_no_encoder_is_left_out_without_a_word() -> None:
    """Every model type with an encoder is read with it, is refused, or says that it is the text alone."""
    mapping, read = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING, set()
    for name in kinds():
        try:
            model = model_of_config(mapping[name]().to_dict(), name)
        except SpecError:
            continue
        read.add(name)
        assert model.towers or "the text model alone" in model_line(model), name
    assert read >= set(ENCODER_DECODERS)


def test_the_encoder_is_as_long_as_the_decoder_or_as_is_said() -> None:
    model, whisper = load_model("t5-large"), load_model("whisper-small")
    assert model.tower is not None and whisper.tower is not None
    assert taken_of(model.tower, job()).positions == 128
    assert taken_of(model.tower, job(encoder_seq_len=512)).positions == 512
    assert taken_of(whisper.tower, job()).positions == 1500
    assert "128 tokens in the encoder (assumed: --encoder-seq-len" in images_line(model, job())
    assert "512 tokens in the encoder, 128 in the decoder" in images_line(model, job(encoder_seq_len=512))
    assert "1,500 positions of sound" in images_line(whisper, job())
    assert "an encoder of 24" in model_line(model)


@pytest.mark.parametrize(
    ("name", "asked", "path"),
    [
        ("llama-2-7b", {"encoder_seq_len": 512}, "encoder_seq_len"),
        ("whisper-small", {"encoder_seq_len": 512}, "encoder_seq_len"),
        ("bart-large", {"encoder_seq_len": 1025}, "encoder_seq_len"),  # of 1,026 rows two are before the first
        ("t5-large", {"image_size": 448}, "image_size"),
        ("t5-large", {"freeze": "encoder"}, "freeze"),  # whose embedding the decoder has, too
        ("whisper-small", {"freeze": "projector"}, "freeze"),
        ("qwen2.5-vl-7b", {"freeze": "encoder"}, "freeze"),
        ("t5-large", {"adapter": "lora:8"}, "adapter"),
    ],
)
def test_what_a_model_cannot_take(name: str, asked: dict[str, Any], path: str) -> None:
    problems = [problem.path for problem in position_problems(load_model(name), make_job(
        global_batch=8, seq_len=1600 if "qwen" in name else 128, framework="fsdp", **asked))]  # fmt: skip
    assert problems == [f"`{path}=`"]


def test_a_frozen_encoder_is_not_trained() -> None:
    model = load_model("whisper-small")
    assert model.tower is not None
    assert tower_parameters(model, job(freeze="encoder")) == (0, model.tower.encoder_parameters)
    assert list(position_problems(model, job(freeze="encoder"))) == []


def test_what_is_no_encoder_decoder_of_a_known_kind() -> None:
    config = pytest.importorskip("transformers").CONFIG_MAPPING["longt5"]().to_dict()
    with pytest.raises(SpecError, match="longt5"):
        model_of_config(config, "config.json")
    with pytest.raises(SpecError, match="is_encoder_decoder"):
        model_of_config({"model_type": "bart", "is_encoder_decoder": False}, "config.json")
    wrong = {"model_type": "bart", "vocab_size": 100, "d_model": 100}
    with pytest.raises(SpecError) as caught:
        model_of_config(wrong, "config.json")
    assert "config.json: encoder_layers" in [problem.path for problem in caught.value.problems]
