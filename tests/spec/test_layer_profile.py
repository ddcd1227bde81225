"""Reading of layer profiles: what is in them, what is wrong with them, and what stands in for what they leave open."""

from __future__ import annotations

import copy
import json

import pytest
from tests.measured import EXCERPT, real_document, small_document

from shardwright.errors import SpecError
from shardwright.spec.layer_profile import smoothed
from shardwright.spec.read.cluster import build_cluster
from shardwright.spec.read.layer_profile import (
    is_layer_profile,
    layer_profile,
    load_layer_profile,
    stand_in_gpus,
    stand_in_model,
)


def test_the_real_excerpt() -> None:
    profile = load_layer_profile(EXCERPT)
    assert profile.gpus == ("V100-SXM2", "A100-SXM-40")
    assert (profile.layers, profile.seq_len, profile.precision) == (24, 2048, "fp32")
    entry = profile.by_setting["A100-SXM-40", 2, 4]
    raw = next(
        each
        for each in real_document()["entries"]
        if (each["gpu"], each["tensor_parallel"], each["micro_batch"]) == ("A100-SXM-40", 2, 4)
    )
    assert list(entry.backward_seconds) == raw["backward_seconds"]
    assert list(entry.activation_bytes) == raw["activation_bytes"]
    assert {(link.source, link.target) for link in profile.links if link.scope == "inter_node"} == {
        (one, other) for one in profile.gpus for other in profile.gpus
    }


def test_aliases_mean_the_catalogues_gpu() -> None:
    document = small_document(gpu="nvidia a100-sxm4-40gb")
    assert layer_profile(document).gpus == ("A100-SXM-40",)


def test_kinds_of_profile_are_told_apart_by_content() -> None:
    assert is_layer_profile(small_document())
    assert not is_layer_profile({"version": 1, "gpu": "H200", "operators": [], "collectives": []})
    assert not is_layer_profile([1, 2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forward_seconds": [0.1, 0.2]}, ("entries[0].forward_seconds", "differ in length", "forward_seconds 2")),
        ({"forward_seconds": None}, ("entries[0].forward_seconds", "is missing")),
        ({"backward_seconds": [0, 0.1, -0.2, 0.1, 0]}, ("entries[0].backward_seconds[2]", "zero or more")),
        ({"backward_seconds": [0, 0.1, 0.0, 0.1, 0]}, ("entries[0].backward_seconds[2]", "is 0, but it is a layer")),
        ({"forward_seconds": [0, 0.1, "fast", 0.1, 0]}, ("entries[0].forward_seconds[2]", "got the text")),
        ({"forward_seconds": "fast"}, ("entries[0].forward_seconds", "expected a list of numbers")),
        ({"tensor_parallel": 0}, ("entries[0].tensor_parallel", "more than zero")),
        ({"micro_batch": 1.5}, ("entries[0].micro_batch", "whole number")),
        ({"gpu": ""}, ("entries[0].gpu", "expected a text")),
        ({"backwards": [1]}, ("entries[0].backwards", "unknown key", "backward_seconds")),
    ],
)
def test_a_fault_is_named_with_its_place(change, words) -> None:
    with pytest.raises(SpecError) as caught:
        layer_profile(small_document(**change), "mine.json")
    for word in ("mine.json", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({"scope": "between"}, ("links[0].scope", "is 'between'")),
        ({"bytes": [1, 2, 3]}, ("links[0].seconds", "2 times for 3 sizes")),
        ({"bytes": [2e6, 1e6]}, ("links[0].bytes", "ascending")),
        ({"seconds": [0.0, 0.1]}, ("links[0].seconds", "no time")),
        ({"to": None}, ("links[0].to", "is missing")),
    ],
)
def test_faults_of_links(link, words) -> None:
    good = {"from": "A100-SXM-40", "to": "A100-SXM-40", "scope": "inter_node", "bytes": [1e6, 2e6], "seconds": [1, 2]}
    assert layer_profile(small_document() | {"links": [good]}).links[0].bytes == (1e6, 2e6)
    with pytest.raises(SpecError) as caught:
        layer_profile(small_document() | {"links": [good | link]})
    for word in words:
        assert word in str(caught.value)


def test_faults_of_the_whole_file_come_together() -> None:
    document = small_document() | {"seq_len": -1, "colour": "red"}
    other = copy.deepcopy(document["entries"][0])
    document["entries"] += [other, {**other, "micro_batch": 2, **_longer(other)}]
    with pytest.raises(SpecError) as caught:
        layer_profile(document)
    message = str(caught.value)
    for words in ("seq_len: must be more than zero", "colour: unknown key", "is there twice", "has 6 positions"):
        assert words in message


def _longer(entry):
    return {key: [*values, 1.0] for key, values in entry.items() if isinstance(values, list)}


@pytest.mark.parametrize("version", [None, 2, True, "1"])
def test_other_versions_are_refused(version) -> None:
    with pytest.raises(SpecError, match="version"):
        layer_profile(small_document() | {"version": version})


def test_the_stand_in_has_the_sizes_of_the_profile() -> None:
    model = stand_in_model(load_layer_profile(EXCERPT), "fp32")
    assert (model.hidden, model.vocab, model.learned_positions, len(model.layers)) == (1024, 50304, 2048, 24)
    measured = sum(real_document()["entries"][0]["weight_bytes"]) / 4
    assert model.parameters == pytest.approx(measured, rel=1e-4)
    assert model.layers[0].self_attention.heads % 2 == 0


def test_without_model_the_sizes_must_be_there() -> None:
    document = real_document()
    for entry in document["entries"]:
        del entry["output_bytes"]
    with pytest.raises(SpecError, match="has no output_bytes, and no model is given"):
        stand_in_model(layer_profile(document), "fp32")


def test_a_gpu_that_only_the_profile_knows() -> None:
    profile = layer_profile(real_document({"V100-SXM2": "Chip"}))
    known = stand_in_gpus(profile, stand_in_model(profile, "fp32"), "fp32")
    assert tuple(known) == ("Chip",)
    fields = {"count": 2, "gpu": "Chip", "gpus": 4}
    cluster = build_cluster({"nodes": [fields | {"memory_gb": 24}]}, "c.yaml", measured=known)
    assert cluster.pools[0].memory_bytes == 24 * 1024**3
    with pytest.raises(SpecError, match=r"nodes\[0\].memory_gb: is missing"):
        build_cluster({"nodes": [fields]}, "c.yaml", measured=known)
    with pytest.raises(SpecError, match="unknown GPU"):
        build_cluster({"nodes": [fields]}, "c.yaml")


def test_equal_layers_that_differ_by_noise_get_their_mean() -> None:
    profile = layer_profile(
        small_document(forward_seconds=[0.5, 0.100, 0.101, 0.102, 0.7], backward_seconds=[0.0, 0.2, 0.2, 0.3, 0.1])
    )
    (entry,) = smoothed(profile, (0, 0, 0)).entries
    assert entry.forward_seconds == pytest.approx((0.5, 0.101, 0.101, 0.101, 0.7))
    assert entry.backward_seconds == (0.0, 0.2, 0.2, 0.3, 0.1)
    (entry,) = smoothed(profile, (0, 1, 1)).entries
    assert entry.forward_seconds == pytest.approx((0.5, 0.100, 0.1015, 0.1015, 0.7))
    assert entry.backward_seconds == (0.0, 0.2, 0.2, 0.3, 0.1)


def test_what_is_no_json_is_refused(tmp_path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(small_document())[:-30])
    with pytest.raises(SpecError, match=r"p\.json"):
        load_layer_profile(path)
