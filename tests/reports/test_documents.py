"""Documents name kinds: no key is English, an edit of English changes no key and no kind, and documents that earlier
versions wrote are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Outcome, run, succeeded
from tests.cli.schemas import holds
from tests.reports.costed import costed
from tests.reports.test_words import every_finding

import shardwright
from shardwright import SpecError, report, save
from shardwright.plans import findings
from shardwright.plans.ranking import Evaluation, Origin
from shardwright.reports import words
from shardwright.reports.documents.earlier import CAUSES, current
from shardwright.reports.documents.findings import finding_document, kind_of
from shardwright.reports.documents.ranking import VERSION, evaluation_document, ranking_document
from shardwright.reports.text import strategy

DATA = Path(__file__).parents[1] / "data"
KEY = re.compile(r"[a-z][a-z0-9_]*")
OF_TARGETS = {"files", "documents", "environment", "trace"}  # keys of an export are its target's
JOB = ["--model", "llama-3.2-1b", "--global-batch", "8", "--seq-len", "512"]
TWO = "1x2xA100-SXM-80+1x2xV100-SXM2"
COMMANDS = [
    ["plan", *JOB, "--cluster", TWO, "--precision", "fp16", "--tokens", "1B"],
    ["plan", *JOB, "--cluster", "1x1xT4", "--precision", "fp32"],
    ["plan", "--model", "gpt2", *JOB[2:], "--cluster", "1x2xL4", "--programs"],
    ["shop", *JOB, "--gpu", "A100-SXM-40", "--max-gpus", "8", "--tokens", "1B", "--deadline", "1h"],
    ["fit", "llama-3.1-405b", "--gpu", "L4"],
    ["evaluate", "PLAN"],
    ["check", "PLAN"],
    ["train", "PLAN", "--dry-run"],
    ["simulate-spot", "PLAN", "--market", "batches", "--days", "2", "--seed", "1"],
    ["export", "PLAN", "--to", "megatron"],
    ["validate", str(DATA.parent / "validation" / "known_runs.csv")],
    ["gpus"],
    ["models"],
    ["prices", "--gpu", "L4"],
]


def keys(document: object, place: str = "") -> Iterator[str]:
    """Yield the places of all keys of a document that are not the target's of an export."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield f"{place}.{key}"
            yield from () if key in OF_TARGETS else keys(value, f"{place}.{key}")
    elif isinstance(document, list | tuple):
        for value in document:
            yield from keys(value, place)


def without_words(document: Any) -> Any:
    """Return a document less what is said for people."""
    if isinstance(document, dict):
        return {key: without_words(value) for key, value in document.items() if key != "words"}
    return [without_words(value) for value in document] if isinstance(document, list | tuple) else document


@pytest.fixture(scope="module", name="ranking")
def fixture_ranking() -> shardwright.Ranking:
    """A search on two GPU types, which has something to say of each kind."""
    cluster = shardwright.load_cluster(TWO)
    job = shardwright.make_job(global_batch=8, seq_len=512, precision="fp16", tokens=1e9)
    return shardwright.plan(shardwright.load_model("llama-3.2-1b"), cluster, job)


@pytest.fixture(scope="module")
def printed(ranking: shardwright.Ranking, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """Return what gives a command's document; PLAN stands for the file of a plan."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    save(ranking.best, file)
    return cache(lambda *command: run([str(file) if word == "PLAN" else word for word in command] + ["--json"]))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_no_key_of_any_document_is_english(command: list[str], printed: Callable[..., Outcome]) -> None:
    outcome = printed(*command)
    assert outcome.code in (0, 3), outcome.err
    assert [key for key in keys(json.loads(outcome.out)) if not KEY.fullmatch(key.rsplit(".", 1)[1])] == []


def test_kinds_are_keys_and_none_names_two_findings() -> None:
    kinds = [kind_of(finding) for finding in every_finding() if not isinstance(finding, findings.Lack)]
    assert all(KEY.fullmatch(kind) for kind in kinds)
    assert len(set(kinds)) == len(kinds)
    changes = [kind_of(change) for change in (*findings.Change, *findings.Failure)]
    assert len(set(changes)) == len(changes)


def test_a_finding_has_its_figures_beside_its_kind_and_words() -> None:
    need = findings.Need(framework="megatron", gpus=8, gpu="L4", needed_bytes=3e10, memory_bytes=2.4e10)
    document = finding_document(findings.TooLittleMemory((need,)))
    assert document["kind"] == "too_little_memory"
    assert document["needs"] == [
        {"framework": "megatron", "gpus": 8, "gpu": "L4", "needed_bytes": 3e10, "memory_bytes": 2.4e10}
    ]
    assert document["words"] == "the leanest plan for megatron on 8 × L4 needs 27.9 GiB a GPU of 22.4 GiB"
    for finding in every_finding():
        json.dumps(finding_document(finding), allow_nan=False)


def test_an_edit_of_the_english_changes_no_key_and_no_kind(
    ranking: shardwright.Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def documents() -> list[Any]:
        evaluation = Evaluation(plan=costed(gib=(100.0,), sequence_parallel=False), best=ranking)
        others = [finding_document(finding) for finding in every_finding()]
        return [ranking_document(ranking), evaluation_document(evaluation, (), Origin()), others]

    before = documents()
    for table in (words.FIXED, words.SENTENCES, words.MEANING, strategy.SETTINGS):
        for key, text in table.items():  # type: ignore[attr-defined]
            monkeypatch.setitem(table, key, f"edited {text}")  # type: ignore[arg-type]
    after = documents()
    assert after != before, "the words were not edited"
    assert without_words(after) == without_words(before)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ranking", ["pruned by bound", "even a lower bound on its time exceeds", "pruned by bound or not needed"]),
        ("shop", ["What to rent for llama-3.2-1b", "The front"]),
        ("refused", ["No offer does: ", "What would do"]),
    ],
)
def test_what_version_1_printed_is_read_for_good(name: str, shown: list[str]) -> None:
    document = json.loads((DATA / f"{name}-version-1.json").read_text(encoding="utf-8"))
    assert "version" not in document
    page = report(document)
    assert [text for text in shown if text not in page] == []
    holds("shop" if "front" in document else "ranking", current(document))


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[3], ["evaluate", "PLAN"]], ids=lambda command: command[0])
def test_what_is_printed_today_becomes_a_page(
    command: list[str], printed: Callable[..., Outcome], tmp_path: Path
) -> None:
    text = printed(*command).out
    assert json.loads(text)["version"] == VERSION
    (tmp_path / "printed.json").write_text(text, encoding="utf-8")
    succeeded(["report", str(tmp_path / "printed.json"), "-o", str(tmp_path / "page.html")])
    assert "llama-3.2-1b" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_later_version_is_refused() -> None:
    with pytest.raises(SpecError, match="is 3"):
        report({"version": VERSION + 1, "plans": []})


def test_the_causes_of_version_1_are_those_of_today() -> None:
    newer = {"not_looked_at"}  # no search could be stopped
    assert set(CAUSES.values()) | {"rule"} == {kind_of(cause) for cause in findings.Cause} - newer
