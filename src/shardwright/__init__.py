"""Shardwright plans, prices and explains the training of large models on the GPUs you have or could rent.

The public names, each loaded when it is first used:

    model = shardwright.load_model("llama-2-70b")
    cluster = shardwright.load_cluster("32x8xA800-SXM-80")
    job = shardwright.make_job(global_batch=512, seq_len=4096)
    ranking = shardwright.plan(model, cluster, job)
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.cost.measured_layers import measured_layers as measured_layers
    from shardwright.cost.profiled import profiled as profiled
    from shardwright.errors import SpecError as SpecError
    from shardwright.export.megatron import to_megatron as to_megatron
    from shardwright.measure.run import profile as profile
    from shardwright.plan.document import load_plan as load_plan
    from shardwright.plan.plan import Plan as Plan
    from shardwright.plan.ranking import Ranking as Ranking
    from shardwright.search.planner import evaluate as evaluate
    from shardwright.search.planner import plan as plan
    from shardwright.search.planner import predict as predict
    from shardwright.search.replan import replan as replan
    from shardwright.search.shop.shop import shop as shop
    from shardwright.spec.cluster import Cluster as Cluster
    from shardwright.spec.job import Job as Job
    from shardwright.spec.load_cluster import load_cluster as load_cluster
    from shardwright.spec.load_job import make_job as make_job
    from shardwright.spec.load_layer_profile import load_layer_profile as load_layer_profile
    from shardwright.spec.load_model import load_model as load_model
    from shardwright.spec.load_offers import load_offers as load_offers
    from shardwright.spec.machine_profile import load_profile as load_profile
    from shardwright.spec.model import Model as Model
    from shardwright.validate.validation import validate as validate

_HOMES = {
    "Cluster": "spec.cluster",
    "Job": "spec.job",
    "Model": "spec.model",
    "Plan": "plan.plan",
    "Ranking": "plan.ranking",
    "SpecError": "errors",
    "evaluate": "search.planner",
    "load_cluster": "spec.load_cluster",
    "load_layer_profile": "spec.load_layer_profile",
    "load_model": "spec.load_model",
    "load_offers": "spec.load_offers",
    "load_plan": "plan.document",
    "load_profile": "spec.machine_profile",
    "make_job": "spec.load_job",
    "measured_layers": "cost.measured_layers",
    "predict": "search.planner",
    "profile": "measure.run",
    "profiled": "cost.profiled",
    "replan": "search.replan",
    "shop": "search.shop.shop",
    "to_megatron": "export.megatron",
}
# Folders that are also, as calls of the library, functions: the packages are callable.
_CALLS = {"plan": "search.planner", "validate": "validate.validation"}
__all__ = ["__version__", *_CALLS, *_HOMES]


class _CallablePackage(ModuleType):
    """A package whose call is that of the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return e.g. `shardwright.search.planner.plan(*args, **kwargs)`."""
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(f"shardwright.{_CALLS[name]}"), name)(*args, **kwargs)


for _name in _CALLS:
    importlib.import_module(f"shardwright.{_name}").__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwright' has no attribute {name!r}")
    return getattr(importlib.import_module(f"shardwright.{_HOMES[name]}"), name)
