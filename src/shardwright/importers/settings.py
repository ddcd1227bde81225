"""Fields of configurations as Megatron-LM's arguments, in which one reader makes plans of all of them.

Megatron-Bridge, NeMo and Megatron-LM's own YAML name fields as Megatron-LM names its arguments, but for those here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardwright.errors import Problem, slip_of
from shardwright.importers.keys import accounted, key_of
from shardwright.importers.megatron.flag_table import is_read, known_flags, read_as
from shardwright.importers.megatron.flags import LENGTHS, OF_THE_USER, counting_flags
from shardwright.importers.python_values import COMPUTED, Path

TABLES = ("bridge",)
NAMED_FIELD = re.compile(r"\$\{([\w.]+)\}")
DEEPEST_NAMES = 8  # of fields that name fields
TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "uint8": "fp8"}
WHERE_FALSE = {
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "grad_reduce_in_fp32": "--grad-reduce-in-bf16",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "add_bias_linear": "--disable-bias-linear",
    "bias": "--disable-bias-linear",
}
# What `_pretrain_common` of Megatron-Bridge 0.6.2 sets, on which its recipes build (megatron/bridge/recipes/common.py).
BRIDGE_COMMON: Mapping[Path, Any] = {
    ("train", "train_iters"): 300_000,
    ("train", "global_batch_size"): 32,
    ("train", "micro_batch_size"): 2,
    ("ddp", "overlap_grad_reduce"): True,
    ("ddp", "overlap_param_gather"): True,
    ("ddp", "use_distributed_optimizer"): True,
    ("dataset", "seq_length"): 4096,
    ("mixed_precision",): "bf16_mixed",
}
# What its models have where a recipe says nothing (models/gpt_provider.py 204), and what the experts of those that it
# takes from Hugging Face have (models/qwen/qwen3_moe_bridge.py 67 and its like).
BRIDGE_MODEL: Mapping[Path, Any] = {("model", "cross_entropy_loss_fusion"): True}
BRIDGE_EXPERTS: Mapping[Path, Any] = {("model", "moe_token_dispatcher_type"): "alltoall"}
# What the names of precisions contain: `bf16_with_fp8_current_scaling_mixed`, `16-true`.
PRECISIONS = {"bf16": ("--bf16",), "16": ("--fp16",), "32": (), "none": ()}


def arguments_of(
    values: Mapping[Path, Any], name: str, problems: list[Problem], tables: tuple[str, ...] = TABLES
) -> tuple[list[str], list[str]]:
    """Return fields, by path, as Megatron-LM's arguments, and what is not modelled. A field that decides a plan and is
    computed goes to `problems`, and one that makes another run. `tables` are those of the trainer's keys."""
    words: list[str] = []
    effective = _effective(values)
    named = {path: _flag(path, tables) for path in effective}
    flagged = {path: flag for path, flag in named.items() if flag is not None}
    slips = {path: meant for path in named if path not in flagged and (meant := _slip(path, tables))}
    for path, meant in slips.items():
        problems.append(Problem(f"{name}: {'.'.join(path)}", "is no key of this trainer", f"did you mean {meant}?"))
    rest = {path: value for path, value in effective.items() if path not in flagged and path not in slips}
    others = accounted(rest, tables, name, problems)
    for path, flag in flagged.items():
        value = effective[path]
        if value is not COMPUTED:
            words += _words(flag, value)
        elif is_read(flag) and flag not in (*LENGTHS, *OF_THE_USER):
            hint = "write the value itself, or describe the plan in a plan file"
            problems.append(Problem(f"{name}: {'.'.join(path)}", "is computed when the file runs", hint))
    for path, value in others.values.items():
        words += _special(path, value, name, problems)
    if any(path[-1] == "kv_lora_rank" and value for path, value in values.items()):
        words.append("--multi-latent-attention")
    return words, list(others.uncounted)


def _flag(path: Path, tables: tuple[str, ...]) -> str | None:
    """Return the argument of Megatron-LM that a field is, None where it is none or means something else there."""
    key = key_of(path, tables)
    if key is not None:
        return read_as(key.means) if key.means.startswith("--") else None
    flag = read_as("--" + path[-1].replace("_", "-"))
    return flag if flag in known_flags() else None


def _slip(path: Path, tables: tuple[str, ...]) -> str | None:
    """Return the field that an unknown one is a slip of, where it is one of Megatron-LM's arguments."""
    if key_of(path, tables) is not None:
        return None
    meant = slip_of("--" + path[-1].replace("_", "-"), counting_flags())
    return None if meant is None else meant.lstrip("-").replace("-", "_")


