"""A training step that runs an SPMD program: PyTorch's habits, the shards of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from shardwright.errors import bad
from shardwright.spmd.execute import Executable, Site, compiled, execute
from shardwright.spmd.fabric import ProcessFabric, RankFabric
from shardwright.spmd.shards import RankPlace, cut, gathered
from shardwright.spmd.trace import canonical_names
from shardwright.synthesis.graph import Graph, Property, Ref, Sharded
from shardwright.synthesis.program import Program


def state_names(module: nn.Module) -> dict[str, str]:
    """Return the names of the module's state dict, and for each the first name of the same parameter or buffer."""
    names = canonical_names(module)
    return {key: names[f"module.{key}"] for key in module.state_dict()}


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's parameters and buffers, those that its state dict leaves out too."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


class SpmdStep:
    """One rank of a training step: call it with a batch, then step any optimizer over `parameters()`.

        step = SpmdStep(graph, program, names=state_names(module))
        step.load(whole_state(module))
        optimizer = torch.optim.AdamW(step.parameters())
        for batch in batches:
            optimizer.zero_grad()
            loss = step(batch)              # forward and backward: every parameter has its gradient
            optimizer.step()

    A rank holds its shards of parameters, gradients and optimizer state alone. An optimizer must work element by
    element, as SGD and the Adams do. `names` leads from the names of the module's state dict to those of the graph,
    which has one for tied parameters; `fabric` is the default group of `torch.distributed` if not given.
    """

    def __init__(
        self,
        graph: Graph,
        program: Program,
        *,
        names: Mapping[str, str] | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        fabric: RankFabric | None = None,
    ) -> None:
        self.fabric = fabric or ProcessFabric(program.notes.get("machines", ()))
        if self.fabric.ranks != program.ranks:
            raise bad("the program", f"is for {program.ranks} ranks, but {self.fabric.ranks} run", "start as many")
        self.device, self.seed, self.steps = torch.device(device), seed, 0
        self.place = RankPlace(rank=self.fabric.rank, sizes=program.sizes)
        self._code: Executable = compiled(graph, program)
        self._names = dict(names or {name: name for name in self.leaves()})
        self.rest: dict[str, Tensor] = {}  # of the module's state, what the graph does not use
        self._tensors: dict[str, Tensor] = {}
        for name, ref in self.leaves().items():
            value = self._code.values[ref]
            shape = self.place.shape(value.shape, self.held(ref))
            tensor = torch.zeros(shape, dtype=getattr(torch, value.dtype), device=self.device)
            self._tensors[name] = nn.Parameter(tensor, name in graph.gradients) if name in graph.parameters else tensor

    def held(self, ref: Ref) -> Property:
        """Return how a tensor of the graph is distributed where it is made."""
        return self._code.program.steps[ref.node].outputs[ref.output]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's shard of each parameter under the module's name."""
        for name in self._code.graph.parameters:
            parameter = self._tensors[name]
            assert isinstance(parameter, nn.Parameter)
            yield name, parameter

    def parameters(self) -> list[nn.Parameter]:
        """Return this rank's shards of the parameters."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's part of each buffer under the module's name."""
        yield from ((name, self._tensors[name]) for name in self._code.graph.buffers)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's shards from the unsharded state of the module, which may be mapped from a file.

        What the graph does not use is kept for saving. Raises `SpecError` where a tensor is missing or misshapen.
        """
        for name, ref in self.leaves().items():
            whole = _checked(state, name, self._code.values[ref].shape)
            with torch.no_grad():
                self._tensors[name].copy_(cut(whole, self.held(ref), self.place))
        self._keep(state)

    def receive(self, state: Mapping[str, Tensor] | None) -> None:
        """Like `load`, with the state on the first rank only, from which each gets its shards and no more."""
        for name, ref in self.leaves().items():
            target, held, shape = self._tensors[name], self.held(ref), self._code.values[ref].shape
            parts = [target.new_empty(0)] * self.fabric.ranks
            if state is not None and self.place.rank == 0:
                whole = _checked(state, name, shape).to(self.device)
                parts = [cut(whole, held, self.place.at(rank)).flatten() for rank in range(self.fabric.ranks)]
            counts = [target.numel(), *[0] * (self.fabric.ranks - 1)]
            with torch.no_grad():
                target.copy_(self.fabric.all_to_all(parts, counts)().view(target.shape))
        self._keep(state or {})

    def state_dict(self) -> dict[str, Tensor]:
        """Return the unsharded state of the module, gathered tensor by tensor; all ranks must call it.

        It lies in main memory, on the first rank only; the others get an empty dictionary.
        """
        state: dict[str, Tensor] = {}
        for name, ref in self.leaves().items():
            value = self._code.values[ref]
            whole = gathered(self._tensors[name].detach(), self.held(ref), value.shape, self.place, self.fabric)
            if self.place.rank == 0:
                state[name] = whole.cpu().clone()
        return {key: state[name] for key, name in self._names.items() if name in state} | self.rest

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Run forward and backward on a batch, add to each parameter's gradient, return the loss.

        A tensor of `batch` is the whole, or this rank's part of it. Dropout draws by the seed and the number of calls.
        """
        leaves = {ref.node: self._tensors[name].detach() for name, ref in self.leaves().items()}
        leaves |= {ref.node: self._part(batch, name, ref) for name, ref in self._code.graph.inputs.items()}
        seed = (self.seed << 32) + self.steps
        site = Site(place=self.place, fabric=self.fabric, device=self.device, seed=seed)
        left: dict[str, Tensor] = {}
        taken: set[int] = set()

        def leave(name: str, tensor: Tensor) -> None:
            if name.startswith("gradient "):
                _add_gradient(self._tensors[name.removeprefix("gradient ")], tensor, taken)
            else:
                left[name] = tensor  # operators may still read a buffer as it was

        with torch.no_grad():
            execute(self._code, leaves, site, leave)
            for name in self._code.graph.buffer_updates:
                self._tensors[name].copy_(left[f"buffer {name}"])
        self.steps += 1
        return left["loss"]

    def clip_gradients(self, limit: float) -> Tensor:
        """Scale all gradients so that their norm over all ranks is at most `limit`; return the norm before."""
        total = torch.zeros((), device=self.device)
        for name, parameter in self.named_parameters():
            whole = not isinstance(self.held(self._code.graph.parameters[name]), Sharded)
            if parameter.grad is not None and not (whole and self.place.rank):
                total += parameter.grad.float().square().sum()
        norm = self.fabric.all_reduce(total)().sqrt()
        scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        return norm

    def leaves(self) -> dict[str, Ref]:
        """Return the parameters and buffers of the graph, by the module's names."""
        return {**self._code.graph.parameters, **self._code.graph.buffers}

    def _part(self, batch: Mapping[str, Tensor], name: str, ref: Ref) -> Tensor:
        if name not in batch:
            raise bad("the batch", f"has no tensor {name!r}", f"it has {', '.join(batch)}")
        given, value, held = batch[name], self._code.values[ref], self.held(ref)
        kind = str(given.dtype).removeprefix("torch.") if isinstance(given, Tensor) else type(given).__name__
        if kind != value.dtype:
            raise bad(f"the batch: {name}", f"is of {kind}, not {value.dtype}", "give what the program was planned for")
        if tuple(given.shape) == value.shape:
            return cut(given, held, self.place).to(self.device)
        local = self.place.shape(value.shape, held)
        if tuple(given.shape) != local:
            shape = tuple(given.shape)
            raise bad(f"the batch: {name}", f"has shape {shape}, not {value.shape} or this rank's {local}")
        return given.to(self.device)

    def _keep(self, state: Mapping[str, Tensor]) -> None:
        unused = [key for key, name in self._names.items() if name not in self._tensors and key in state]
        self.rest = {key: state[key] for key in unused}


def _add_gradient(parameter: Tensor, gradient: Tensor, taken: set[int]) -> None:
    """Add to a parameter's gradient; `taken` are the addresses of those that are gradients of others already."""
    if parameter.grad is not None:
        parameter.grad.add_(gradient)
        return
    # Two biases that are added together have one gradient; a part must not keep the whole alive.
    shared = gradient.data_ptr() in taken or gradient.untyped_storage().nbytes() > gradient.nbytes
    parameter.grad = gradient.clone() if shared else gradient.contiguous()
    taken.add(parameter.grad.data_ptr())


def _checked(state: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name not in state:
        raise bad("the state", f"has no tensor {name!r}", "give `whole_state` of the module that was traced")
    if tuple(state[name].shape) != shape:
        raise bad(f"the state: {name}", f"has shape {tuple(state[name].shape)}, not {shape}")
    return state[name]
