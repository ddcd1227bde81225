"""A model from Megatron-LM's arguments: the inverse of `exporters.megatron.model`.

The size of a vocabulary that the arguments leave to the tokenizer is in `data/vocabularies.csv`: tokenizers by what
their names contain, the more special first, with sizes as their models' config.json have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwright.errors import Problem
from shardwright.files import shipped_table
from shardwright.importers.megatron.flags import MOST_PATTERN, Flags
from shardwright.spec.forward_pass import FAST_TURNS, SLOW_TURNS, RotaryScaling
from shardwright.spec.layer import Attention, LatentAttention, Layer, Mlp, Moe, Position
from shardwright.spec.model import Model

LATENT_POSITIONS = 4096  # of YaRN in latent attention (transformer_config.py 2939)
GLU_ROUNDING = 64
ASSUMED = 128_000
THOUSANDS = re.compile(r"(?<![a-z0-9])(\d{2,3})k(?![a-z0-9])")
WHOLE = re.compile(r"(?<![0-9a-z.])([3-9]\d{4}|[1-3]\d{5})(?![0-9a-z.])")


def read_model(flags: Flags, name: str, problems: list[Problem], notes: list[str]) -> Model | None:
    """Return the model that the arguments describe, or None after adding to `problems` what is missing or wrong. What
    had to be assumed goes to `notes`."""
    before = len(problems)
    problems += _missing(flags, name)
    if len(problems) > before:
        return None
    layers = _layers(flags, name, problems)
    if len(problems) > before:
        return None
    position = _position(flags)
    longest = flags["--max-position-embeddings"] or flags["--seq-length"] or 0
    return Model(
        name="megatron-arguments",
        family="megatron",
        hidden=flags["--hidden-size"],
        vocab=_vocabulary(flags, notes),
        layers=layers,
        norm="rmsnorm" if flags["--normalization"].casefold() == "rmsnorm" else "layernorm",
        position=position,
        rotary_base=float(flags["--rotary-base"]),
        rotary_fraction=flags["--rotary-percent"],
        max_position=longest,
        learned_positions=longest if position == "learned" else 0,
        tied_embeddings=not flags["--untie-embeddings-and-output-weights"],
        dropout=max(flags["--hidden-dropout"], flags["--attention-dropout"]) > 0,
        mtp_layers=flags["--mtp-num-layers"] or 0,
        activation=_activation(flags),
        embedding_norm=flags["--embed-layernorm"],
        parallel_block=flags["--parallel-attn"],
        norm_epsilon=flags["--norm-epsilon"],
        norm_about_one=flags["--apply-layernorm-1p"] or None,
        rotary_interleaved=flags["--rotary-interleaved"] or None,
        rotary_scaling=_scaling(flags),
    )


def _vocabulary(flags: Flags, notes: list[str]) -> int:
    """The size that is said, else that of the tokenizer's name, else a usual one."""
    stated: int | None = flags["--vocab-size"] or flags["--padded-vocab-size"]
    if stated:
        return stated
    names = [flags[flag] for flag in ("--patch-tokenizer-type", "--tokenizer-model", "--tokenizer-type")]
    size = size_of(*names, flags["--vocab-file"]) or (None if any(names) else size_of("gpt2"))
    extra: int = flags["--extra-vocab-size"] or 0
    if size is None:
        notes.append(f"no size of the vocabulary is given and the tokenizer's is not known: {ASSUMED:,} is assumed")
        return ASSUMED
    tokenizer = (
        next((name for name in names if size_of(name) == size), None) or flags["--vocab-file"] or "GPT-2's, the default"
    )
    notes.append(f"the vocabulary is that of the tokenizer {tokenizer}: {size + extra:,}")
    return size + extra


def _scaling(flags: Flags) -> RotaryScaling | None:
    if flags["--use-rope-scaling"]:
        return RotaryScaling(kind="llama3", factor=flags["--rope-scaling-factor"])
    kind = flags["--rope-type"] if flags["--multi-latent-attention"] else flags["--position-embedding-type"]
    if kind == "yarn" and flags["--rotary-scaling-factor"] != 1.0:
        return _yarn(flags)
    factor = flags["--rotary-seq-len-interpolation-factor"]
    return RotaryScaling(kind="linear", factor=float(factor)) if factor else None


