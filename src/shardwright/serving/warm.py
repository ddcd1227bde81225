"""Imported by the fork server, once: loads what a first answer needs and plans a small problem, so that every process
that is forked from it has its tables read and its code compiled."""

from __future__ import annotations

from shardwright.reports.html import page_of, render  # noqa: F401
from shardwright.search.first_plans import first_plans
from shardwright.serving.requests import PlanRequest, described

WARMED = list(
    first_plans(*described(PlanRequest(model="opt-350m", cluster="1x8xH100-SXM", global_batch=8, seq_len=1024)))
)
