"""The arguments of Megatron-LM (core_v0.19) that say something about a plan, and their reading off a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from shardwright.errors import Problem, suggestion
from shardwright.importers.megatron.flag_table import Known, hyphenated, known_flags
from shardwright.importers.shell.unknown import is_known, is_lone, shown, unknowns, variable_of
from shardwright.spec.options import MODULES
from shardwright.spec.options import VALUES as VALUES_OF
from shardwright.spec.text.fields import shown as quoted

LARGEST_COUNT = 10**18
PATTERN_TERM = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")
MOST_PATTERN = 100_000
Reader = Callable[[str], Any]


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= LARGEST_COUNT:
        raise ValueError
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _window(text: str) -> tuple[int, int]:
    left, right = (int(part) for part in text.strip("()").split(","))
    return left, right


def _pattern(text: str) -> int | tuple[int, ...]:
    """A count N, or a list such as `([0]*3+[1]*58)*1` as numbers. Only sums and products of lists of 0 and 1."""
    flat = "".join(text.split())
    if flat.isdigit():
        return int(flat)
    outer = re.fullmatch(r"\((.*)\)(?:\*(\d{1,5}))?", flat)
    body, times = (outer[1], int(outer[2] or 1)) if outer else (flat, 1)
    numbers: list[int] = []
    for term in body.split("+"):
        match = PATTERN_TERM.fullmatch(term)
        if match is None or len(numbers) > MOST_PATTERN:
            raise ValueError
        numbers += [int(number) for number in match[1].split(",")] * int(match[2] or 1)
    if len(numbers) * times > MOST_PATTERN:
        raise ValueError
    return tuple(numbers) * times


# Flags that take one value: how it is read, and what Megatron assumes without them.
VALUES: dict[str, tuple[Reader, Any]] = {
    "--tensor-model-parallel-size": (_count, 1),
    "--pipeline-model-parallel-size": (_count, 1),
    "--context-parallel-size": (_count, 1),
    "--expert-model-parallel-size": (_count, 1),
    "--expert-tensor-parallel-size": (_count, None),
    "--pipeline-model-parallel-layout": (str, None),
    "--num-layers-per-virtual-pipeline-stage": (_count, None),
    "--num-virtual-stages-per-pipeline-rank": (_count, None),
    "--decoder-first-pipeline-num-layers": (_count, None),
    "--decoder-last-pipeline-num-layers": (_count, None),
    "--micro-batch-size": (_count, None),
    "--global-batch-size": (_count, None),
    "--seq-length": (_count, None),
    "--train-iters": (_count, None),
    "--train-samples": (_count, None),
    "--recompute-granularity": (str, None),
    "--recompute-method": (str, None),
    "--recompute-num-layers": (_count, None),
    "--data-parallel-sharding-strategy": (str, "optim_grads_params"),
    "--optimizer": (str, "adam"),
    "--optimizer-offload-fraction": (_fraction, 1.0),
    "--fp8-format": (str, None),
    "--fp8-recipe": (str, "delayed"),
    "--attention-backend": (str, "auto"),
    "--num-layers": (_count, None),
    "--hidden-size": (_count, None),
    "--ffn-hidden-size": (_count, None),
    "--num-attention-heads": (_count, None),
    "--num-query-groups": (_count, 1),
    "--kv-channels": (_count, None),
    "--window-size": (_window, None),
    "--window-attn-skip-freq": (_pattern, None),
    "--max-position-embeddings": (_count, None),
    "--position-embedding-type": (str, "learned_absolute"),
    "--rotary-base": (_count, 10000),
    "--rotary-percent": (_fraction, 1.0),
    "--rope-scaling-factor": (_fraction, 8.0),
    "--rotary-seq-len-interpolation-factor": (_count, None),
    "--norm-epsilon": (_fraction, None),
    "--normalization": (str, "LayerNorm"),
    "--hidden-dropout": (_fraction, 0.1),
    "--attention-dropout": (_fraction, 0.1),
    "--vocab-size": (_count, None),
    "--padded-vocab-size": (_count, None),
    "--extra-vocab-size": (_count, None),
    "--tokenizer-type": (str, None),
    "--tokenizer-model": (str, None),
    "--patch-tokenizer-type": (str, None),
    "--vocab-file": (str, None),
    "--rampup-batch-size": (str, None),
    "--mtp-num-layers": (_count, None),
    "--q-lora-rank": (_count, None),
    "--kv-lora-rank": (_count, 32),
    "--qk-head-dim": (_count, 128),
    "--qk-pos-emb-head-dim": (_count, 64),
    "--v-head-dim": (_count, 128),
    "--num-experts": (_count, None),
    "--moe-router-topk": (_count, 2),
    "--moe-ffn-hidden-size": (_count, None),
    "--moe-shared-expert-intermediate-size": (_count, None),
    "--moe-layer-freq": (_pattern, 1),
    "--moe-router-num-groups": (_count, None),
    "--moe-router-group-topk": (_count, None),
    "--moe-router-topk-scaling-factor": (_fraction, None),
    "--cross-entropy-fusion-impl": (str, None),
    "--zero-stage": (_count, None),
    "--ds-sequence-parallel-size": (_count, 1),
    "--train-tokens": (_count, None),
    "--pp-partition-method": (str, "type:transformer"),
    "--attention-head-type": (str, "multihead"),
    "--glu-activation": (str, None),
    "--optimizer-offload-policy": (str, None),
    "--moe-token-dispatcher-type": (str, None),
    "--cp-comm-type": (str, "p2p"),
    "--transformer-impl": (str, "transformer_engine"),
    "--recompute-modules": (str, None),
    "--main-grads-dtype": (str, "fp32"),
    "--main-params-dtype": (str, "fp32"),
    "--exp-avg-dtype": (str, "fp32"),
    "--exp-avg-sq-dtype": (str, "fp32"),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "--optimizer": ("adam", "sgd", "adamw", "hybridadam"),
    "--fp8-format": ("e4m3", "hybrid"),
    "--fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise"),
    "--attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "--position-embedding-type": ("learned_absolute", "rope", "yarn", "mrope", "none", "alibi", "rotary", "absolute"),
    "--normalization": ("LayerNorm", "RMSNorm", "layernorm", "rmsnorm"),
    "--glu-activation": ("swiglu", "geglu", "reglu", "liglu"),
    "--attention-head-type": ("multihead", "multiquery"),
    "--main-grads-dtype": VALUES_OF["main_grads"],
    "--main-params-dtype": VALUES_OF["main_params"],
    "--exp-avg-dtype": VALUES_OF["exp_avg"],
    "--exp-avg-sq-dtype": VALUES_OF["exp_avg_sq"],
}
SWITCHES = (
    "--sequence-parallel",
    "--use-tp-pp-dp-mapping",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--no-overlap-p2p-communication",
    "--recompute-activations",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--use-torch-fsdp2",
    "--optimizer-cpu-offload",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--tp-comm-overlap",
    "--bf16",
    "--fp16",
    "--use-flash-attn",
    "--group-query-attention",
    "--use-rotary-position-embeddings",
    "--swiglu",
    "--quick-geglu",
    "--squared-relu",
    "--disable-bias-linear",
    "--add-qkv-bias",
    "--qk-layernorm",
    "--untie-embeddings-and-output-weights",
    "--multi-latent-attention",
    "--moe-shared-expert-gate",
    "--moe-router-enable-expert-bias",
    "--moe-router-pre-softmax",
    "--cross-entropy-loss-fusion",
    "--grad-reduce-in-bf16",
    "--use-precision-aware-optimizer",
    "--moe-enable-deepep",
    "--moe-layer-recompute",
    "--apply-layernorm-1p",
    "--rotary-interleaved",
    "--use-rope-scaling",
    "--embed-layernorm",
    "--no-pipeline-parallel",
    "--checkpoint-activations",
    "--attention-alibi",
    "--xielu",
    "--parallel-attn",
    "--no-position-embedding",
    "--qk-l2-norm",
    "--use-checkpoint-args",
)
# Other names of the same: of older releases, and of trainers that are made of Megatron-LM.
ALIASES = {
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--batch-size": "--micro-batch-size",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-num-layers": "--recompute-num-layers",
    "--activations-checkpoint-method": "--recompute-method",
    "--num-attention-heads-kv": "--num-query-groups",
    "--num-key-value-heads": "--num-query-groups",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--topk": "--moe-router-topk",
    "--pad-vocab-size-to": "--padded-vocab-size",
    "--tokenizer-name-or-path": "--tokenizer-model",
    "--tokenizer-file": "--tokenizer-model",
    "--no-tie-embed-logits": "--untie-embeddings-and-output-weights",
    "--no-bias-in-linear": "--disable-bias-linear",
    "--layernorm-epsilon": "--norm-epsilon",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--cpu-optimizer": "--optimizer-cpu-offload",
    "--encoder-seq-length": "--seq-length",
}
# Switches that say what another argument says with a value.
IMPLIED = {
    "--use-rms-norm": ("--normalization", "RMSNorm"),
    "--num-attention-heads-kv": ("--group-query-attention", True),
    "--num-key-value-heads": ("--group-query-attention", True),
}
# Values with which an argument that is not modelled changes nothing.
USUAL = {
    "--moe-token-dispatcher-type": ("alltoall", "alltoall_seq", "allgather", "flex"),
    "--transformer-impl": ("transformer_engine",),
    "--recompute-modules": MODULES,
    "--cp-comm-type": ("p2p",),
    "--pp-partition-method": ("type:transformer", "type:transformer|embedding"),
}
# The length of the run decides nothing about the plan: a script may leave it to its caller.
LENGTHS = ("--train-iters", "--train-samples", "--train-tokens")
OF_THE_USER = ("--tokenizer-type", "--tokenizer-model", "--patch-tokenizer-type", "--vocab-file")


@dataclass(frozen=True, slots=True)
class Flags:
    """What a command line says: values and switches by flag; `ignored` are flags that move nothing, `uncounted` those
    that move time or memory without being modelled, with what they change."""

    given: Mapping[str, Any]
    ignored: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __getitem__(self, flag: str) -> Any:
        """The value of a flag, or Megatron's default for it; for a switch whether it is on."""
        if flag in VALUES:
            return self.given.get(flag, VALUES[flag][1])
        return flag in self.given


