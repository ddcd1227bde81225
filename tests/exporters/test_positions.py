"""Scaled rotary positions in Megatron-Core's words: they come back from its arguments as they went, and its own functions
make of them the frequencies and the factor of `shardwright train`, which are those of transformers."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from tests.importers.texts import plan_from_megatron

from shardwright import Model, load_cluster, load_model
from shardwright.exporters.megatron.model import (
    arguments_of,
    position_arguments,
    position_fields,
    scaling_arguments,
    yarn_of,
)
from shardwright.spec.forward_pass import RotaryScaling

DENSE, LATENT = "llama-3-8b", "deepseek-v2-lite"
GPT_OSS = RotaryScaling(
    kind="yarn", factor=32.0, original_positions=4096, fast_turns=32.0, slow_turns=1.0, whole_bounds=False
)
LONG = RotaryScaling(kind="yarn", factor=4.0, original_positions=32768, fast_turns=32.0, slow_turns=1.0)
FACTOR = replace(LONG, attention_factor=1.2)
UNUSUAL = RotaryScaling(
    kind="yarn", factor=32.0, original_positions=4096, fast_turns=1.0, slow_turns=1.0, mscale=1.0, mscale_all=1.0
)


def scaled(name: str, scaling: RotaryScaling | None) -> Model:
    return replace(load_model(name), rotary_scaling=scaling)


CASES = {
    "llama3": load_model("llama-3.1-8b"),
    "linear": scaled(DENSE, RotaryScaling(kind="linear", factor=4.0)),
    "yarn": scaled(DENSE, LONG),
    "yarn of the usual range": scaled(DENSE, RotaryScaling(kind="yarn", factor=4.0, original_positions=4096)),
    "yarn of fractional bounds": scaled(DENSE, GPT_OSS),
    "yarn with a factor of its own": scaled(DENSE, FACTOR),
    "yarn of latent attention": load_model(LATENT),
    "deepseek-v3": load_model("deepseek-v3"),
}


@pytest.mark.parametrize("name", CASES)
def test_scaling_comes_back_from_the_arguments(name: str) -> None:
    model = CASES[name]
    before = model.rotary_scaling
    assert before is not None
    assert scaling_arguments(model)
    after = read_back(model)
    assert after is not None
    assert replace(after, attention_factor=None) == replace(
        before, attention_factor=None, fast_turns=after.fast_turns, slow_turns=after.slow_turns
    )
    assert after.rotation_factor == pytest.approx(before.rotation_factor, rel=1e-12)


def read_back(model: Model) -> RotaryScaling | None:
    """Return the scaling of a launch line with a model's positions."""
    shape = "--num-layers 2 --hidden-size 512 --num-attention-heads 4 --seq-length 4096 --micro-batch-size 1 --bf16"
    latent = "--multi-latent-attention" if model.kinds[0].self_attention.latent else ""
    words = shlex.join(word for argument in arguments_of(position_arguments(model, 4096)) for word in argument)
    line = (
        f"torchrun --nproc_per_node 1 pretrain_gpt.py {shape} {latent} --global-batch-size 8 --vocab-size 512 {words}"
    )
    return plan_from_megatron(line, cluster=load_cluster("1x1xH100-SXM")).plan.model.rotary_scaling


@pytest.mark.parametrize("model", [scaled(LATENT, UNUSUAL), scaled(LATENT, CASES["llama3"].rotary_scaling)])
def test_what_has_no_argument_is_plain(model: Model) -> None:
    assert not scaling_arguments(model)
    assert position_arguments(model, 4096)["--rope-type"] == "rope"


def test_bridge_has_fields_for_every_range_of_latent_attention() -> None:
    fields = position_fields(scaled(LATENT, UNUSUAL))
    assert (fields["rope_type"], fields["beta_fast"], fields["rotary_scaling_factor"]) == ("yarn", 1.0, 32.0)


@pytest.mark.parametrize("name", [name for name, model in CASES.items() if yarn_of(model) is not None])
def test_megatron_core_makes_the_same_rotation(name: str) -> None:
    core = pytest.importorskip("megatron.core.models.common.embeddings.yarn_rotary_pos_embedding")
    torch = pytest.importorskip("torch")
    from shardwright.runtime.model.attention import _scaled

    model = CASES[name]
    yarn, scaling, latent = yarn_of(model), model.rotary_scaling, model.kinds[0].self_attention.latent
    assert yarn is not None
    assert scaling is not None
    width = latent.rope_head_dim if latent else model.kinds[0].self_attention.head_dim
    plain = 1.0 / model.rotary_base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    bounds = core._yarn_find_correction_range(
        yarn.beta_fast,
        yarn.beta_slow,
        width,
        model.rotary_base,
        yarn.original_max_position_embeddings,
        yarn.correction_range_round_to_int,
    )
    kept = 1.0 - core._yarn_linear_ramp_mask(*bounds, width // 2, "cpu")
    theirs = plain / yarn.rotary_scaling_factor * (1.0 - kept) + plain * kept
    torch.testing.assert_close(theirs, _scaled(plain, width, model.rotary_base, scaling, 0), rtol=1e-6, atol=0.0)
    factor = core._yarn_get_concentration_factor(yarn.rotary_scaling_factor, yarn.mscale, yarn.mscale_all_dim)
    assert factor == pytest.approx(scaling.rotation_factor, rel=1e-9)
