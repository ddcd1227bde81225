"""What Hugging Face calls each parameter, and in which form it keeps it.

Names are those of the files that `save_pretrained` writes (huggingface/transformers@v5.23), family by family: a row
says where the layers are, what each block of a layer is called, and in which tensors several blocks lie together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from types import MappingProxyType

from shardwright.records import record
from shardwright.runtime.model.fused import TAPS, Form, TensorSource, mixer_source, source_in
from shardwright.runtime.model.parameters import ModelParameter, mixer_shape
from shardwright.spec.model import Model

Words = Mapping[str, str]


@record
class Names:
    """The names of a family: the folder of its layers, of blocks in a layer ({}: the number of an expert), of what is
    beside layers, and the forms of tensors that hold other than one parameter as it is."""

    layers: str
    blocks: Words
    ends: Words
    forms: Mapping[str, Form] = field(default_factory=dict)


ATTENTION = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
}
LATENT = {
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj",
    "attention.latent_down": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.latent_up": "self_attn.kv_b_proj",
}
MLP = {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
EXPERTS = {
    "moe.router": "mlp.gate",
    "moe.experts.gate": "mlp.experts.{}.gate_proj",
    "moe.experts.up": "mlp.experts.{}.up_proj",
    "moe.experts.down": "mlp.experts.{}.down_proj",
}
SHARED = {
    "moe.shared.gate": "mlp.shared_experts.gate_proj",
    "moe.shared.up": "mlp.shared_experts.up_proj",
    "moe.shared.down": "mlp.shared_experts.down_proj",
}
QWEN_SHARED = {block: name.replace("experts", "expert") for block, name in SHARED.items()} | {
    "moe.shared_weight": "mlp.shared_expert_gate"
}
BALANCE = {"moe.balance.bias": "mlp.gate.e_score_correction_bias"}
ENDS = {"embedding.tokens": "model.embed_tokens", "head.norm": "model.norm", "head": "lm_head"}
LLAMA = Names(layers="model.layers", blocks=NORMS | ATTENTION | MLP, ends=ENDS)
OLMO2_NORMS = {"attention_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm"}
GEMMA2_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm", **OLMO2_NORMS}
W_EXPERTS = {
    "moe.router": "block_sparse_moe.gate",
    "moe.experts.gate": "block_sparse_moe.experts.{}.w1",
    "moe.experts.up": "block_sparse_moe.experts.{}.w3",
    "moe.experts.down": "block_sparse_moe.experts.{}.w2",
}
GPT2_BLOCKS = {
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
GPT2_ENDS = {
    "embedding.tokens": "transformer.wte",
    "embedding.positions": "transformer.wpe",
    "head.norm": "transformer.ln_f",
    "head": "lm_head",
}
NEOX_BLOCKS = NORMS | {
    "attention.query": "attention.query_key_value",
    "attention.key": "attention.query_key_value",
    "attention.value": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
BLOOM_BLOCKS = {block: name.replace("attention.", "self_attention.") for block, name in NEOX_BLOCKS.items()}
BLOOM_ENDS = {
    "embedding.tokens": "transformer.word_embeddings",
    "embedding.norm": "transformer.word_embeddings_layernorm",
    "head.norm": "transformer.ln_f",
    "head": "lm_head",
}
OPT_BLOCKS = ATTENTION | {
    "attention_norm": "self_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "attention_post_norm": "self_attn_layer_norm",
    "mlp_post_norm": "final_layer_norm",
    "attention.out": "self_attn.out_proj",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
GPTJ_BLOCKS = {
    "attention_norm": "ln_1",
    "attention.query": "attn.q_proj",
    "attention.key": "attn.k_proj",
    "attention.value": "attn.v_proj",
    "attention.out": "attn.out_proj",
    "mlp.up": "mlp.fc_in",
    "mlp.down": "mlp.fc_out",
}
BERT_BLOCKS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "attention_post_norm": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "mlp_post_norm": "output.LayerNorm",
}
BERT_ENDS = {
    "embedding.tokens": "bert.embeddings.word_embeddings",
    "embedding.positions": "bert.embeddings.position_embeddings",
    "embedding.types": "bert.embeddings.token_type_embeddings",
    "embedding.norm": "bert.embeddings.LayerNorm",
    "head.transform": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head": "cls.predictions",
}
TURNED: Mapping[str, Form] = dict.fromkeys(("attention.out", "mlp.up", "mlp.down"), "turned")
TOGETHER = ("attention.query", "attention.key", "attention.value")


def _of_three(form: Form) -> dict[str, Form]:
    """Return the form of queries, keys and values."""
    return dict.fromkeys(TOGETHER, form)


def _like(names: Names, ends: Words | None = None, **changes: object) -> Names:
    """Return names with other blocks, ends and forms beside those of a family."""
    blocks = changes.get("blocks", {})
    assert isinstance(blocks, Mapping)
    forms = changes.get("forms", names.forms)
    assert isinstance(forms, Mapping)
    return replace(names, blocks={**names.blocks, **blocks}, ends={**names.ends, **(ends or {})}, forms=forms)


GATE_UP = {"mlp.gate": "mlp.gate_up_proj", "mlp.up": "mlp.gate_up_proj"}
DEEPSEEK = _like(LLAMA, blocks=LATENT | EXPERTS | SHARED | BALANCE)
GLM_MOE = _like(LLAMA, blocks=EXPERTS | SHARED | BALANCE)
QWEN_MOE = _like(LLAMA, blocks=EXPERTS | QWEN_SHARED)
HUNYUAN = {"attention.query_norm": "self_attn.query_layernorm", "attention.key_norm": "self_attn.key_layernorm"}
Q_LAYERNORM = {"attention.query_norm": "self_attn.q_layernorm", "attention.key_norm": "self_attn.k_layernorm"}
GPT2 = Names(
    layers="transformer.h",
    blocks=GPT2_BLOCKS,
    ends=GPT2_ENDS,
    forms={**_of_three("turned thirds"), **TURNED},
)
NEOX = Names(
    layers="gpt_neox.layers",
    blocks=NEOX_BLOCKS,
    ends={"embedding.tokens": "gpt_neox.embed_in", "head.norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    forms=_of_three("head by head"),
)
BLOOM = Names(layers="transformer.h", blocks=BLOOM_BLOCKS, ends=BLOOM_ENDS, forms=_of_three("head by head"))
OPT = Names(
    layers="model.decoder.layers",
    blocks=OPT_BLOCKS,
    ends={
        "embedding.tokens": "model.decoder.embed_tokens",
        "embedding.positions": "model.decoder.embed_positions",
        "head.norm": "model.decoder.final_layer_norm",
        "head": "lm_head",
    },
)
GPTJ = Names(layers="transformer.h", blocks=GPTJ_BLOCKS, ends=GPT2_ENDS)
MIXTRAL = _like(LLAMA, blocks=W_EXPERTS)
GRANITE_MOE = _like(
    LLAMA,
    blocks={
        "moe.router": "block_sparse_moe.router.layer",
        "moe.experts.gate": "block_sparse_moe.input_linear",
        "moe.experts.up": "block_sparse_moe.input_linear",
        "moe.experts.down": "block_sparse_moe.output_linear",
        "moe.shared.gate": "shared_mlp.input_linear",
        "moe.shared.up": "shared_mlp.input_linear",
        "moe.shared.down": "shared_mlp.output_linear",
    },
    forms={
        "moe.experts.gate": "first half of experts",
        "moe.experts.up": "second half of experts",
        "moe.experts.down": "one of experts",
        "moe.shared.gate": "first half",
        "moe.shared.up": "second half",
    },
)
GPT_OSS = _like(
    LLAMA,
    blocks={
        "attention.sinks.weight": "self_attn.sinks",
        "moe.router": "mlp.router",
        **{f"moe.experts.{part}.weight": "mlp.experts.gate_up_proj" for part in ("gate", "up")},
        **{f"moe.experts.{part}.bias": "mlp.experts.gate_up_proj_bias" for part in ("gate", "up")},
        "moe.experts.down.weight": "mlp.experts.down_proj",
        "moe.experts.down.bias": "mlp.experts.down_proj_bias",
    },
    forms={
        "moe.experts.gate": "even columns of experts",
        "moe.experts.up": "odd columns of experts",
        "moe.experts.down": "one of turned experts",
    },
)
MAMBA2 = {
    **dict.fromkeys((f"mixer.{part}" for part in ("gate", "value", "key", "query", "step")), "mamba.in_proj"),
    **dict.fromkeys((f"mixer.{part}_taps" for part in ("value", "key", "query")), "mamba.conv1d"),
    "mixer.decay.weight": "mamba.A_log",
    "mixer.step_shift.weight": "mamba.dt_bias",
    "mixer.skip.weight": "mamba.D",
    "mixer.norm": "mamba.norm",
    "mixer.out": "mamba.out_proj",
}
MAMBA = {
    **dict.fromkeys(("mixer.value", "mixer.gate"), "in_proj"),
    "mixer.value_taps": "conv1d",
    "mixer.low": "x_proj",
    "mixer.step": "dt_proj",
    "mixer.decay.weight": "A_log",
    "mixer.skip.weight": "D",
    "mixer.step_norm": "dt_layernorm",
    "mixer.key_norm": "b_layernorm",
    "mixer.query_norm": "c_layernorm",
    "mixer.out": "out_proj",
}
LIGHTNING = {
    **dict.fromkeys((f"mixer.{part}" for part in ("query", "key", "value")), "self_attn.qkv_proj"),
    "mixer.gate": "self_attn.output_gate",
    "mixer.norm": "self_attn.norm",
    "mixer.out": "self_attn.out_proj",
}
LIGHTNING_FORMS: Mapping[str, Form] = dict.fromkeys(
    (f"mixer.{part}" for part in ("query", "key", "value")), "by head of a mixer"
)


def _called_mixer(blocks: Words) -> dict[str, str]:
    """Return the names of blocks that are one mixer, attention or feed-forward each, all called so, behind one norm."""
    inner = {block: f"mixer.{name.rpartition('.')[2]}" for block, name in blocks.items()}
    return dict.fromkeys(("attention_norm", "mlp_norm"), "norm") | inner


BACKBONE = Names(
    layers="backbone.layers",
    blocks=_called_mixer(MAMBA2 | ATTENTION | MLP)
    | {block: name.replace("mlp.", "mixer.") for block, name in (EXPERTS | SHARED | BALANCE).items()},
    ends={"embedding.tokens": "backbone.embeddings", "head.norm": "backbone.norm_f", "head": "lm_head"},
)
DELTA = {
    **dict.fromkeys((f"mixer.{part}_taps" for part in ("query", "key", "value")), "linear_attn.conv1d"),
    "mixer.decay.weight": "linear_attn.A_log",
    "mixer.step_shift.weight": "linear_attn.dt_bias",
    "mixer.norm": "linear_attn.norm",
    "mixer.out": "linear_attn.out_proj",
}
DELTA_BY_HEAD = DELTA | {
    **dict.fromkeys((f"mixer.{part}" for part in ("query", "key", "value", "gate")), "linear_attn.in_proj_qkvz"),
    **dict.fromkeys(("mixer.rate", "mixer.decay_step"), "linear_attn.in_proj_ba"),
}
KIMI_DELTA = {
    **{f"mixer.{part}": f"self_attn.{part[0]}_proj" for part in ("query", "key", "value", "out")},
    **{f"mixer.{part}_taps": f"self_attn.{part[0]}_conv1d" for part in ("query", "key", "value")},
    "mixer.rate": "self_attn.b_proj",
    "mixer.gate_down": "self_attn.g_a_proj",
    "mixer.gate_up": "self_attn.g_b_proj",
    "mixer.decay_step_down": "self_attn.f_a_proj",
    "mixer.decay_step_up": "self_attn.f_b_proj",
    "mixer.decay.weight": "self_attn.A_log",
    "mixer.step_shift.weight": "self_attn.dt_bias",
    "mixer.norm": "self_attn.o_norm",
}
LING = {
    **{block: name.replace("self_attn.", "attention.") for block, name in (ATTENTION | LATENT | KIMI_DELTA).items()},
    "attention.gate": "attention.g_proj",
    "attention.out": "attention.dense",
    "mixer.out": "attention.dense",
    "mixer.gate": "attention.g_proj",
    "mixer.decay_step": "attention.f_proj",
    "moe.balance.bias": "mlp.gate.expert_bias",
}
# What transformers 5.24 calls the norm after attention of OLMo Hybrid, too, and dense feed-forward blocks of Kimi
# Linear; the files that these came with have their own names.
OTHER_NAMES = {"feedforward_layer_norm": "post_attention_layernorm", ".mlp.": ".block_sparse_moe."}
OLMO_HYBRID = {
    "attention_norm": "attention_layer_norm",
    "attention_post_norm": "feedforward_layer_norm",
    "mlp_norm": "feedforward_layer_norm",
    **{f"mixer.{part}": f"linear_attn.{part[0]}_proj" for part in ("query", "key", "value", "gate", "out")},
    **{f"mixer.{part}_taps": f"linear_attn.{part[0]}_conv1d" for part in ("query", "key", "value")},
    "mixer.rate": "linear_attn.b_proj",
    "mixer.decay_step": "linear_attn.a_proj",
    "mixer.norm": "linear_attn.o_norm",
}
DELTA_IN_PARTS = DELTA | {
    **dict.fromkeys((f"mixer.{part}" for part in ("query", "key", "value")), "linear_attn.in_proj_qkv"),
    "mixer.gate": "linear_attn.in_proj_z",
    "mixer.rate": "linear_attn.in_proj_b",
    "mixer.decay_step": "linear_attn.in_proj_a",
}
GATED_QUERY = {"attention.gate": "self_attn.q_proj"}
GATED_FORMS: Mapping[str, Form] = dict.fromkeys(("attention.query", "attention.gate"), "query and gate by head")
LFM2 = _like(
    LLAMA,
    ends={"head.norm": "model.embedding_norm"},
    blocks={
        **dict.fromkeys((f"mixer.{part}" for part in ("before", "after", "value")), "conv.in_proj"),
        "mixer.value_taps": "conv.conv",
        "mixer.out": "conv.out_proj",
        "attention_norm": "operator_norm",
        "mlp_norm": "ffn_norm",
        "attention.out": "self_attn.out_proj",
        "attention.query_norm": "self_attn.q_layernorm",
        "attention.key_norm": "self_attn.k_layernorm",
        "mlp.gate": "feed_forward.w1",
        "mlp.up": "feed_forward.w3",
        "mlp.down": "feed_forward.w2",
    },
)


def _of_shared_block(name: str, mlp: Words) -> dict[str, str]:
    """Return what a block that layers share is called, and the product and the norm that a layer has beside it."""
    inner = {"joined_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm", **ATTENTION, **mlp}
    return {block: f"{name}.{of_block}" for block, of_block in inner.items()} | {
        "square": "linear",
        "mixer_norm": "input_layernorm",
    }


ZAMBA = _like(
    LLAMA,
    ends={"head.norm": "model.final_layernorm"},
    blocks={block: f"mamba.{name}" for block, name in MAMBA.items()}
    | {"mixer.low.weight": "mamba.x_proj_weight"}
    | {f"mixer.step.{kind}": f"mamba.dt_proj_{kind}" for kind in ("weight", "bias")}
    | _of_shared_block(
        "shared_transf", {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
    ),
    forms=dict.fromkeys(("mixer.value", "mixer.gate"), "rows in turn")
    | dict.fromkeys((f"mixer.{part}" for part in ("low", "step", "decay", "skip")), "rows of each head of a mixer"),
)
LOW_RANK = "_adapter_list.{}"  # of the layers that share a block, in order
ZAMBA2 = _like(
    LLAMA,
    ends={"head.norm": "model.final_layernorm"},
    blocks=MAMBA2
    | _of_shared_block(
        "shared_transformer",
        {
            **dict.fromkeys(("mlp.gate", "mlp.up"), "feed_forward.gate_up_proj"),
            "mlp.down": "feed_forward.down_proj",
            "mlp.low_down": f"feed_forward.gate_up_proj{LOW_RANK}.0",
            **dict.fromkeys(("mlp.gate_up", "mlp.up_up"), f"feed_forward.gate_up_proj{LOW_RANK}.1"),
            **{
                f"attention.{part}_{step}": f"self_attn.linear_{part[0]}{LOW_RANK}.{number}"
                for part in ("query", "key", "value")
                for number, step in enumerate(("down", "up"))
            },
        },
    ),
    forms=dict.fromkeys(("mlp.gate", "mlp.gate_up"), "first half")
    | dict.fromkeys(("mlp.up", "mlp.up_up"), "second half"),
)
HALVES: Mapping[str, Form] = {"mlp.gate": "first half", "mlp.up": "second half"}
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
        "openai-gpt": _like(
            GPT2,
            ends={"embedding.tokens": "transformer.tokens_embed", "embedding.positions": "transformer.positions_embed"},
            blocks={"attention_post_norm": "ln_1", "mlp_post_norm": "ln_2"},
        ),
        "gpt2": GPT2,
        **dict.fromkeys(("granitemoe", "granitemoeshared"), GRANITE_MOE),
        **dict.fromkeys(("gemma2", "gemma3_text"), _like(LLAMA, blocks=GEMMA2_NORMS)),
        **dict.fromkeys(("olmo2", "olmo3", "exaone4"), _like(LLAMA, blocks=OLMO2_NORMS)),
        **dict.fromkeys(("hunyuan_v1_dense",), _like(LLAMA, blocks=HUNYUAN)),
        "bailing_hybrid": _like(DEEPSEEK, ends={"embedding.tokens": "model.word_embeddings"}, blocks=LING),
        "bamba": _like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks=MAMBA2
            | {"mlp_norm": "pre_ff_layernorm"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "granitemoehybrid": _like(
            GRANITE_MOE,
            blocks=MAMBA2
            | {"mlp.gate": "shared_mlp.input_linear", "mlp.up": "shared_mlp.input_linear"}
            | {"mlp.down": "shared_mlp.output_linear"},
            forms={**GRANITE_MOE.forms, **HALVES},
        ),
        "jamba": _like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={block: f"mamba.{name}" for block, name in MAMBA.items()}
            | {"mlp_norm": "pre_ff_layernorm", "moe.router": "feed_forward.router"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
            | {f"moe.experts.{part}": f"feed_forward.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "falcon_h1": _like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks=MAMBA2
            | {"mlp_norm": "pre_ff_layernorm"}
            | {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        ),
        "kimi_linear": _like(
            DEEPSEEK,
            blocks=KIMI_DELTA
            | W_EXPERTS
            | {"mixer.out": "self_attn.o_proj", "moe.balance.bias": "block_sparse_moe.gate.e_score_correction_bias"}
            | {block: name.replace("mlp.", "block_sparse_moe.") for block, name in SHARED.items()},
            forms={"mixer.decay": "between ones"},
        ),
        "lfm2": LFM2,
        **dict.fromkeys(("falcon_mamba", "mamba"), replace(BACKBONE, blocks=_called_mixer(MAMBA))),
        "mamba2": BACKBONE,
        "minimax": _like(MIXTRAL, blocks=LIGHTNING, forms=LIGHTNING_FORMS),
        "nemotron_h": _like(
            BACKBONE, blocks={"moe.latent_down": "mixer.fc1_latent_proj", "moe.latent_up": "mixer.fc2_latent_proj"}
        ),
        "olmo_hybrid": _like(LLAMA, blocks=OLMO2_NORMS | DELTA | OLMO_HYBRID),
        "lfm2_moe": _like(
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
        "qwen3_5_moe_text": _like(QWEN_MOE, blocks=DELTA_IN_PARTS | GATED_QUERY, forms=GATED_FORMS),
        "qwen3_5_text": _like(LLAMA, blocks=DELTA_IN_PARTS | GATED_QUERY, forms=GATED_FORMS),
        "qwen3_next": _like(
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
        "codegen": _like(GPTJ, blocks=dict.fromkeys(TOGETHER, "attn.qkv_proj"), forms=_of_three("quarters of q, v, k")),
        "cohere": _like(LLAMA, forms=dict.fromkeys(("attention.query_norm", "attention.key_norm"), "row of each head")),
        "ernie4_5_moe": _like(
            LLAMA,
            blocks=EXPERTS | SHARED | {"moe.balance.bias": "mlp.moe_statics.e_score_correction_bias"},
            forms={"moe.balance": "one row"},
        ),
        "falcon": _like(BLOOM, forms=_of_three("group by group")),
        "flex_olmo": _like(LLAMA, blocks=OLMO2_NORMS | EXPERTS),
        "glm": _like(LLAMA, blocks=GATE_UP, forms=HALVES),
        "glm4": _like(
            LLAMA,
            blocks=GATE_UP | {"attention_post_norm": "post_self_attn_layernorm", "mlp_post_norm": "post_mlp_layernorm"},
            forms=HALVES,
        ),
        "gpt_bigcode": replace(GPT2, forms=_of_three("one after the other")),
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
        "hunyuan_v1_moe": _like(
            LLAMA,
            blocks={
                **HUNYUAN,
                **EXPERTS,
                "moe.router": "mlp.gate.wg",
                **{block: name.replace("shared_experts", "shared_mlp") for block, name in SHARED.items()},
            },
        ),
        "hyperclovax": _like(LLAMA, blocks={"attention_post_norm": "post_norm1", "mlp_post_norm": "post_norm2"}),
        "minimax_m2": _like(MIXTRAL, blocks={"moe.balance.bias": "block_sparse_moe.e_score_correction_bias"}),
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
            forms=_of_three("one after the other"),
        ),
        "opt": OPT,
        "persimmon": _like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={
                **Q_LAYERNORM,
                **dict.fromkeys(TOGETHER, "self_attn.query_key_value"),
                "attention.out": "self_attn.dense",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
            forms=_of_three("head by head"),
        ),
        "phi": _like(
            LLAMA,
            ends={"head.norm": "model.final_layernorm"},
            blocks={**Q_LAYERNORM, "attention.out": "self_attn.dense", "mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
        ),
        "phi3": _like(
            LLAMA,
            blocks=GATE_UP | dict.fromkeys(TOGETHER, "self_attn.qkv_proj"),
            forms={**HALVES, **_of_three("one after the other")},
        ),
        "starcoder2": _like(LLAMA, blocks={"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}),
        "vaultgemma": _like(LLAMA, blocks={"mlp_norm": "pre_feedforward_layernorm"}),
        "zamba": ZAMBA,
        "zamba2": ZAMBA2,
    }
)
"""The families that `shardwright train` runs, of those that are read from a config."""
BIGCODE_HEADS = replace(FAMILIES["gpt_bigcode"], forms=_of_three("head by head"))
OTHERS = _like(LLAMA, blocks=EXPERTS | QWEN_SHARED)
FALCON_TWO_NORMS = _like(FAMILIES["falcon"], blocks={"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"})


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
