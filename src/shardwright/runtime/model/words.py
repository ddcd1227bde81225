"""What Hugging Face calls the blocks of layers, and in which tensors several lie together, for like families together.

Names are those of the files that `save_pretrained` writes (huggingface/transformers@v5.23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from shardwright.records import record
from shardwright.runtime.model.fused import Form

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


def of_three(form: Form) -> dict[str, Form]:
    """Return the form of queries, keys and values."""
    return dict.fromkeys(TOGETHER, form)


def like(names: Names, ends: Words | None = None, **changes: object) -> Names:
    """Return names with other blocks, ends and forms beside those of a family."""
    blocks = changes.get("blocks", {})
    assert isinstance(blocks, Mapping)
    forms = changes.get("forms", names.forms)
    assert isinstance(forms, Mapping)
    return replace(names, blocks={**names.blocks, **blocks}, ends={**names.ends, **(ends or {})}, forms=forms)


GATE_UP = {"mlp.gate": "mlp.gate_up_proj", "mlp.up": "mlp.gate_up_proj"}
DEEPSEEK = like(LLAMA, blocks=LATENT | EXPERTS | SHARED | BALANCE)
GLM_MOE = like(LLAMA, blocks=EXPERTS | SHARED | BALANCE)
QWEN_MOE = like(LLAMA, blocks=EXPERTS | QWEN_SHARED)
HUNYUAN = {"attention.query_norm": "self_attn.query_layernorm", "attention.key_norm": "self_attn.key_layernorm"}
Q_LAYERNORM = {"attention.query_norm": "self_attn.q_layernorm", "attention.key_norm": "self_attn.k_layernorm"}
GPT2 = Names(
    layers="transformer.h",
    blocks=GPT2_BLOCKS,
    ends=GPT2_ENDS,
    forms={**of_three("turned thirds"), **TURNED},
)
NEOX = Names(
    layers="gpt_neox.layers",
    blocks=NEOX_BLOCKS,
    ends={"embedding.tokens": "gpt_neox.embed_in", "head.norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
    forms=of_three("head by head"),
)
BLOOM = Names(layers="transformer.h", blocks=BLOOM_BLOCKS, ends=BLOOM_ENDS, forms=of_three("head by head"))
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
MIXTRAL = like(LLAMA, blocks=W_EXPERTS)
GRANITE_MOE = like(
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
GPT_OSS = like(
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


def called_mixer(blocks: Words) -> dict[str, str]:
    """Return the names of blocks that are one mixer, attention or feed-forward each, all called so, behind one norm."""
    inner = {block: f"mixer.{name.rpartition('.')[2]}" for block, name in blocks.items()}
    return dict.fromkeys(("attention_norm", "mlp_norm"), "norm") | inner


BACKBONE = Names(
    layers="backbone.layers",
    blocks=called_mixer(MAMBA2 | ATTENTION | MLP)
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
LFM2 = like(
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


ZAMBA = like(
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
ZAMBA2 = like(
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
