"""GPUs that the catalogue does not have, described in a cluster file."""

from __future__ import annotations

import pytest

from shardwright import SpecError, load_model, make_job
from shardwright.search.planner import plan
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.custom_gpu import custom_gpu, description
from shardwright.spec.text.fields import Section

NEW = {"name": "X1", "bf16_tflops": 500, "fp32_tflops": 60, "memory_gb": 96, "memory_gb_per_second": 3000}


def cluster(gpu: dict, **more):
    return build_cluster({"nodes": [{"count": 2, "gpus": 8, "gpu": gpu, **more}]}, "c.yaml")


def test_a_cluster_of_a_described_gpu_has_its_figures() -> None:
    (pool,) = cluster(NEW | {"link_gb_per_second": 300}).pools
    assert (pool.gpu.name, pool.gpus) == ("X1", 16)
    assert pool.gpu.peak("bf16") == 500e12
    assert pool.memory_bytes == 96 * 2**30
    assert pool.intra_bytes_per_second == 300e9
    assert any("a plain server" in assumed.words for assumed in pool.assumed)


def test_it_can_be_planned_for() -> None:
    job = make_job(global_batch=32, seq_len=2048)
    model = load_model("llama-3.2-1b")
    slow, fast = (plan(model, cluster(NEW | {"bf16_tflops": peak}), job).best.prediction for peak in (100, 500))
    assert slow is not None and fast is not None
    assert fast.iteration_seconds < slow.iteration_seconds


def test_memory_that_the_pool_states_goes_before_the_gpus_own() -> None:
    (pool,) = cluster(NEW, memory_gb=80).pools
    assert pool.memory_bytes == 80 * 2**30


def test_a_description_gives_the_same_gpu_again() -> None:
    (pool,) = cluster(NEW).pools
    problems: list = []
    again = custom_gpu(Section("gpu", description(pool.gpu), problems))
    assert problems == []
    assert again == pool.gpu


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": None}, "name: is missing"),
        ({"memory_gb": "96 GB"}, "memory_gb: expected a number"),
        ({"bf16_tflop": 3}, "unknown key"),
        ({"link": "Ethernet"}, "is no link between GPUs"),
        ({"bf16_tflops": None, "fp32_tflops": None}, "no peak is given"),
    ],
)
def test_a_faulty_description_is_refused_by_field(changes: dict, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        cluster(NEW | changes)
    assert words in str(caught.value)
    assert "c.yaml: nodes[0].gpu" in str(caught.value)


def test_a_machine_type_says_itself_which_gpu_it_has() -> None:
    with pytest.raises(SpecError, match="leave one of them out"):
        build_cluster({"nodes": [{"count": 1, "machine": "p5.48xlarge", "gpu": NEW}]}, "c.yaml")
