"""The variables of which a rule may speak: names, synonyms, kinds and words, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from shardwright.plans.plan import Granularity, Method, RankOrder, Sharding
from shardwright.spec.options import VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A variable. A `word` takes one of `words` (any word, where there are none); a `switch` is True or False.

    `optional` marks those that may be None: they have no meaning for some candidates.
    """

    name: str
    synonym: str = ""
    kind: Literal["number", "switch", "word"] = "number"
    words: tuple[str, ...] = ()
    optional: bool = False
    description: str

    @property
    def may_be_unset(self) -> bool:
        """Whether a comparison with None can come out true."""
        return self.optional or self.kind == "switch" or "none" in self.words


def _number(name: str, synonym: str, description: str, *, optional: bool = False) -> Parameter:
    return Parameter(name=name, synonym=synonym, description=description, optional=optional)


def _switch(name: str, description: str) -> Parameter:
    return Parameter(name=name, kind="switch", description=description)


def _word(name: str, words: tuple[str, ...], description: str, *, optional: bool = False) -> Parameter:
    return Parameter(name=name, kind="word", words=words, description=description, optional=optional)


PARAMETERS: tuple[Parameter, ...] = (
    _number("tensor_model_parallel_size", "tp", "tensor-parallel degree"),
    _number("pipeline_model_parallel_size", "pp", "pipeline stages"),
    _number("data_parallel_size", "dp", "data-parallel replicas"),
    _number("context_parallel_size", "cp", "context-parallel degree"),
    _number("expert_model_parallel_size", "ep", "expert-parallel degree"),
    _number("expert_tensor_parallel_size", "etp", "tensor-parallel degree inside an expert"),
    _number("virtual_stages", "vpp", "virtual stages per pipeline stage, 1 without interleaving"),
    _number("micro_batch_size", "mbs", "samples in a micro-batch"),
    _number("num_micro_batches", "", "micro-batches a replica takes in one iteration"),
    _number("global_batch_size", "gbs", "samples in one iteration"),
    _number("seq_length", "", "tokens in a sample"),
    _number("num_gpus", "", "GPUs that the candidate uses"),
    _number("num_nodes", "", "machines that the candidate uses"),
    _number("gpus_per_node", "", "GPUs in a machine"),
    _number("num_layers", "", "transformer layers of the model"),
    _number("hidden_size", "", "hidden size of the model"),
    _number("num_attention_heads", "", "attention heads of the model"),
    _word("gpu", (), "GPU type by its name in the catalogue"),
    _word("recompute_granularity", get_args(Granularity), "activation recomputation"),
    _word("recompute_method", get_args(Method), "how full recomputation picks layers, else None", optional=True),
    _number("recompute_num_layers", "", "layers in full recomputation, else None", optional=True),
    _switch("sequence_parallel", "sequence parallelism"),
    _word("sharding", get_args(Sharding), "what data-parallel ranks shard"),
    _switch("use_distributed_optimizer", "any sharding: at least the optimizer state"),
    _number("optimizer_offload_fraction", "", "share of the optimizer state in host memory, 0 to 1"),
    _switch("use_flash_attn", "FlashAttention"),
    _switch("overlap_grad_reduce", "gradient reduction runs beside the backward pass"),
    _switch("overlap_param_gather", "weight gathering runs beside the forward pass"),
    _switch("tp_comm_overlap", "tensor-parallel communication runs beside GEMMs"),
    _switch("overlap_p2p_comm", "pipeline transfers run beside computation"),
    _number("first_stage_layers", "", "layers on the first virtual stage"),
    _number("last_stage_layers", "", "layers on the last virtual stage"),
    _word("rank_order", get_args(RankOrder), "which parallel groups sit on neighbouring ranks, innermost first"),
    _word("recompute_modules", (), "what selective recomputation repeats, joined by +, in quotes", optional=True),
    _word("grad_reduce", VALUES["grad_reduce"], "type in which gradients are reduced", optional=True),
    _word("main_grads", VALUES["main_grads"], "type of the gradients that the optimizer reads", optional=True),
    _word("main_params", VALUES["main_params"], "type of the master weights", optional=True),
    _word("exp_avg", VALUES["exp_avg"], "type of Adam's first moment", optional=True),
    _word("exp_avg_sq", VALUES["exp_avg_sq"], "type of Adam's second moment", optional=True),
    _word("loss", VALUES["loss"], "whether the loss is fused", optional=True),
    _word("dispatcher", VALUES["dispatcher"], "how tokens get to their experts", optional=True),
)

SCHEMA: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in PARAMETERS})
"""Each variable by its canonical name."""

CANONICAL: Mapping[str, str] = MappingProxyType(
    {name: row.name for row in PARAMETERS for name in (row.name, row.synonym) if name}
)
"""Every name that a rule may use, and the canonical one it stands for."""


def schema_with_gpus(gpus: Iterable[str]) -> Mapping[str, Parameter]:
    """Return the schema in which `$gpu` takes only the names in `gpus`."""
    return MappingProxyType({**SCHEMA, "gpu": replace(SCHEMA["gpu"], words=tuple(gpus))})