@dataclass(slots=True)
class _Scan:
    """Flags found so far. `why` says of variables why they are not known."""

    name: str
    problems: list[Problem]
    why: Mapping[str, str]
    given: dict[str, Any]
    ignored: list[str]
    uncounted: dict[str, str]


def scan(
    words: Sequence[str], name: str, problems: list[Problem], why: Mapping[str, str] = MappingProxyType({})
) -> Flags:
    """Read the flags of a plan off `words`; faults go to `problems`, every one. A later flag overrides an earlier."""
    found = _Scan(name, problems, why, {}, [], {})
    position = 0
    while position < len(words):
        flag, separator, attached = words[position].partition("=")
        position += 1
        if not flag.startswith("--"):
            _refuse_hidden(flag, f"{name}: {shown(flag)}", found)
            continue
        values = [attached] if separator else []
        while not separator and position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        _read(hyphenated(flag), values, flag, found)
    given = {flag: value for flag, value in found.given.items() if value is not None}
    return Flags(given, tuple(found.ignored), tuple(_words(flag, text) for flag, text in found.uncounted.items()))


def _words(flag: str, text: str) -> str:
    return f"{flag} ({text})" if text else flag


def _read(flag: str, values: list[str], written: str, found: _Scan) -> None:
    """Read one flag with its values."""
    place = f"{found.name}: {written}"
    known = known_flags().get(flag)
    if flag in IMPLIED:
        other, value = IMPLIED[flag]
        found.given[other] = value
    own = ALIASES.get(flag, flag)
    if own in VALUES:
        value = _value(own, values, place, found)
        found.given[own] = value
        parts = _parts(own, value)
        if own in USUAL and not set(parts) <= set(USUAL[own]):
            found.uncounted[f"{written} {value}"] = known_flags()[own].words
    elif own in SWITCHES:
        found.given[own] = True
        for value in values:
            _refuse_hidden(value, place, found)
        if known is not None and known.effect == "uncounted":
            found.uncounted[written] = known.words
    elif known is not None and known.effect == "refused":
        found.problems.append(Problem(place, known.words, "leave the flag out, or describe the plan in a plan file"))
    else:
        _pass_over(written, values, known, found)


