"""Image classifiers of timm and torchvision, as these libraries build them, on small images."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from tests.spmd.zoo import CLASSES, Batch
from torch import Tensor, nn

from shardwright.spmd.task import Task

ROWS = 6


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A model of a library: the name that the library builds it by, with what arguments, and the side of an image."""

    library: str
    model: str
    arguments: dict[str, Any] = field(default_factory=dict)
    side: int = 32


def _timm(model: str, side: int = 32, **arguments: Any) -> Classifier:
    return Classifier(library="timm", model=model, arguments=arguments, side=side)


def _torchvision(model: str, side: int = 32, **arguments: Any) -> Classifier:
    return Classifier(library="torchvision", model=model, arguments=arguments, side=side)


TINY = {"depth": 2, "embed_dim": 24, "num_heads": 4}
CLASSIFIERS: dict[str, Classifier] = {
    "timm-resnet10t": _timm("resnet10t"),
    "timm-seresnext26d": _timm("seresnext26d_32x4d", layers=(1, 1, 1, 1)),
    "timm-convnext-atto": _timm("convnext_atto", depths=(1, 1, 1, 1)),
    "timm-vit": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, **TINY),
    "timm-vit-register": _timm(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, reg_tokens=2, init_values=0.1, **TINY
    ),
    "timm-deit": _timm("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, **TINY),
    "timm-eva02": _timm("eva02_tiny_patch14_224", side=28, img_size=28, depth=2),
    "timm-cait": _timm("cait_xxs24_224", img_size=32, patch_size=8, **TINY),
    "timm-mixer": _timm("mixer_s16_224", img_size=32),
    "timm-gmlp": _timm("gmlp_ti16_224", img_size=32),
    "timm-resmlp": _timm("resmlp_12_224", img_size=32),
    "timm-efficientnet": _timm("efficientnet_b0"),
    "timm-mobilenetv3": _timm("mobilenetv3_small_050"),
    "timm-mobilenetv4": _timm("mobilenetv4_conv_small_035"),
    "timm-ghostnet": _timm("ghostnet_050"),
    "timm-tinynet": _timm("tinynet_e"),
    "timm-regnetx": _timm("regnetx_002"),
    "timm-repvgg": _timm("repvgg_a0"),
    "timm-edgenext": _timm("edgenext_xx_small"),
    "timm-mobilevit": _timm("mobilevit_xxs", side=64),
    "timm-fastvit": _timm("fastvit_t8"),
    "timm-levit": _timm("levit_128s", img_size=64, side=64),
    "timm-pit": _timm("pit_ti_224", img_size=64, side=64),
    "timm-poolformer": _timm("poolformer_s12"),
    "timm-caformer": _timm("caformer_s18"),
    "timm-efficientformer": _timm("efficientformer_l1", depths=(1, 1, 1, 2), side=224),
    "timm-swin": _timm(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(2, 2), num_heads=(2, 2), embed_dim=8
    ),
    "timm-inception-next": _timm("inception_next_atto", depths=(1, 1, 1, 1)),
    "timm-cspresnet": _timm("cspresnet50"),
    "torchvision-resnet18": _torchvision("resnet18"),
    "torchvision-efficientnet": _torchvision("efficientnet_b0"),
    "torchvision-squeezenet": _torchvision("squeezenet1_1"),
    "torchvision-densenet": _torchvision(
        "densenet.DenseNet", block_config=(2, 2, 2, 2), growth_rate=8, num_init_features=16
    ),
    "torchvision-googlenet": _torchvision("googlenet", aux_logits=False, init_weights=True),
    "torchvision-shufflenet": _torchvision("shufflenet_v2_x0_5"),
    "torchvision-mobilenet-v2": _torchvision("mobilenet_v2", width_mult=0.25),
    "torchvision-mobilenet-v3": _torchvision("mobilenet_v3_small"),
    "torchvision-mnasnet": _torchvision("mnasnet0_5"),
    "torchvision-regnet": _torchvision("regnet_y_400mf"),
    "torchvision-vit": _torchvision(
        "vision_transformer.VisionTransformer",
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=24,
        mlp_dim=48,
        dropout=0.1,
    ),
    "torchvision-swin": _torchvision(
        "swin_transformer.SwinTransformer",
        patch_size=[4, 4],
        embed_dim=8,
        depths=[2, 2],
        num_heads=[2, 2],
        window_size=[4, 4],
    ),
}
DROPPED = "draws random numbers by aten.bernoulli.p"  # whole residual paths of a sample
REFUSED = dict.fromkeys(("timm-swin", "torchvision-efficientnet", "torchvision-swin"), DROPPED)


INSTALL = "pip install --no-deps timm torchvision"
DETECTION = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def importable(library: str) -> bool:
    """Return whether a library is installed. The compiled operators of torchvision, which timm imports too, do not load
    beside a PyTorch without CUDA. Detection alone uses them: they are declared, so that the Python code loads."""
    if find_spec(library) is None:
        return False
    for operator in ("nms", "qnms"):
        if "torchvision" not in sys.modules and not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", DETECTION)
    return True


def built(name: str) -> nn.Module:
    """Return a model, in `float64`: a batch norm of few values multiplies what rounding leaves."""
    entry = CLASSIFIERS[name]
    assert importable(entry.library)
    if entry.library == "timm":
        import timm

        module: nn.Module = timm.create_model(entry.model, num_classes=CLASSES, **entry.arguments)
    else:
        import torchvision

        make: Any = torchvision.models
        for part in entry.model.split("."):
            make = getattr(make, part)
        module = make(num_classes=CLASSES, **entry.arguments)
    return module.to(torch.float64)


def batch(name: str, step: int = 0) -> Batch:
    """Return the images of a step, and their classes."""
    draw, side = torch.Generator().manual_seed(step), CLASSIFIERS[name].side
    pixels = torch.randn(ROWS, 3, side, side, generator=draw, dtype=torch.float64)
    return {"pixels": pixels, "labels": torch.randint(CLASSES, (ROWS,), generator=draw)}


def task(name: str) -> Task:
    """Return the training of a model by the cross entropy of its logits."""

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        logits = module(batch["pixels"])
        heads = logits if isinstance(logits, tuple) else (logits,)
        return torch.stack([nn.functional.cross_entropy(head, batch["labels"]) for head in heads]).mean()

    return Task(
        build=lambda: built(name),
        batch=batch(name),
        loss=loss,
        batches=lambda step: batch(name, step),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def outcomes() -> str:
    """Return a table of the models: what each is, and whether programs train it as eager mode does."""
    rows = [
        f"| {entry.library} | `{entry.model}` | {f'refused: {REFUSED[name]}' if name in REFUSED else 'equal'} |"
        for name, entry in CLASSIFIERS.items()
    ]
    return "\n".join(["| library | model | outcome |", "|---|---|---|", *rows])
