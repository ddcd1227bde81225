"""Whole models of other people, small: the architectures of `transformers`, each with a few layers and few features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shardwright.spmd.task import Task

ROWS, SEQUENCE, VOCABULARY, CLASSES, IMAGE, FRAMES = 6, 8, 40, 5, 32, 400
Batch = dict[str, Tensor]
TOKENS = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**TOKENS, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "pad_token_id": 0}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 4}
VISION = {**TOKENS, "image_size": IMAGE, "patch_size": 8, "num_labels": CLASSES}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A model of `transformers`: its class, the class of its configuration and the fields that make it small, what a
    batch holds, what its call is told beside, the parameters that its loss does not reach, which are frozen, and its
    numbers: `float64` where rounding grows so much from layer to layer that eager losses in `float32` mean little."""

    model: str
    config: str
    fields: dict[str, Any] = field(default_factory=dict)
    batch: Callable[[torch.Generator], Batch]
    call: dict[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32


def tokens(draw: torch.Generator) -> Batch:
    ids = torch.randint(3, VOCABULARY, (ROWS, SEQUENCE), generator=draw)
    return {"input_ids": ids, "labels": ids.clone()}


def texts(draw: torch.Generator) -> Batch:
    return {"input_ids": tokens(draw)["input_ids"], "labels": torch.randint(CLASSES, (ROWS,), generator=draw)}


def pairs(draw: torch.Generator) -> Batch:
    first, second = tokens(draw), tokens(draw)
    return {"input_ids": first["input_ids"], "decoder_input_ids": second["input_ids"], "labels": second["labels"]}


def images(draw: torch.Generator) -> Batch:
    pixels = torch.randn(ROWS, 3, IMAGE, IMAGE, generator=draw)
    return {"pixel_values": pixels, "labels": torch.randint(CLASSES, (ROWS,), generator=draw)}


def sounds(draw: torch.Generator) -> Batch:
    return {
        "input_values": torch.randn(ROWS, FRAMES, generator=draw),
        "labels": torch.randint(CLASSES, (ROWS,), generator=draw),
    }


def spectra(draw: torch.Generator) -> Batch:
    return {
        "input_values": torch.randn(ROWS, 32, 16, generator=draw),
        "labels": torch.randint(CLASSES, (ROWS,), generator=draw),
    }


def speech(draw: torch.Generator) -> Batch:
    ids = tokens(draw)["input_ids"]
    return {"input_features": torch.randn(ROWS, 8, 32, generator=draw), "decoder_input_ids": ids, "labels": ids.clone()}


def both(draw: torch.Generator) -> Batch:
    return {"pixel_values": images(draw)["pixel_values"], "input_ids": tokens(draw)["input_ids"]}


def _decoder(name: str, **fields: Any) -> Published:
    return Published(model=f"{name}ForCausalLM", config=f"{name}Config", fields={**GROUPED, **fields}, batch=tokens)


def _masked(name: str, **fields: Any) -> Published:
    return Published(model=f"{name}ForMaskedLM", config=f"{name}Config", fields={**DECODER, **fields}, batch=tokens)


def _vision(name: str, **fields: Any) -> Published:
    return Published(
        model=f"{name}ForImageClassification", config=f"{name}Config", fields={**VISION, **fields}, batch=images
    )


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CONVOLUTIONS = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "num_labels": CLASSES}
# fmt: off
MODELS: dict[str, Published] = {
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral", sliding_window=4),
    "qwen2": _decoder("Qwen2"),
    "qwen3": _decoder("Qwen3"),
    "gemma": _decoder("Gemma"),
    "gemma2": _decoder("Gemma2", query_pre_attn_scalar=4, sliding_window=4),
    "gemma3": Published(
        model="Gemma3ForCausalLM",
        config="Gemma3TextConfig",
        fields={**GROUPED, "query_pre_attn_scalar": 4, "sliding_window": 4},
        batch=tokens,
    ),
    "phi": _decoder("Phi"),
    "phi3": _decoder("Phi3"),
    "olmo2": _decoder("Olmo2"),
    "granite": _decoder("Granite"),
    "cohere": _decoder("Cohere"),
    "starcoder2": _decoder("Starcoder2"),
    "stablelm": _decoder("StableLm"),
    "glm": _decoder("Glm"),
    "smollm3": _decoder("SmolLM3"),
    "nemotron": _decoder("Nemotron"),
    "gpt-neox": _decoder("GPTNeoX"),
    "gptj": Published(
        model="GPTJForCausalLM",
        config="GPTJConfig",
        fields={"n_embd": 16, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": VOCABULARY, "n_positions": 16},
        batch=tokens,
    ),
    "gpt2": Published(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        fields={"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 16},
        batch=tokens,
    ),
    "gpt-neo": Published(
        model="GPTNeoForCausalLM",
        config="GPTNeoConfig",
        fields={
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "window_size": 4,
            "max_position_embeddings": 16,
            "attention_types": [[["global", "local"], 1]],
        },
        batch=tokens,
    ),
    "opt": Published(
        model="OPTForCausalLM",
        config="OPTConfig",
        fields={**DECODER, "ffn_dim": 32, "word_embed_proj_dim": 16},
        batch=tokens,
    ),
    "bloom": Published(
        model="BloomForCausalLM",
        config="BloomConfig",
        fields={"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
        batch=tokens,
    ),
    "falcon": Published(
        model="FalconForCausalLM",
        config="FalconConfig",
        fields={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY},
        batch=tokens,
    ),
    "mpt": Published(
        model="MptForCausalLM",
        config="MptConfig",
        fields={"d_model": 16, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY, "max_seq_len": 16},
        batch=tokens,
    ),
    "mixtral": _decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2-moe": _decoder("Qwen2Moe", **MOE, shared_expert_intermediate_size=16),
    "qwen3-moe": _decoder("Qwen3Moe", **MOE),
    "olmoe": _decoder("Olmoe", num_experts=4, num_experts_per_tok=2),
    "deepseek-v3": _decoder(
        "DeepseekV3",
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
        num_key_value_heads=4,
    ),
    "mamba": Published(
        model="MambaForCausalLM",
        config="MambaConfig",
        fields={"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": VOCABULARY},
        batch=tokens,
    ),
    "bert": _masked("Bert"),
    "roberta": _masked("Roberta", max_position_embeddings=20, pad_token_id=1),
    "distilbert": Published(
        model="DistilBertForMaskedLM",
        config="DistilBertConfig",
        fields={"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY},
        batch=tokens,
    ),
    "albert": _masked("Albert", embedding_size=16),
    "electra": _masked("Electra", embedding_size=16),
    "deberta-v2": _masked("DebertaV2"),
    "modernbert": _masked("ModernBert", local_attention=4, global_attn_every_n_layers=2),
    "xlm-roberta-classifier": Published(
        model="XLMRobertaForSequenceClassification",
        config="XLMRobertaConfig",
        fields={**DECODER, "max_position_embeddings": 20, "num_labels": CLASSES},
        batch=texts,
    ),
    "t5": Published(
        model="T5ForConditionalGeneration",
        config="T5Config",
        fields={"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY},
        batch=pairs,
    ),
    "bart": Published(
        model="BartForConditionalGeneration",
        config="BartConfig",
        fields={
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 16,
            **SPECIAL,
        },
        batch=pairs,
    ),
    "vit": _vision("ViT"),
    "deit": _vision("DeiT"),
    "beit": _vision("Beit", drop_path_rate=0.0),
    "swin": Published(
        model="SwinForImageClassification",
        config="SwinConfig",
        fields={
            "image_size": IMAGE,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": CLASSES,
        },
        batch=images,
    ),
    "convnext": Published(
        model="ConvNextForImageClassification", config="ConvNextConfig", fields=CONVOLUTIONS, batch=images
    ),
    "convnextv2": Published(
        model="ConvNextV2ForImageClassification", config="ConvNextV2Config", fields=CONVOLUTIONS, batch=images
    ),
    "resnet": Published(
        model="ResNetForImageClassification",
        config="ResNetConfig",
        fields={**CONVOLUTIONS, "embedding_size": 8},
        batch=images,
    ),
    "regnet": Published(
        model="RegNetForImageClassification",
        config="RegNetConfig",
        fields={**CONVOLUTIONS, "embedding_size": 8, "groups_width": 8},
        batch=images,
    ),
    "mobilenet-v2": Published(
        model="MobileNetV2ForImageClassification",
        config="MobileNetV2Config",
        fields={"depth_multiplier": 0.25, "image_size": IMAGE, "num_labels": CLASSES},
        batch=images,
        dtype=torch.float64,  # 52 batch norms of few values: the second loss in float32 is 1 % off
    ),
    "poolformer": Published(
        model="PoolFormerForImageClassification", config="PoolFormerConfig", fields=CONVOLUTIONS, batch=images
    ),
    "pvt": Published(
        model="PvtForImageClassification",
        config="PvtConfig",
        fields={
            "image_size": IMAGE,
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 8, 16, 16],
            "num_labels": CLASSES,
            "num_attention_heads": [1, 1, 2, 2],
        },
        batch=images,
    ),
    "wav2vec2": Published(
        model="Wav2Vec2ForSequenceClassification",
        config="Wav2Vec2Config",
        fields={
            **TOKENS,
            "conv_dim": [8, 8],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_labels": CLASSES,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
            "layerdrop": 0.0,
            "classifier_proj_size": 8,
            "num_feat_extract_layers": 2,
            "vocab_size": VOCABULARY,
        },
        batch=sounds,
        frozen=("wav2vec2.masked_spec_embed",),
    ),
    "audio-spectrogram": Published(
        model="ASTForAudioClassification",
        config="ASTConfig",
        fields={
            **TOKENS,
            "patch_size": 8,
            "frequency_stride": 8,
            "time_stride": 8,
            "max_length": 32,
            "num_mel_bins": 16,
            "num_labels": CLASSES,
        },
        batch=spectra,
    ),
    "whisper": Published(
        model="WhisperForConditionalGeneration",
        config="WhisperConfig",
        fields={
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 32,
            "decoder_ffn_dim": 32,
            "vocab_size": VOCABULARY,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "decoder_start_token_id": 1,
            **SPECIAL,
        },
        batch=speech,
    ),
    "clip": Published(
        model="CLIPModel",
        config="CLIPConfig",
        fields={
            "text_config": {**DECODER, "projection_dim": 8, **SPECIAL},
            "projection_dim": 8,
            "vision_config": {**VISION, "projection_dim": 8},
        },
        batch=both,
        call={"return_loss": True},
    ),
}
# fmt: on
REFUSED = {
    "swin": "draws random numbers by aten.rand.default",
    "t5": "SelfAttention.relative_attention_bias.weight",  # attention has no gradient for its mask
}
"""What the message says of a model that no program trains."""


def built(name: str) -> nn.Module:
    """Return a model."""
    import transformers

    entry = MODELS[name]
    config = getattr(transformers, entry.config)(**entry.fields, use_cache=False)
    module: nn.Module = getattr(transformers, entry.model)(config)
    for parameter in entry.frozen:
        module.get_parameter(parameter).requires_grad_(False)
    return module.to(entry.dtype)


def batch(name: str, step: int = 0) -> Batch:
    """Return the batch of a step."""
    entry = MODELS[name]
    values = entry.batch(torch.Generator().manual_seed(step))
    return {key: value.to(entry.dtype) if value.is_floating_point() else value for key, value in values.items()}


def task(name: str) -> Task:
    """Return the training of a model, by the loss that it computes itself."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        value: Tensor = module(**batch, **MODELS[name].call).loss
        return value

    return Task(
        build=lambda: built(name),
        batch=batch(name),
        loss=loss,
        batches=lambda step: batch(name, step),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def outcomes() -> str:
    """Return a table of the models: what each is, and whether programs train it as eager mode does."""
    rows = [
        f"| {name} | `{entry.model}` | {f'refused: {REFUSED[name]}' if name in REFUSED else 'equal'} |"
        for name, entry in MODELS.items()
    ]
    return "\n".join(["| model | class | outcome |", "|---|---|---|", *rows])
