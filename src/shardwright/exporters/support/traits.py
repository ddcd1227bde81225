"""What a plan asks of a trainer that not every one has: traits of its model, by the names that the matrix gives them
(subject `layer`), and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from shardwright.plans.plan import Plan
from shardwright.records import record
from shardwright.rows import holding
from shardwright.spec.job import Job
from shardwright.spec.layer import Attention, Layer
from shardwright.spec.mixers import GatedDelta, GatedRecurrence, Lightning, Mamba, Mamba2, Rwkv7, ShortConvolution
from shardwright.spec.model import Model
from shardwright.spec.options import said

ON_THE_GPU = frozenset({"adam8bit", "paged_adam", "paged_adam8bit", "lion"})  # bitsandbytes/functional.py: is_on_gpu
SILU, QUICK_GELU, SQUARED_RELU = ("silu", "swish", "swiglu"), ("quick_gelu",), ("relu2", "squared_relu")


MIXER_TRAITS: Mapping[type, str] = MappingProxyType(
    {
        Mamba: "mamba",
        GatedDelta: "gated_delta",
        Lightning: "linear_attention",
        Rwkv7: "rwkv7",
        ShortConvolution: "short_convolution",
        GatedRecurrence: "recurrence",
    }
)


@record(kw_only=False)
class Trait:
    """A trait, the place in a plan file that says it, and it in words."""

    name: str
    path: str
    words: str


def traits(model: Model) -> Iterator[Trait]:
    """Yield the traits of a model."""
    yield from _of_the_whole(model)
    for index, kind in enumerate(model.kinds):
        yield from _of_a_kind(kind, f"model.layers (kind {index})")
    yield from _of_the_mixture(model)
    yield from _of_the_activation(model)
    yield from _of_experts(model)


def names(model: Model) -> frozenset[str]:
    """Return the names of a model's traits."""
    return frozenset(trait.name for trait in traits(model))


def names_of_job(job: Job) -> frozenset[str]:
    """Return the names of what a job asks of strategies."""
    adapter = job.adapter
    frozen = {"quantised", adapter.frozen} if adapter is not None and adapter.quantised else set[str]()
    there = {
        "projected": job.projection_rank is not None,
        "bitsandbytes": job.optimizer in ON_THE_GPU,
        "no Adam": job.optimizer != "adam",
        "preference": job.preference is not None,
        "reference": job.preference is not None and job.preference.reference,
        "other prompts": job.preference is not None and job.preference.least_samples > 1,
    }
    return frozenset(frozen | {name for name, asked in there.items() if asked})


def _of_the_whole(model: Model) -> Iterator[Trait]:
    there = {
        ("encoder" if tower.part == "encoder" else "tower", f"model.{place}"): tower.noun
        for place, tower in (("tower", model.tower), ("audio", model.audio))
        if tower is not None
    }
    there |= {
        ("alibi", "model.position"): "ALiBi positions" if model.position == "alibi" else "",
        ("parallel_block", "model.parallel_block"): "attention and feed-forward side by side"
        if model.parallel_block
        else "",
        ("projected_embedding", "model.embedding_width"): "a projected embedding" if model.embedding_width else "",
        ("embedding_norm", "model.embedding_norm"): "a norm after the embedding" if model.embedding_norm else "",
        ("head_bias", "model.head_bias"): "a bias of the output projection" if model.head_bias else "",
        ("no_final_norm", "model.final_norm"): "a model without final norm" if not model.final_norm else "",
        ("particular", "model.particular"): f"what no argument tells: {model.particular}" if model.particular else "",
        ("norm_vectors", "model.norm_vectors"): "norms with other weights than usual"
        if model.norm_vectors is not None
        else "",
        ("extra_parameters", "model.extra_parameters"): "parameters beside the transformer's"
        if model.extra_parameters
        else "",
        ("fractional_base", "model.rotary_base"): "a rotary base that is not whole"
        if model.rotary_base != int(model.rotary_base)
        else "",
        ("second_positions", "model.learned_positions"): f"a position table beside {model.position} positions"
        if model.position != "learned" and model.learned_positions
        else "",
        ("no_attention", "model.layers"): "no attention in any layer" if not model.attentions else "",
        ("mtp", "model.mtp_layers"): "multi-token prediction" if model.mtp_layers else "",
        ("mtp_positions", "model.mtp_layers"): f"multi-token prediction with {model.position} positions"
        if model.mtp_layers and model.position not in ("rope", "none")
        else "",
    }
    yield from (Trait(name, path, f"has {words}") for (name, path), words in there.items() if words)


def _of_a_kind(kind: Layer, path: str) -> Iterator[Trait]:
    yield from _of_unlike_blocks(kind, path)
    idle = kind.moe and kind.moe.shared_gate and not kind.moe.shared_width
    unlike = kind.norms != max(kind.sublayers, 1) and kind.shared is None
    yield from holding(
        (
            kind.vector_parameters,
            Trait("loose_vectors", f"{path}.vector_parameters", "has weights beside its matrices and norms"),
        ),
        (idle, Trait("idle_gate", f"{path}.moe.shared_gate", "gates no shared expert")),
        (unlike, Trait("norm_count", f"{path}.norms", f"has {kind.norms} norms in a layer")),
    )
    if kind.attention is not None:
        yield from _of_attention(kind.attention, kind, path)


