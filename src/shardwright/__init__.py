"""Shardwright plans, prices and explains the training of large models on the GPUs you have or could rent.

The public names stand in `__init__.pyi`; each is loaded when it is first used:

    model = shardwright.load_model("llama-2-70b")
    cluster = shardwright.load_cluster("32x8xA800-SXM-80")
    job = shardwright.make_job(global_batch=512, seq_len=4096)
    ranking = shardwright.plan(model, cluster, job)     # prints as a table; ranking.to_frame()
    ranking.save("plan.json")
    shardwright.draw(ranking)                           # a picture in a notebook; .save("plan.svg")
"""

from __future__ import annotations

from types import FunctionType

import lazy_loader

__version__ = "0.3.0.dev0"

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    loaded = _load(name)
    if not isinstance(loaded, FunctionType):
        return loaded
    from shardwright.calls import checked

    globals()[name] = checked(loaded)
    return globals()[name]
