"""Fields of a Hugging Face `config.json` under their many spellings, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.errors import Problem
from shardwright.spec.text.fields import Section, shown

MOST_SIZE, MOST_WIDTH, MOST_LAYERS = 100_000_000, 1_000_000, 10_000

# Spellings by family of models, the common one first.
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff")
DENSE_WIDTH = ("intermediate_size_mlp",)  # of layers without experts, where `intermediate_size` is that of experts
VOCAB = ("padded_vocab_size", "vocab_size")
HEAD_DIM = ("head_dim", "kv_channels")
POSITIONS = (
    "max_position_embeddings",
    "model_max_length",
    "n_positions",
    "seq_length",
    "max_sequence_length",
    "max_seq_len",
)
ACTIVATION = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function", "activation", "afn")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
SHARED_WIDTH = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size")
EPSILON = (
    "rms_norm_eps",
    "rms_norm_epsilon",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "norm_epsilon",
    "norm_eps",
)
PREDICTED = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers")
ROTARY_BASE = ("rope_theta", "rotary_emb_base")
ROTARY_FRACTION = ("partial_rotary_factor", "rotary_pct", "rope_percent")
DROPOUT = (
    "dropout", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "residual_dropout", "embedding_dropout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One config with the problems and assumptions found while it is read.

    A size that is missing or wrong is read as 1 where it is required: its problem is raised before anybody uses it.
    """

    section: Section
    assumed: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)

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

    def count(self, *names: str, most: int = MOST_SIZE) -> int:
        """Return a whole number that may be zero or missing (then zero)."""
        name = self.has(names)
        return 0 if name is None else self.section.count(name, most=most)

    def fraction(self, *names: str, most: float = 1e15) -> float | None:
        """Return a number from 0 to `most` under the first of `names` that is present."""
        name = self.has(names)
        return None if name is None else self.section.number(name, zero=True, most=most)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        return self.section.flag(name, default=default)

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

    def inner(self, name: str) -> ConfigFields | None:
        """Return the mapping under `name` as fields of their own, which share problems and assumptions."""
        section = self.section.inner(name)
        return None if section is None else ConfigFields(section, self.assumed, self.guessed)

    def over(self, fields: Mapping[str, object]) -> ConfigFields:
        """Return other fields that share problems, assumptions and guesses with these."""
        return replace(self, section=replace(self.section, fields=fields))

    def assume(self, words: str) -> None:
        """Record what the config leaves open, and a known family settles."""
        self.assumed.append(words)

    def guess(self, words: str) -> None:
        """Record what nobody knows: the user must accept it."""
        self.guessed.append(words)
