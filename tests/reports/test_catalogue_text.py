"""The catalogue in words."""

from __future__ import annotations

from tests.golden.plans import H100, PLANS
from tests.reports.costed import flat

from shardwright.reports.text.catalogue import gpu_text, model_text, models_text, prices_text
from shardwright.reports.text.question import cluster_line
from shardwright.spec.catalog.gpus import find_gpu
from shardwright.spec.catalog.prices import MachinePrice
from shardwright.spec.cluster import Price
from shardwright.spec.read.cluster import load_cluster

PRICES = [
    MachinePrice(
        provider=provider,
        region="r",
        machine="m",
        gpu="H100-SXM",
        gpus=8,
        price=Price(on_demand_per_hour=dollars, spot_per_hour=None, source="page", date="2026-11"),
    )
    for provider, dollars in (("a", 16.0), ("b", 80.0))
]


def test_one_gpu_with_its_prices() -> None:
    text = gpu_text(H100, PRICES)
    assert "bf16 989, fp8 1,979 TFLOP/s" in text
    assert "on demand $2.00 to $10.00 a GPU and hour, whole machines of 2 providers" in text
    assert "spot" not in text
    assert "price         none known" in gpu_text(H100, [])


def test_prices_carry_source_and_date() -> None:
    lines = prices_text(PRICES).splitlines()
    assert len(lines) == 4
    assert all("page" in line and "2026-11" in line and "–" in line for line in lines[2:])


def test_a_model_is_shown_as_it_was_understood() -> None:
    text = flat(model_text(PLANS["deepseek-v3"].model, "a page"))
    assert "3 layers" in text
    assert "multi-head latent attention, 128 heads, key-value rank 512; feed-forward of width 18,432, gated" in text
    assert "58 layers" in text
    assert "256 experts of width 2,048, 8 for" in text
    assert "a page" in text
    windowed = model_text(PLANS["windows-plain"].model, "")
    assert "window 128" in windowed
    assert "source" not in windowed


def test_models_are_listed_with_their_sources() -> None:
    models = [PLANS["gpt-3-175b"].model, PLANS["mixtral-8x7b-experts"].model]
    lines = models_text(models, {"gpt-3-175b": "arXiv 2005.14165"}).splitlines()
    assert lines[2].endswith("arXiv 2005.14165")
    assert "32/8" in lines[3]


def test_a_gpu_without_links_of_its_own_and_one_of_anything_are_worded_as_such() -> None:
    assert "PCIe 32 GB/s, none between GPUs" in gpu_text(find_gpu("RTX3090"), [], 110)
    assert "among 8 GPUs, PCIe" in gpu_text(find_gpu("H100-SXM"), [], 110)
    assert cluster_line(load_cluster("1x1xRTX3090")) == "1 × 1 RTX3090 (1 GPU)"
    assert cluster_line(load_cluster("1x2xRTX3090")) == "1 × 2 RTX3090 (2 GPUs)"
