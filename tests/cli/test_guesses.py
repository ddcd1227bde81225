"""A family that nobody knows ends with code 2, or is planned with each guess at the head of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.running import answered, refused, run, succeeded

CONFIG = {
    "model_type": "brandnew", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
PLAN = ["--cluster", "1x2xA100-SXM-80", "--global-batch", "2", "--seq-len", "256"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_an_unknown_family_is_refused_with_what_would_be_guessed(config: str) -> None:
    message = refused(run(["plan", "--model", config, *PLAN]))
    assert "'brandnew' is not known" in message
    assert "--accept-guess" in message


def test_an_accepted_guess_heads_the_report(config: str) -> None:
    outcome = succeeded(["plan", "--model", config, "--accept-guess", *PLAN])
    assert outcome.out.startswith("Guessed, not known: model_type 'brandnew'")


def test_an_accepted_guess_is_in_the_document(config: str) -> None:
    (document,) = answered(["models", config, "--accept-guess", "--json"])
    assert document["guesses"][0].startswith("model_type 'brandnew'")
