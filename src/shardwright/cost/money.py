"""What a plan costs in US dollars: machines by the hour, traffic between sites, and what interruptions add.

Every micro-batch sends an activation over each boundary between sites, and its gradient back. The n copies of a layer
reduce its gradient in a ring that visits their sites one after another: each way between two sites carries (n - 1) / n
of the gradient, and of the updated weight (of the gradient again without a distributed optimizer). The ends of a
pipeline add up the gradients of a tied embedding.

A run of T_s useful seconds that writes a checkpoint of δ seconds after every τ seconds of work, is interrupted once in
M seconds on average (independently, exponential gaps) and needs R seconds to be back takes

    T(τ) = M exp(R / M) (exp((τ + δ) / M) − 1) T_s / τ

on average (Daly 2006, Future Generation Computer Systems 22(3), eq. 20). `optimal_interval_seconds` is the exact
minimum over τ; `young_interval_seconds` (Young 1974, Communications of the ACM 17(9)) is the usual approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from shardwright.arrays import Array, Floats, Ints
from shardwright.cost.frameworks.optimizer import stored_width
from shardwright.cost.frameworks.widths import widths_of
from shardwright.cost.iteration.links import tied_bytes_between
from shardwright.cost.layers.table import head_weights
from shardwright.cost.memory.sizes import summed_bytes, trained_share
from shardwright.cost.strategies import UNSHARDED
from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rounding import coarse, weighed
from shardwright.spec.cluster import NodePool, machines_used
from shardwright.spec.images import trained_parameters
from shardwright.spec.job import Job
from shardwright.spec.model import Model
from shardwright.spec.offers import Terms, preemptions_per_hour
from shardwright.units import GIGA, SECONDS_PER_HOUR

Price = Callable[[str, str], float]  # dollars a byte from a site to another
NEWTON_STEPS = 12  # numeric
LONGEST = 30.0  # δ / M, above which τ is M to the last digit; numeric
MOST_STRETCH = 100.0  # times an undisturbed run, beyond which a run counts as one that never ends; chosen, 10 to 1000
NEVER = 1e9  # T(τ) / T_s of runs that do not get on, so that what is made of it stays finite; numeric


def dollars_per_hour(pool: NodePool, gpus: Array) -> Floats | None:
    """Return the price of the machines that `gpus` GPUs occupy, whole machines, [N]; None without a price."""
    if pool.dollars_per_node_hour is None:
        return None
    return np.asarray(np.ceil(np.asarray(gpus) / pool.gpus_per_node) * pool.dollars_per_node_hour)


def egress_dollars(plan: Plan) -> float:
    """Return the US dollars of one iteration's traffic between sites."""
    sites = plan.cluster.sites
    if len(set(sites.values())) < 2:
        return 0.0
    prices = {frozenset(link.sites): link.egress_dollars_per_gigabyte for link in plan.cluster.site_links}

    def price(start: str, other: str) -> float:
        return prices.get(frozenset((start, other)), 0.0) / GIGA

    tied = sum(2.0 * size * price(*pair) for pair, size in tied_bytes_between(plan).items())
    return sum(_pipelines(plan, sites, price)) + sum(_gradients(plan, sites, price)) + tied


def _pipelines(plan: Plan, sites: dict[str, str], price: Price) -> Iterator[float]:
    """Yield the dollars of each replica's activations and their gradients."""
    message = widths_of(plan.job).pipeline * plan.micro_batch * plan.job.sample_tokens * plan.model.hidden
    for replica in plan.replicas:
        order = [sites[stage.gpu] for _ in range(plan.schedule.virtual_stages) for stage in replica.stages]
        way = sum(price(start, other) for start, other in pairwise(order))
        yield 2.0 * replica.count * replica.micro_batches * message * way


def _gradients(plan: Plan, sites: dict[str, str], price: Price) -> Iterator[float]:
    """Yield the dollars of each layer's gradient and weight; embedding and head belong to the first and last layer."""
    model, copies, widths = plan.model, plan.data_parallel, widths_of(plan.job)
    whole = 2.0 * float(summed_bytes(plan.job, UNSHARDED))  # summed and spread again
    per_weight = widths.gradient_reduction + widths.weight_gather if plan.optimizer.distributed else whole
    moved = trained_share(plan.model, plan.job) * per_weight * (copies - 1) / copies
    for layer, kind in enumerate(model.layers):
        held = dict.fromkeys(
            sites[stage.gpu] for stage in plan.stages if any(low <= layer < high for low, high in stage.layers)
        )
        weights = model.layer_parameters(kind)
        weights += model.embedding_parameters if layer == 0 else 0
        weights += head_weights(model) if layer == len(model.layers) - 1 else 0
        ring = [*held, *list(held)[:1]]
        yield moved * weights * sum(price(start, other) for start, other in pairwise(ring))


