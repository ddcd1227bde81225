"""`shardwright gpus`, `models` and `prices`: the facts that ship with the package, with sources and dates."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from shardwright.cli.output import print_json

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def gpus(
    name: Annotated[str | None, typer.Argument(help="One GPU; all if not given.")] = None, json: AsJson = False
) -> None:
    """List GPUs: dense peaks, memory, links, source.

    Example: shardwright gpus H100-SXM
    """
    from shardwright.report.layout import table
    from shardwright.spec.catalog import find_gpu
    from shardwright.spec.catalog import gpus as known
    from shardwright.units import format_bytes

    found = [find_gpu(name)] if name else list(known().values())
    if json:
        print_json([asdict(gpu) | {"peak_flops": dict(gpu.peak_flops)} for gpu in found])
        return
    rows = [
        [
            gpu.name,
            gpu.architecture,
            *(f"{peak / 1e12:.0f}" if (peak := gpu.peak(kind)) else "–" for kind in ("bf16", "fp16", "fp8")),
            format_bytes(gpu.memory_bytes),
            f"{gpu.memory_bytes_per_second / 1e9:,.0f}",
            f"{gpu.link} {gpu.link_bytes_per_second / 1e9:.0f}",
            gpu.date,
            gpu.source,
        ]
        for gpu in found
    ]
    header = ("GPU", "architecture", "bf16 TF/s", "fp16", "fp8", "memory", "GB/s", "link GB/s", "date", "source")
    print(table(header, rows, words=(0, 1, 8, 9)))


def models(
    name: Annotated[str | None, typer.Argument(help="One model; all presets if not given.")] = None,
    json: AsJson = False,
) -> None:
    """List model presets: parameters, shape, source. A config.json or YAML may be named as well.

    Example: shardwright models llama-3.1-8b
    """
    from shardwright.report.layout import table
    from shardwright.spec.load_model import load_model
    from shardwright.spec.presets import find_preset, preset_names, preset_source

    found = [load_model(name)] if name else [load_model(preset) for preset in preset_names()]
    sources = {model.name: preset_source(preset) for model in found if (preset := find_preset(model.name))}
    if json:
        document = [
            {
                "name": model.name,
                "parameters": model.parameters,
                "active_parameters": model.active_parameters,
                "hidden": model.hidden,
                "layers": len(model.layers),
                "vocab": model.vocab,
                "assumed": list(model.assumed),
                "source": sources.get(model.name, ""),
            }
            for model in found
        ]
        print_json(document)
        return
    rows = [
        [model.name, f"{model.parameters:,}", f"{model.active_parameters:,}", str(len(model.layers)), str(model.hidden),
         f"{model.kinds[0].attention.heads}/{model.kinds[0].attention.kv_heads}", sources.get(model.name, "")]
        for model in found
    ]  # fmt: skip
    print(table(("model", "parameters", "active", "layers", "hidden", "heads/kv", "source"), rows, words=(0, 6)))


def prices(
    gpu: Annotated[str | None, typer.Option(help="Only this GPU.")] = None,
    provider: Annotated[str | None, typer.Option(help="Only this provider, e.g. aws.")] = None,
    region: Annotated[str | None, typer.Option(help="Only this region.")] = None,
    json: AsJson = False,
) -> None:
    """List prices of machines in US dollars an hour, with source and date.

    Example: shardwright prices --gpu H100-SXM --provider aws
    """
    from shardwright.report.layout import table
    from shardwright.spec.catalog import prices as known

    found = known(gpu=gpu, provider=provider, region=region)
    if json:
        print_json([asdict(row) for row in found])
        return
    rows = [
        [row.provider, row.region, row.machine, f"{row.gpus} × {row.gpu}", _price(row.price.on_demand_per_hour),
         _price(row.price.spot_per_hour), row.price.date, row.price.source]
        for row in found
    ]  # fmt: skip
    print(
        table(
            ("provider", "region", "machine", "GPUs", "on demand $/h", "spot $/h", "date", "source"),
            rows,
            words=(0, 1, 2, 3, 6, 7),
        )
    )


def _price(dollars: float | None) -> str:
    return "–" if dollars is None else f"{dollars:.2f}"
