"""One problem of the replay: what `problems/*.yaml` says of it, and what the library answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.golden_replay.figures import Figure, evaluation_figures, plan_figures, ranking_figures, shopping_figures
from tests.importers.texts import plan_from_megatron

from shardwright import Cluster, Model, Ranking, SpecError, evaluate, load_model, make_job, measured_layers, replan
from shardwright.cost.learned import default_efficiency
from shardwright.search import planner
from shardwright.search.market.shop import shop
from shardwright.search.rules.rules import parse_rules
from shardwright.search.space.axes import parse_pins
from shardwright.spec.read.cluster import build_cluster, load_cluster
from shardwright.spec.read.layer_profile import load_layer_profile, stand_in_gpus, stand_in_model
from shardwright.spec.read.model_yaml import model_of_dimensions
from shardwright.spec.read.offers import build_offers

HERE = Path(__file__).parent
PROBLEMS, RESULTS = HERE / "problems", HERE / "results"
KINDS = tuple(sorted(path.stem for path in PROBLEMS.glob("*.yaml")))
DATA = HERE.parent / "data"
Description = Mapping[str, Any]


def problems(kind: str) -> Mapping[str, Description]:
    """Return the problems of a kind by name, in the order of their file."""
    found = yaml.safe_load((PROBLEMS / f"{kind}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def answer(description: Description) -> list[Figure]:
    """Return what the library says to a problem; refused input is an answer too."""
    try:
        return list(_answer(description))
    except SpecError as error:
        return [("refused", str(problem)) for problem in error.problems]


def _answer(description: Description) -> Iterator[Figure]:
    known = {"model", "cluster", "job", "pins", "tp_per_type", "rules", "options", "layers", "replan", "evaluate"}
    assert set(description) <= known | {"offers", "megatron"}, f"{sorted(set(description) - known)} mean nothing"
    if "offers" in description:
        offers = build_offers(description["offers"], "offers")
        options = description.get("options", {})
        return shopping_figures(shop(_model(description["model"]), offers, make_job(**description["job"]), **options))
    if "megatron" in description:
        model = _model(description["model"]) if "model" in description else None
        read = plan_from_megatron(description["megatron"], cluster=_cluster(description["cluster"]), model=model)
        return evaluation_figures(evaluate(read.plan))
    ranking = _planned(description)
    if "replan" in description:
        return _replanned(ranking, description["replan"])
    if "evaluate" in description:
        return evaluation_figures(evaluate(ranking.best))
    return ranking_figures(ranking)


def _planned(description: Description) -> Ranking:
    job = make_job(**description["job"])
    space = replace(parse_pins(description.get("pins", [])), tp_per_type=description.get("tp_per_type", False))
    rules = parse_rules(description.get("rules", ""), "rules")
    search = partial(planner.plan, job=job, space=space, rules=rules, **description.get("options", {}))
    if "layers" not in description:
        return search(_model(description["model"]), _cluster(description["cluster"]))
    profile = load_layer_profile(DATA / description["layers"])
    model = stand_in_model(profile, job.precision)
    cluster = _cluster(description["cluster"], measured=stand_in_gpus(profile, model, job.precision))
    return search(model, cluster, efficiency=measured_layers(default_efficiency(), profile, model, cluster, job))


def _replanned(ranking: Ranking, clusters: list[str]) -> Iterator[Figure]:
    before = ranking.best
    for text in clusters:
        found = replan(before, _cluster(text))
        yield "machines now", text
        yield from plan_figures(found) if found else [("plan", "none fits")]
        before = found or before


def _model(source: str | Mapping[str, Any]) -> Model:
    return load_model(source) if isinstance(source, str) else model_of_dimensions(source, "model")


def _cluster(source: str | Mapping[str, Any], **options: Any) -> Cluster:
    return load_cluster(source, **options) if isinstance(source, str) else build_cluster(source, "cluster", **options)