@record
class Exposure:
    """What a run is up against, arrays of one shape [N]: interruptions an hour of all machines together, seconds that
    a checkpoint stops training for, and seconds from an interruption to the next useful step."""

    interruptions_per_hour: Floats
    checkpoint_seconds: Floats
    recovery_seconds: Floats


@record
class Stretch:
    """What comes of it, [N]: by what the run gets longer, and the best seconds of work between two checkpoints
    (infinite where nothing interrupts)."""

    factor: Floats
    interval_seconds: Floats


def checkpoint_bytes(model: Model, job: Job) -> float:
    """Return the size of a checkpoint: weights that are trained, and the optimizer's state of them; in fp32 the weights
    are the optimizer's own."""
    weights = 0.0 if job.precision == "fp32" and job.optimizer != "none" else 2.0
    return (weights + stored_width(model, job)) * trained_parameters(model, job)


def together(model: Model, job: Job, terms: Terms, machines: Ints, gpus: Ints, preemptions: Floats) -> Exposure:
    """Return what runs on `machines` [N, T] of T types are up against, with the GPUs of a machine [T] and how often one
    is taken back an hour [T]. All write a checkpoint together, and read it after an interruption of any of them."""
    moving = checkpoint_bytes(model, job) / (terms.checkpoint_bytes_per_second * machines.sum(axis=1))
    return Exposure(
        interruptions_per_hour=weighed(machines, terms.failures_per_gpu_hour * gpus + preemptions),
        checkpoint_seconds=moving,
        recovery_seconds=terms.restart_seconds + moving,
    )


def pool_stretch(model: Model, job: Job, pool: NodePool, machines: Ints) -> Floats:
    """Return by what failures and preemptions lengthen a run on so many machines of a pool, [N]."""
    gpus, rates = np.array([pool.gpus_of_machine]), np.array([preemptions_per_hour(pool)])
    return stretch(together(model, job, Terms(), machines[:, None], gpus, rates)).factor


def run_stretch(plan: Plan) -> float:
    """Return by what failures and preemptions lengthen the run of a plan on the machines that it uses."""
    pools, counts = zip(*machines_used(plan.cluster, plan.gpus_by_type), strict=True)
    gpus = np.array([pool.gpus_of_machine for pool in pools])
    rates = np.array([preemptions_per_hour(pool) for pool in pools])
    return float(stretch(together(plan.model, plan.job, Terms(), np.array([counts]), gpus, rates)).factor[0])


def stretch(exposure: Exposure) -> Stretch:
    """Return how much longer the run gets under the best checkpoint interval."""
    rate = exposure.interruptions_per_hour / SECONDS_PER_HOUR
    interval = optimal_interval_seconds(rate, exposure.checkpoint_seconds)
    factor = stretch_factor(rate, interval, exposure.checkpoint_seconds, exposure.recovery_seconds)
    return Stretch(factor=coarse(np.minimum(factor, NEVER)), interval_seconds=coarse(interval))


def stretch_factor(rate: Array, interval: Array, checkpoint: Array, recovery: Array) -> Floats:
    """Return T(τ) / T_s for interruptions per second and seconds, [N]; 1 where nothing interrupts."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        work = np.expm1((interval + checkpoint) * rate) / (interval * rate)
        factor = np.exp(recovery * rate) * np.where((interval == 0.0) & (checkpoint == 0.0), 1.0, work)
    return np.asarray(np.where(rate > 0, factor, 1.0))


def optimal_interval_seconds(rate: Array, checkpoint: Array) -> Floats:
    """Return the τ that minimises T(τ), [N]; infinite where nothing interrupts.

    With x = τ / M and a = δ / M the derivative vanishes where log(1 − x) + x + a = 0. The left side is concave and
    falls, so Newton's method comes down to the root from either starting point above it, √(2a) or 1 − exp(−1 − a).
    """
    some = (rate > 0) & (checkpoint > 0)
    a = np.where(some, np.minimum(rate * checkpoint, LONGEST), 1.0)
    x = np.minimum(np.sqrt(2.0 * a), -np.expm1(-1.0 - a))
    for _ in range(NEWTON_STEPS):
        x = x + (np.log1p(-x) + x + a) * (1.0 - x) / x
    free = np.where(rate > 0, 0.0, np.inf)
    return np.asarray(np.where(some, x / np.where(some, rate, 1.0), free))


def young_interval_seconds(rate: Array, checkpoint: Array) -> Floats:
    """Return Young's approximation √(2 δ M), [N]."""
    return np.asarray(np.sqrt(2.0 * checkpoint / rate))
