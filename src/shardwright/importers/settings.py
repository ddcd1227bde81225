"""Fields of configurations as Megatron-LM's arguments, in which one reader makes plans of all of them; and what each
key of a trainer's configuration means for a plan: it is read, changes nothing, is not modelled, or makes another run of
it.

Megatron-Bridge, NeMo and Megatron-LM's own YAML name fields as Megatron-LM names its arguments, but for those here.

`data/<trainer>.csv` has a row for keys of one meaning; `tests/importers/test_keys.py` holds it against the schema of
the trainer's own package. Keys are paths with dots, a section for all that is in it, or a last part alone:

* `effect`: `read` (also a key of ours for what a trainer always does, which its `default` says); `none` (`words` say
  why it moves nothing); `uncounted` (it moves time or memory and is not modelled) or `refused` (the run is another);
  `holds` where it only holds keys with rows of their own; `default`, whose `usual` is what the trainer takes where the
  key is missing; not where it is null, unless it is `not` another key
* `usual`: of `read` the values that are described, all where there are none; of `uncounted` and `refused` the values
  with which nothing changes, beside none at all (and false and 0 where there are no others)
* `when`, where a table has it: keys that are read, of which one must be on; otherwise the row counts for nothing
* `means`: the key of another table that it is read as; `not key` for its opposite, `key a=b` with b for the value a;
  after a `+` more keys, which are said by the values alone that stand there
* `words`: what it changes, or why it changes nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, cast

from shardwright.errors import Problem, slip_of
from shardwright.files import shipped_table
from shardwright.importers.megatron.flags import (
    LENGTHS,
    OF_THE_USER,
    counting_flags,
    explained,
    is_read,
    known_flags,
    read_as,
)
from shardwright.importers.python_values import COMPUTED, Path
from shardwright.importers.shell.unknown import is_known, shown
from shardwright.records import record

TABLES = ("bridge",)
NEMO_1 = ("nemo1", *TABLES)  # YAML of NeMo before recipes
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
FP8_WEIGHTS = "--fp8-param-gather"
# What the names of precisions contain: `bf16_with_fp8_current_scaling_mixed`, `16-true`.
PRECISIONS = {"bf16": ("--bf16",), "16": ("--fp16",), "32": (), "none": ()}
Effect = Literal["read", "none", "uncounted", "refused", "holds"]
# What keys of a program's own say by their names, where their values are above one.
SPLITS = (
    (
        re.compile(
            r"(?:(?:tensor|model|pipe(?:line)?|sequence|context|expert|ulysses|ring)_(?:model_)?parallel(?:ism)?|[tpcse]p)"
            r"(?:_(?:world_)?(?:size|degree))?"
        ),
        "splits the model or sequences in a way that is in the program's code",
    ),
    (
        re.compile(
            r"(?:grad(?:ient)?s?_?acc|(?:grad(?:ient)?s?_?)?accum(?:ulat(?:e|ion))?)"
            r"(?:_(?:steps?|iters?|grad(?:ient)?s?|batches|freq))+"
        ),
        "accumulates gradients by a key that this trainer has not",
    ),
)
NOTHING = ("none", "null", "", "[]", "{}")
# The length of a run decides nothing about the plan, and the launcher knows how many processes run.
OPEN = ("max_steps", "steps", "num_processes", "num_machines")
LEAVE_OUT = "leave it out to judge the run without it"


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
    if any(path[-1] in ("fp8_param_gather", "fp8_params") and value is False for path, value in values.items()):
        words = [word for word in words if word != FP8_WEIGHTS]  # which the name of a precision had turned on
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
    precision = _precision(value)
    if precision is None or "fp4" in str(value):
        why = "which is not known here" if precision is None else "four bits, which are not described"
        hint = "write bf16, fp16 or an fp8 recipe, or describe the plan in a plan file"
        problems.append(Problem(f"{name}: {'.'.join(path)}", f"is {value}, {why}", hint))
    return precision or []


def _effective(values: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the fields without those that others override: the mixed precision of Megatron-Bridge says how gradients
    are reduced (MixedPrecisionConfig.setup of 0.6.2), and without `fp8` nothing has eight bits (NeMo's
    `fp8_hybrid: True` stands beside `fp8: False`, and says the format beside `fp8: True`)."""
    mixed = any(path[0] == "mixed_precision" for path in values)
    switches = [value for path, value in values.items() if path[-1] == "fp8"]
    sixteen = bool(switches) and not any(switches)
    return {
        path: value
        for path, value in values.items()
        if not (mixed and path == ("ddp", "grad_reduce_in_fp32"))
        and not (sixteen and path[-1].startswith("fp8_"))
        and not (path[-1] == "fp8" and isinstance(value, bool))
    }


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
    """The arguments of a precision by its name, None for one that is not known. With one scale a tensor recipes keep
    weights in 8 bits (Megatron-Bridge 0.6.2, training/mixed_precision.py)."""
    text = str(value).casefold()
    words = next((list(flags) for part, flags in PRECISIONS.items() if part in text), None)
    if words and "fp8" in text:
        recipe = "mxfp8" if "mxfp8" in text else "blockwise" if "subchannel" in text else "tensorwise"
        recipe = "delayed" if "delayed" in text or text == "bf16_with_fp8_mixed" else recipe  # NeMo's name of it
        words += ["--fp8-format", "hybrid", "--fp8-recipe", recipe]
        words += [FP8_WEIGHTS] if recipe in ("delayed", "tensorwise") else []
    return words


