"""Adapters of trainers that run PEFT, by the names that its `LoraConfig` and bitsandbytes' configuration have in
`data/*.csv`; and the matrices that these names are of a model.

What PEFT, Liger and transformers know of a family of models has a row in `data/families.csv`: `targets` are those that
PEFT takes where it is told none (peft/utils/constants.py 0.21), `liger` who has a kernel for the loss
(liger_kernel/transformers/monkey_patch.py 0.8, llamafactory/model/model_utils/liger_kernel.py 0.9.5). Experts are one
parameter in transformers 5, beside which PEFT makes adapters of another shape where it is told the names that
`experts` has, those of feed-forward blocks in older releases (peft/utils/transformers_weight_conversion.py 0.21).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.errors import SpecError, bad
from shardwright.exporters.hugging_face import (
    CONFIG,
    FEED_FORWARD,
    MODEL_ARGUMENTS,
    QUANTISATION,
    module_names,
    named_as_known,
)
from shardwright.files import shipped_table
from shardwright.importers.fields import Peft, TrainerFields
from shardwright.importers.paths import flattened
from shardwright.importers.python_values import Path as Fields
from shardwright.plans.trainable import TOGETHER
from shardwright.spec.adapter import LINEAR, MOST_RANK, Adapter, Frozen, Target
from shardwright.spec.model import Model
from shardwright.spec.text.reading import parsed, read_text

ALL = "all-linear"
OUTSIDE = ("embed_tokens", "lm_head", "wte", "embed_out", "tok_embeddings", "output")
BLOCKS = ("self_attn", "mlp", "attention", "feed_forward", "block_sparse_moe", "shared_expert", "shared_experts")
# Keys of the files of PEFT and bitsandbytes, with the arguments of scripts that say the same.
OWN = {
    **{key: key for key in ("lora_alpha", "use_dora", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")},
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
}
FLOATS = ("bfloat16", "float16", "float32")  # types of storage of which FSDP and ZeRO-3 make shards
BEHIND = re.compile(r"\.\*\\?\.\(?(\w+(?:\|\w+)*)\)?")  # an expression of names, whatever is before them


def beside_arguments(folder: Path) -> dict[Fields, Any]:
    """Return the type of the model's weights and the fields of PEFT's and bitsandbytes' own files, which `export`
    writes beside a Trainer's arguments."""
    files = [file for file in (MODEL_ARGUMENTS, CONFIG, QUANTISATION) if (folder / file).is_file()]
    texts = [(folder / file, file) for file in files]
    read = {path[-1]: value for place, file in texts for path, value in flattened(parsed(read_text(place), file))}
    loaded: dict[Fields, Any] = {("dtype",): read["dtype"]} if "dtype" in read else {}
    named: dict[Fields, Any] = {(OWN[key],): value for key, value in read.items() if key in OWN}
    return loaded | (named | {("use_peft",): True} if "r" in read else {})


def trains_adapters(fields: TrainerFields) -> bool:
    """Return whether a configuration trains adapters alone."""
    return fields.first("use_peft") is True or fields.first("adapter") not in (None, False, "")


def peft_of(fields: TrainerFields, *, sharded: bool, casts: bool = False) -> Peft | None:
    """Return the adapters that a configuration trains, none where it trains all weights. `sharded` says that GPUs share
    the frozen weights, `casts` that they are made 16 bits wide whatever they are loaded as, as DeepSpeed does."""
    quantised = [key for key in ("load_in_4bit", "load_in_8bit", "quantization_bit") if fields.first(key)]
    if not trains_adapters(fields):
        for key in quantised:
            fields.report(key, "quantises weights that are trained, which bitsandbytes does not", "train adapters")
        return None
    frozen = _frozen_type(fields)
    if fields.first("dtype") == "float32" and not casts:
        message = "is float32, in which frozen weights are kept: they are described in 16 bits and fewer"
        fields.report("dtype", message, "write bfloat16")
    if sharded and frozen == "int8":
        fields.report(quantised[0], "keeps weights in 8 bits, of which bitsandbytes makes no shards", "use 4 bits")
    storage = fields.first("bnb_4bit_quant_storage") or "uint8"
    itself = fields.first("adapter") is not None  # axolotl says the type of storage itself
    if sharded and fields.first("load_in_4bit") and not itself and storage not in FLOATS:
        message = f"is {storage}, of which FSDP and ZeRO-3 make no shards"
        fields.report("bnb_4bit_quant_storage", message, "write bfloat16")
    rank = fields.whole("lora_r", 1)
    if fields.first("lora_r") is None:
        fields.report("lora_r", "is missing, and decides how large adapters are", "write the rank of the adapters")
    elif rank > MOST_RANK:
        fields.report("lora_r", f"is {rank}", f"write at most {MOST_RANK}")
    modules, place = _modules(fields)
    return Peft(
        rank=rank,
        alpha=alpha_of(fields, rank),
        dora=fields.first("use_dora") is True,
        frozen=frozen,
        modules=modules,
        by_type=fields.first("lora_target_linear") is True or fields.first("lora_targets") == "all",
        spares_tower=fields.first("lora_targets") == "all" and fields.first("freeze_vision_tower") is True,
        place=place,
    )


