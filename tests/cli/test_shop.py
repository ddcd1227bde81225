"""`shardwright shop` from end to end: answers, JSON, exit codes, and words for bad input."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.running import answered, refused, run, succeeded

from shardwright import check, load_plan

OFFERS = """
offers:
  - {gpu: H100-SXM, gpus: 8, price_per_hour: 20, at_most: 3}
  - {gpu: A100-SXM-40, gpus: 4, price_per_hour: 4.4, at_most: 8}
  - {gpu: A100-SXM-40, gpus: 4, market: spot, price_per_hour: 1.6, preemptions_per_hour: 0.03, at_most: 8}
"""
SHOP = [
    "shop",
    "--model",
    "llama-3.2-1b",
    "--tokens",
    "20B",
    "--global-batch",
    "96",
    "--seq-len",
    "1024",
    "--mixes",
    "0",
]


@pytest.fixture(autouse=True)
def no_fetched_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def offers(tmp_path: Path) -> str:
    path = tmp_path / "offers.yaml"
    path.write_text(OFFERS)
    return str(path)


def test_the_report_answers_shows_the_front_and_the_plan(offers: str) -> None:
    outcome = succeeded([*SHOP, "--offers", offers, "--deadline", "3d", "--budget", "5k", "--details"])
    for words in ("Cheapest within 3.0 days:", "Fastest for $5,000:", "Time and money:", "H100-SXM on-demand",
                  "A100-SXM-40 spot", "What more buys", "The plan of choice", "Memory of one GPU", "Risk", "Young",
                  "preemptions", "Assumed", "not looked at: unequal replicas on one GPU type"):  # fmt: skip
        assert words in outcome.out, words
    assert max(map(len, outcome.out.splitlines())) <= 110


def test_the_first_screen_answers_within_a_screen_and_says_where_more_is(offers: str) -> None:
    asked = [*SHOP, "--offers", offers, "--deadline", "3d"]
    outcome = succeeded(asked)
    for words in ("Cheapest within 3.0 days:", "Time and money:", "  run ", "(80% sure:", "  risk ",
                  "shardwright export plan.json", "--details"):  # fmt: skip
        assert words in outcome.out, words
    assert len(outcome.out.splitlines()) <= 45 < len(run([*asked, "--details"]).out.splitlines())
    assert max(map(len, outcome.out.splitlines())) <= 110


def test_options_of_the_price_table_are_refused_with_an_offers_file(offers: str) -> None:
    problem = refused(run([*SHOP, "--offers", offers, "--max-gpus", "64"]))
    assert "--max-gpus: narrows the price table" in problem


def test_pins_that_no_machine_can_keep_are_not_taken_for_a_lack_of_memory(offers: str) -> None:
    outcome = run([*SHOP, "--offers", offers, "--set", "tp=64"])
    assert outcome.code == 3
    assert "no layout on these machines is legal" in outcome.out


@pytest.mark.parametrize("asked", [["fsdp", "dispatcher=flex"], ["deepspeed", "expert_imbalance=2"]])
@pytest.mark.parametrize("more", [[], ["--details"]])
def test_an_option_that_no_trainer_takes_is_named(offers: str, asked: list[str], more: list[str]) -> None:
    """Without anything that would help, too."""
    framework, option = asked
    outcome = run([*SHOP[:1], "--model", "mixtral-8x7b", "--tokens", "1B", "--offers", offers, "--framework", framework,
                   "--set", option, *more])  # fmt: skip
    assert outcome.code == 3
    assert "No offer does: no trainer" in outcome.out and f"job.options.{option.split('=')[0]}" in outcome.out


def test_gpus_that_cannot_compute_in_the_precision_are_named(tmp_path: Path) -> None:
    path = tmp_path / "offers.yaml"
    path.write_text(OFFERS + "  - {gpu: V100-SXM2, gpus: 8, price_per_hour: 5, at_most: 2}\n")
    outcome = run([*SHOP, "--offers", str(path), "--details"])
    assert "GPUs that cannot compute in bf16: V100-SXM2" in " ".join(outcome.out.split())


def test_json_has_the_front_with_plans_and_the_picks(offers: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    document = answered([*SHOP, "--offers", offers, "--deadline", "72h", "--json", "--out", str(plan)])
    front = document["front"]
    for faster, slower in pairwise(front):
        assert faster["hours"] < slower["hours"]
    pick = document["picks"]["cheapest_within_deadline"]
    assert front[pick]["hours"] <= 72.0
    sure = [choice for choice in front if choice["chances"]["deadline"] >= 0.8]
    assert front[pick]["dollars"] == min(choice["dollars"] for choice in sure)
    assert document["sure"] is None
    assert set(front[0]["rent"][0]) >= {"gpu", "machines", "gpus", "market", "dollars_per_machine_hour"}
    saved = load_plan(plan)
    assert check(saved) == ()
    assert saved.gpus <= front[pick]["gpus"]
    assert front[pick]["plan"]["prediction"]["iteration_seconds"] == saved.iteration_seconds


def test_the_same_input_gives_the_same_document(offers: str) -> None:
    one, other = (answered([*SHOP, "--offers", offers, "--json"]) for _ in range(2))
    assert {**one, "search": None} == {**other, "search": None}


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (["--budget", "10"], "the cheapest found is $"),
        (["--deadline", "1h"], "the fastest found takes"),
    ],
)
def test_limits_that_nothing_keeps_are_exit_3_with_what_is_possible(offers: str, limits: list[str], words: str) -> None:
    outcome = run([*SHOP, "--offers", offers, *limits])
    assert outcome.code == 3
    assert words in outcome.out
    document = json.loads(run([*SHOP, "--offers", offers, *limits, "--json"]).out)
    assert words in document["infeasible"]["remedies"][0]["words"]
    assert document["front"]


def test_a_model_that_fits_nowhere_is_exit_3(offers: str) -> None:
    outcome = run(["shop", "--model", "llama-3.1-405b", "--offers", offers, "--tokens", "1T"])
    assert outcome.code == 3
    assert "no number of machines on offer has the memory" in outcome.out


def test_the_price_table_is_the_offer_where_there_is_no_file() -> None:
    arguments = [*SHOP, "--gpu", "A100-40", "--gpu", "L40S", "--max-gpus", "16", "--market", "on-demand", "--json"]
    document = answered(arguments)
    rented = {rental["gpu"] for choice in document["front"] for rental in choice["rent"]}
    assert rented <= {"A100-SXM-40", "L40S"}
    assert all(choice["gpus"] <= 16 for choice in document["front"])
    assert any("price: on demand $" in words and "commit" in words for words in document["assumed"])


def test_adapters_are_shopped_for(offers: str, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    succeeded([*SHOP, "--offers", offers, "--adapter", "qlora:8", "--framework", "fsdp", "--out", str(kept)])
    job = load_plan(kept).job
    assert job.adapter is not None and job.adapter.name == "qlora:8" and job.framework == "fsdp"


def test_batch_and_length_have_usual_sizes_which_the_report_names(offers: str) -> None:
    outcome = succeeded(["shop", "--model", "llama-3.2-1b", "--offers", offers, "--tokens", "20B", "--mixes", "0"])
    assert "global batch 1024 × 4096 tokens" in outcome.out
    assert "sequence length 4096 (--seq-len)" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--deadline", "soon"], "--deadline soon: is no duration"),
        (["--deadline", "0d"], "--deadline 0d: is no duration"),
        (["--budget", "much"], "--budget much: is no amount of money"),
        (["--gpu", "H101"], "unknown GPU"),
        (["--gpu", "L4"], "leave no offer"),
        (["--market", "auction"], "there is no such market"),
        (["--provider", "aws"], "narrows the price table"),
        (["--fit", "2"], "is not a probability"),
        (["--mixes", "-1"], "mixes cannot be searched"),
        (["--set", "nothing=1"], "nothing"),
        (["--tokens", "many"], "is no number"),
        (["--precision", "fp4"], "unknown precision"),
    ],
)
def test_bad_arguments_are_refused_in_words(offers: str, arguments: list[str], words: str) -> None:
    assert words in refused(run([*SHOP, "--offers", offers, *arguments]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("offers:\n  - {gpu: A800-SXM-80, gpus: 8}\n", "offers[0].price_per_hour: is missing"),
        ("offers:\n  - {gpu: H100-SXM, inter_node_gbps: 0}\n", "must be more than zero"),
        ("offers: []\n", "missing or empty"),
        ("", "an empty file"),
        ("offers: [", "not valid YAML"),
    ],
)
def test_bad_offers_are_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = refused(run([*SHOP, "--offers", str(path)]))
    assert words in message and str(path) in message


def test_a_missing_file_of_offers_is_named(tmp_path: Path) -> None:
    assert "no such file" in refused(run([*SHOP, "--offers", str(tmp_path / "none.yaml")]))


def test_plan_takes_durations_and_amounts_as_people_write_them() -> None:
    plan = ["plan", "--model", "llama-3.2-1b", "--global-batch", "32", "--seq-len", "2048", "--tokens", "10B",
            "--cluster", "1x8xA100-SXM-80", "--objective", "cost", "--json"]  # fmt: skip
    outcome = succeeded([*plan, "--deadline", "4w", "--budget", "1M"])
    assert json.loads(outcome.out)["plans"][0]["job"]["deadline_hours"] == 672.0
    outcome = run([*plan, "--budget", "$1"])
    assert outcome.code == 3
    assert "the cheapest found is $" in outcome.out
