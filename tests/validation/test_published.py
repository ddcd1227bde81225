"""The table of published runs in the package, and how it is made."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.validation.known import KNOWN, known_runs
from tools.refit.published import checked, model_name, phrases, published, table

import shardwright
from shardwright.errors import SpecError
from shardwright.validation.runs import RUNS_FILE, parse_runs, published_failed_runs, published_runs, read_runs

SOURCE = re.compile(r"[^\s@/]+/[^\s@/]+@[^\s:]+:\S.*")


def test_the_table_loads_and_every_row_has_a_source() -> None:
    runs, failed = published_runs(), published_failed_runs()
    assert len(runs) > 3000
    assert len(failed) > 900
    unsourced = [run.source_file for run in (*runs, *failed) if not SOURCE.fullmatch(run.source_file)]
    assert unsourced == []
    assert all(run.source for run in (*runs, *failed))


def test_the_table_holds_good_runs_with_a_measurement_once() -> None:
    runs, failed = published_runs(), published_failed_runs()
    assert {run.quality for run in runs} == {"A", "B"}
    assert all(run.seconds or run.measured_mem_gb for run in runs)
    assert not any(run.seconds or run.measured_mem_gb for run in failed)
    assert max(Counter(run.row_id for run in (*runs, *failed)).values()) == 1


def test_notes_are_known_phrases_only() -> None:
    for run in (*published_runs(), *published_failed_runs()):
        assert phrases(run.notes) == run.notes
        assert len(run.notes) < 200


def test_the_table_of_the_table_is_itself() -> None:
    text = table(published_runs())
    assert parse_runs(text, "again") == published_runs()
    assert table(parse_runs(text, "again")) == text


def test_known_runs_are_those_of_the_table() -> None:
    shipped = {run.row_id: run for run in published_runs()}
    assert {name: shipped[name] for name in known_runs()} == known_runs()


@pytest.mark.parametrize(
    ("notes", "kept"),
    [
        ("gpu: H100 96GB HBM2e variant, 2.4 TB/s, 500 W power limit; torch.compile", "2.4 TB/s, 500 W"),
        ("no TP/PP/DP overlap, CE fusion; LoRA rank 16", "LoRA"),
        ("config llama2_70b_lora/x.sh", ""),
        ("a long sentence about something else", ""),
    ],
)
def test_of_notes_only_what_is_read_is_kept(notes, kept) -> None:
    assert phrases(notes) == kept


def test_poor_runs_are_left_out_and_a_run_without_source_is_refused() -> None:
    run = known_runs()["8a16e6807f"]
    assert len(parse_runs(table([run, replace(run, quality="C"), replace(run, quality="")]), "x")) == 2
    with pytest.raises(SpecError, match="has no source"):
        table([replace(run, source_file="somewhere")])
    with pytest.raises(SpecError, match=r"run 8a16e6807f.* of its arithmetic at the peak"):
        list(checked([run, replace(run, measured_iter_time_s=1.0, measured_tokens_per_s_per_gpu=None)]))


def test_models_of_test_cases_have_names_that_people_know() -> None:
    assert model_name("gpt:gpt3_7b_tp4_pp1_memory_speed") == "GPT-3-7B"
    assert model_name("gpt:own_model_tp2_fast") == "own-model"
    assert model_name("Llama-3-70B") == "Llama-3-70B"
    assert not [run.model for run in published_runs() if ":" in run.model]


def test_equal_tables_are_packed_to_equal_bytes(tmp_path: Path) -> None:
    packed = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        published(KNOWN, KNOWN, folder)
        packed.append((folder / RUNS_FILE).read_bytes())
    assert packed[0] == packed[1]
    assert parse_runs(gzip.decompress(packed[0]).decode(), "x") == read_runs(KNOWN)


def test_the_package_is_a_function_too() -> None:
    validation = shardwright.validate(KNOWN)
    assert [outcome.run.row_id for outcome in validation.outcomes] == list(known_runs())
    assert validation.outcomes == shardwright.validate(read_runs(KNOWN)).outcomes
    assert validation.summary == shardwright.validate(str(KNOWN)).summary


def test_an_unknown_quality_is_refused() -> None:
    with pytest.raises(SpecError, match="there is no X"):
        shardwright.validate(KNOWN, quality="AX")
