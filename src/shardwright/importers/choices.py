"""What a Trainer's configuration says of the options that frameworks leave to choose (`spec.options`): how the loss is
computed, where activations are kept, and whether trained weights have copies in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright.errors import SpecError
from shardwright.importers.fields import TrainerFields
from shardwright.spec.options import Loss, Options
from shardwright.spec.preference import Preference, parse_preference

LIGER, CUT = "axolotl.integrations.liger.LigerPlugin", "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
KERNELS = ("rope", "rms_norm", "swiglu")  # that Liger has beside that of the loss, on unless it is told otherwise
ADAPTER_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
OF_PREFERENCES = (
    "center_rewards_coefficient",
    "beta",
    "precompute_ref_log_probs",
    "desirable_weight",
    "undesirable_weight",
    "simpo_gamma",
    "cpo_alpha",
    "f_divergence_type",
    "label_smoothing",
    "ld_alpha",
    "loss_weights",
    "use_weighting",
    "precompute_ref_batch_size",
    "max_prompt_length",
    "max_completion_length",
)
# Of `loss_type`, as configurations of TRL 1.16 have it (trl/trainer/{dpo,kto}_config.py, trl/experimental/cpo), and of
# DPO's one that older ones had.
LOSS_TYPES = {
    "dpo": ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_pair",
            "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    "kto": ("kto",),
    "orpo": (),
    "cpo": ("sigmoid", "hinge", "ipo", "simpo", "alphapo"),
    "reward": (),
}  # fmt: skip
OF_SFT = ("nll", "chunked_nll", "dft")  # trl/trainer/sft_config.py 1.16: loss_type
SIXTEEN = ("bfloat16", "bf16")
FUSED = "fused_linear_cross_entropy"
OLDER_TRL = (
    "TRL goes over parts of the logits at a time from 1.7 on, which is priced; an earlier one without use_liger_kernel "
    "holds all of them"
)
OLDER_FSDP = (  # trl/models/utils.py 1.16: prepare_fsdp
    "FSDP 2 gathers all weights of a reference at once, which is priced; version 1, as here, gathers them layer by "
    "layer and takes less memory"
)


OLDER_FACTORY = (  # github.com/hiyouga/LlamaFactory/pull/10127
    "LLaMA-Factory shards a reference under FSDP from 0.9.5 on; an earlier one leaves it on the CPU and stops"
)


def liger_of(fields: TrainerFields) -> tuple[str, tuple[str, ...]]:
    """Return by whose list of families Liger's kernel of output projection and loss is used, "" where it is not; and
    its other kernels that are, which are not modelled."""
    plugins = _plugins(fields)
    if LIGER in plugins:
        return "transformers" if fields.first(f"liger_{FUSED}") is True else "", ()
    if fields.first("use_liger_kernel") is not True:
        return "", ()
    switches = {path[-1]: value for path, value in fields.values.items() if path[0] == "liger_kernel_config"}
    others = [name for name in KERNELS if switches.get(name) is not False]
    uncounted = (f"use_liger_kernel (Liger's kernels of {', '.join(others)})",) if others else ()
    return str(fields.first("liger_by") or "transformers") if switches.get(FUSED) is not False else "", uncounted


def own_loss(fields: TrainerFields) -> Loss | None:
    """Return the loss of a trainer that never has all logits, whatever the family: TRL's own
    (trl/trainer/sft_trainer.py 1.16: `add_fused_lm_head`), or axolotl's plugin for cut cross-entropy; None for others.
    """
    if CUT in _plugins(fields) and fields.first("cut_cross_entropy") is not False:
        return "chunked"
    said = fields.first("loss_type") in OF_SFT
    return "tiled" if said or fields.first("loss_in_parts") is True else None


def adapter_kernels(fields: TrainerFields) -> Iterator[str]:
    """Yield axolotl's kernels for adapters, which it turns on itself where nothing is said of them
    (axolotl/utils/schemas/config.py 0.19: `check_auto_enable_lora_kernels`)."""
    if fields.first("adapter") is None:
        return
    modes = {key: fields.first(key) for key in ADAPTER_KERNELS}
    eight = fields.first("adapter") == "lora" and fields.first("load_in_8bit") is True
    older = fields.first("fsdp") is not None and fields.first("fsdp_version") != 2
    if not any(mode is not None for mode in modes.values()) and not eight and not older:
        yield f"{', '.join(modes)} (axolotl's kernels for adapters, on unless it is told otherwise)"
    yield from (f"{key} (a kernel for adapters)" for key, mode in modes.items() if mode is True)


def preference_of(fields: TrainerFields) -> Preference | None:
    """Return the loss over preferences that a Trainer's name, axolotl's `rl` or LLaMA-Factory's `stage` says, None for
    none."""
    name = fields.first("preference")
    if not isinstance(name, str):
        message = "goes with a loss over preferences or rewards, and nothing says which"
        for key in OF_PREFERENCES:
            if fields.first(key) is not None:
                fields.report(key, f"is {fields.first(key)}: {message}", "say it: evaluate --preference dpo")
        for kind in _loss_types(fields, OF_SFT):
            fields.report("loss_type", f"is {kind}: {message}", "say it: evaluate --preference dpo")
        return None
    try:
        preference = parse_preference(name)
    except SpecError:  # of another loss, which the keys of the trainer refuse
        return None
    kind = fields.first("pref_loss")
    if kind in ("orpo", "simpo") and preference.loss == "dpo":  # llamafactory/hparams/finetuning_args.py: use_ref_model
        return parse_preference(f"{kind}:{preference.by}")
    for kind in _loss_types(fields, LOSS_TYPES[preference.loss]):
        hint = f"use {', '.join(LOSS_TYPES[preference.loss])}" if LOSS_TYPES[preference.loss] else "leave it out"
        fields.report("loss_type", f"is {kind}, which is not described for {preference.loss}", hint)
    before = fields.first("precompute_ref_log_probs") is True and preference.reference
    return replace(preference, precomputed=before or preference.precomputed)


def _loss_types(fields: TrainerFields, known: Sequence[str]) -> Iterator[object]:
    """Yield what `loss_type` says, one or a list, beside what is known."""
    said = fields.first("loss_type")
    kinds = said if isinstance(said, list | tuple) else () if said is None else (said,)
    yield from (kind for kind in kinds if kind not in known)


def loss_notes(fields: TrainerFields, preference: Preference | None, *, sharded: bool) -> Iterator[str]:
    """Yield what had to be assumed of the loss."""
    if sharded and preference is not None and preference.reference:
        if preference.by != "trl":
            yield OLDER_FACTORY
        elif fields.first("fsdp_version") != 2:
            yield OLDER_FSDP
    tiled = preference is None or preference.tiled
    if tiled and fields.first("loss_in_parts") is True and fields.first("use_liger_kernel") is not True:
        yield OLDER_TRL


def plugins_uncounted(fields: TrainerFields) -> Iterator[str]:
    """Yield plugins of axolotl that may change kernels and loss."""
    others = (name for name in _plugins(fields) if name not in (LIGER, CUT))
    yield from (f"plugins {name} (may change kernels and loss)" for name in others)


def _plugins(fields: TrainerFields) -> tuple[str, ...]:
    named = fields.first("plugins")
    return tuple(map(str, named)) if isinstance(named, list | tuple) else () if named is None else (str(named),)


def offloads_activations(fields: TrainerFields, words: Sequence[str], *, adapters: bool) -> bool:
    """Return whether inputs of layers that run again are kept in host memory: transformers wraps each layer's
    checkpoint (modeling_utils.py: `save_on_cpu`); TRL and torchtune whatever is saved, which are these
    (activation_offloading.py). Without recomputation that is all activations, which is refused; axolotl leaves it out
    beside adapters (axolotl/core/builders/base.py 0.19: `_configure_gradient_checkpointing`)."""
    mode = fields.first("activation_offloading")
    if not mode:
        return False
    alone = adapters and fields.first("adapter") is not None and mode != "hidden_states"
    if alone or "--recompute-granularity" not in words:
        hint = "write hidden_states" if alone else "write gradient_checkpointing: true as well"
        message = "recomputes nothing beside adapters" if alone else "goes without recomputation"
        message = f"{message}, so that all activations are offloaded, which is not described"
        fields.report("activation_offloading", message, hint)
        return False
    return True


def keeps_sixteen_bits(fields: TrainerFields, *, mixed: bool, sharded: bool) -> bool:
    """Return whether trained weights are loaded in 16 bits and updated as they are. With mixed precision FSDP makes
    them fp32 first (accelerate/utils/fsdp_utils.py 1.15: `fsdp2_prepare_model`), of which axolotl's copy does not
    (axolotl/monkeypatch/accelerate/fsdp2.py 0.19; github.com/axolotl-ai-cloud/axolotl/pull/3894)."""
    as_loaded = fields.first("shards_as_loaded") is True and fields.first("fsdp_version") == 2
    return fields.first("dtype") in SIXTEEN and (as_loaded or not (mixed and sharded))


def copies_notes(fields: TrainerFields, *, mixed: bool, sharded: bool) -> Iterator[str]:
    """Yield what had to be assumed of trained weights whose type is not said."""
    said = fields.first("dtype") is not None or fields.first("widens_trained") is True
    if mixed and not sharded and not said:
        yield (
            "the type in which weights are loaded is not said: fp32 is priced, that of transformers 4; from 5 on it is "
            "the checkpoint's (master_weights=none)"
        )


def options_of(*, loss: Loss | None, offloaded: bool, sixteen: bool) -> Options:
    """Return options, of which those that are not asked for are the framework's own."""
    return Options(
        loss=loss,
        activation_offload="inputs" if offloaded else None,
        master_weights="none" if sixteen else None,
    )
