"""GPUs of the catalogue, by name and by other names. `data/README.md` describes columns and sources; files are read on
first use and kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from shardwright.errors import bad, suggestion
from shardwright.files import shipped_table
from shardwright.spec.cluster import Gpu
from shardwright.spec.text.fields import shown
from shardwright.units import GIBIBYTE, GIGA, MEGA, TERA

CATALOG = "shardwright.spec.catalog"
MEBIBYTE = 1024.0**2
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
BRANDS = ("nvidia", "amd", "intel", "habana", "tesla", "geforce", "quadro", "instinct")


def _gpu(row: Mapping[str, str]) -> Gpu:
    driver_bytes = float(row["memory_mib"]) * MEBIBYTE if row["memory_mib"] else float(row["memory_gb"]) * GIGA
    peaks = ((precision, row[f"{precision}_tflops"]) for precision in PRECISIONS)
    return Gpu(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        multiprocessors=int(row["multiprocessors"]),
        clock_hertz=float(row["clock_mhz"]) * MEGA,
        peak_flops=tuple((precision, float(peak) * TERA) for precision, peak in peaks if peak),
        memory_bytes=driver_bytes,
        memory_bytes_per_second=float(row["memory_gb_per_second"]) * GIGA,
        l2_bytes=float(row["l2_mib"]) * MEBIBYTE,
        link=row["link"],
        link_bytes_per_second=float(row["link_gb_per_second"]) * GIGA,
        link_domain=int(row["link_domain"]),
        pcie_bytes_per_second=float(row["pcie_gb_per_second"]) * GIGA,
        tdp_watts=float(row["tdp_watts"]),
        source=row["source"],
        date=row["date"],
    )


@cache
def gpus() -> Mapping[str, Gpu]:
    """Return the GPUs of the catalogue by name."""
    return MappingProxyType({row["name"]: _gpu(row) for row in shipped_table(CATALOG, "gpus.csv")})


@cache
def sold_memory_bytes() -> Mapping[str, float]:
    """Return, by GPU name, the memory size that the GPU is sold with (its "80 GB"), taken as GiB."""
    return MappingProxyType(
        {row["name"]: float(row["memory_gb"]) * GIBIBYTE for row in shipped_table(CATALOG, "gpus.csv")}
    )


@cache
def gpus_with(trait: str) -> frozenset[str]:
    """Return the names of the GPUs that have a trait of the catalogue (`data/README.md`)."""
    return frozenset(row["name"] for row in shipped_table(CATALOG, "gpus.csv") if trait in row["traits"].split())


def _folded(name: str) -> str:
    """Return `name` without case, brand, separators and a final "GB"."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word and word not in BRANDS]
    return re.sub(r"(?<=[0-9])gb(?=$|[a-z])", "", "".join(words))


@cache
def _gpu_names() -> Mapping[str, tuple[str, str]]:
    """Return GPU name and reading (why an ambiguous name means this one, or "") by folded name or alias."""
    names = {_folded(row["alias"]): (row["gpu"], row["reading"]) for row in shipped_table(CATALOG, "aliases.csv")}
    return MappingProxyType(names | {_folded(name): (name, "") for name in gpus()})


def resolve_gpu(name: str, path: str = "gpu") -> tuple[Gpu, str]:
    """Return the GPU that `name` (or an alias) stands for, and how an ambiguous name was read ("" if it was not).

    Raises SpecError, placed at `path`, with the nearest names where there is no such GPU.
    """
    known = _gpu_names().get(_folded(name))
    if known is None:
        hint = (
            suggestion(name, [*gpus(), *(row["alias"] for row in shipped_table(CATALOG, "aliases.csv"))])
            + " `shardwright gpus` lists all; a cluster file describes others, as gpu: {name: X1, memory_gb: 96, "
            "memory_gb_per_second: 3000, bf16_tflops: 500}"
        )
        raise bad(path, f"unknown GPU {shown(name)}", hint)
    return gpus()[known[0]], known[1]


def known_gpu(name: str) -> Gpu | None:
    """Return the GPU that `name` or an alias of it stands for, None where the catalogue has none."""
    known = _gpu_names().get(_folded(name))
    return None if known is None else gpus()[known[0]]


def find_gpu(name: str) -> Gpu:
    """Return the GPU that `name` or an alias of it stands for; raises SpecError with near names."""
    return resolve_gpu(name)[0]
