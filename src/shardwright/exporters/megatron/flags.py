"""The arguments of Megatron-LM (core_v0.19) that say something about a plan, and their reading off a command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwright.errors import Problem, suggestion
from shardwright.exporters.megatron.shell import is_reference, unresolved
from shardwright.spec.text.fields import shown

LARGEST_COUNT = 10**9
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
    "--normalization": (str, "LayerNorm"),
    "--hidden-dropout": (_fraction, 0.1),
    "--attention-dropout": (_fraction, 0.1),
    "--vocab-size": (_count, None),
    "--padded-vocab-size": (_count, None),
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
}
CHOICES: dict[str, tuple[str, ...]] = {
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "--optimizer": ("adam", "sgd"),
    "--fp8-format": ("e4m3", "hybrid"),
    "--fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise"),
    "--attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "--position-embedding-type": ("learned_absolute", "rope", "yarn", "mrope", "none"),
    "--normalization": ("LayerNorm", "RMSNorm"),
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
)
# Flags that change the architecture or the schedule in ways a plan has no words for.
REFUSED = {
    "--hybrid-layer-pattern": "hybrid models are not described",
    "--hybrid-override-pattern": "hybrid models are not described",
    "--heterogeneous-layers-config-path": "layers from a file are not read",
    "--num-distributed-optimizer-instances": "several distributed optimizer instances are not described",
    "--microbatch-group-size-per-virtual-pipeline-stage": "another interleaving than Megatron's own is not described",
    "--tensor-parallel-num-weight-shards": "weight rematerialization is not described",
    "--cpu-offloading-num-layers": "activation offload is not described",
    "--rampup-batch-size": "a batch that grows is not described",
    "--step-batch-size-schedule": "a batch that grows is not described",
    "--yaml-cfg": "arguments from a file are not read",
}
# The length of the run decides nothing about the plan: a script may leave it to its caller.
LENGTHS = ("--train-iters", "--train-samples")
LAUNCHER_VALUES = {
    "--nnodes": "nodes",
    "--nodes": "nodes",
    "--nproc_per_node": "gpus_per_node",
    "--nproc-per-node": "gpus_per_node",
    "--num-gpus": "gpus",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """What a command line says: values and switches by flag, the launcher's figures, and flags of no concern."""

    given: dict[str, Any]
    launcher: dict[str, int]
    ignored: tuple[str, ...]

    def __getitem__(self, flag: str) -> Any:
        """The value of a flag, or Megatron's default for it; for a switch whether it is on."""
        if flag in VALUES:
            return self.given.get(flag, VALUES[flag][1])
        return flag in self.given


def scan(words: tuple[str, ...], name: str, problems: list[Problem]) -> Flags:
    """Read the flags of a plan off `words`; faults go to `problems`, every one. A later flag overrides an earlier."""
    given: dict[str, Any] = {}
    launcher: dict[str, int] = {}
    ignored: list[str] = []
    position = 0
    while position < len(words):
        flag, separator, attached = words[position].partition("=")
        position += 1
        if not flag.startswith("--"):
            _refuse_hidden(flag, f"{name}: {flag}", problems)
            continue
        values = [attached] if separator else []
        while not separator and position < len(words) and not words[position].startswith("--"):
            values.append(words[position])
            position += 1
        place = f"{name}: {flag}"
        if flag in VALUES:
            given[flag] = _value(flag, values, place, problems)
        elif flag in SWITCHES:
            given[flag] = True
            for value in values:
                _refuse_hidden(value, place, problems)
        elif flag in REFUSED:
            problems.append(Problem(place, REFUSED[flag], "leave the flag out, or describe the plan in a plan file"))
        elif flag in LAUNCHER_VALUES and values and values[0].isdigit():
            launcher[LAUNCHER_VALUES[flag]] = int(values[0])
        elif flag not in LAUNCHER_VALUES:
            ignored.append(flag)
            for value in values[1:]:
                _refuse_hidden(value, place, problems)
    return Flags({flag: value for flag, value in given.items() if value is not None}, launcher, tuple(ignored))


def _value(flag: str, values: list[str], place: str, problems: list[Problem]) -> Any:
    """The value of a known flag, or None after naming what is wrong."""
    if not values:
        problems.append(Problem(place, "has no value", "write it after the flag"))
        return None
    hidden = unresolved(values[0])
    if hidden and flag in LENGTHS:
        return None
    if hidden:
        problems.append(Problem(place, f"its value is {values[0]}, which the text does not assign", _assign(hidden)))
        return None
    for value in values[1:]:
        _refuse_hidden(value, place, problems)
    if flag in CHOICES and values[0] not in CHOICES[flag]:
        hint = suggestion(values[0], CHOICES[flag])
        problems.append(Problem(place, f"{shown(values[0])} is not a value that can be read", hint))
        return None
    try:
        return VALUES[flag][0](values[0])
    except (ValueError, OverflowError):
        problems.append(Problem(place, f"{shown(values[0])} cannot be read", "write what Megatron-LM would accept"))
        return None


def _refuse_hidden(word: str, place: str, problems: list[Problem]) -> None:
    """A variable of unknown content, where arguments stand, may hold any of them. `"$@"` is the caller's."""
    if word in ("$@", "$*", "${@}"):
        return
    hidden = unresolved(word)
    if hidden and is_reference(word):
        problems.append(Problem(place, f"{word} may hold arguments, but the text does not assign it", _assign(hidden)))


def _assign(variable: str) -> str:
    return "write the value itself" if " " in variable else f"put {variable}=… in the text, or write the value itself"
