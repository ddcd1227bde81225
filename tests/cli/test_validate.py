"""`shardwright validate` from end to end."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.cli.running import answered, refused, run, succeeded
from tests.cli.schemas import holds
from tests.validation.known import KNOWN


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with KNOWN.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_the_report_names_every_run() -> None:
    outcome = succeeded(["validate", str(KNOWN)])
    assert outcome.err == ""
    assert "8a16e6807f" in outcome.out
    assert "Against simple rivals" in outcome.out


def test_json_has_every_row_duplicates_and_skipped_ones_too(rows, tmp_path: Path) -> None:
    twin = rows[0] | {"row_id": "twin", "dup_group": "d"}
    given = [
        rows[0] | {"dup_group": "d"},
        twin,
        rows[1] | {"precision": "nvfp4"},
        rows[2] | {"measured_iter_time_s": "", "measured_tokens_per_s_per_gpu": "", "measured_mem_gb": "60"},
    ]
    document = answered(["validate", write(tmp_path / "runs.csv", given), "--json"])
    assert set(document) == {"version", "runs", "summary"}
    holds("validation", document)
    first, second, skipped, memory = document["runs"]
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert first["measured_seconds"] == float(rows[0]["measured_iter_time_s"])
    low, high = first["interval"]
    assert low < first["predicted_seconds"] < high
    reason = {"kind": "not_modelled", "words": "precision nvfp4 is not modelled"}
    assert skipped == {"row_id": rows[1]["row_id"], "skipped": reason}
    assert memory["measured_seconds"] is None
    assert memory["measured_memory_bytes"] == 60 * 2.0**30
    assert document["summary"]["timed"] == 1
    assert document["summary"]["skipped"] == [{**reason, "count": 1}]


def test_failed_runs_alone_are_predicted(rows, tmp_path: Path) -> None:
    blank = dict.fromkeys(("measured_iter_time_s", "measured_tokens_per_s_per_gpu", "measured_mem_gb"), "")
    path = write(tmp_path / "failed.csv", [row | blank for row in rows[:3]])
    alone = answered(["validate", path, "--json"])
    assert all(0.0 <= entry["fit_probability"] <= 1.0 for entry in alone["runs"])
    assert alone["summary"]["overall"] is None
    both = answered(["validate", str(KNOWN), "--failed", path, "--json"])
    assert [entry["failed"] for entry in both["runs"]] == [False] * len(rows) + [True] * 3
    assert (both["summary"]["fits"]["ran"], both["summary"]["fits"]["failed"]) == (len(rows), 3)
    succeeded(["validate", path])


def test_quality_and_kind_choose() -> None:
    document = answered(["validate", str(KNOWN), "--quality", "a", "--kind", "fwd+bwd", "--json"])
    assert document["summary"]["predicted"] == 1
    assert sum(entry["count"] for entry in document["summary"]["skipped"]) == document["summary"]["rows"] - 1


def test_page_and_picture_are_written_and_the_same_each_time(tmp_path: Path) -> None:
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    contents = []
    for _ in range(2):
        succeeded(["validate", str(KNOWN), "--markdown", str(page), "--plot", str(plot)])
        contents.append((page.read_bytes(), plot.read_bytes()))
    assert contents[0] == contents[1]
    assert b"](plot.svg)" in contents[0][0]
    assert contents[0][1].startswith(b"<svg")


def test_bad_files_are_one_message_and_exit_2(rows, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)))
    words = write(tmp_path / "words.csv", [rows[0] | {"n_gpus": "plenty"}])
    unmeasured = write(
        tmp_path / "x.csv", [rows[0] | {"measured_iter_time_s": "", "measured_tokens_per_s_per_gpu": ""}]
    )
    for arguments, message in (
        ([str(tmp_path / "nowhere.csv")], "nowhere.csv"),
        ([str(tmp_path)], str(tmp_path)),
        ([str(empty)], "lacks the columns"),
        ([str(binary)], "binary.csv"),
        ([words], "line 2, n_gpus"),
        ([str(KNOWN), "--quality", "Z"], "there is no Z"),
        ([str(KNOWN), "--failed", str(empty)], "lacks the columns"),
        ([str(KNOWN), "--plot", str(tmp_path / "no" / "folder.svg")], "does not exist"),
        ([unmeasured, "--plot", str(tmp_path / "plot.svg")], "no run has both"),
    ):
        assert message in refused(run(["validate", *arguments]))


def test_rows_are_chosen_by_id_and_a_slip_is_named() -> None:
    ran, failed = answered(["validate", "--row", "7393f612b3", "--row", "22bbc994b3", "--json"])["runs"]
    assert (ran["row_id"], ran["failed"]) == ("7393f612b3", False)
    assert (failed["row_id"], failed["failed"]) == ("22bbc994b3", True)
    assert "did you mean 7393f612b3?" in refused(run(["validate", "--row", "7393f612b"]))


def test_a_row_of_a_file_is_predicted_as_among_the_others() -> None:
    everything = answered(["validate", str(KNOWN), "--json"])["runs"]
    alone = answered(["validate", str(KNOWN), "--row", everything[1]["row_id"], "--json"])["runs"]
    assert alone == everything[1:2]