def _frozen_type(fields: TrainerFields) -> Frozen:
    """Return how frozen weights are kept. axolotl quantises for `qlora` in four bits, for `lora` in eight
    (axolotl/loaders/model.py 0.19: `_set_quantization_config`)."""
    bits = fields.first("quantization_bit")
    four, eight = fields.first("load_in_4bit") is True or bits == 4, fields.first("load_in_8bit") is True or bits == 8
    if four and eight:
        fields.report("load_in_8bit", "stands beside load_in_4bit", "keep one of them")
    kind = fields.first("adapter")
    if kind == "qlora" and not four:
        fields.report("adapter", "is qlora, which goes with load_in_4bit: true", "add it, or write lora")
    if kind == "lora" and four:
        fields.report("load_in_4bit", "goes with adapter: qlora, and does nothing beside lora", "write adapter: qlora")
    return "nf4" if four else "int8" if eight else "16-bit"


def alpha_of(fields: TrainerFields, rank: int) -> float | None:
    """Return α, None where it is twice the rank. With rsLoRA α / √r is the scale (peft/tuners/lora/layer.py)."""
    if fields.first("lora_alpha") is None:
        return None
    alpha = fields.number("lora_alpha", 2.0 * rank) * (rank**0.5 if fields.first("use_rslora") is True else 1.0)
    return None if alpha == 2.0 * rank else alpha


def _modules(fields: TrainerFields) -> tuple[tuple[str, ...] | str | None, str]:
    """Return the names of matrices, and the field that has them. LLaMA-Factory and scripts take words joined by commas,
    PEFT a list, of which TRL makes a word where it has one name (trl/trainer/model_config.py 1.16)."""
    joined, listed = fields.first("lora_targets"), fields.first("lora_target_modules")
    if joined is not None:
        words = joined if isinstance(joined, list | tuple) else str(joined).replace(" ", "").split(",")
        return (ALL if list(words) in (["all"], [ALL]) else tuple(map(str, words))), "lora_target"
    if fields.first("lora_target_linear") is True:
        more = listed if isinstance(listed, list | tuple) else [] if listed is None else [listed]
        outside = [str(name) for name in more if str(name).rsplit(".", 1)[-1] in OUTSIDE]
        return (ALL if not outside else tuple(outside)), "lora_target_modules"
    if fields.first("adapter") is not None and not listed:
        message = "is missing, and so is lora_target_linear"
        fields.report("lora_target_modules", message, "write lora_target_linear: true")
    elif not listed and fields.first("loss_in_parts") is not True:  # not TRL, which leaves it to PEFT
        hint = "write the names of the matrices"
        fields.report("lora_target_modules", "is missing, and what the program takes then is in its code", hint)
    if isinstance(listed, list | tuple) and len(listed) == 1 and fields.first("adapter") is None:
        listed = listed[0]
    if isinstance(listed, list | tuple):
        return tuple(map(str, listed)), "lora_target_modules"
    return (None if listed is None else str(listed)), "lora_target_modules"


@cache
def _families() -> Mapping[str, dict[str, str]]:
    return {row["family"]: row for row in shipped_table("shardwright.importers", "families.csv")}


def known_of(model: Model) -> dict[str, str]:
    """Return the row of a model's family, empty for one without."""
    return _families().get(model.family, dict.fromkeys(("targets", "liger", "experts"), ""))


