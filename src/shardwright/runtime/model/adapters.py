"""Which parameters are trained: those of the model, or those of adapters beside its frozen matrices. Needs no PyTorch.

Beside a matrix W [m, n] stand A [r, n] and B [m, r], under DoRA also a length for each of its m rows (`low_rank`).
Tensor parallelism cuts A and B as it cuts W: where each rank has some rows of W, B has these rows and A is whole on
every rank; where each has some columns, A has these columns and B is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardwright.runtime.model.parameters import ModelParameter, Summed, unit_parameters
from shardwright.spec.adapter import Adapter, Target
from shardwright.spec.model import Model

TARGETS: Mapping[str, Target] = {
    "attention.query": "q_proj",
    "attention.query_down": "q_proj",
    "attention.query_up": "q_proj",
    "attention.key": "k_proj",
    "attention.latent_down": "k_proj",
    "attention.value": "v_proj",
    "attention.latent_up": "v_proj",
    "attention.out": "o_proj",
    "mlp.gate": "gate_proj",
    "mlp.up": "up_proj",
    "mlp.down": "down_proj",
    "moe.shared.gate": "gate_proj",
    "moe.shared.up": "up_proj",
    "moe.shared.down": "down_proj",
}
"""By block and matrix of a layer, whose adapter it has; routed experts and routers have none."""
DOWN, UP, LENGTHS = "lora_a", "lora_b", "lengths"


def trained_parameters(model: Model, adapter: Adapter | None, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit that are trained: all, or those of its adapters."""
    parameters = unit_parameters(model, unit, vocabulary)
    if adapter is None:
        return parameters
    return tuple(part for parameter in parameters for part in _beside(parameter, adapter))


def frozen_parameters(model: Model, adapter: Adapter | None, unit: int, vocabulary: int) -> tuple[ModelParameter, ...]:
    """Return the parameters of a unit that are not trained: none, or those of the model beside its adapters."""
    return () if adapter is None else unit_parameters(model, unit, vocabulary)


def target_of(parameter: ModelParameter) -> Target | None:
    """Return whose adapters a parameter of the model may have, None where it is no matrix that has some."""
    owner, _, kind = parameter.name.rpartition(".")
    block = owner.split(".", 2)[-1]
    return TARGETS.get(block) if kind == "weight" and parameter.hidden and parameter.expert is None else None


def _beside(matrix: ModelParameter, adapter: Adapter) -> Iterator[ModelParameter]:
    """Yield the parameters of a matrix's adapter, which start as those of PEFT: B at zero, A as `nn.Linear` would."""
    if target_of(matrix) not in adapter.targets:
        return
    name, (outputs, inputs) = matrix.name.removesuffix(".weight"), matrix.shape
    # shared experts stand between what routed ones, cut otherwise, gather and sum: parts of ranks count always
    among: Summed = "tensor" if ".moe." in name else matrix.summed if matrix.dim is None else "sequence"
    whole = ModelParameter(name=name, shape=(), beside=matrix, summed=among)
    rows = replace(whole, dim=0, pieces=matrix.pieces, summed=matrix.summed) if matrix.dim == 0 else whole
    columns = replace(whole, dim=1, pieces=matrix.pieces, summed="") if matrix.dim == 1 else whole
    shape = (adapter.rank, inputs)
    yield replace(columns, name=f"{name}.{DOWN}", shape=shape, start="uniform", deviation=inputs**-0.5)
    yield replace(rows, name=f"{name}.{UP}", shape=(outputs, adapter.rank), start="zeros")
    if adapter.dora:
        yield replace(rows, name=f"{name}.{LENGTHS}", shape=(outputs,), start="row lengths")
