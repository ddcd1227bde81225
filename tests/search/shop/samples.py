"""Small offers that are quick to search."""

from __future__ import annotations

from typing import Any

from shardwright.spec.job import Job
from shardwright.spec.offers import Offers
from shardwright.spec.read.job import make_job
from shardwright.spec.read.offers import build_offers

JOB = make_job(global_batch=24, seq_len=1024, tokens="20B")
H100: dict[str, Any] = {"gpu": "H100-SXM", "gpus": 4, "price_per_hour": 11.0, "at_most": 3}
A100: dict[str, Any] = {"gpu": "A100-SXM-40", "gpus": 2, "price_per_hour": 2.4, "at_most": 6}
A100_SPOT: dict[str, Any] = A100 | {"market": "spot", "price_per_hour": 1.1, "preemptions_per_hour": 0.05}
GB200: dict[str, Any] = {"gpu": "GB200", "gpus": 4, "price_per_hour": 40.0, "at_most": 3, "domain_gpus": 8}
L40S: dict[str, Any] = {"gpu": "L40S", "gpus": 4, "price_per_hour": 3.0, "at_most": 4}


def offers(*entries: dict[str, Any], **terms: Any) -> Offers:
    return build_offers({"offers": list(entries)} | terms, "offers.yaml")


def job(**changes: Any) -> Job:
    return make_job(**({"global_batch": 24, "seq_len": 1024, "tokens": "20B"} | changes))