def _activation(value: Any) -> list[str]:
    names = {"swiglu": "--swiglu", "fast-swiglu": "--swiglu", "squared-relu": "--squared-relu"}
    value = str(value).replace("_", "-")
    return [names[str(value)]] if str(value) in names else []


@record(kw_only=False)
class Key:
    """A row of a table, for one of its keys."""

    effect: Effect
    when: frozenset[str]
    usual: tuple[str, ...]
    means: str
    words: str

    def is_usual(self, value: Any) -> bool:
        """Return whether a value is among the usual ones, or says nothing."""
        text = _plain(value)
        return text in NOTHING or text in map(_plain, self.usual) or (not self.usual and value in (False, 0))


@record(kw_only=False)
class Accounted:
    """The fields of a configuration that are read, by the names under which they are, and what is not counted.
    `written` has of keys that are read under another name how they stand in the file."""

    values: Mapping[Path, Any]
    uncounted: tuple[str, ...]
    written: Mapping[str, str]


@cache
def known_keys(trainer: str) -> Mapping[str, Key]:
    """Return the keys of a trainer's table."""
    rows = [row for row in shipped_table("shardwright.importers", f"{trainer}.csv") if row["effect"] != "default"]
    return MappingProxyType(
        {
            key: Key(
                effect=cast("Effect", row["effect"]),
                when=frozenset((row.get("when") or "").split()),
                usual=tuple(row["usual"].split()),
                means=row["means"],
                words=row["words"],
            )
            for row in rows
            for key in row["keys"].split()
        }
    )


@cache
def defaults(trainer: str) -> Mapping[str, str]:
    """Return what a trainer takes where a key that decides a plan is missing."""
    rows = [row for row in shipped_table("shardwright.importers", f"{trainer}.csv") if row["effect"] == "default"]
    return MappingProxyType({row["keys"]: row["usual"] for row in rows})


def key_of(path: Path, trainers: Sequence[str]) -> Key | None:
    """Return the row of a field: of its path, of the section that it is in, or of its last part, in the first table
    that has one."""
    names = [".".join(path), *(".".join(path[:end]) for end in range(len(path) - 1, 0, -1)), path[-1]]
    for trainer in trainers:
        known = known_keys(trainer)
        exact = known.get(names[0]) or known.get(path[-1])
        section = next((known[name] for name in names[1:-1] if name in known and _is_whole(known[name])), None)
        if key := exact or section:
            return key
    return None


