"""The page itself: a form on the left, the answer on the right, and the files that both need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from html import escape
from importlib.resources import files
from types import MappingProxyType
from typing import get_args

from shardwright.exporters.targets import TARGETS
from shardwright.records import record
from shardwright.reports.html.render import asset
from shardwright.spec.catalog.gpus import gpus
from shardwright.spec.job import Objective, Precision
from shardwright.spec.read.presets import preset_names

ASSETS = files("shardwright.serving.what_if").joinpath("assets")
SCRIPT, STYLE = "text/javascript; charset=utf-8", "text/css; charset=utf-8"
USUAL_LENGTHS = tuple(1 << power for power in range(9, 18))
OBJECTIVES: Mapping[Objective, str] = MappingProxyType({"time": "time", "cost": "dollars"})


@record(kw_only=False)
class File:
    """Something that the server has: its type and what makes its bytes."""

    type: str
    content: Callable[[], bytes]


@cache
def _page() -> bytes:
    """Return the page with the names of the catalogue in its menus."""
    facts = {
        "models": _options(preset_names()),
        "lengths": _options(map(str, USUAL_LENGTHS)),
        "precisions": _options(get_args(Precision)),
        "objectives": "".join(f'<option value="{name}">{words}</option>' for name, words in OBJECTIVES.items()),
        "targets": _options(TARGETS),
        "gpus": _options(gpus()),
    }
    text = ASSETS.joinpath("page.html").read_text(encoding="utf-8")
    for name, value in facts.items():
        text = text.replace(f"<!-- {name} -->", value)
    return text.encode()


def _options(names: Iterable[str]) -> str:
    return "".join(f"<option>{escape(name)}</option>" for name in names)


def _own(name: str) -> bytes:
    return ASSETS.joinpath(name).read_bytes()


def _shared(name: str) -> bytes:
    return asset(name).encode()


FILES: Mapping[str, File] = MappingProxyType(
    {
        "/": File("text/html; charset=utf-8", _page),
        "/page.css": File(STYLE, partial(_shared, "page.css")),
        "/echarts.js": File(SCRIPT, partial(_shared, "echarts.js")),
        "/charts.js": File(SCRIPT, partial(_shared, "charts.js")),
        "/what_if.css": File(STYLE, partial(_own, "what_if.css")),
        "/state.js": File(SCRIPT, partial(_own, "state.js")),
        "/what_if.js": File(SCRIPT, partial(_own, "what_if.js")),
    }
)
