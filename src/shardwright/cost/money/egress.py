"""What traffic between sites costs: activations of pipelines that cross, gradients of layers held at several sites.

Every micro-batch sends an activation over each boundary between sites, and its gradient back. The n copies of a layer
reduce its gradient in a ring that visits their sites one after another: each way between two sites carries (n - 1) / n
of the gradient, and of the updated weight (of the gradient again without a distributed optimizer). The ends of a
pipeline add up the gradients of a tied embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.sites import tied_bytes_between
from shardwright.cost.layers.table import head_weights
from shardwright.cost.memory.sizes import trained_share
from shardwright.plans.plan import Plan
from shardwright.units import GIGA

Price = Callable[[str, str], float]  # dollars a byte from a site to another


def egress_dollars(plan: Plan) -> float:
    """Return the US dollars of one iteration's traffic between sites."""
    sites = {pool.gpu.name: pool.site for pool in plan.cluster.pools}
    if len(set(sites.values())) < 2:
        return 0.0
    prices = {frozenset(link.sites): link.egress_dollars_per_gigabyte for link in plan.cluster.site_links}

    def price(start: str, other: str) -> float:
        return prices.get(frozenset((start, other)), 0.0) / GIGA

    tied = sum(2.0 * size * price(*pair) for pair, size in tied_bytes_between(plan).items())
    return sum(_pipelines(plan, sites, price)) + sum(_gradients(plan, sites, price)) + tied


def _pipelines(plan: Plan, sites: dict[str, str], price: Price) -> Iterator[float]:
    """Yield the dollars of each replica's activations and their gradients."""
    message = widths_of(plan.job).pipeline * plan.micro_batch * plan.job.seq_len * plan.model.hidden
    for replica in plan.replicas:
        order = [sites[stage.gpu] for _ in range(plan.schedule.virtual_stages) for stage in replica.stages]
        way = sum(price(start, other) for start, other in pairwise(order))
        yield 2.0 * replica.count * replica.micro_batches * message * way


def _gradients(plan: Plan, sites: dict[str, str], price: Price) -> Iterator[float]:
    """Yield the dollars of each layer's gradient and weight; embedding and head belong to the first and last layer."""
    model, copies, widths = plan.model, plan.data_parallel, widths_of(plan.job)
    back = widths.weight_gather if plan.optimizer.distributed else widths.gradient_reduction
    per_weight = widths.gradient_reduction + back
    moved = trained_share(plan.model, plan.job) * per_weight * (copies - 1) / copies
    for layer, kind in enumerate(model.layers):
        held = dict.fromkeys(
            sites[stage.gpu]
            for replica in plan.replicas
            for stage in replica.stages
            if any(low <= layer < high for low, high in stage.layers)
        )
        weights = model.dense_layer_parameters(kind) + model.expert_layer_parameters(kind)
        weights += model.embedding_parameters if layer == 0 else 0
        weights += head_weights(model) if layer == len(model.layers) - 1 else 0
        ring = [*held, *list(held)[:1]]
        yield moved * weights * sum(price(start, other) for start, other in pairwise(ring))
