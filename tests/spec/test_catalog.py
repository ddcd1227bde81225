from __future__ import annotations

import csv
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import examples

from shardwright.errors import SpecError
from shardwright.spec.catalog.gpus import _folded, _gpu_names, find_gpu, gpus, gpus_with, resolve_gpu, sold_memory_bytes
from shardwright.spec.catalog.machines import find_machine, links, machines, reference_machines
from shardwright.spec.catalog.prices import load_prices, prices

DATA = Path(str(files("shardwright.spec.catalog"))) / "data"
FILES = sorted(DATA.glob("*.csv"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_row_has_a_source_and_a_date(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        assert row["source"].strip() and row["date"].strip(), row
        assert None not in row and None not in row.values(), row


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("A100-SXM-80", "bf16", 312e12),
        ("A100-SXM-80", "fp8", None),
        ("H100-SXM", "bf16", 989e12),
        ("H100-SXM", "fp8", 1979e12),
        ("V100-SXM2", "fp16", 125e12),
        ("V100-SXM2", "bf16", None),
        ("B200", "bf16", 2250e12),
        ("MI300X", "bf16", 1307e12),
        ("T4", "fp16", 65e12),
    ],
)
def test_known_peaks(name: str, precision: str, peak: float | None) -> None:
    assert find_gpu(name).peak(precision) == peak


def test_known_memory_and_links() -> None:
    a100, a800, gb200 = (find_gpu(name) for name in ("A100-SXM-80", "A800-SXM-80", "GB200"))
    assert a100.memory_bytes == 81920 * 2**20
    assert a100.memory_bytes_per_second == 2039e9
    assert a100.link_bytes_per_second == 300e9
    assert a800.link_bytes_per_second == 200e9
    assert gb200.link_domain == 72
    assert find_gpu("H100").memory_bytes == 81559 * 2**20


def test_gpus_are_plausible_and_complete() -> None:
    assert len(gpus()) >= 48
    for gpu in gpus().values():
        assert gpu.link in links(), gpu.name
        assert gpu.name in reference_machines(), gpu.name
        assert 0.85 < gpu.memory_bytes / sold_memory_bytes()[gpu.name] < 1.06, gpu.name
        assert gpu.link_bytes_per_second >= gpu.pcie_bytes_per_second * 0.85, gpu.name
        assert all(peak > 0 for _, peak in gpu.peak_flops) and gpu.peak("fp16"), gpu.name


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("A100", "A100-SXM-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80"),
        ("a100_sxm_40gb", "A100-SXM-40"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("H100-SXM5", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("A800", "A800-SXM-80"),
        ("H800", "H800-SXM"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16"),
        ("V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("Quadro RTX 6000", "RTX6000"),
    ],
)
def test_names_people_write(written: str, meant: str) -> None:
    assert find_gpu(written).name == meant


def test_an_ambiguous_name_says_how_it_was_read() -> None:
    assert "80 GB SXM" in resolve_gpu("A100")[1]
    assert resolve_gpu("A100-SXM-80")[1] == ""


def test_aliases_never_hide_a_gpu_or_each_other() -> None:
    with (DATA / "aliases.csv").open(encoding="utf-8", newline="") as file:
        folded = [_folded(row["alias"]) for row in csv.DictReader(file)]
    folded += [_folded(name) for name in gpus()]
    meanings = {name: {g for n, (g, _) in _gpu_names().items() if n == name} for name in folded}
    assert all(len(found) == 1 for found in meanings.values())
    for name in gpus():
        assert find_gpu(name).name == name
    assert max(Counter(folded).values()) <= 2


def test_an_unknown_gpu_gets_near_names() -> None:
    with pytest.raises(SpecError, match=r"unknown GPU 'H101'.*H100"):
        find_gpu("H101")
    with pytest.raises(SpecError, match="MI250X"):
        find_gpu("MI250")


def test_all_geforce_cards_since_ampere_send_through_the_host_and_no_workstation_card_runs_above_its_clock() -> None:
    geforce = {name for name in gpus() if re.match(r"RTX[345]0[5-9]0", name)}
    assert len(geforce) > 15 and geforce <= gpus_with("through_host") & gpus_with("consumer")
    assert all(re.match(r"RTX\d0\d0", name) for name in gpus_with("consumer"))


def test_machines() -> None:
    p5, dgx = find_machine("p5.48xlarge"), find_machine("dgx-h100")
    assert (p5.gpu, p5.gpus, p5.network) == ("H100-SXM", 8, "EFA")
    assert p5.network_bytes_per_second == dgx.network_bytes_per_second == 3200e9 / 8
    assert reference_machines()["V100-SXM2"].network_bytes_per_second == 400e9 / 8
    for machine in machines().values():
        assert machine.gpu in gpus() and machine.network in links(), machine.name
    with pytest.raises(SpecError, match=r"p5\.48xlarge"):
        find_machine("p5.48xlrge")


def test_a_machine_of_the_price_list_is_known_without_its_network() -> None:
    machine = find_machine("8x_H200_224V_2400G")
    assert (machine.gpu, machine.gpus, machine.network_bytes_per_second) == ("H200", 8, None)


def test_machines_agree_with_the_price_list() -> None:
    for row in prices():
        machine = machines().get(row.machine)
        assert machine is None or (machine.gpu, machine.gpus, machine.provider) == (row.gpu, row.gpus, row.provider)


def test_catalogue_prices_are_plausible() -> None:
    rows = prices()
    assert len(rows) > 500
    for row in rows:
        dollars = [value for value in (row.price.on_demand_per_hour, row.price.spot_per_hour) if value is not None]
        assert dollars and all(0.05 <= value / row.gpus <= 50 for value in dollars), row
        assert row.gpu in gpus()


def test_prices_are_narrowed() -> None:
    rows = prices("H100", provider="AWS", region="us-east-1")
    assert rows and {(row.gpu, row.provider, row.region) for row in rows} == {("H100-SXM", "aws", "us-east-1")}
    for wrong in ({"provider": "awz"}, {"region": "us-esat-1"}, {"gpu": "H1"}):
        with pytest.raises(SpecError, match="did you mean"):
            prices(**wrong)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_user_file_is_read(tmp_path: Path) -> None:
    path = _file(tmp_path, "provider,gpu,gpus,on_demand_per_hour,spot_per_hour\nmine,A100,8,10,\n,H100,1,,0.9\n")
    first, second = load_prices(path)
    assert (first.gpu, first.gpus, first.price.on_demand_per_hour, first.price.spot_per_hour) == (
        "A100-SXM-80",
        8,
        10.0,
        None,
    )
    assert (second.price.spot_per_hour, second.price.source) == (0.9, "user")


def test_every_bad_price_is_reported_at_once(tmp_path: Path) -> None:
    rows = [
        "A100,8,-1",
        "A100,8,nan",
        "A100,8,inf",
        "A100,8,0.1",
        "A100,1,400",
        "Z100,8,5",
        "A100,0,5",
        "A100,8,",
        "H100,8",
    ]
    with pytest.raises(SpecError) as caught:
        load_prices(_file(tmp_path, "gpu,gpus,on_demand_per_hour\n" + "\n".join(rows)))
    places = [problem.path.split(": ")[1] for problem in caught.value.problems]
    assert places == [f"row {number}" for number in range(1, 10)]


def test_an_odd_price_can_be_forced(tmp_path: Path) -> None:
    text = "gpu,gpus,on_demand_per_hour,force\nA100,8,0.1,yes\n"
    assert load_prices(_file(tmp_path, text))[0].price.on_demand_per_hour == 0.1
    text = "gpu,gpus,on_demand_per_hour\nA100,8,0.1\n"
    assert load_prices(_file(tmp_path, text), force=True)[0].price.on_demand_per_hour == 0.1
    with pytest.raises(SpecError, match="not plausible"):
        load_prices(_file(tmp_path, text))


def test_an_unknown_price_column_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="on_demand_per_hour"):
        load_prices(_file(tmp_path, "gpu,gpus,on_demand_per_huor\nA100,8,10\n"))


@given(st.text(max_size=12), st.text('0123456789.-e ,naif"\n', max_size=20))
@settings(max_examples=examples(80))
def test_noisy_prices_raise_nothing_but_spec_error(
    tmp_path_factory: pytest.TempPathFactory, gpu: str, rest: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "noisy.csv"
    path.write_text(f"gpu,gpus,on_demand_per_hour\n{gpu},{rest}\n", encoding="utf-8", errors="replace")
    try:
        rows = load_prices(path)
    except SpecError:
        return
    assert all(row.gpus > 0 for row in rows)