def _parts(flag: str, value: Any) -> list[Any]:
    """The values of an argument: of several words where it takes a list."""
    if value is None:
        return []
    return value.replace(",", " ").split() if flag == "--recompute-modules" else [value]


def _pass_over(written: str, values: list[str], known: Known | None, found: _Scan) -> None:
    """Note a flag that is not read; variables of unknown content behind it may hold any other."""
    if known is None:
        found.uncounted[written] = "not known here"
    elif known.effect == "uncounted":
        found.uncounted[written] = known.words
    elif written not in IMPLIED:
        found.ignored.append(written)
    taken = 1 if known is None else len(values) if known.values is None else known.values
    for value in values[taken:]:
        _refuse_hidden(value, f"{found.name}: {written}", found)


def _value(flag: str, values: list[str], place: str, found: _Scan) -> Any:
    """The value of a known flag, or None after naming what is wrong."""
    if not values:
        found.problems.append(Problem(place, "has no value", "write it after the flag"))
        return None
    if flag == "--rampup-batch-size":
        return " ".join(map(shown, values))
    if not is_known(values[0]):
        if flag not in LENGTHS and flag not in OF_THE_USER:
            message = f"its value is {shown(values[0])}, which the text does not assign"
            found.problems.append(Problem(place, *_explained(values[0], message, found.why)))
        return shown(values[0]) if flag in OF_THE_USER else None
    for value in values[1:]:
        _refuse_hidden(value, place, found)
    text = " ".join(values) if flag == "--moe-layer-freq" else values[0]
    if flag == "--recompute-modules":
        return " ".join(values)
    if flag in CHOICES and text not in CHOICES[flag]:
        found.problems.append(
            Problem(place, f"{quoted(text)} is not a value that can be read", suggestion(text, CHOICES[flag]))
        )
        return None
    try:
        return VALUES[flag][0](text)
    except (ValueError, OverflowError):
        found.problems.append(Problem(place, f"{quoted(text)} cannot be read", "write what Megatron-LM would accept"))
        return None


def _refuse_hidden(word: str, place: str, found: _Scan) -> None:
    """A variable of unknown content, where arguments stand, may hold any of them."""
    if is_lone(word):
        message = f"{shown(word)} may hold arguments, but the text does not assign it"
        found.problems.append(Problem(place, *_explained(word, message, found.why)))


def _explained(word: str, message: str, why: Mapping[str, str]) -> tuple[str, str]:
    """Return what is wrong with a word that is not known, and what helps."""
    for part in unknowns(word):
        variable = variable_of(part)
        if variable is not None and variable in why:
            return f"{shown(word)} hangs on {why[variable]}, which is not known here", "write the line as it is run"
        if variable is not None:
            return message, f"add --env {variable}=…"
        if part.removeprefix("$").isdigit():
            return message, "add the script's own arguments, as on its command line"
    return message, "write the value itself"
