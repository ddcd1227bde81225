"""Losses over preferences as users write them, and what a sample of them is."""

from __future__ import annotations

import pytest

from shardwright.errors import SpecError
from shardwright.spec.preference import LOSSES, OTHER_CODE, Preference, parse_preference
from shardwright.spec.read.job import make_job


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_read_as_it_is_written(loss: str) -> None:
    for preference in (Preference(loss=loss), Preference(loss=loss, precomputed=True)):
        if preference.reference or not preference.precomputed:
            assert parse_preference(preference.name.upper()) == preference
    for by in (code for code, losses in OTHER_CODE.items() if loss in losses):
        assert parse_preference(f"{loss}:{by}") == Preference(loss=loss, by=by)
        assert Preference(loss=loss, by=by).name == f"{loss}:{by}"


@pytest.mark.parametrize(("text", "loss"), [("ipo", "dpo"), ("SimPO", "cpo"), (" kto ", "kto")])
def test_other_names(text: str, loss: str) -> None:
    assert parse_preference(text) == Preference(loss=loss)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grpo", "out of scope"),
        ("PPO", "out of scope"),
        ("online-dpo", "out of scope"),
        ("hinge", "unknown loss"),
        ("", "unknown loss"),
        ("dpo:later", "says 'later' of how it is run"),
        ("orpo:torchtune", "torchtune has no code for orpo"),
        ("orpo:precomputed", "has no reference"),
        ("cpo:precomputed", "has no reference"),
    ],
)
def test_what_is_no_loss_is_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make_job(global_batch=8, seq_len=128, preference=text)


def test_a_sample_of_pairs_has_two_sequences() -> None:
    pairs = make_job(global_batch=64, seq_len=1024, preference="dpo", steps=10)
    assert (pairs.sample_tokens, pairs.tokens_per_iteration) == (2048, 64 * 2048)
    assert pairs.tokens == 10 * 64 * 2048
    assert pairs.iterations == 10
    assert pairs.attended_tokens == 1024
    assert make_job(global_batch=64, seq_len=1024, preference="kto").sample_tokens == 1024


def test_answers_to_other_prompts_need_more_than_one_in_a_batch() -> None:
    assert {loss: Preference(loss=loss).least_samples for loss in LOSSES} == {
        loss: 1 + (loss == "kto") for loss in LOSSES
    }


def test_beside_adapters_the_frozen_weights_are_the_reference() -> None:
    assert make_job(global_batch=8, seq_len=128, preference="dpo").holds_reference
    assert not make_job(global_batch=8, seq_len=128, preference="dpo", adapter="lora:8").holds_reference
    assert not make_job(global_batch=8, seq_len=128, preference="dpo:precomputed").holds_reference
    assert make_job(global_batch=8, seq_len=128, preference="kto").passes_without_gradients == 3.0
    assert make_job(global_batch=8, seq_len=128, preference="kto:precomputed").passes_without_gradients == 1.0