def _yarn(flags: Flags) -> RotaryScaling:
    """YaRN as Megatron-Core has it; latent attention takes the range of its configuration alone. A magnitude of no
    dimension is one, and says nothing (yarn_rotary_pos_embedding.py 252-275)."""
    latent: bool = flags["--multi-latent-attention"]
    usual = (LATENT_POSITIONS, FAST_TURNS, SLOW_TURNS)
    names = ("--yarn-original-max-position-embeddings", "--yarn-beta-fast", "--yarn-beta-slow")
    original, fast, slow = usual if latent else (flags[name] for name in names)
    scaling = RotaryScaling(
        kind="yarn",
        factor=flags["--rotary-scaling-factor"],
        original_positions=original,
        fast_turns=fast,
        slow_turns=slow,
        whole_bounds=False if flags["--no-yarn-correction-range-round-to-int"] and not latent else None,
    )
    rotation, whole = flags["--mscale"], flags["--mscale-all-dim"]
    if rotation and whole:
        return replace(scaling, mscale=rotation, mscale_all=whole)
    return replace(scaling, attention_factor=scaling.magnitude(rotation)) if rotation != 1.0 else scaling


def _missing(flags: Flags, name: str) -> Iterator[Problem]:
    for flag in ("--num-layers", "--hidden-size", "--num-attention-heads"):
        if not flags[flag]:
            yield Problem(f"{name}: {flag}", "is missing", "add it, or name the model (--model)")
    if (flags["--num-layers"] or 0) > MOST_PATTERN:
        yield Problem(f"{name}: --num-layers", f"is more than {MOST_PATTERN}", "correct it")


def _layers(flags: Flags, name: str, problems: list[Problem]) -> tuple[Layer, ...]:
    attention = _attention(flags, name, problems)
    moe = _moe(flags)
    width = flags["--ffn-hidden-size"] or _default_width(flags)
    mlp = Mlp(width=width, gated=_gated(flags), bias=not flags["--disable-bias-linear"])
    count = flags["--num-layers"]
    with_experts = _pattern(flags, "--moe-layer-freq", name, problems) if moe else (False,) * count
    windowed = _windowed(flags, name, problems)
    if attention is None or len(with_experts) != count or len(windowed) != count:
        return ()
    window = flags["--window-size"]
    reach = window[0] + 1 if window else None
    kinds = {
        (experts, near): Layer(
            attention=replace(attention, window=reach if near else None),
            mlp=None if experts else mlp,
            moe=moe if experts else None,
        )
        for experts in (False, True)
        for near in (False, True)
    }
    return tuple(kinds[kind] for kind in zip(with_experts, windowed, strict=True))


def _attention(flags: Flags, name: str, problems: list[Problem]) -> Attention | None:
    heads, hidden = flags["--num-attention-heads"], flags["--hidden-size"]
    biased = not flags["--disable-bias-linear"]
    if flags["--multi-latent-attention"]:
        nope, rope = flags["--qk-head-dim"], flags["--qk-pos-emb-head-dim"]
        ranks = {"query_rank": flags["--q-lora-rank"], "kv_rank": flags["--kv-lora-rank"]}
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=nope + rope,
            value_head_dim=flags["--v-head-dim"],
            qkv_bias=biased or flags["--add-qkv-bias"],
            out_bias=biased,
            latent=LatentAttention(**ranks, nope_head_dim=nope, rope_head_dim=rope),
        )
    width = flags["--kv-channels"]
    if not width and hidden % heads:
        hint = "add --kv-channels"
        problems.append(Problem(f"{name}: --num-attention-heads", f"{heads} does not divide the hidden size", hint))
        return None
    width = width or hidden // heads
    return Attention(
        heads=heads,
        kv_heads=_kv_heads(flags, heads),
        head_dim=width,
        value_head_dim=width,
        qkv_bias=biased or flags["--add-qkv-bias"],
        out_bias=biased,
        qk_norm=flags["--qk-layernorm"],
    )


def _kv_heads(flags: Flags, heads: int) -> int:
    if flags["--attention-head-type"] == "multiquery":
        return 1
    return flags["--num-query-groups"] if flags["--group-query-attention"] else heads