def _special(path: Path, value: Any, name: str, problems: list[Problem]) -> list[str]:
    """Return the arguments of a field that says otherwise what they say."""
    leaf = path[-1]
    if leaf in WHERE_FALSE:
        return [WHERE_FALSE[leaf]] if value is False else []
    if leaf in ("activation", "activation_func"):
        return _activation(value)
    if leaf == "gated_linear_unit":
        return ["--swiglu"] if value is True else []
    if leaf == "name":  # NeMo's of an optimizer
        return ["--use-distributed-optimizer"] if "distributed" in str(value) else []
    if leaf not in ("precision", "mixed_precision", "precision_config"):
        return []
    told = _precision(value)
    if told is None or "fp4" in str(value):
        why = "which is not known here" if told is None else "four bits, which are not described"
        hint = "write bf16, fp16 or an fp8 recipe, or describe the plan in a plan file"
        problems.append(Problem(f"{name}: {'.'.join(path)}", f"is {value}, {why}", hint))
    return told or []


def _effective(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the fields without those that others override: the mixed precision of Megatron-Bridge says how gradients
    are reduced (MixedPrecisionConfig.setup of 0.6.2)."""
    mixed = any(path[0] == "mixed_precision" for path in values)
    return {path: value for path, value in values.items() if not (mixed and path == ("ddp", "grad_reduce_in_fp32"))}


def _words(flag: str, value: Any) -> Iterator[str]:
    if value is None or value is False or isinstance(value, Mapping):
        return
    yield flag
    if isinstance(value, float) and value.is_integer() and known_flags()[flag].reads == "count":
        value = int(value)  # `rotary_base: 1000000.0`
    if value is not True:
        yield TYPES.get(str(value).removeprefix("torch."), _text(value)) if flag.endswith("-dtype") else _text(value)
    if flag == "--num-query-groups":
        yield "--group-query-attention"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        items = [_text(item) for item in value]
        return f"[{','.join(items)}]" if items and all(item in ("0", "1") for item in items) else ",".join(items)
    return repr(value) if isinstance(value, float) else str(value)


def _precision(value: Any) -> list[str] | None:
    """The arguments of a precision by its name, None for one that is not known."""
    text = str(value).casefold()
    words = next((list(flags) for part, flags in PRECISIONS.items() if part in text), None)
    if words and "fp8" in text:
        recipe = "mxfp8" if "mxfp8" in text else "blockwise" if "subchannel" in text else "tensorwise"
        recipe = "delayed" if "delayed" in text or text == "bf16_with_fp8_mixed" else recipe  # NeMo's name of it
        words += ["--fp8-format", "hybrid", "--fp8-recipe", recipe]
    return words


def _activation(value: Any) -> list[str]:
    names = {"swiglu": "--swiglu", "fast-swiglu": "--swiglu", "squared-relu": "--squared-relu"}
    value = str(value).replace("_", "-")
    return [names[str(value)]] if str(value) in names else []


def flattened(document: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the fields of nested mappings by path."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, Mapping):
                yield from flattened(value, (*path, str(key)))
            else:
                yield (*path, str(key)), value


def interpolated(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return fields with OmegaConf's `${a.b}` (or `${.b}`, beside the field) replaced by what they name. Those that
    name nothing, and resolvers such as `${oc.env:…}`, stay."""
    filled = dict(values)
    for _ in range(DEEPEST_NAMES):
        before = dict(filled)
        for path, value in before.items():
            if isinstance(value, str) and "${" in value:
                filled[path] = _filled(value, path, before)
        if filled == before:
            break
    return filled


def _filled(text: str, place: Path, values: Mapping[Path, Any]) -> Any:
    def target(name: str) -> Any:
        path = (*place[:-1], *name[1:].split(".")) if name.startswith(".") else tuple(name.split("."))
        return values.get(path, f"${{{name}}}")

    whole = NAMED_FIELD.fullmatch(text)
    return target(whole[1]) if whole else NAMED_FIELD.sub(lambda match: str(target(match[1])), text)


def first(values: Mapping[Path, Any], *leaves: str) -> Any:
    """Return the value of the first of these fields that is there and said, None where none is."""
    for leaf in leaves:
        for path, value in values.items():
            if path[-1] == leaf and value is not None and value is not COMPUTED:
                return value
    return None


def overridden(values: Mapping[Path, Any], words: Iterable[str]) -> dict[Path, Any]:
    """Return fields with those of a command line over them: `model.tensor_model_parallel_size=2`, `--a.b c`."""
    found = dict(values)
    for word in words:
        key, sign, text = word.lstrip("+-~").partition("=")
        if sign and key.replace(".", "").replace("_", "").replace("-", "").isalnum():
            path = tuple(key.replace("-", "_").split("."))
            for old in [old for old in found if old[-1] == path[-1]]:
                del found[old]
            found[path] = literal(text)
    return found


def literal(text: str) -> Any:
    """Return a word of a command line as the value that it means."""
    plain = text.strip("'\"")
    if plain.casefold() in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(plain.casefold())
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return plain
