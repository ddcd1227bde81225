"""What Hugging Face calls each parameter, and in which form it keeps it: a row for each family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.runtime.model.fused import TAPS, Form, TensorSource, mixer_source, source_in
from shardwright.runtime.model.parameters import ModelParameter, mixer_shape
from shardwright.runtime.model.words import (
    BACKBONE,
    BERT_BLOCKS,
    BERT_ENDS,
    BLOOM,
    DEEPSEEK,
    DELTA,
    DELTA_BY_HEAD,
    DELTA_IN_PARTS,
    EXPERTS,
    GATE_UP,
    GATED_FORMS,
    GATED_QUERY,
    GEMMA2_NORMS,
    GLM_MOE,
    GPT2,
    GPT2_BLOCKS,
    GPT2_ENDS,
    GPT_OSS,
    GPTJ,
    GRANITE_MOE,
    HALVES,
    HUNYUAN,
    KIMI_DELTA,
    LFM2,
    LIGHTNING,
    LIGHTNING_FORMS,
    LING,
    LLAMA,
    MAMBA,
    MAMBA2,
    MIXTRAL,
    NEOX,
    OLMO2_NORMS,
    OLMO_HYBRID,
    OPT,
    Q_LAYERNORM,
    QWEN_MOE,
    QWEN_SHARED,
    SHARED,
    TOGETHER,
    W_EXPERTS,
    ZAMBA,
    ZAMBA2,
    Names,
    called_mixer,
    like,
    of_three,
)
from shardwright.spec.model import Model

# The families that `shardwright train` runs, of those that are read from a config.
FAMILIES: Mapping[str, Names] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "llama",
                "mistral",
                "qwen2",
                "qwen3",
                "arcee",
                "cwm",
                "emu3_text_model",
                "ernie4_5",
                "gemma",
                "granite",
                "helium",
                "internlm3",
                "iquestcoder",
                "jais2",
                "ministral",
                "nemotron",
                "olmo",
                "seed_oss",
                "smollm3",
                "cohere2",
                "stablelm",
            ),
            LLAMA,
        ),
        **dict.fromkeys(("qwen2_moe", "qwen3_moe", "olmoe", "mellum"), QWEN_MOE),
        **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), DEEPSEEK),
        **dict.fromkeys(("glm4_moe", "dots1", "solar_open"), GLM_MOE),
        "openai-gpt": like(
            GPT2,
            ends={"embedding.tokens": "transformer.tokens_embed", "embedding.positions": "transformer.positions_embed"},
            blocks={"attention_post_norm": "ln_1", "mlp_post_norm": "ln_2"},
        ),
        "gpt2": GPT2,
        **dict.fromkeys(("granitemoe", "granitemoeshared"), GRANITE_MOE),
        **dict.fromkeys(("gemma2", "gemma3_text"), like(LLAMA, blocks=GEMMA2_NORMS)),
        **dict.fromkeys(("olmo2", "olmo3", "exaone4"), like(LLAMA, blocks=OLMO2_NORMS)),
        **dict.fromkeys(("hunyuan_v1_dense",), like(LLAMA, blocks=HUNYUAN)),
        "bailing_hybrid": like(DEEPSEEK, ends={"embedding.tokens": "model.word_embeddings"}, blocks=LING),
        "bamba": like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks=MAMBA2
            | {"mlp_norm": "pre_ff_layernorm"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "granitemoehybrid": like(
            GRANITE_MOE,
            blocks=MAMBA2
            | {"mlp.gate": "shared_mlp.input_linear", "mlp.up": "shared_mlp.input_linear"}
            | {"mlp.down": "shared_mlp.output_linear"},
            forms={**GRANITE_MOE.forms, **HALVES},
        ),
        "jamba": like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={block: f"mamba.{name}" for block, name in MAMBA.items()}
            | {"mlp_norm": "pre_ff_layernorm", "moe.router": "feed_forward.router"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
            | {f"moe.experts.{part}": f"feed_forward.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "falcon_h1": like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks=MAMBA2
            | {"mlp_norm": "pre_ff_layernorm"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "kimi_linear": like(
            DEEPSEEK,
            blocks=KIMI_DELTA
            | W_EXPERTS
            | {"mixer.out": "self_attn.o_proj", "moe.balance.bias": "block_sparse_moe.gate.e_score_correction_bias"}
            | {block: name.replace("mlp.", "block_sparse_moe.") for block, name in SHARED.items()},
            forms={"mixer.decay": "between ones"},
        ),
        "lfm2": LFM2,
        **dict.fromkeys(("falcon_mamba", "mamba"), replace(BACKBONE, blocks=called_mixer(MAMBA))),
        "mamba2": BACKBONE,
        "minimax": like(MIXTRAL, blocks=LIGHTNING, forms=LIGHTNING_FORMS),
        "nemotron_h": like(
            BACKBONE, blocks={"moe.latent_down": "mixer.fc1_latent_proj", "moe.latent_up": "mixer.fc2_latent_proj"}
        ),
        "olmo_hybrid": like(LLAMA, blocks=OLMO2_NORMS | DELTA | OLMO_HYBRID),
        "lfm2_moe": like(
            LFM2,
            blocks={
                "moe.router": "feed_forward.gate",
                "moe.balance.bias": "feed_forward.expert_bias",
                **{
                    f"moe.experts.{part}": f"feed_forward.experts.{{}}.{name}"
                    for part, name in {"gate": "w1", "up": "w3", "down": "w2"}.items()
                },
            },
        ),
        "qwen3_5_moe_text": like(QWEN_MOE, blocks=DELTA_IN_PARTS | GATED_QUERY, forms=GATED_FORMS),
        "qwen3_5_text": like(LLAMA, blocks=DELTA_IN_PARTS | GATED_QUERY, forms=GATED_FORMS),
        "qwen3_next": like(
            QWEN_MOE,
            blocks=DELTA_BY_HEAD | GATED_QUERY,
            forms={
                **GATED_FORMS,
                **dict.fromkeys(
                    (f"mixer.{part}" for part in ("query", "key", "value", "gate", "rate", "decay_step")),
                    "by head of a mixer",
                ),
            },
        ),
        "bert": Names(layers="bert.encoder.layer", blocks=BERT_BLOCKS, ends=BERT_ENDS),
        "biogpt": replace(
            OPT,
            layers="biogpt.layers",
            ends={
                "embedding.tokens": "biogpt.embed_tokens",
                "embedding.positions": "biogpt.embed_positions",
                "head.norm": "biogpt.layer_norm",
                "head": "output_projection",
            },
        ),
        "bloom": BLOOM,
        "codegen": like(GPTJ, blocks=dict.fromkeys(TOGETHER, "attn.qkv_proj"), forms=of_three("quarters of q, v, k")),
        "cohere": like(LLAMA, forms=dict.fromkeys(("attention.query_norm", "attention.key_norm"), "row of each head")),
        "ernie4_5_moe": like(
            LLAMA,
            blocks=EXPERTS | SHARED | {"moe.balance.bias": "mlp.moe_statics.e_score_correction_bias"},
            forms={"moe.balance": "one row"},
        ),
        "falcon": like(BLOOM, forms=of_three("group by group")),
        "flex_olmo": like(LLAMA, blocks=OLMO2_NORMS | EXPERTS),
        "glm": like(LLAMA, blocks=GATE_UP, forms=HALVES),
        "glm4": like(
            LLAMA,
            blocks=GATE_UP | {"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"},
            forms=HALVES,
        ),
        "gpt_bigcode": replace(GPT2, forms=of_three("one after the other")),
        "gpt_neo": Names(
            layers="transformer.h",
            blocks={
                **GPT2_BLOCKS,
                "attention.query": "attn.attention.q_proj",
                "attention.key": "attn.attention.k_proj",
                "attention.value": "attn.attention.v_proj",
                "attention.out": "attn.attention.out_proj",
            },
            ends=GPT2_ENDS,
        ),
        "gpt_neox": NEOX,
        "gpt_oss": GPT_OSS,
        "gptj": GPTJ,
        "hunyuan_v1_moe": like(
            LLAMA,
            blocks={
                **HUNYUAN,
                **EXPERTS,
                "moe.router": "mlp.gate.wg",
                **{block: name.replace("shared_experts", "shared_mlp") for block, name in SHARED.items()},
            },
        ),
        "hyperclovax": like(LLAMA, blocks={"attention_post_norm": "post_norm1", "mlp_post_norm": "post_norm2"}),
        "minimax_m2": like(MIXTRAL, blocks={"moe.balance.bias": "block_sparse_moe.e_score_correction_bias"}),
        "mixtral": MIXTRAL,
        "mpt": Names(
            layers="transformer.blocks",
            blocks={
                "attention_norm": "norm_1",
                "mlp_norm": "norm_2",
                **dict.fromkeys(TOGETHER, "attn.Wqkv"),
                "attention.out": "attn.out_proj",
                "mlp.up": "ffn.up_proj",
                "mlp.down": "ffn.down_proj",
            },
            ends={"embedding.tokens": "transformer.wte", "head.norm": "transformer.norm_f", "head": "lm_head"},
            forms=of_three("one after the other"),
        ),
        "opt": OPT,
        "persimmon": like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={
                **Q_LAYERNORM,
                **dict.fromkeys(TOGETHER, "self_attn.query_key_value"),
                "attention.out": "self_attn.dense",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            forms=of_three("head by head"),
        ),
        "phi": like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={**Q_LAYERNORM, "attention.out": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
        ),
        "phi3": like(
            LLAMA,
            blocks=GATE_UP | dict.fromkeys(TOGETHER, "self_attn.qkv_proj"),
            forms={**HALVES, **of_three("one after the other")},
        ),
        "starcoder2": like(LLAMA, blocks={"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}),
        "vaultgemma": like(LLAMA, blocks={"mlp_norm": "pre_feedforward_layernorm"}),
        "zamba": ZAMBA,
        "zamba2": ZAMBA2,
    }
)
BIGCODE_HEADS = replace(FAMILIES["gpt_bigcode"], forms=of_three("head by head"))
OTHERS = like(LLAMA, blocks=EXPERTS | QWEN_SHARED)
FALCON_TWO_NORMS = like(FAMILIES["falcon"], blocks={"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"})


def names_of(model: Model) -> Names:
    """Return the names of a model's family, of Llama for a family that no config names."""
    if model.family == "falcon" and model.parallel_block and model.kinds[0].norms == 2:
        return FALCON_TWO_NORMS
    if model.family == "gpt_bigcode" and model.kinds[0].self_attention.kv_heads > 1:
        return BIGCODE_HEADS
    return FAMILIES.get(model.family, OTHERS)


