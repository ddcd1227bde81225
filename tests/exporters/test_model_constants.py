"""Every scalar constant of every preset goes out: an export that is the same for another value does not have it, and then
either it does not matter there, or the script names it as something that the target has no argument for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import pytest
from tests.nightly import nightly

import shardwright
from shardwright import Job, Model, SpecError
from shardwright.exporters.torchtitan.models import differences, registered
from shardwright.spec.read.presets import preset_model, preset_names
from shardwright.trainers.runs import one_gpu_replicas

TARGETS = {"megatron": "megatron", "bridge": "megatron", "torchtitan": "torchtitan"}
LEAST = {"megatron": 70, "bridge": 70, "torchtitan": 15}  # presets that each can be told, when this was written
CLUSTER = shardwright.load_cluster("1x1xH100-SXM")
NO_ARGUMENT = ("has no arguments", "has no fields for them", "as many learned positions as a sample has")
DOES_NOT_MATTER = {
    "max_position": "a run has samples as long as its job says",
    "extra_parameters": "counted beside what is described, and of no preset that is exported",
    "mixer.chunk": "how a scan is cut, which changes no result",
    "fused_qkv": "whether one product of transformers makes queries, keys and values, which changes no result",
    "forward_pass": "the pass of families that Megatron-core builds its own way; what differs is refused by name",
}


def scalars(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the flags and figures of a description by their place."""
    for field in fields(value):
        inner, place = getattr(value, field.name), (*path, field.name)
        if is_dataclass(inner):
            yield from scalars(inner, place)
        elif isinstance(inner, int | float):
            yield place, inner


def changed(value: Any, path: tuple[str, ...], new: object) -> Any:
    name, *rest = path
    return replace(value, **{name: changed(getattr(value, name), tuple(rest), new) if rest else new})


def another(value: float) -> float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value or 1
    return 0.5 * value or 0.25


def variants(model: Model) -> Iterator[tuple[str, Model]]:
    """Yield the model with each of its constants changed, those of every kind of layer too."""
    for path, value in scalars(replace(model, layers=())):
        if applies(model, path):
            yield ".".join(path), changed(model, path, another(value))
    for kind in dict.fromkeys(model.layers):
        for path, value in scalars(kind):
            if path != ("attention", "kv_heads") or kind.self_attention.latent is None:
                layers = (changed(layer, path, another(value)) if layer == kind else layer for layer in model.layers)
                yield ".".join(path), replace(model, layers=tuple(layers))


def applies(model: Model, path: tuple[str, ...]) -> bool:
    """Whether a constant means anything in a model: those of rotary positions where it has them."""
    if path[0].startswith("rotary") and model.position != "rope":
        return False
    scaling = model.rotary_scaling
    of_llama = path[-1] in ("low_factor", "high_factor")
    return scaling is None or not of_llama or scaling.kind == "llama3"


def exported(model: Model, target: str) -> str | None:
    """Return all that an export says, None where the target refuses the model."""
    job = Job(global_batch=8, seq_len=min(512, model.max_position or 512), framework=TARGETS[target])
    try:
        return repr(shardwright.export(one_gpu_replicas(model, CLUSTER, job, CLUSTER.pools[0].gpu.name), target))
    except (SpecError, ValueError, ArithmeticError):  # as what was changed may be no model at all
        return None


@cache
def dropped(target: str, step: int) -> tuple[int, Counter[str]]:
    """Return how many of every `step`th preset are exported, and the constants that make no difference to how many of
    the exports."""
    lost: Counter[str] = Counter()
    count = 0
    for name in preset_names()[::step]:
        model = preset_model(name)
        text = exported(model, target)
        if text is None:
            continue
        count += 1
        for place, variant in dict(variants(model)).items():
            lost[place] += exported(variant, target) == text and not any(words in text for words in NO_ARGUMENT)
    return count, lost


@pytest.mark.parametrize("step", [6, *nightly([1])])
@pytest.mark.parametrize("target", TARGETS)
def test_an_export_without_a_constant_of_the_model_says_so(target: str, step: int) -> None:
    count, lost = dropped(target, step)
    assert count >= LEAST[target] // step
    missing = {place for place, number in lost.items() if number}
    assert {place for place in missing if not {place, place.split(".")[0]} & DOES_NOT_MATTER.keys()} == set()


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_exported_has_no_forward_pass_of_its_own(target: str) -> None:
    plain = {"embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0, "norm_after_rotation": False}
    plain |= {"sinks": False, "expert_bias": False, "router_bias_learned": False, "head_transform": False}
    for name in preset_names():
        model = preset_model(name)
        if model.forward_pass is not None and exported(model, target) is not None:
            assert {field: getattr(model.forward_pass, field) for field in plain} == plain, name


def test_torchtitan_names_the_constants_of_its_registry_that_are_others() -> None:
    words = {"llama-3.2-1b": "rotary scaling factor 8 in place of 32", "llama-3.1-8b": "", "qwen3-8b": ""}
    words |= {"deepseek-v2": "norm epsilon 1e-05 in place of 1e-06", "llama-3-8b": "rotary scaling kind llama3"}
    for name, difference in words.items():
        text = exported(preset_model(name), "torchtitan")
        assert text is not None and difference in text
        assert ("has no fields for them" in text) == bool(difference), name


def test_a_model_of_other_parts_is_not_in_the_registry_for_its_size() -> None:
    model = preset_model("llama-3.1-8b")
    entry = registered(model)
    assert entry is not None and not list(differences(model, entry))
    for place, variant in variants(model):
        if place in ("parallel_block", "final_norm", "rotary_fraction", "attention.causal", "attention.qk_norm"):
            assert registered(variant) is None, place


def test_the_norm_that_megatron_core_adds_to_queries_is_said() -> None:
    """Core 0.19 norms the input of a projection of queries that has no rank of its own; the models do not."""
    said = Counter[bool]()
    for model in map(preset_model, preset_names()):
        ranks = {kind.attention.latent.query_rank for kind in model.kinds if kind.attention and kind.attention.latent}
        script = exported(model, "megatron") if ranks else None
        if script is not None:
            said[ranks == {None}] += 1
            assert ("norms what queries are projected from" in script) == (ranks == {None}), model.name
    assert said[True] and said[False]
