"""Which block every layer is, in the words of transformers' `layer_types`, whatever a config writes in their place.

A family whose blocks are not all attention gets its list here: by a pattern of letters, indices, periods or a list of
its own. The words that `huggingface_layers` reads are those of `WORDS`; any other is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from shardwright.errors import suggestion
from shardwright.spec.read import config_fields as spelled
from shardwright.spec.read.config_fields import MOST_LAYERS, ConfigFields
from shardwright.spec.text.fields import shown

FULL, SLIDING, CHUNKED, INDEXED = "full_attention", "sliding_attention", "chunked_attention", "indexed_attention"
MIXER, BOTH, MLP, MOE = "linear_attention", "side_by_side", "mlp", "moe"
WORDS: Mapping[str, str] = MappingProxyType(
    {word: word for word in (FULL, SLIDING, CHUNKED, INDEXED, MIXER, BOTH, MLP, MOE)}
    | {"attention": FULL, "mamba": MIXER, "mamba2": MIXER, "conv": MIXER, "recurrent": MIXER, "linear": MIXER}
    | {"hybrid": BOTH}
)
HALVES, WHOLE = frozenset({FULL, MIXER, MLP, MOE}), frozenset({FULL, SLIDING, MIXER})
KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {"nemotron_h": HALVES} | dict.fromkeys(("zamba", "zamba2"), frozenset({MIXER, BOTH}))
)
"""The words of families whose blocks are not whole ones of one mixer."""
LETTERS: Mapping[str, str] = MappingProxyType({"M": MIXER, "*": FULL, "-": MLP, "E": MOE})
"""The letters of `hybrid_override_pattern` (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""
LISTS = ("layer_types", "layers_block_type")

Pattern = Callable[[ConfigFields, int], Sequence[str]]


def block_words(fields: ConfigFields, model_type: str) -> tuple[str, ...]:
    """Return the word of every layer of a family in `PATTERNS`. Problems are added to the fields."""
    listed = _listed(fields, KNOWN.get(model_type, WHOLE))
    if listed and model_type != "falcon_h1":
        return listed
    if model_type == "nemotron_h":
        return _letters(fields)
    count = fields.required(*spelled.LAYERS, most=MOST_LAYERS)
    return tuple(PATTERNS[model_type](fields, count))


def _listed(fields: ConfigFields, known: frozenset[str]) -> tuple[str, ...]:
    """Return the words of a list with one for each layer, in today's words, all of them `known` ones of the family."""
    name = fields.has(LISTS)
    words = []
    for word in fields.layer_list(name) if name else ():
        if not isinstance(word, str) or WORDS.get(word) not in known:
            remedy = suggestion(word if isinstance(word, str) else "", [name for name in WORDS if WORDS[name] in known])
            fields.section.report(name or LISTS[0], f"{shown(word)} is no known kind of layer", remedy)
            return (MIXER,)
        words.append(WORDS[word])
    return tuple(words)


def _letters(fields: ConfigFields) -> tuple[str, ...]:
    pattern = fields.text("hybrid_override_pattern", default="")
    unknown = next((letter for letter in pattern if letter not in LETTERS), None)
    if unknown is not None:
        known = ", ".join(LETTERS)
        fields.section.report("hybrid_override_pattern", f"{unknown!r} is no known kind of block", f"known: {known}")
    if not pattern:
        remedy = "write hybrid_override_pattern: a letter for each block"
        fields.section.report("layers_block_type", "is missing", remedy)
    return tuple(LETTERS.get(letter, MIXER) for letter in pattern) or (MIXER,)


def _every(chosen: Sequence[bool]) -> list[str]:
    return [FULL if full else MIXER for full in chosen]


def _period(fields: ConfigFields, count: int) -> list[str]:
    period, offset = fields.size("attn_layer_period", most=MOST_LAYERS) or 8, fields.size("attn_layer_offset") or 4
    return _every([layer % period == offset for layer in range(count)])


def _indices(name: str) -> Pattern:
    def pattern(fields: ConfigFields, count: int) -> list[str]:
        chosen = fields.layer_list(name)
        return _every([layer in chosen for layer in range(count)])

    return pattern


def _convolutions(fields: ConfigFields, count: int) -> list[str]:
    chosen = fields.layer_list("full_attn_idxs")
    return _every([layer in chosen for layer in range(count)]) if chosen else [FULL] * count


def _interval(name: str, usual: int) -> Pattern:
    def pattern(fields: ConfigFields, count: int) -> list[str]:
        every = fields.size(name, most=MOST_LAYERS) or usual
        return _every([(layer + 1) % every == 0 for layer in range(count)])

    return pattern


def _olmo_hybrid(fields: ConfigFields, count: int) -> list[str]:
    """Every fourth layer, in any case the last of fewer (OlmoHybridConfig)."""
    return _every([(layer + 1) % 4 == 0 or layer + 1 == count < 4 for layer in range(count)])


def _flags(fields: ConfigFields, count: int) -> list[str]:
    """MiniMax marks layers of softmax attention by 1; transformers' default takes turns, full attention first."""
    marks = fields.layer_list("attn_type_list")
    if marks and (len(marks) != count or any(mark not in (0, 1) for mark in marks)):
        fields.section.report("attn_type_list", f"is no list of {count} times 0 or 1", "write one for each layer")
    return _every([bool(mark) for mark in marks] if marks else [layer % 2 == 0 for layer in range(count)])


def _recurrent(fields: ConfigFields, count: int) -> list[str]:
    types = fields.layer_list("block_types") or ("recurrent", "recurrent", "attention")
    known = {"recurrent": MIXER, "attention": SLIDING}
    unknown = next((word for word in types if word not in known), None)
    if unknown is not None:
        fields.section.report("block_types", f"{shown(unknown)} is no known kind of block", "recurrent or attention")
        return [MIXER] * count
    return [known[str(types[layer % len(types)])] for layer in range(count)]


def _kimi(fields: ConfigFields, count: int) -> list[str]:
    """Moonshot's own configs count layers from 1; transformers lists them."""
    inner = fields.inner("linear_attn_config")
    chosen = () if inner is None else inner.layer_list("full_attn_layers")
    if not chosen:
        fields.section.report("layer_types", "is missing", "list the type of every layer")
    return _every([layer + 1 in chosen for layer in range(count)])


def _zamba(fields: ConfigFields, count: int) -> list[str]:
    """The third layer shares a block, and after it every n-th from an offset on."""
    period, offset = fields.size("attn_layer_period", most=MOST_LAYERS) or 6, 4
    if fields.has(("attn_layer_offset",)):
        offset = fields.count("attn_layer_offset")
    later = [layer % period == offset for layer in range(count - 3)]
    return [BOTH if shares else MIXER for shares in [False, False, True, *later][:count]]


def _zamba2(fields: ConfigFields, count: int) -> list[str]:
    """Those of Zamba2-2.7B, whatever the number of layers (`Zamba2Config`)."""
    sharing = (6, 12, 18, 24, 30, 36, 42, 47, 51)
    return [BOTH if layer in sharing else MIXER for layer in range(54)]


PATTERNS: Mapping[str, Pattern] = MappingProxyType(
    {
        "bailing_hybrid": _interval("layer_group_size", 6),
        "bamba": _indices("attn_layer_indices"),
        "falcon_h1": lambda fields, count: [BOTH] * count,
        "falcon_mamba": lambda fields, count: [MIXER] * count,
        "granitemoehybrid": lambda fields, count: [MIXER] * count,
        "jamba": _period,
        "kimi_linear": _kimi,
        "lara_mini": _interval("full_attention_interval", 4),
        "lfm2": _convolutions,
        "lfm2_moe": _convolutions,
        "mamba": lambda fields, count: [MIXER] * count,
        "mamba2": lambda fields, count: [MIXER] * count,
        "minimax": _flags,
        "nemotron_h": lambda fields, count: [MIXER] * count,
        "olmo_hybrid": _olmo_hybrid,
        "qwen3_5_moe_text": _interval("full_attention_interval", 4),
        "qwen3_5_text": _interval("full_attention_interval", 4),
        "qwen3_next": _interval("full_attention_interval", 4),
        "recurrent_gemma": _recurrent,
        "rwkv7": lambda fields, count: [MIXER] * count,
        "zamba": _zamba,
        "zamba2": _zamba2,
    }
)
"""What a config that lists no types says of them."""
