"""A family of models that nobody knows: what its fields suggest, which the user must accept as a guess."""

from __future__ import annotations

from shardwright.errors import Problem, SpecError
from shardwright.spec.read import config_fields as spelled
from shardwright.spec.read.config_fields import ConfigFields
from shardwright.spec.read.families import ModelFamily

GATES = ("silu", "swish", "swiglu", "geglu", "reglu", "glu")
UNGATED = ("relu", "relu2", "squared_relu", "xielu")
RECURRENT = ("mamba_d_state", "ssm_cfg", "ssm_state_size", "linear_num_key_heads", "hybrid_override_pattern")
REMEDY = "describe it in a YAML of dimensions, or take the guess with `accept_guess=True`"


def guessed_family(fields: ConfigFields, model_type: str) -> ModelFamily:
    """Return the traits of an unknown family, by its fields and otherwise those of Llama; each is a guess."""
    activation = fields.text(*spelled.ACTIVATION, default="silu").casefold()
    root_mean_square = fields.has(("rms_norm_eps", "rms_norm_epsilon")) is not None
    mean_too = fields.has(("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon")) is not None
    gated = activation in GATES or (root_mean_square and activation not in UNGATED)
    layer_norm = not root_mean_square and (mean_too or not gated)
    linear_bias = fields.flag("use_bias", default=fields.flag("add_bias_linear", default=False))
    family = ModelFamily(
        gated=gated,
        norm="layernorm" if layer_norm else "rmsnorm",
        position="alibi" if fields.flag("alibi", default=False) else "rope",
        qkv_bias=fields.flag("attention_bias", default=fields.flag("use_qkv_bias", default=linear_bias)),
        out_bias=fields.flag("attention_bias", default=linear_bias),
        mlp_bias=fields.flag("mlp_bias", default=linear_bias),
        qk_norm=any(fields.flag(name, default=False) for name in ("qk_norm", "use_qk_norm", "qk_layernorm")),
        windows="all",
        width_factor=None if gated else 4,
    )
    kind = f"model_type {model_type!r} is not known" if model_type else "no model_type is given"
    biases = "biases where the config says so" if family.qkv_bias or family.mlp_bias else "no biases"
    block, norm = "gated" if gated else "plain", "LayerNorm" if layer_norm else "RMSNorm"
    positions = "ALiBi" if family.position == "alibi" else "rotary positions"
    fields.guess(f"{kind}: {block} feed-forward, two {norm}s a layer, {positions}, {biases}")
    if fields.section.fields.get("tie_word_embeddings") is None:
        fields.guess("the output projection is not tied to the embedding")
    if fields.has(RECURRENT):
        fields.guess("layers with a recurrent state are taken as attention")
    return family


def settle_guesses(fields: ConfigFields, *, accept: bool) -> tuple[str, ...]:
    """Return the guesses in words. Raises SpecError with each where they are not accepted."""
    guesses = tuple(dict.fromkeys(fields.guessed))
    if guesses and not accept:
        raise SpecError(*(Problem(fields.section.place, f"would be a guess: {words}", REMEDY) for words in guesses))
    return guesses