def form_of(model: Model, parameter: ModelParameter) -> Form:
    """Return how a tensor of a Hugging Face file holds a parameter of a layer."""
    owner, _, _ = parameter.name.rpartition(".")
    return names_of(model).forms.get(owner.split(".", 2)[-1], "alone")


def _beside(model: Model, layer: int, name: str) -> tuple[int, str]:
    """Return the layer under which a file has a parameter of one that shares a block, and what it is called there: its
    mixer is a layer within it, and what is of low rank stands in the block, under the first layer that has this."""
    if name.startswith(("mamba.", "input_layernorm")):
        return layer, f"mamba_decoder.{name}"
    if name == "linear.weight":
        return layer, name
    return model.sharing[model.block_of(layer)], name.format(model.sharing.index(layer))


def source_of(model: Model, parameter: ModelParameter) -> TensorSource:
    """Return the tensor of a Hugging Face file that has a parameter."""
    names = names_of(model)
    owner, _, kind = parameter.name.rpartition(".")
    if owner in names.ends:
        return TensorSource(name=f"{names.ends[owner]}.{kind}")
    of, number, block = owner.split(".", 2)
    layer = model.sharing[int(number)] if of == "shared" else int(number)
    if parameter.expert is not None:
        block = block.replace(f".{parameter.expert}.", ".", 1)
    whole = names.blocks.get(f"{block}.{kind}")  # a name that says already what of the block it is
    name = whole or f"{names.blocks[block]}.{kind}"
    place, name = (layer, name.format(parameter.expert)) if layer not in model.sharing else _beside(model, layer, name)
    name = f"{names.layers}.{place}.{name}"
    form = names.forms.get(block, "alone")
    mixer = model.layers[layer].mixer
    if mixer is not None and block.startswith("mixer.") and kind in ("weight", "bias"):
        part = block.removeprefix("mixer.")
        shape = mixer_shape(mixer)
        like = [f"{other}{TAPS}" for other in shape.convolved] if part.endswith(TAPS) else list(shape.rows)
        together = [other for other in like if names.blocks[f"mixer.{other}"] == names.blocks.get(block)]
        if len(together) > 1:
            return mixer_source(name, form, mixer, parameter, part, together)
    return source_in(name, form, model, parameter, block)