def _of_attention(attention: Attention, kind: Layer, path: str) -> Iterator[Trait]:
    biases = {attention.out_bias, kind.mlp.bias if kind.mlp else attention.out_bias}
    some = len(biases) > 1 or (attention.out_bias and not attention.qkv_bias)
    unlike = attention.latent is None and attention.value_head_dim != attention.head_dim
    rows = (
        (not attention.causal, "bidirectional", "attention.causal", "attends in both directions"),
        (unlike, "value_width", "attention.value_head_dim", "differs from head_dim"),
        (some, "some_biases", "attention.out_bias", "has biases in some linear layers and not in others"),
        (
            kind.moe and attention.out_bias,
            "biased_experts",
            "moe",
            "has experts beside projections with biases",
        ),
        (attention.latent, "latent", "attention.latent", "has multi-head latent attention"),
        (attention.window, "window", "attention.window", "has a sliding window"),
        (
            attention.latent and attention.window,
            "latent_window",
            "attention.window",
            "has a window in latent attention",
        ),
    )
    yield from (Trait(name, f"{path}.{place}", words) for holds, name, place, words in rows if holds)


def _of_unlike_blocks(kind: Layer, path: str) -> Iterator[Trait]:
    """Yield what a block has or lacks that blocks of a transformer do not."""
    attention, mixer, unshared = kind.attention, kind.mixer, kind.shared is None
    if mixer is not None:
        yield Trait(_mixer_trait(kind), f"{path}.mixer", f"has {mixer.words}")
    gate = None if attention is None else attention.gate
    rows = (
        (not unshared, "shared_block", ".shared", "a transformer block whose weights several layers share"),
        (unshared and mixer and attention, "side_by_side", ".mixer", "a mixer beside attention in one layer"),
        (kind.sublayers < 2, "half_block", "", "blocks of a mixer or a feed-forward alone"),
        (gate == "element", "gated_attention", ".attention.gate", "a gate on the output of attention"),
        (
            gate not in (None, "element"),
            "gated_heads",
            ".attention.gate",
            "a gate on the output of attention",
        ),
        (kind.embedded, "layer_embedding", ".embedded", "a token's own embedding for each layer"),
        (kind.streams is not None, "streams", ".streams", "several residual streams"),
        (
            attention and attention.reused is not None,
            "reused_keys",
            ".attention.reused",
            "keys or values of another projection or layer",
        ),
        (attention and attention.value_norm, "value_norm", ".attention.value_norm", "a norm of values"),
        (
            attention and attention.sparse is not None,
            "sparse_attention",
            ".attention.sparse",
            "sparse attention with an indexer",
        ),
        (
            kind.moe and kind.moe.latent is not None,
            "latent_experts",
            ".moe.latent",
            "experts on a projection of the tokens",
        ),
    )
    yield from (Trait(name, path + place, f"has {words}") for holds, name, place, words in rows if holds)


def _mixer_trait(layer: Layer) -> str:
    """Return the trait of a mixer: of its kind, or of what is particular to it or to its place."""
    mixer = layer.mixer
    if isinstance(mixer, GatedDelta) and mixer.decay == "channel":
        return "kimi_delta"
    if isinstance(mixer, Mamba2):
        usual = Mamba2(
            heads=mixer.heads,
            head_dim=mixer.head_dim,
            groups=mixer.groups,
            state=mixer.state,
            width=4,
            chunk=mixer.chunk,
            least_step=mixer.least_step,  # transformers' alone: the trainers of Nemotron-H have no such bound
        )
        return "mamba2" if mixer == usual and layer.sublayers == 1 else "mamba2_with_more"
    return MIXER_TRAITS[type(mixer)]


def _of_the_mixture(model: Model) -> Iterator[Trait]:
    """Layers may differ in having experts, and in having a window; in what else is a trait."""
    counts = {
        "attention": len({replace(attention, window=None) for attention in model.attentions}),
        "window": len({attention.window for attention in model.attentions} - {None}),
        "mlp": len({kind.mlp for kind in model.kinds if kind.mlp}),
        "moe": len({kind.moe for kind in model.kinds if kind.moe}),
    }
    for what, count in counts.items():
        if count > 1:
            yield Trait("unlike_layers", "model.layers", f"has {count} kinds of {what}")
    if len({gated(kind) for kind in model.kinds if kind.mlp or kind.moe}) > 1:
        yield Trait("unlike_layers", "model.layers", "has gated and plain feed-forward blocks")


def _of_the_activation(model: Model) -> Iterator[Trait]:
    activation, gate = model.activation.casefold(), any(gated(kind) for kind in model.kinds)
    usual = activation in SILU + QUICK_GELU if gate else activation.startswith("gelu") or activation in SQUARED_RELU
    if not usual:
        yield Trait("activation", "model.activation", f"is {'a gated ' if gate else ''}{model.activation}")


def _of_experts(model: Model) -> Iterator[Trait]:
    mixtures = [kind.moe for kind in model.kinds if kind.moe]
    rows = (
        (mixtures, "experts", "experts"),
        (any(moe.shared_width for moe in mixtures), "shared_experts", "shared experts"),
        (any(moe.router_bias for moe in mixtures), "router_bias", "a router with a balancing bias"),
        (any(moe.router_groups for moe in mixtures), "router_groups", "a router that picks groups of experts"),
    )
    yield from (Trait(name, "model.layers", f"has {words}") for holds, name, words in rows if holds)


def gated(layer: Layer) -> bool:
    """Whether a layer's feed-forward block, or each of its experts, has a gate."""
    return layer.mlp.gated if layer.mlp else bool(layer.moe and layer.moe.gated)


def options_of(plan: Plan) -> dict[str, str]:
    """Return the options of a plan that are not the framework's own, as words by name. Modules count where a stage is
    recomputed selectively."""
    found = said(plan.job.options)
    if not any(stage.recompute.granularity == "selective" for stage in plan.stages):
        found.pop("recompute_modules", None)
    return found
