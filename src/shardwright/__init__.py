"""Shardwright plans, prices and explains the training of large models on the GPUs you have or could rent.

The public names, each loaded when it is first used:

    model = shardwright.load_model("llama-2-70b")
    cluster = shardwright.load_cluster("32x8xA800-SXM-80")
    job = shardwright.make_job(global_batch=512, seq_len=4096)
    ranking = shardwright.plan(model, cluster, job)     # prints as a table; ranking.to_frame()
    ranking.save("plan.json")
    shardwright.draw(ranking)                           # a picture in a notebook; .save("plan.svg")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.cost.layers.measured import measured_layers as measured_layers
    from shardwright.cost.measured.machine import profiled as profiled
    from shardwright.discovery.discover import discover as discover
    from shardwright.errors import SpecError as SpecError
    from shardwright.exporters.megatron.export import to_megatron as to_megatron
    from shardwright.exporters.targets import export as export
    from shardwright.measure.run import profile as profile
    from shardwright.plans.check import check as check
    from shardwright.plans.document import load_plan as load_plan
    from shardwright.plans.document import save as save
    from shardwright.plans.plan import Plan as Plan
    from shardwright.plans.ranking import Ranking as Ranking
    from shardwright.reports.html.report import report as report
    from shardwright.reports.svg.draw import draw as draw
    from shardwright.search.market.shop import shop as shop
    from shardwright.search.planner import evaluate as evaluate
    from shardwright.search.planner import plan as plan
    from shardwright.search.planner import predict as predict
    from shardwright.search.replan import replan as replan
    from shardwright.search.sizing import fit as fit
    from shardwright.spec.cluster import Cluster as Cluster
    from shardwright.spec.job import Job as Job
    from shardwright.spec.model import Model as Model
    from shardwright.spec.read.cluster import load_cluster as load_cluster
    from shardwright.spec.read.job import make_job as make_job
    from shardwright.spec.read.layer_profile import load_layer_profile as load_layer_profile
    from shardwright.spec.read.machine_profile import load_profile as load_profile
    from shardwright.spec.read.model import load_model as load_model
    from shardwright.spec.read.offers import load_offers as load_offers
    from shardwright.validation.validate import validate as validate

_HOMES = {
    "Cluster": "spec.cluster",
    "Job": "spec.job",
    "Model": "spec.model",
    "Plan": "plans.plan",
    "Ranking": "plans.ranking",
    "SpecError": "errors",
    "check": "plans.check",
    "discover": "discovery.discover",
    "draw": "reports.svg.draw",
    "evaluate": "search.planner",
    "fit": "search.sizing",
    "export": "exporters.targets",
    "load_cluster": "spec.read.cluster",
    "load_layer_profile": "spec.read.layer_profile",
    "load_model": "spec.read.model",
    "load_offers": "spec.read.offers",
    "load_plan": "plans.document",
    "load_profile": "spec.read.machine_profile",
    "make_job": "spec.read.job",
    "measured_layers": "cost.layers.measured",
    "nearest_plan": "exporters.nearest",
    "plan": "search.planner",
    "predict": "search.planner",
    "profile": "measure.run",
    "profiled": "cost.measured.machine",
    "replan": "search.replan",
    "report": "reports.html.report",
    "save": "plans.document",
    "shop": "search.market.shop",
    "to_megatron": "exporters.megatron.export",
    "validate": "validation.validate",
}
__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shardwright.{_HOMES[name]}"), name)
