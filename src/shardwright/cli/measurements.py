"""The user's own measurements, given with `--profile`: of machines, or of a model's layers. Content says which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.commands import option
from shardwright.errors import bad
from shardwright.records import record

if TYPE_CHECKING:
    from shardwright.cost.compute.efficiency import Efficiency
    from shardwright.cost.site.calibration import SiteCalibration
    from shardwright.spec.cluster import Cluster, Gpu
    from shardwright.spec.job import Job
    from shardwright.spec.layer_profile import LayerProfile
    from shardwright.spec.model import Model
    from shardwright.spec.read.machine_profile import MachineProfile

Profiles = Annotated[
    tuple[Path, ...],
    option(
        "--profile",
        "--machine-profile",
        metavar="FILE",
        help="Your own measurements: of machines, by `shardwright profile` (may be repeated, once a GPU type), or of "
        "the model's layers, in place of predictions (docs/how-to-bring-your-own-measurements.md).",
    ),
]


Calibration = Annotated[
    Path | None,
    option(
        metavar="FILE",
        help="Calibration on your own runs, by `shardwright calibrate`: moves seconds and narrows their interval; "
        "on top of --profile (docs/how-to-calibrate.md).",
    ),
]


@record
class Measurements:
    """What the given files hold."""

    machines: tuple[MachineProfile, ...] = ()
    layers: LayerProfile | None = None
    site: SiteCalibration | None = None

    def precision(self, stated: str | None) -> str:
        """Return the stated precision, else that of the measured layers, else bf16."""
        return stated or (self.layers.precision if self.layers else "") or "bf16"

    def seq_len(self, stated: int | None) -> int:
        """Return the stated sequence length, else that of the measured layers. Raises SpecError without either."""
        if stated is not None:
            return stated
        if self.layers is None:
            raise bad("--seq-len", "is missing", "say how many tokens a sample has, e.g. --seq-len 4096")
        return self.layers.seq_len

    def unknown_gpus(self, model: Model, precision: str) -> Mapping[str, Gpu]:
        """Return the GPUs with measured layers that the catalogue does not have, by name."""
        if self.layers is None:
            return {}
        from shardwright.spec.read.layer_profile import stand_in_gpus

        return stand_in_gpus(self.layers, model, precision)


def read_measurements(paths: Sequence[Path], calibration: Path | None = None) -> Measurements:
    """Return the profiles in files, and the calibration of a site in another. Raises SpecError for a file that is none,
    for a second layer profile, and for a calibration beside measured layers, which say already what they take."""
    site = None
    if calibration is not None:
        from shardwright.cost.site.file import load_calibration

        site = load_calibration(calibration)
    if not paths:
        return Measurements(site=site)
    from shardwright.spec.read.layer_profile import is_layer_profile, layer_profile
    from shardwright.spec.read.machine_profile import from_document
    from shardwright.spec.text.reading import parse_json, read_text

    machines, layers = [], []
    for path in paths:
        data = parse_json(read_text(path), str(path))
        if is_layer_profile(data):
            layers.append(layer_profile(data, str(path)))
        else:
            machines.append(from_document(data, str(path)))
    if len(layers) > 1:
        raise bad("--profile", "two files have layers of a model", "put all their entries into one file")
    if layers and site is not None:
        raise bad("--calibration", "stands beside measured layers, which are of your site already", "leave one out")
    return Measurements(machines=tuple(machines), layers=layers[0] if layers else None, site=site)


def model_of(source: str | None, measurements: Measurements, precision: str, *, accept_guess: bool = False) -> Model:
    """Return the model that the user names, else one of the sizes of the measured layers. Raises SpecError."""
    from shardwright.spec.read.model import load_model

    if source is not None:
        return load_model(source, accept_guess=accept_guess)
    if measurements.layers is None:
        raise bad(
            "--model", "is missing", "name a preset (`shardwright models`), a config.json or a YAML of dimensions"
        )
    from shardwright.spec.read.layer_profile import stand_in_model

    return stand_in_model(measurements.layers, precision)


def efficiency_of(measurements: Measurements, model: Model, cluster: Cluster, job: Job) -> Efficiency | None:
    """Return the efficiency model with the measurements in it, None (the default model) without any. Raises SpecError
    for a calibration that was made with other machine profiles."""
    if not measurements.machines and measurements.layers is None and measurements.site is None:
        return None
    from shardwright.cost.layers.measured import measured_layers
    from shardwright.cost.learned import default_efficiency
    from shardwright.cost.measured.machine import profiled

    base: Efficiency = default_efficiency()
    if measurements.machines:
        base = profiled(base, measurements.machines, cluster)
    if measurements.site is not None:
        from shardwright.cost.site.calibrated import calibrated

        return calibrated(base, measurements.site, [machine.gpu.kind for machine in measurements.machines])
    return measured_layers(base, measurements.layers, model, cluster, job) if measurements.layers else base
