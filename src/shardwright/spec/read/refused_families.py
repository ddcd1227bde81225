"""Families of models that are refused by name: they need a kind of layer or a training that the cost model lacks.

Names are the values of `model_type` in Hugging Face transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shardwright.errors import bad
from shardwright.spec.read.config_fields import ConfigFields

_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers with a state-space model (Mamba)": (
        "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "zamba",
        "zamba2",
    ),
    "layers with gated delta rule or other linear attention": (
        "bailing_hybrid", "kimi_linear", "minimax", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
        "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text",
    ),
    "layers with a recurrence": ("recurrent_gemma", "rwkv", "xlstm", "hrm_text"),
    "layers with a short convolution": ("inkling2_text", "inkling_text", "lfm2", "lfm2_moe", "lfm3", "zaya"),
    "sparse attention with an indexer": (
        "axk2", "deepseek_v32", "deepseek_v4", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4",
        "minimax_m3_vl_text",
    ),
    "embeddings for each layer": (
        "gemma3n", "gemma3n_text", "gemma4", "gemma4_assistant", "gemma4_text", "gemma4_unified",
        "gemma4_unified_assistant", "gemma4_unified_text",
    ),
    "a gate on the output of attention": ("afmoe", "beam", "laguna"),
    "layers that differ in heads or in the width of heads": ("mimo_v2_flash",),
    "two attention blocks a layer and experts that compute nothing": ("longcat_flash",),
    "experts of attention": ("jetmoe",),
    "attention that is a difference of two": ("diffllama",),
    "scores of attention with a learned mask": ("doge",),
    "weights of three values": ("bitnet",),
    "attention among hashed neighbours": ("reformer",),
    "a dense layer before the output projection": ("modernbert-decoder",),
    "layers of bytes and of patches": ("blt",),
    "a config that nests its sizes": ("cpmant", "dbrx", "cohere_compass_text"),
    "a bias that only its last layer has": ("gpt_neox_japanese",),
    "positions that are added as sines, and a bias of the output projection": ("ctrl",),
    "adapters in every layer": ("phi4_multimodal",),
    "cross-attention to images": ("got_ocr2", "mllama", "mllama_text_model", "git", "fuyu"),
    "audio or other inputs beside text": ("moshi", "moss_transcribe_diarize", "musicgen", "musicgen_melody"),
    "no left-to-right attention: an encoder": (
        "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert",
        "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl",
        "xlnet", "xmod",
    ),
    "an encoder beside the decoder": (
        "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart",
        "prophetnet", "trocr", "whisper",
    ),
}  # fmt: skip
REFUSED: Mapping[str, str] = MappingProxyType({name: reason for reason, names in _NAMES.items() for name in names})
"""What each refused `model_type` has that no layer of `Model` describes."""


def reject_refused(fields: ConfigFields, model_type: str) -> None:
    """Raise SpecError with the reason where the family is a refused one."""
    if model_type in REFUSED:
        raise bad(
            fields.section.place_of("model_type"),
            f"{model_type} has {REFUSED[model_type]}, which cannot be costed",
            "plan from its measured layers, or take a model of a known family",
        )