def _moe(flags: Flags) -> Moe | None:
    if not flags["--num-experts"]:
        return None
    return Moe(
        experts=flags["--num-experts"],
        top_k=flags["--moe-router-topk"],
        expert_width=flags["--moe-ffn-hidden-size"] or flags["--ffn-hidden-size"] or _default_width(flags),
        gated=_gated(flags),
        shared_width=flags["--moe-shared-expert-intermediate-size"] or 0,
        shared_gate=flags["--moe-shared-expert-gate"],
        router_bias=flags["--moe-router-enable-expert-bias"],
        router_groups=flags["--moe-router-num-groups"],
        router_top_groups=flags["--moe-router-group-topk"],
        router_scaling=flags["--moe-router-topk-scaling-factor"],
        pre_softmax=(flags["--moe-router-pre-softmax"] and flags["--moe-router-topk"] > 1) or None,
    )


def _pattern(flags: Flags, flag: str, name: str, problems: list[Problem]) -> tuple[bool, ...]:
    """Layers with experts: every n-th from the first on, or a list (gpt_layer_specs.py 643-659)."""
    listed, every = _listed(flags, flag, name, problems)
    return listed or tuple(index % (every or 1) == 0 for index in range(flags["--num-layers"]))


def _windowed(flags: Flags, name: str, problems: list[Problem]) -> tuple[bool, ...]:
    """Layers with a window: all but every n-th, or a list (core/transformer/utils.py 495-511)."""
    count: int = flags["--num-layers"]
    if flags["--window-size"] is None:
        return (False,) * count
    listed, every = _listed(flags, "--window-attn-skip-freq", name, problems)
    return listed or tuple(not every or (index + 1) % every != 0 for index in range(count))


def _listed(flags: Flags, flag: str, name: str, problems: list[Problem]) -> tuple[tuple[bool, ...], int]:
    """The layers that a pattern marks one by one, none where it is a number: that one."""
    count, pattern = flags["--num-layers"], flags[flag]
    if not isinstance(pattern, tuple):
        return (), pattern or 0
    if len(pattern) != count:
        message = f"lists {len(pattern)} layers, the model has {count}"
        problems.append(Problem(f"{name}: {flag}", message, "make them agree"))
    return tuple(map(bool, pattern)), 0


def _position(flags: Flags) -> Position:
    if flags["--attention-alibi"]:
        return "alibi"
    if flags["--use-rotary-position-embeddings"]:
        return "rope"
    kinds: dict[str, Position] = {
        "learned_absolute": "learned", "absolute": "learned", "rope": "rope", "rotary": "rope", "yarn": "rope",
        "mrope": "rope", "none": "none", "alibi": "alibi",
    }  # fmt: skip
    return kinds[flags["--position-embedding-type"]]


def _gated(flags: Flags) -> bool:
    return bool(flags["--swiglu"] or flags["--quick-geglu"] or flags["--glu-activation"])


def _default_width(flags: Flags) -> int:
    """Four times the hidden size; two thirds of it, rounded down to 64, with SwiGLU (arguments.py 1280-1289)."""
    hidden: int = flags["--hidden-size"]
    return int((4 * hidden * 2 / 3) / GLU_ROUNDING) * GLU_ROUNDING if flags["--swiglu"] else 4 * hidden


def _activation(flags: Flags) -> str:
    gated = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "liglu": "linear", None: None}[
        flags["--glu-activation"]
    ]
    if gated is not None:
        return gated
    names = {"--swiglu": "silu", "--quick-geglu": "quick_gelu", "--squared-relu": "squared_relu", "--xielu": "xielu"}
    return next((activation for flag, activation in names.items() if flags[flag]), "gelu")


def size_of(*names: str | None) -> int | None:
    """Return the size that one of the names of a tokenizer tells, None where none does. Of a path the file goes before
    its folders, the inner ones first: `gpt-neox/data/gpt2-vocab.json` is GPT-2's."""
    for name in names:
        text = (name or "").casefold()
        for part in (*reversed(text.split("/")), text):
            if (match := THOUSANDS.search(part)) and "bigscience" not in text:
                return 1000 * int(match[1])
            if match := WHOLE.search(part):
                return int(match[1])
            for row in shipped_table("shardwright.importers.megatron", "vocabularies.csv"):
                if part and re.search(row["pattern"], part):
                    return int(row["size"])
    return None
