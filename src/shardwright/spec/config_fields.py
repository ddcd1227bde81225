"""Fields of a Hugging Face `config.json` under their many spellings, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.errors import Problem
from shardwright.spec.fields import Section, shown

MOST_SIZE, MOST_LAYERS = 100_000_000, 10_000

# Spellings by family of models, the common one first.
HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HEADS = ("num_attention_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff")
VOCAB = ("vocab_size", "padded_vocab_size")
HEAD_DIM = ("head_dim", "kv_channels")
POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length")
ACTIVATION = ("hidden_activation", "hidden_act", "activation_function")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
TOP_K = ("num_experts_per_tok", "moe_topk", "top_k")


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config with the problems and assumptions found while it is read."""

    section: Section
    assumed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Mapping[str, object], name: str) -> ConfigFields:
        return cls(Section(name, config, []))

    @property
    def problems(self) -> list[Problem]:
        return self.section.problems

    def has(self, names: tuple[str, ...]) -> str | None:
        """Return the first of `names` that is present and not null."""
        return next((name for name in names if self.section.fields.get(name) is not None), None)

    def size(self, *names: str, most: int = MOST_SIZE) -> int | None:
        """Return the whole number under the first of `names` that is present; None where all are missing."""
        name = self.has(names)
        return None if name is None else self.section.integer(name, most=most)

    def required(self, *names: str, most: int = MOST_SIZE) -> int:
        """Return the same; a missing number is a problem, and 1 stands in until it is raised."""
        if self.has(names) is None:
            spellings = " or ".join(names[1:])
            self.section.report(names[0], "is missing", f"{spellings} would do as well" if spellings else "add it")
            return 1
        return self.size(*names, most=most) or 1

    def count(self, *names: str) -> int:
        """Return a number that may be zero or missing (then zero)."""
        name = self.has(names)
        if name is None:
            return 0
        value = self.section.number(name, zero=True, most=MOST_SIZE)
        return int(value or 0)

    def fraction(self, *names: str) -> float | None:
        """Return a number from 0 on under the first of `names` that is present."""
        name = self.has(names)
        return None if name is None else self.section.number(name, zero=True)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return default if self.section.fields.get(name) is None else self.section.flag(name)

    def text(self, *names: str, default: str) -> str:
        """Return a text; a list of one text counts as that text."""
        name = self.has(names)
        value = default if name is None else self.section.fields[name]
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, str):
            self.section.report(name or names[0], f"expected a text, got {shown(value)}", "write a name")
            return default
        return value

    def layer_list(self, name: str) -> tuple[object, ...]:
        """Return a list of values per layer, empty where missing."""
        value = self.section.fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or len(value) > MOST_LAYERS:
            self.section.report(name, f"expected a list, got {shown(value)}", "write one value for each layer")
            return ()
        return tuple(value)

    def assume(self, words: str) -> None:
        """Record what the config leaves open."""
        self.assumed.append(words)
