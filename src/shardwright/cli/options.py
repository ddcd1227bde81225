"""Options that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli import completion
from shardwright.commands import argument, option

Model = Annotated[
    str | None,
    option(
        metavar="MODEL",
        complete=completion.models,
        help="Preset (see `shardwright models`), config.json or its folder, or YAML; measured layers need none.",
    ),
]
AcceptGuess = Annotated[
    bool,
    option("--accept-guess", help="Plan a model of an unknown family as its fields suggest; each guess is listed."),
]
Precision = Annotated[
    str | None,
    option(metavar="NAME", help="bf16, fp16, fp8 or fp32; by default bf16, or that of measured layers."),
]
Adapter = Annotated[
    str | None,
    option(
        metavar="FORM:RANK",
        help="Freeze the weights and train adapters: lora:16, dora:16, qlora:16 (frozen weights in NF4), qdora:16 or "
        "lora8bit:16.",
    ),
]
AdapterTargets = Annotated[
    str | None,
    option(
        metavar="NAME[+NAME]",
        help="Beside which matrices: linear (all but experts, if not given), attention, all, or q_proj+v_proj and "
        "their like.",
    ),
]
MaskDocuments = Annotated[
    Path | None,
    option(metavar="FILE.bin", help="Attention stays within documents as long as those of this token file."),
]
Optimizer = Annotated[
    str,
    option(
        metavar="NAME",
        help="adam, adam8bit (moments in 8 bits), paged_adam and paged_adam8bit (paged to the host), lion, adafactor, "
        "muon or sgd.",
    ),
]
MasterWeights = Annotated[
    str | None, option(metavar="NAME", help="none: no fp32 masters, the 16-bit weights are updated; fp32.")
]
Framework = Annotated[
    str | None,
    option(
        metavar="NAME[,NAME]",
        help="Software that runs the plan: megatron, torchtitan, fsdp, deepspeed, train (`shardwright train`, which "
        "alone runs unequal replicas), several, or any that runs the model; megatron where it does, if not given.",
    ),
]
OneFramework = Annotated[
    str,
    option(
        metavar="NAME",
        help="Software that runs the plan, whose overheads count: megatron, torchtitan, fsdp, deepspeed, nanotron, "
        "jax, eager or train (`shardwright train`, which alone runs unequal replicas).",
    ),
]
Fit = Annotated[float, option(metavar="P", help="Probability with which a plan must fit in memory, 0.01 to 0.99.")]
Sure = Annotated[
    float | None,
    option(
        metavar="P",
        help="Probability with which deadline and budget must be kept, over 0 and under 1, e.g. 0.9; without it, as "
        "expected.",
    ),
]
Indifference = Annotated[
    str,
    option(
        metavar="PART",
        help="How much more time or money than the best plan one may take that has fewer switches which hardly any "
        "published run has: 0 to 10%; it comes first then.",
    ),
]
Pins = Annotated[
    tuple[str, ...],
    option(
        "--set",
        metavar="NAME=VALUE",
        help="Pin a parameter to one or more values: tp=8 or recompute=none,selective; may be repeated. "
        "What is not pinned is searched.",
    ),
]
Prices = Annotated[
    Path | None,
    option(metavar="FILE", help="Your own prices, before those that ship: CSV as in docs/how-to.md."),
]
Out = Annotated[Path | None, option("--out", "-o", metavar="FILE", help="Write here instead of standard output.")]
Details = Annotated[bool, option("--details", help="Print the whole report, not the first screen alone.")]
AsJson = Annotated[bool, option("--json", help="Print one JSON document in place of the text.")]
PlanFile = Annotated[Path, argument(metavar="PLAN.json", help="A plan file, as `plan --out` writes it.")]
