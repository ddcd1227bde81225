"""Counts weights and FLOPs of models that hear with Hugging Face transformers, and writes `transformers_sounds.json`
beside this file.

Run by hand where transformers and torch are installed, after a release of transformers or a new case:

    python -m tests.spec.count_sounds_with_transformers

Parameters are counted on the meta device; a sound goes through the tower of a small model on the CPU.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.cost.saved_tensors import counted_flops, saved_bytes
from tests.spec.count_towers_with_transformers import DEEP, EXPERTS, QWEN, SECTIONS, TEXT
from tests.spec.count_with_transformers import written

OUT = Path(__file__).with_name("transformers_sounds.json")
SECONDS = 4
SPECTRA = 100 * SECONDS
PROJECTORS = (
    "multi_modal_projector",
    "audio_tower.proj.",
    "audio_tower.proj1.",
    "audio_tower.proj2.",
    "audio_bos_eos_token",
)
AUDIO: dict[str, Any] = {
    "d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 96, "num_mel_bins": 16,
    "max_source_positions": SPECTRA // 2,
}  # fmt: skip
SPELLED: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192, "num_mel_bins": 16,
    "max_source_positions": SPECTRA // 2,
}  # fmt: skip
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("qwen2_audio", {
        "text_config": {**TEXT, "model_type": "qwen2"}, "audio_config": {**AUDIO, "model_type": "qwen2_audio_encoder"},
    }),
    ("audioflamingo3", {
        "text_config": {**TEXT, "model_type": "qwen2"},
        "audio_config": {**SPELLED, "model_type": "audioflamingo3_encoder"}, "projector_bias": False,
    }),
    ("voxtral", {
        "text_config": {**TEXT, "model_type": "llama"}, "audio_config": {**SPELLED, "model_type": "voxtral_encoder"},
    }),
    ("qwen2_5_omni_thinker", {
        "text_config": {**TEXT, **SECTIONS, "model_type": "qwen2_5_omni_text", "tie_word_embeddings": False},
        "audio_config": {**AUDIO, "model_type": "qwen2_5_omni_audio_encoder", "output_dim": 64},
        "vision_config": {**QWEN, "model_type": "qwen2_5_omni_vision_encoder", "fullatt_block_indexes": [1]},
    }),
    ("qwen2_5_omni_thinker", {
        "text_config": {**TEXT, **SECTIONS, "model_type": "qwen2_5_omni_text", "tie_word_embeddings": False},
        "audio_config": {
            **AUDIO, "model_type": "qwen2_5_omni_audio_encoder", "output_dim": 64, "n_window": 50, "num_mel_bins": 32,
        },
        "vision_config": {**QWEN, "model_type": "qwen2_5_omni_vision_encoder", "window_size": 56},
    }),
    ("qwen3_omni_moe_thinker", {
        "text_config": {
            **TEXT, **SECTIONS, **EXPERTS, "model_type": "qwen3_omni_moe_text", "head_dim": 8,
            "tie_word_embeddings": False,
        },
        "audio_config": {
            **AUDIO, "model_type": "qwen3_omni_moe_audio_encoder", "output_dim": 64, "downsample_hidden_size": 24,
            "n_window": 50, "n_window_infer": 200,
        },
        "vision_config": {**DEEP, "model_type": "qwen3_omni_moe_vision_encoder"},
    }),
)  # fmt: skip


def rows() -> Iterator[dict[str, Any]]:
    """Yield what transformers counts of each case."""
    import torch

    for model_type, given in CASES:
        config = _config(model_type, given)
        with torch.device("meta"):
            empty = _class(model_type)._from_config(config)
        weights = {name: weight.numel() for name, weight in empty.named_parameters()}
        projector = sum(count for name, count in weights.items() if any(part in name for part in PROJECTORS))
        heard = sum(count for name, count in weights.items() if "audio_tower" in name or "multi_modal" in name)
        model = _class(model_type)._from_config(config, attn_implementation="eager")
        yield {
            "given": {"model_type": model_type, **given},
            "config": json.loads(json.dumps(written(config))),
            "encoder": heard - projector,
            "projector": projector,
            "parameters": sum(weights.values()),
            "kept": _kept_of_a_layer(model_type, given),
            "flops": counted_flops(partial(_hear, model)),
        }


def _config(model_type: str, given: dict[str, Any]) -> Any:
    import transformers

    if model_type == "qwen2_5_omni_thinker":
        return transformers.Qwen2_5OmniThinkerConfig(**copy.deepcopy(given))
    if model_type == "qwen3_omni_moe_thinker":
        return transformers.Qwen3OmniMoeThinkerConfig(**copy.deepcopy(given))
    return transformers.AutoConfig.for_model(model_type, **copy.deepcopy(given))


def _class(model_type: str) -> Any:
    import transformers

    names = {
        "qwen2_audio": "Qwen2Audio", "audioflamingo3": "AudioFlamingo3", "voxtral": "Voxtral",
        "qwen2_5_omni_thinker": "Qwen2_5OmniThinker", "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinker",
    }  # fmt: skip
    return getattr(transformers, f"{names[model_type]}ForConditionalGeneration")


def _kept_of_a_layer(model_type: str, given: dict[str, Any]) -> int:
    """Return the bytes in bf16 that one more layer of the encoder saves of a sound for its backward pass."""
    import torch

    saved = []
    for depth in (3, 4):
        config = _config(model_type, given)
        config.audio_config.num_hidden_layers = depth
        model = _class(model_type)._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        saved.append(saved_bytes(model, partial(_hear, model.train())))
    return saved[1] - saved[0]


def _hear(model: Any) -> None:
    """Take a sound through encoder and projector."""
    import torch

    core, sound = model.model, torch.zeros(1, model.config.audio_config.num_mel_bins, SPECTRA, dtype=model.dtype)
    match model.config.model_type:
        case "qwen2_audio":
            core.multi_modal_projector(core.audio_tower(sound).last_hidden_state)
        case "voxtral":
            core.get_audio_features(sound)
        case _:
            core.get_audio_features(sound, torch.ones(1, SPECTRA, dtype=torch.long))


def main() -> None:
    import transformers

    lines = ",\n".join("  " + json.dumps(row) for row in rows())
    head = f'"transformers": "{transformers.__version__}", "seconds": {SECONDS}'
    OUT.write_text(f'{{{head}, "models": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
