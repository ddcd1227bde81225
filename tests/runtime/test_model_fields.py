"""What a `Model` tells, the forward pass computes, or the runtime refuses: no field is passed over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.runtime.equal import SGD
from tests.runtime.reference import reference_run
from tests.runtime.samples import plan_of, replica, stage, tiny_model

from shardwright import Model, Plan, SpecError, load_model
from shardwright.runtime.layout.limits import unrunnable
from shardwright.runtime.model.details import details_of, differences
from shardwright.runtime.model.mixers import MIXERS
from shardwright.spec.forward_pass import ForwardPass, RotaryScaling
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe, SharedBlock, SparseAttention
from shardwright.spec.mixers import GatedDelta, Lightning, Mamba, Mamba2, Mixer, ShortConvolution
from shardwright.spec.read.huggingface_config import config_of_model
from shardwright.spec.streams import Streams

DENSE, MIXTURE = tiny_model(2), tiny_model(2, family="qwen2", experts=4, shared=True)
Change = Callable[[Model], Model]


def each_layer(**values: Any) -> Change:
    return lambda model: replace(model, layers=tuple(replace(layer, **values) for layer in model.layers))


def inside(part: str, **values: Any) -> Change:
    def changed(model: Model) -> Model:
        layers = (replace(layer, **{part: replace(getattr(layer, part), **values)}) for layer in model.layers)
        return replace(model, layers=tuple(layers))

    return changed


def whole(**values: Any) -> Change:
    return lambda model: replace(model, **values)


def attention(**values: Any) -> Change:
    return inside("attention", **values)


def computed(**values: Any) -> Change:
    return lambda model: replace(model, forward_pass=ForwardPass(**values))


def after(first: Change, *others: Change) -> Change:
    def changed(model: Model) -> Model:
        for change in (first, *others):
            model = change(model)
        return model

    return changed


def latent_attention(**values: Any) -> Change:
    latent = LatentAttention(**{"query_rank": 8, "kv_rank": 8, "nope_head_dim": 4, "rope_head_dim": 4} | values)
    width = latent.nope_head_dim + latent.rope_head_dim
    return attention(latent=latent, head_dim=width, kv_heads=4, value_head_dim=8)


def scaled(**values: Any) -> Change:
    usual = {"kind": "yarn", "factor": 8.0, "original_positions": 64, "mscale": 1.0, "mscale_all": 0.7}
    return whole(rotary_base=4.0, rotary_scaling=RotaryScaling(**usual | values))


def mixing(mixer: Mixer) -> Change:
    return each_layer(attention=None, mixer=mixer)


ADDING = computed(residual_scale=30.0)(DENSE)  # so much that a bias which begins at zero counts in the third step
DELTA: dict[str, Any] = {"key_heads": 4, "key_dim": 6, "value_heads": 4, "value_dim": 6, "width": 3}
MAMBA2 = Mamba2(heads=4, head_dim=6, groups=2, state=5, width=4)
MIXED: tuple[tuple[Mixer, dict[str, Any]], ...] = (
    (
        Mamba(inner=24, state=5, rank=3, width=4, normed=True),
        {"inner": 32, "state": 6, "rank": 4, "width": 3, "bias": True, "convolution_bias": False, "normed": False, "norm_epsilon": 0.5},
    ),
    (
        MAMBA2,
        {"heads": 6, "head_dim": 8, "groups": 1, "state": 6, "width": 3, "bias": True, "out_bias": True, "convolution_bias": False,
         "gated_norm": False, "least_step": 1.5, "norm_epsilon": 0.1},
    ),
    (
        GatedDelta(**DELTA),
        {"key_heads": 2, "key_dim": 8, "value_heads": 8, "value_dim": 8, "width": 4, "negative": True, "norm_epsilon": 0.1,
         "decay": "channel", "gate_rank": 5},
    ),
    (Lightning(heads=4, head_dim=6), {"heads": 8, "head_dim": 8, "norm_epsilon": 0.1}),
    (ShortConvolution(channels=24, width=3), {"channels": 32, "width": 4, "bias": True}),
)  # fmt: skip
WINDOWED = replace(
    DENSE, layers=(replace(DENSE.layers[0], attention=replace(DENSE.layers[0].self_attention, window=3)),) * 2
)
NORMED = attention(qk_norm=True)(DENSE)
GROUPED = inside("moe", router_groups=2, router_top_groups=1)
BIASED = inside("moe", router_bias=True)
LOUD = inside("moe", router_bias=True, router_scaling=100.0)(MIXTURE)
LATENT = latent_attention()(DENSE)
CHANNELS = mixing(GatedDelta(**DELTA | {"decay": "channel"}))(ADDING)
BESIDE = each_layer(mixer=MAMBA2)(DENSE)
SHARING = after(
    attention(doubled=True), each_layer(mixer=MAMBA2, norms=4, shared=SharedBlock(feed_rank=4)), whole(shared_blocks=1)
)(DENSE)
CHANNELS_ALONE = Mamba(inner=2400, state=64, rank=3, width=4)  # so many that keys and queries without norms count
SCALED = after(computed(score_scale=50.0), scaled())(DENSE)
LONG = {"kind": "longrope", "short_factors": (1.0, 2.0, 3.0, 4.0), "long_factors": (4.0, 3.0, 2.0, 1.0)}
REFUSED: dict[str, tuple[Change, Model]] = {
    "Model.mtp_layers": (whole(mtp_layers=1), DENSE),
    "Model.scores": (whole(scores=1, tied_embeddings=False), DENSE),
    "Model.embedding_width": (whole(embedding_width=16), DENSE),
    "Model.particular": (whole(particular="soft caps"), DENSE),
    "Model.tower": (whole(tower=load_model("llava-1.5-7b").tower), DENSE),
    "Model.audio": (whole(audio=load_model("qwen2-audio-7b").audio), DENSE),
    "Model.guesses": (whole(guesses=("no biases",)), DENSE),
    "Layer.norms": (each_layer(norms=4), DENSE),
    "Layer.cross": (lambda model: each_layer(cross=model.layers[0].self_attention)(model), DENSE),
    "Layer.embedded": (each_layer(embedded=8), DENSE),
    "Layer.scaled": (each_layer(scaled=True), DENSE),
    "Layer.streams": (each_layer(streams=Streams(count=4, rank=8)), DENSE),
    "Mlp.cut": (inside("mlp", cut=True), DENSE),
    "Attention.doubled": (attention(doubled=True), DENSE),
    "Attention.reused": (attention(reused="values"), DENSE),
    "Attention.value_norm": (attention(value_norm=True), DENSE),
    "Attention.sparse": (attention(sparse=SparseAttention(top_k=4, heads=2, head_dim=8)), DENSE),
    "Layer.vector_parameters": (each_layer(vector_parameters=8), DENSE),
    "ForwardPass.mask_token": (computed(), attention(causal=False)(computed(mask_token=3)(DENSE))),
    "ForwardPass.unknown": (computed(unknown=("a twist",)), DENSE),
}
COMPUTED: dict[str, tuple[Change, Model]] = {
    "Model.head_bias": (whole(head_bias=True), DENSE),
    "Model.parallel_block": (whole(parallel_block=True), DENSE),
    "Model.norm_vectors": (whole(norm_vectors=0), DENSE),
    "Model.norm_about_one": (whole(norm_about_one=True, norm_epsilon=1e-3), DENSE),
    "Model.rotary_interleaved": (whole(rotary_interleaved=True), DENSE),
    "Model.forward_pass": (computed(residual_scale=0.5), DENSE),
    "Attention.gate": (attention(gate="element"), DENSE),
    "Attention.causal": (attention(causal=False), computed(mask_token=3)(DENSE)),
    "ForwardPass.token_types": (computed(token_types=2), DENSE),
    "ForwardPass.head_transform": (computed(head_transform=True), DENSE),
    "ForwardPass.norms": (computed(norms="after"), DENSE),
    "ForwardPass.mixer_norms": (computed(mixer_norms="after"), mixing(GatedDelta(**DELTA))(DENSE)),
    "ForwardPass.stream_scales": (computed(stream_scales=((1.0, 2.0), (1.0, 1.0), (1.0, 1.0))), DENSE),
    "ForwardPass.branch_scales": (computed(branch_scales=((1.0, 2.0), (0.5, 1.0))), BESIDE),
    "ForwardPass.mixer_scales": (computed(mixer_scales=(1.0, 2.0, 0.5, 2.0, 0.5)), mixing(MAMBA2)(DENSE)),
    "ForwardPass.key_scale": (computed(key_scale=3.0), DENSE),
    "ForwardPass.gate_scale": (computed(gate_scale=3.0), DENSE),
    "ForwardPass.embedding_scale": (computed(embedding_scale=5.0), DENSE),
    "ForwardPass.residual_scale": (computed(residual_scale=0.5), DENSE),
    "ForwardPass.logit_scale": (computed(logit_scale=0.5), DENSE),
    "ForwardPass.logit_cap": (computed(logit_cap=0.1), DENSE),
    "ForwardPass.score_scale": (computed(score_scale=5.0), DENSE),
    "ForwardPass.score_cap": (computed(score_cap=1e-3), DENSE),
    "ForwardPass.qkv_clip": (computed(qkv_clip=1e-2), DENSE),
    "ForwardPass.query_key_norm": (after(each_layer(vector_parameters=32), computed(query_key_norm="projection")), NORMED),
    "ForwardPass.norm_after_rotation": (after(whole(norm_epsilon=1e-5), computed(norm_after_rotation=True)), NORMED),
    "ForwardPass.unrotated": (computed(unrotated=(1,)), DENSE),
    "ForwardPass.window_rotary_base": (computed(window_rotary_base=10.0), WINDOWED),
    "ForwardPass.latent_interleaved": (computed(latent_interleaved=True), LATENT),
    "ForwardPass.sinks": (after(each_layer(vector_parameters=4), computed(sinks=True)), DENSE),
    "ForwardPass.expert_bias": (after(each_layer(vector_parameters=320), computed(expert_bias=True)), MIXTURE),
    "ForwardPass.gate_limit": (computed(gate_limit=7.0, gate_slope=1.0), MIXTURE),
    "ForwardPass.gate_slope": (computed(gate_limit=7.0, gate_slope=2.0), MIXTURE),
    "ForwardPass.router_scores": (computed(router_scores="sigmoid"), MIXTURE),
    "ForwardPass.router_bias_learned": (computed(router_bias_learned=True), LOUD),
    "Attention.latent": (latent_attention(), DENSE),
    "LatentAttention.query_rank": (latent_attention(query_rank=None), LATENT),
    "LatentAttention.kv_rank": (latent_attention(kv_rank=12), LATENT),
    "LatentAttention.nope_head_dim": (latent_attention(nope_head_dim=8), LATENT),
    "LatentAttention.rope_head_dim": (latent_attention(rope_head_dim=8), LATENT),
    "Moe.latent": (inside("moe", latent=16), MIXTURE),
    "Moe.router_bias": (after(BIASED, GROUPED), GROUPED(MIXTURE)),
    "Moe.router_groups": (GROUPED, MIXTURE),
    "Moe.router_top_groups": (inside("moe", router_groups=4, router_top_groups=3), GROUPED(MIXTURE)),
    "Moe.router_scaling": (inside("moe", router_scaling=2.5), MIXTURE),
    "RotaryScaling.fast_turns": (scaled(fast_turns=4.0), SCALED),
    "RotaryScaling.slow_turns": (scaled(slow_turns=2.0), SCALED),
    "RotaryScaling.attention_factor": (scaled(attention_factor=2.0), SCALED),
    "RotaryScaling.mscale": (scaled(mscale=2.0), SCALED),
    "RotaryScaling.mscale_all": (scaled(mscale_all=0.3), SCALED),
    "RotaryScaling.whole_bounds": (scaled(whole_bounds=False), SCALED),
    "RotaryScaling.short_factors": (whole(rotary_scaling=RotaryScaling(**LONG)), DENSE),
    "RotaryScaling.long_factors": (whole(rotary_scaling=RotaryScaling(**LONG, original_positions=8)), DENSE),
    "Model.hidden": (whole(hidden=48), DENSE),
    "Model.vocab": (whole(vocab=64), DENSE),
    "Model.layers": (lambda model: replace(model, layers=model.layers[:1]), DENSE),
    "Model.norm": (whole(norm="layernorm"), DENSE),
    "Model.position": (whole(position="none"), DENSE),
    "Model.rotary_base": (whole(rotary_base=50.0), DENSE),
    "Model.learned_positions": (whole(learned_positions=32, position="learned"), DENSE),
    "Model.tied_embeddings": (whole(tied_embeddings=True), DENSE),
    "Model.final_norm": (whole(final_norm=False), DENSE),
    "Model.embedding_norm": (whole(embedding_norm=True), DENSE),
    "Model.activation": (whole(activation="relu"), DENSE),
    "Model.rotary_fraction": (whole(rotary_fraction=0.5), DENSE),
    "Model.norm_epsilon": (whole(norm_epsilon=0.1), DENSE),
    "Model.rotary_scaling": (whole(rotary_scaling=RotaryScaling(kind="linear", factor=8.0)), DENSE),
    "Attention.heads": (attention(heads=8), DENSE),
    "Attention.kv_heads": (attention(kv_heads=1), DENSE),
    "Attention.head_dim": (attention(head_dim=16), DENSE),
    "Attention.value_head_dim": (attention(value_head_dim=16), DENSE),
    "Attention.window": (attention(window=2), DENSE),
    "Attention.qkv_bias": (attention(qkv_bias=True), DENSE),
    "Attention.out_bias": (attention(out_bias=True), DENSE),
    "Attention.qk_norm": (attention(qk_norm=True), DENSE),
    "Layer.attention": (attention(kv_heads=4), DENSE),
    "Layer.mixer": (each_layer(mixer=MAMBA2), DENSE),
    "Layer.shared": (each_layer(shared=SharedBlock()), SHARING),
    "Model.shared_blocks": (whole(shared_blocks=2), SHARING),
    "SharedBlock.feed_rank": (each_layer(shared=SharedBlock(feed_rank=6)), SHARING),
    "SharedBlock.attention_rank": (each_layer(shared=SharedBlock(feed_rank=4, attention_rank=5)), SHARING),
    "Mamba.heads": (mixing(replace(CHANNELS_ALONE, heads=2)), mixing(CHANNELS_ALONE)(ADDING)),
    "GatedDelta.most_decay": (mixing(GatedDelta(**DELTA | {"decay": "channel", "most_decay": 0.5})), CHANNELS),
    "Layer.mlp": (each_layer(mlp=Mlp(width=32, gated=True)), DENSE),
    "Layer.moe": (each_layer(moe=None, mlp=Mlp(width=48, gated=True)), MIXTURE),
    "Mlp.width": (inside("mlp", width=64), DENSE),
    "Mlp.gated": (inside("mlp", gated=False), DENSE),
    "Mlp.bias": (inside("mlp", bias=True), DENSE),
    "Moe.experts": (inside("moe", experts=6), MIXTURE),
    "Moe.top_k": (inside("moe", top_k=1), MIXTURE),
    "Moe.expert_width": (inside("moe", expert_width=32), MIXTURE),
    "Moe.gated": (inside("moe", gated=False), MIXTURE),
    "Moe.shared_width": (inside("moe", shared_width=32), MIXTURE),
    "Moe.shared_gate": (inside("moe", shared_gate=False), MIXTURE),
    "Moe.pre_softmax": (inside("moe", pre_softmax=True), MIXTURE),
    "RotaryScaling.kind": (whole(rotary_scaling=RotaryScaling(kind="llama3", factor=8.0, original_positions=16)), DENSE),
    "RotaryScaling.factor": (whole(rotary_scaling=RotaryScaling(kind="linear", factor=3.0)), DENSE),
    "RotaryScaling.low_factor": (
        whole(rotary_scaling=RotaryScaling(kind="llama3", factor=8.0, low_factor=0.5, original_positions=16)),
        DENSE,
    ),
    "RotaryScaling.high_factor": (
        whole(rotary_scaling=RotaryScaling(kind="llama3", factor=8.0, high_factor=9.0, original_positions=16)),
        DENSE,
    ),
    "RotaryScaling.original_positions": (
        whole(rotary_scaling=RotaryScaling(kind="llama3", factor=8.0, original_positions=9)),
        DENSE,
    ),
}  # fmt: skip
COMPUTED |= {
    f"{type(mixer).__name__}.{name}": (mixing(replace(mixer, **{name: value})), mixing(mixer)(ADDING))
    for mixer, others in MIXED
    for name, value in others.items()
}
# Names and counts; the family is refused or has usual numbers; dropout is never trained with; what a layer embeds is
# refused; how transformers computes norms moves no more than the last bits, and so do chunks.
NO_PART = {
    "Model.name", "Model.family", "Model.max_position", "Model.dropout", "Model.extra_parameters", "Model.assumed",
    "Model.layer_vocab", "Model.norm_form", "Model.fused_qkv", "Mamba2.chunk", "Lightning.chunk",
}  # fmt: skip

# What a config beside the weights may say otherwise than the plan, and is then computed as it says.
OF_CONFIG = {"Model.norm_epsilon", "Model.rotary_scaling", "Moe.pre_softmax"}


def plan_with(model: Model) -> Plan:
    return plan_of(model, replica(stage((0, len(model.layers))), micro_batches=2))


def last_loss(model: Model) -> float:
    """Return the loss after two steps, in which biases that begin at zero count."""
    return reference_run(plan_with(model), SGD, steps=2, seed=7, details=details_of(model, None)).held_out


def test_every_field_is_computed_refused_or_no_part_of_the_forward_pass() -> None:
    every = {
        f"{kind.__name__}.{field.name}"
        for kind in (
            Model,
            ForwardPass,
            Attention,
            LatentAttention,
            Layer,
            Mlp,
            Moe,
            SharedBlock,
            RotaryScaling,
            *MIXERS,
        )
        for field in fields(kind)
    }
    assert set(COMPUTED) | set(REFUSED) | NO_PART == every
    assert len(COMPUTED) + len(REFUSED) + len(NO_PART) == len(every)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_field_of_the_runtime_has_is_refused(name: str) -> None:
    change, model = REFUSED[name]
    assert unrunnable(plan_with(model)) == () and unrunnable(plan_with(change(model)))


def test_what_is_computed_makes_another_loss() -> None:
    losses = {name: last_loss(change(model)) for name, (change, model) in COMPUTED.items()}
    known = {id(model): last_loss(model) for _, model in COMPUTED.values()}
    for name, (change, model) in COMPUTED.items():
        assert unrunnable(plan_with(change(model))) == (), name
        assert losses[name] != pytest.approx(known[id(model)], rel=1e-7), name
    scaled = [losses[name] for name in COMPUTED if name.startswith("RotaryScaling")]
    assert len(set(scaled)) == len(scaled)


def test_a_config_that_computes_otherwise_than_the_plan_is_refused_by_the_field() -> None:
    """Sizes that weights do not show too: windows, experts of a token, heads that are half as many and twice as wide."""
    for name, (change, model) in COMPUTED.items():
        others = [part for part, _, _ in differences(change(model), model)]
        assert bool(others) != (name in OF_CONFIG or name.startswith("RotaryScaling.")), (name, others)
    config = config_of_model(DENSE)
    assert details_of(DENSE, config).norm_epsilon == details_of(DENSE, None).norm_epsilon
    for change, words in (
        (attention(window=4), r"layers\[0\].attention.window is None, in the plan 4 \(make the plan of this"),
        (attention(heads=2, kv_heads=1, head_dim=16, value_head_dim=16), r"attention.kv_heads is 2, in the plan 1"),
        (whole(tied_embeddings=True), "tied_embeddings is False, in the plan True"),
        (whole(layers=DENSE.layers[:1]), "the number of layers is 2, in the plan 1"),
    ):
        with pytest.raises(SpecError, match=words):
            details_of(change(DENSE), config)


def test_a_gate_of_each_head_is_computed() -> None:
    losses = {gate: last_loss(attention(gate=gate)(DENSE)) for gate in (None, "element", "head")}
    assert len(set(losses.values())) == 3


def test_a_scaling_that_is_not_known_is_refused() -> None:
    with pytest.raises(SpecError, match="dynamic"):
        details_of(replace(DENSE, rotary_scaling=RotaryScaling(kind="dynamic")), None)