def adapter_of(peft: Peft, model: Model, name: str) -> Adapter:
    """Return the adapter that PEFT makes of a model. Raises SpecError for matrices that are none of ours."""
    return Adapter(
        rank=peft.rank, dora=peft.dora, frozen=peft.frozen, targets=_targets(peft, model, name), alpha=peft.alpha
    )


def _targets(peft: Peft, model: Model, name: str) -> tuple[Target, ...]:
    place = f"{name}: {peft.place}"
    if model.towers and not peft.spares_tower:
        message = f"may be in the tower of {model.name}, too, whose names are not told apart here"
        raise bad(place, message, "describe the plan: `shardwright plan --adapter`")
    modules = known_of(model)["targets"].split() if peft.modules is None else peft.modules
    if not modules:
        hint = f"write {ALL}, or the names of matrices"
        raise bad(place, f"is missing, and PEFT has no usual matrices of {model.family}", hint)
    if isinstance(modules, str) and (match := BEHIND.fullmatch(modules)):
        modules = match[1].split("|")
    if isinstance(modules, str):
        if modules != ALL:
            hint = f"write {ALL}, or a list of names"
            raise bad(place, f"is {modules}, which PEFT takes for an expression, and which is not read", hint)
        if _expert_names(model) and not (peft.by_type and not _expert_names(model) & {*_dense_names(model)}):
            raise _beside_experts(place)
        return LINEAR
    return _of_names([_plain(word, place) for word in modules], model, place)


def _plain(word: str, place: str) -> str:
    """Return the name of a matrix without that of its block. Raises SpecError for some layers', and for embeddings."""
    *blocks, leaf = word.split(".")
    if set(blocks) - set(BLOCKS):
        raise bad(place, f"has {word}, of some layers alone", "name matrices of all layers")
    if leaf in OUTSIDE:
        raise bad(place, f"has {word}: adapters beside embedding or output are not described", "leave it out")
    return leaf


def _of_names(words: list[str], model: Model, place: str) -> tuple[Target, ...]:
    if not named_as_known(model):
        hint = f"write {ALL}"
        raise bad(place, f"has {', '.join(words)}, and the names of {model.family}'s matrices are not known here", hint)
    if _expert_names(model) & set(words):
        raise _beside_experts(place)
    names = {target: set(module_names(model, target)) for target in LINEAR}
    strange = sorted(set(words) - set().union(*names.values(), FEED_FORWARD))
    targets = tuple(target for target in LINEAR if names[target] and names[target] <= set(words))
    parts = sorted(set(words) & set().union(*names.values()) - set().union(*(names[target] for target in targets)))
    if strange or parts or not targets:
        what = f"has {', '.join(strange)}" if strange else f"has {', '.join(parts or words)}, a part of a projection"
        raise bad(place, f"{what}, which is not described of {model.family}", f"write {ALL}, or some of {_all(names)}")
    return LINEAR if all(target in targets for target in LINEAR if names[target]) else targets


def _all(names: Mapping[Target, set[str]]) -> str:
    return ", ".join(name for target in LINEAR for name in sorted(names[target]))


def _expert_names(model: Model) -> set[str]:
    """Return the names that PEFT takes for parameters of experts: of a family without a row, all that it has."""
    if not model.has_experts:
        return set()
    return set((known_of(model)["experts"] or "gate gate_proj up_proj down_proj w1 w2 w3").split())


def _dense_names(model: Model) -> list[str]:
    return [name for target in FEED_FORWARD for name in module_names(model, target)]


def merged(model: Model, adapter: Adapter) -> bool:
    """Return whether transformers has several of the matrices that adapters are beside in one: these adapters are
    smaller than ours."""
    return bool(set(TOGETHER.get(model.family, ())) & set(adapter.targets))


def _beside_experts(place: str) -> SpecError:
    message = "has matrices of feed-forward blocks, of which PEFT makes adapters of another shape beside experts"
    return bad(place, message, "name those of attention: q_proj, k_proj, v_proj, o_proj")


def has_liger(model: Model, library: str) -> bool:
    """Return whether Liger's kernel of output projection and loss runs for a model under `library`."""
    return library in known_of(model)["liger"].split()
