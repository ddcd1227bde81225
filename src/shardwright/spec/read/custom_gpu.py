"""A GPU that the catalogue does not have, as a mapping in place of its name: in a cluster file or a machine profile.

The keys are the columns of `data/gpus.csv`. Four figures are needed, a name, the memory, its bandwidth and the peak of
one precision; the rest has cautious defaults, which only fine effects depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardwright.spec.catalog.gpus import MEBIBYTE, PRECISIONS, gpus
from shardwright.spec.catalog.machines import MachineType, links, reference_machines
from shardwright.spec.cluster import Gpu
from shardwright.spec.text.fields import Section
from shardwright.units import GIBIBYTE, GIGA, MEGA, TERA

PEAKS = tuple(f"{precision}_tflops" for precision in PRECISIONS)
# Keys that may be left out: the fields of `Gpu` that they are, their units, and what is taken for them.
FIGURES: Mapping[str, tuple[str, float, float]] = MappingProxyType(
    {
        "clock_mhz": ("clock_hertz", MEGA, 1500.0),
        "l2_mib": ("l2_bytes", MEBIBYTE, 32.0),
        "link_gb_per_second": ("link_bytes_per_second", GIGA, 16.0),
        "pcie_gb_per_second": ("pcie_bytes_per_second", GIGA, 16.0),
        "tdp_watts": ("tdp_watts", 1.0, 300.0),
    }
)
MULTIPROCESSORS, DEFAULT_LINK, DOMAIN, MOST_DOMAIN = 100, "PCIe3", 8, 4096
KEYS = (
    *("name", "architecture", *PEAKS, "memory_gb", "memory_gb_per_second", "link", "link_domain", "multiprocessors"),
    *FIGURES,
)
PLAIN_MACHINE = MachineType(
    name="a plain server",
    provider="",
    gpu="",
    gpus=1,
    network="Ethernet",
    network_bytes_per_second=25e9 / 8,
    nic_per_gpu=False,
    host_memory_bytes=64 * GIBIBYTE,
    host_memory_bytes_per_second=100 * GIGA,
    vcpus=None,
    reference_for=(),
    source="assumed",
    date="",
)


def custom_gpu(section: Section) -> Gpu | None:
    """Return the GPU that a mapping describes, or None after adding its problems to the section."""
    before = len(section.problems)
    section.reject_unknown(KEYS)
    section.require("name", "give it a name of its own")
    section.require("memory_gb", "say how much memory it has, in GiB")
    section.require("memory_gb_per_second", "say how fast its memory is, in 1e9 bytes a second")
    name = section.text("name") or ""
    if name in gpus():
        section.report("name", f"{name} is in the catalogue", "write gpu: NAME, or give another name")
    peaks = {precision: section.number(key, most=1e6) for precision, key in zip(PRECISIONS, PEAKS, strict=True)}
    if not any(peaks.values()) and len(section.problems) == before:
        section.report("bf16_tflops", "no peak is given", "give the dense peak of a precision: " + ", ".join(PEAKS))
    link = section.text("link") or DEFAULT_LINK
    if link not in links() or links()[link].scope != "intra":
        known = ", ".join(kind.name for kind in links().values() if kind.scope == "intra")
        section.report("link", f"{link} is no link between GPUs of a machine", f"known: {known}")
    figures = {field: (section.number(key) or usual) * unit for key, (field, unit, usual) in FIGURES.items()}
    memory, rate = section.number("memory_gb", most=1e5), section.number("memory_gb_per_second")
    domain = section.integer("link_domain", most=MOST_DOMAIN) or DOMAIN
    units = section.number("multiprocessors") or MULTIPROCESSORS
    if len(section.problems) > before or memory is None or rate is None:
        return None
    return stand_in(
        name=name,
        architecture=section.text("architecture") or "custom",
        multiprocessors=max(round(units), 1),
        peak_flops=tuple((precision, peak * TERA) for precision, peak in peaks.items() if peak),
        memory_bytes=memory * GIBIBYTE,
        memory_bytes_per_second=rate * GIGA,
        link=link,
        link_domain=domain,
        **figures,
    )


def stand_in(**figures: Any) -> Gpu:
    """Return a GPU that the catalogue does not have, with these figures and cautious ones for what they leave out."""
    usual = {field: usual * unit for field, unit, usual in FIGURES.values()} | {
        "vendor": "custom",
        "architecture": "custom",
        "compute_capability": "",
        "multiprocessors": MULTIPROCESSORS,
        "link": DEFAULT_LINK,
        "link_domain": DOMAIN,
        "source": "user",
        "date": "user",
    }
    return Gpu(**{**usual, **figures})


def description(gpu: Gpu) -> dict[str, object]:
    """Return the mapping from which `custom_gpu` makes `gpu`."""
    return {
        "name": gpu.name,
        "architecture": gpu.architecture,
        **{f"{precision}_tflops": peak / TERA for precision, peak in gpu.peak_flops},
        "memory_gb": gpu.memory_bytes / GIBIBYTE,
        "memory_gb_per_second": gpu.memory_bytes_per_second / GIGA,
        "link": gpu.link,
        "link_domain": gpu.link_domain,
        "multiprocessors": gpu.multiprocessors,
        **{key: getattr(gpu, field) / unit for key, (field, unit, _) in FIGURES.items()},
    }


def reference_machine(gpu: Gpu) -> MachineType:
    """Return the machine that stands in where a cluster does not describe its own: the catalogue's for this GPU, or a
    plain server for a GPU that it does not have."""
    return reference_machines().get(gpu.name, PLAIN_MACHINE)