def _is_whole(key: Key) -> bool:
    """Return whether a row for a section is one for all that is in it."""
    return key.effect not in ("read", "holds")


def accounted(
    values: Mapping[Path, Any],
    trainers: Sequence[str],
    name: str,
    problems: list[Problem],
    why: Mapping[str, str] = MappingProxyType({}),
) -> Accounted:
    """Return the fields of a configuration that are read, its trainer's defaults among them. A field that makes another
    run goes to `problems`, by name; `why` says of a script's variables why they are not known."""
    fields: dict[Path, Any] = {}
    written: dict[str, str] = {}
    uncounted: list[str] = []
    values = dict(_negated(values, trainers))
    said = {path: value for path, value in values.items() if value is not None}
    usual = dict(_defaults(values, trainers))
    keys = {path: key_of(path, trainers) for path in (*usual, *said)}
    entries = [(path, _meant(value, keys[path]), keys[path]) for path, value in (*usual.items(), *said.items())]
    problems += _contradictions(entries[len(usual) :], trainers, name)
    on = _on(entries)
    for path, value, key in entries:
        place = f"{name}: {'.'.join(path)}"
        if key is None:
            _unknown(path, value, trainers, place, problems, uncounted)
        elif key.effect == "none" or (key.when and not key.when & on):
            continue
        elif key.effect == "holds":
            named = any(".".join(path) in known_keys(trainer) for trainer in trainers)
            if named and _is_said(value) and _plain(value) not in NOTHING:
                problems.append(Problem(place, f"is {value}, where keys are expected that it holds", "write these"))
        elif not _is_said(value):
            problems += _unsaid(path, value, key, place, why)
        elif key.effect == "read":
            if key.usual and not key.is_usual(value):
                problems.append(Problem(place, f"is {value}, {key.words}", f"use {', '.join(key.usual)}"))
            fields |= _renamed(path, value, key.means)
            written |= {part: ".".join(path) for part in key.means.split()[:1] if part not in ("not", "+")}
        elif not key.is_usual(value):
            remark = "" if value is True else f"is {value}: "
            if key.effect == "refused":
                problems.append(Problem(place, remark + key.words, LEAVE_OUT))
            else:
                shown = "" if value is True else f" {value}"
                uncounted.append(f"{'.'.join(path)}{shown} ({key.words})")
    return Accounted(fields, tuple(dict.fromkeys(uncounted)), written)


def _negated(values: Mapping[Path, Any], trainers: Sequence[str]) -> Iterator[tuple[Path, Any]]:
    """Yield fields, `no_key` as the key with false: so transformers names switches on a command line that are on."""
    for path, value in values.items():
        key = path[-1].removeprefix("no_")
        negated = value is True and key != path[-1] and key_of(path, trainers) is None and key_of((key,), trainers)
        yield ((key,), False) if negated else (path, value)


def _meant(value: Any, key: Key | None) -> Any:
    """Return a quoted `"true"` or `"4"` as what it says, where the key has such values."""
    if not isinstance(value, str) or key is None or key.effect != "read" or not key.usual:
        return value
    meant = _literal(_plain(value))
    return value if isinstance(meant, str) else meant


def _contradictions(
    entries: Iterable[tuple[Path, Any, Key | None]], trainers: Sequence[str], name: str
) -> Iterator[Problem]:
    """Yield fields that say otherwise what another says: of one key in two sections, or of two that are read as one."""
    before: dict[Path, tuple[Path, Any]] = {}
    for path, value, key in entries:
        if key is None or key.effect != "read" or not _is_said(value) or value == "auto":
            continue
        anywhere = key_of(path[-1:], trainers) is key
        for target, read in _renamed(path[-1:] if anywhere else path, value, key.means.partition("+")[0]).items():
            other, earlier = before.setdefault(target, (path, read))
            if earlier != read:
                hint = "write one of them, or the same"
                yield Problem(f"{name}: {'.'.join(path)}", f"is {value}, beside another {'.'.join(other)}", hint)


