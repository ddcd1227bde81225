"""What a tower and its projector compute, and what they keep for their backward pass; the encoder of an encoder-decoder
is one without projector.

Every rank of tensor and of context parallelism has the whole tower and takes all images of its sequences: transformers
has no plan to split one, and Megatron-Bridge keeps transformers' module on each rank (megatron/bridge/models/qwen_vl/
modeling_qwen25_vl.py: `hook_hf_module_setattr_for_tp_grad_sync`). The encoder is costed as layers of a model whose
sequences are images. A part whose weights are frozen keeps nothing, and has no backward pass unless something before it
is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.compute.launches import launches
from shardwright.cost.compute.operator_table import BACKWARD, GEMM, LOOKUP, NORM, Operator
from shardwright.cost.compute.operators import Shard, layer_operators, linear, memory_bound
from shardwright.records import record
from shardwright.spec.images import encoder_job, patch_rows, stem_products, taken_of
from shardwright.spec.job import Job
from shardwright.spec.model import Tower


@record
class TowerPart:
    """Operators that run `count` times, those of a `layer` or of what stands around layers; whether there is a
    `backward` pass, and by how many calls the host `launches` it forward, [M]."""

    operators: list[Operator]
    backward: bool
    count: int = 1
    launches: Floats | float = 0.0
    layer: bool = False

    @property
    def again(self) -> bool:
        """Whether it runs again where the layers of the model do."""
        return self.layer and self.backward


def encoder_shard(tower: Tower, shard: Shard, job: Job) -> Shard:
    """Return how a GPU holds the encoder: whole, with the images of a micro-batch as its samples."""
    ones, no = np.ones_like(shard.tp), np.zeros(len(shard.tp), dtype=bool)
    return Shard(
        tp=ones,
        cp=ones,
        ep=ones,
        etp=ones,
        micro_batch=shard.micro_batch * taken_of(tower, job).count,
        sequence_parallel=no,
        flash=shard.flash,
        overlap_tp=no,
    )


def tower_parts(tower: Tower, shard: Shard, job: Job) -> list[TowerPart]:
    """Return the parts of a tower: patches, each kind of layer, projector."""
    samples, inner = encoder_shard(tower, shard, job), encoder_job(tower, job)
    vision, projector = job.trains(tower.part), job.trains("projector")
    patches = list(_patches(tower, samples, inner))
    if not vision:
        patches += list(_dequantised(tower, samples, job))
    kinds = [
        TowerPart(
            operators=_passes(layer_operators(tower.encoder, kind, samples, inner), vision),
            backward=vision,
            launches=launches(tower.encoder, kind, samples, inner),
            count=count,
            layer=True,
        )
        for kind, count in Counter(tower.encoder.layers).items()
    ]
    if not tower.projector:
        return [TowerPart(operators=_passes(patches, vision), backward=vision), *kinds]
    after, needed = list(_projector(tower, samples, job)), vision or projector
    if not vision:  # nobody needs the gradient of what the projector takes
        backward = (operator.kind == GEMM and operator.direction == BACKWARD for operator in after)
        del after[list(backward).index(True)]
    return [
        TowerPart(operators=_passes(patches, vision), backward=vision),
        *kinds,
        TowerPart(operators=_passes(after, needed, weights=projector), backward=needed, count=tower.projectors),
    ]


def _passes(operators: Iterable[Operator], backward: bool, *, weights: bool = True) -> list[Operator]:
    """Return the operators of forward passes, and of `backward` ones where there are any, those for gradients of
    `weights` too where these are trained."""
    return [
        operator
        for operator in operators
        if operator.direction != BACKWARD or (backward and (weights or not operator.weight_gradient))
    ]


def _patches(tower: Tower, samples: Shard, job: Job) -> Iterator[Operator]:
    """Yield the products that take patches or sound to the width of the encoder, the first without a gradient of its
    input, or the look-up of text; and the norms before and after the layers."""
    size = samples.micro_batch * float(job.seq_len)
    share = 1.0 if tower.tiles is None else patch_rows(tower, taken_of(tower, job)) / job.seq_len
    for place, (times, product) in enumerate(stem_products(tower)):
        times = times * share
        for operator in linear(times * size, float(product.outputs), float(product.inputs), job):
            if place or operator.direction != BACKWARD or operator.kind != GEMM or operator.weight_gradient:
                yield operator
        if tower.input == "sound":
            yield from memory_bound(4.0 * times * size * product.outputs, backward=1.5)
    if tower.input == "text":
        yield from memory_bound(4.0 * size * tower.hidden, backward=3.0, form=LOOKUP)
    norms = tower.first_norm + tower.final_norm
    yield from memory_bound(
        (norms * 4.0 + 6.0 * (tower.position == "learned")) * size * tower.hidden, backward=1.5, form=NORM
    )


def _projector(tower: Tower, samples: Shard, job: Job) -> Iterator[Operator]:
    size = samples.micro_batch * float(taken_of(tower, job).tokens)
    for place, product in enumerate(tower.projector):
        yield from linear(size, float(product.outputs), float(product.inputs), job)
        if place == len(tower.projector) - 2:
            yield from memory_bound(4.0 * size * product.outputs, backward=1.5)
    yield from memory_bound(4.0 * size * tower.merge**2 * tower.hidden, backward=2.0, form=NORM)


def _dequantised(tower: Tower, samples: Shard, job: Job) -> Iterator[Operator]:
    """Yield the dequantisation of a frozen tower whose weights are quantised with those of the decoder."""
    if job.adapter is not None and job.adapter.quantised:
        weights = tower.parameters * np.ones(len(samples.tp))
        yield from memory_bound((job.kept_bytes[0] + 2.0) * weights, backward=0.0)


def projector_inputs(tower: Tower, job: Job) -> float:
    """Return the elements that the projectors keep of a token: what each product takes where its weights are trained,
    and what the non-linearity takes. The norm's input is kept where something before it is trained."""
    chain, trained = tower.projector, job.trains("projector")
    if not trained and not job.trains(tower.part):
        return 0.0
    kept = float(sum(product.inputs for product in chain)) if trained else 0.0
    kept += chain[-2].outputs if len(chain) > 1 else 0
    kept += tower.hidden * tower.merge**2 if tower.projector_vectors else 0
    return tower.projectors * kept


def patch_inputs(tower: Tower) -> float:
    """Return the elements that the encoder keeps of a position beside its layers: what the products of its stem and the
    non-linearities after them take, and the inputs of norms before and after the layers. Windows of a convolution share
    their elements."""
    norms = float(tower.hidden * (tower.first_norm + tower.final_norm))
    if not tower.stem:
        return norms + tower.patch_values
    if tower.stem_rows is not None:  # an image of the sound, the convolutions' results before and after GELU
        convolved = [rows * product.outputs for rows, product in stem_products(tower)[:-1]]
        return norms + 4.0 * tower.stem_rows[0] + 2.0 * sum(convolved)
    products, kernel = stem_products(tower), tower.stem[-1].inputs // tower.hidden
    given = [times * product.outputs for times, product in products]
    return norms + products[0][0] * products[0][1].inputs / kernel + 2.0 * sum(given) - given[-1]


def tower_tokens(tower: Tower, shard: Shard, job: Job) -> tuple[Floats, Floats]:
    """Return positions of the encoder and tokens of the projector in a micro-batch, [M] each."""
    taken = taken_of(tower, job)
    count = shard.micro_batch * float(taken.count)
    return np.asarray(count * taken.positions), np.asarray(count * taken.tokens)
