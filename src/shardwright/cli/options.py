"""Options that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.cli import completion
from shardwright.commands import argument, option
from shardwright.records import record

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
Fp8Recipe = Annotated[str | None, option(metavar="NAME", help="delayed, tensorwise, blockwise or mxfp8 (with fp8).")]
MaskDocuments = Annotated[
    Path | None,
    option(metavar="FILE.bin", help="Price attention within documents as long as those of this token file."),
]
Framework = Annotated[
    str | None,
    option(
        metavar="NAME[,NAME]",
        help="Trainer to plan for: megatron (the default where it runs the model), torchtitan, fsdp, deepspeed or "
        "train (`shardwright train`, which alone runs unequal replicas); several; or any that runs the model.",
    ),
]
OneFramework = Annotated[
    str,
    option(
        metavar="NAME",
        help="Trainer whose overheads count: megatron, torchtitan, fsdp, deepspeed, nanotron, "
        "jax, eager or train (`shardwright train`, which alone runs unequal replicas).",
    ),
]
Fit = Annotated[float, option(metavar="P", help="Least probability that a plan fits in memory, 0.01 to 0.99.")]
Sure = Annotated[
    float | None,
    option(
        metavar="P",
        help="Least probability of keeping deadline and budget, over 0 and under 1, e.g. 0.9; without it, expected "
        "values count.",
    ),
]
Indifference = Annotated[
    str,
    option(
        metavar="PART",
        help="Prefer a plan with fewer switches that hardly any published run has, if it takes at most this much more "
        "time or money than the best: 0 to 10%.",
    ),
]
Pins = Annotated[
    tuple[str, ...],
    option(
        "--set",
        metavar="NAME=VALUE",
        help="Pin a parameter to one or more values: tp=8 or recompute=none,selective; may be repeated. "
        "The search covers the rest.",
    ),
]
Prices = Annotated[
    Path | None,
    option(metavar="FILE", help="CSV of your own prices, used before those that ship (docs/how-to.md)."),
]
Out = Annotated[Path | None, option("--out", "-o", metavar="FILE", help="Write here instead of standard output.")]
Details = Annotated[bool, option("--details", help="Print the whole report instead of one screen.")]
AsJson = Annotated[bool, option("--json", help="Print one JSON document instead of text.")]
PlanFile = Annotated[Path, argument(metavar="PLAN.json", help="A plan file, as `plan --out` writes it.")]


@record
class TrainingOptions:
    """Training."""

    optimizer: Annotated[
        str,
        option(
            metavar="NAME",
            help="adam, foreach_adam (PyTorch's where it is not fused: its update has a copy of a moment), "
            "adam8bit (moments in 8 bits), paged_adam and paged_adam8bit (paged to the host), galore and "
            "apollo (moments of projected gradients; galore:64 for that rank), lion, adafactor, muon, sgd or "
            "plain_sgd (without momentum).",
        ),
    ] = "adam"
    master_weights: Annotated[
        str | None, option(metavar="NAME", help="fp32, or none: the optimizer updates the 16-bit weights themselves.")
    ] = None
    adapter: Annotated[
        str | None,
        option(
            metavar="FORM:RANK",
            help="Freeze the weights and train adapters: lora:16, dora:16, qlora:16 (frozen weights in NF4), qdora:16 "
            "or lora8bit:16.",
        ),
    ] = None
    adapter_targets: Annotated[
        str | None,
        option(
            metavar="NAME[+NAME]",
            help="Matrices with adapters: linear (all but experts; the default), attention, all, or names such as "
            "q_proj+v_proj.",
        ),
    ] = None
    preference: Annotated[
        str | None,
        option(
            metavar="LOSS",
            help="Train on preferences: dpo, orpo, cpo or reward (a sample is a pair of sequences), or kto; "
            "dpo:precomputed has run the reference before, dpo:llamafactory runs that trainer's code.",
        ),
    ] = None
    freeze: Annotated[
        str | None,
        option(
            metavar="PART[+PART]",
            help="Parts not to train: vision, audio, projector, language, encoder (of speech).",
        ),
    ] = None


@record
class SequenceOptions:
    """What a sequence holds."""

    images_per_sequence: Annotated[
        int | None, option(metavar="N", help="Images in a sequence, for a model that sees; by default 1.")
    ] = None
    image_size: Annotated[
        str | None,
        option(
            metavar="WxH",
            help="Pixels of an image, e.g. 448 or 1280x720; by default about 1,000,000, or the model's own.",
        ),
    ] = None
    sounds_per_sequence: Annotated[
        int | None, option(metavar="N", help="Sounds in a sequence, for a model that hears; by default 1.")
    ] = None
    sound_seconds: Annotated[float | None, option(metavar="SECONDS", help="Length of a sound; by default 30.")] = None
    encoder_seq_len: Annotated[
        int | None,
        option(
            metavar="N",
            help="Tokens that an encoder-decoder's encoder reads; by default as many as its decoder (--seq-len).",
        ),
    ] = None


@record
class LaunchOptions:
    """With --launch."""

    cluster: Annotated[str | None, option(metavar="CLUSTER", help="Cluster file or short form, e.g. 4x8xH100-SXM.")] = (
        None
    )
    model: Annotated[
        str | None,
        option(metavar="MODEL", help="Preset, config.json or YAML, if the launch does not describe the model."),
    ] = None
    env: Annotated[
        tuple[str, ...], option("--env", metavar="NAME=VALUE", help="Variable for the script; may be repeated.")
    ] = ()
    seq_len: Annotated[int | None, option(metavar="N", help="Tokens of a sample, where the launch does not say.")] = (
        None
    )
    preference: Annotated[
        str | None,
        option(
            metavar="LOSS",
            help="Loss over preferences, where the script's name does not say it: dpo, kto, orpo, cpo, reward.",
        ),
    ] = None
    accept_guess: AcceptGuess = False