def _on(entries: Iterable[tuple[Path, Any, Key | None]]) -> set[str]:
    """Return the keys that are read and say more than nothing, by the last part of what they are read as."""
    read: dict[Path, Any] = {}
    for path, value, key in entries:
        if key is not None and key.effect == "read" and _is_said(value):
            read |= _renamed(path, value, key.means)
    return {path[-1] for path, value in read.items() if value not in (False, 0) and _plain(value) not in NOTHING}


def _plain(value: Any) -> str:
    return "".join(str(value).casefold().split()).replace('"', "'")


def _is_said(value: Any) -> bool:
    return value is not COMPUTED and (not isinstance(value, str) or is_known(value))


def _unsaid(path: Path, value: Any, key: Key, place: str, why: Mapping[str, str]) -> Iterator[Problem]:
    """A value that is known only when the file or the script runs, of a key that counts."""
    if path[-1] in OPEN or key.effect == "uncounted":
        return
    if value is COMPUTED:
        yield Problem(place, "is computed when the file runs", "write the value itself")
    else:
        message = f"its value is {shown(value)}, which the text does not assign"
        yield Problem(place, *explained(value, message, why))


def _defaults(values: Mapping[Path, Any], trainers: Sequence[str]) -> Iterator[tuple[Path, Any]]:
    """Yield the defaults of the trainer, `not key` the opposite of another field."""
    said = {path[-1]: value for path, value in values.items()}
    for key, text in defaults(trainers[0]).items():
        path, opposite = tuple(key.split(".")), text.removeprefix("not ")
        there = [value for other, value in values.items() if other == path or (len(path) == 1 and other[-1] == key)]
        if not there or (opposite != text and there == [None]):
            yield path, not said.get(opposite) if opposite != text else _literal(text)


def _literal(text: str) -> Any:
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def _renamed(path: Path, value: Any, means: str) -> dict[Path, Any]:
    """Return a field as those that it is read as."""
    target, *others = (part.strip() for part in means.split("+"))
    read: dict[Path, Any] = {}
    for other in others:
        leaf, *pairs = other.split()
        values = dict(pair.split("=") for pair in pairs)
        read |= {tuple(leaf.split(".")): _literal(values[_plain(value)])} if _plain(value) in values else {}
    if not means:
        return {path: value}
    if not target:
        return read
    if target.startswith("not "):
        return {(target.removeprefix("not "),): not value, **read}
    leaf, *pairs = target.split()
    values = dict(pair.split("=") for pair in pairs)
    return {tuple(leaf.split(".")): _literal(values[_plain(value)]) if _plain(value) in values else value, **read}


def _unknown(
    path: Path, value: Any, trainers: Sequence[str], place: str, problems: list[Problem], uncounted: list[str]
) -> None:
    """Refuse a key that is a slip of one that counts, that stands in another section, or that by its name splits the
    model or the batch; name any other."""
    known = {
        key.rsplit(".", 1)[-1]: key for trainer in trainers for key, row in known_keys(trainer).items() if _counts(row)
    }
    leaf, plain = path[-1].replace("-", "_"), _plain(value)
    split = next((words for pattern, words in SPLITS if pattern.fullmatch(leaf)), None)
    if split and (plain in ("0", "1", "false") or plain in NOTHING):
        uncounted.append(f"{'.'.join(path)} {value} (not known here)")
    elif leaf in known and "_" in leaf:
        problems.append(Problem(place, "is no key of this trainer", f"write {known[leaf]}"))
    elif leaf not in known and (meant := slip_of(leaf, known)):
        problems.append(Problem(place, "is no key of this trainer", f"did you mean {meant}?"))
    elif split:
        problems.append(Problem(place, f"is {value}: {split}", LEAVE_OUT))
    else:
        uncounted.append(f"{'.'.join(path)} (not known here)")


def _counts(key: Key) -> bool:
    return key.effect not in ("none", "holds")
