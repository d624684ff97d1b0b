"""NVIDIA's nvidia-smi, unmodified, on the emulator: it tells what pynvml tells, and our parsers read what it prints."""

from __future__ import annotations

import re

import pytest
from ansible.module_utils.steadyrack import nvidia_smi, pcie

pytestmark = pytest.mark.slow

RELEASES = {"bookworm": "535", "trixie": "550"}
LIMITS = ("requested_w", "enforced_w", "default_w", "min_w", "max_w")
FIELDS = {
    "uuid": "uuid", "serial": "serial", "name": "name", "vbios_version": "vbios",
    "power.limit": "requested_w", "enforced.power.limit": "enforced_w", "power.default_limit": "default_w",
    "power.min_limit": "min_w", "power.max_limit": "max_w",
    "pcie.link.width.current": "width", "pcie.link.width.max": "width_max",
}  # fmt: skip
"""Field of --query-gpu → name in what pynvml was asked."""


def ours(record):
    """A record of our XML parser in the flat names of conftest.READ."""
    return {
        **{key: record[key] for key in ("bus_id", "uuid", "serial", "name", "vbios", "part_number", "persistence")},
        **{key: record["power"][key] for key in LIMITS},
        **record["pcie"],
        "inforom": record["inforom"]["image"],
    }


def theirs(gpu):
    """A GPU as pynvml told it, in the same names and without what moves by itself."""
    moving = ("draw_w", "temperature_c", "compute_mode")
    return {**{key: value for key, value in gpu.items() if key not in moving}, "bus_id": pcie.bus_id(gpu["bus_id"])}


# --- what it prints ------------------------------------------------------------------------------


def test_it_is_the_release_that_is_claimed_and_names_the_emulated_driver(host):
    table = host.smi()
    assert table.returncode == 0
    version = re.search(r"NVIDIA-SMI (\S+)\s+Driver Version: (\S+)", table.stdout)
    assert version[1].startswith(RELEASES[host.suite] + ".")
    assert version[2] == host.nvml()["driver"]


def test_the_table_has_a_line_for_each_card_with_its_cap(kept):
    assert kept.smi("-i", "2", "-pl", "250").returncode == 0
    lines = re.findall(r"^\| *(\d+) +NVIDIA A100 80GB PCIe +(On|Off) .* ([0-9A-F:.]{16}) ", kept.smi().stdout, re.M)
    assert [(index, pcie.bus_id(address)) for index, mode, address in lines if mode == "On"] == [
        (str(place), pcie.bus_id(gpu["bus_id"])) for place, gpu in enumerate(kept.nvml()["gpus"])
    ]
    assert re.findall(r"(\d+)W \|", kept.smi().stdout) == ["300", "300", "250", "300"]


def test_the_list_names_every_uuid(host):
    done = host.smi("-L")
    listed = nvidia_smi.parse_list(done.stdout, done.returncode)
    assert [(gpu["name"], gpu["uuid"]) for gpu in listed["gpus"]] == [
        (gpu["name"], gpu["uuid"]) for gpu in host.nvml()["gpus"]
    ]


def test_query_gpu_tells_what_pynvml_tells(kept):
    assert kept.smi("-i", "1", "-pl", "250").returncode == 0
    done = kept.smi(f"--query-gpu=pci.bus_id,persistence_mode,{','.join(FIELDS)}", "--format=csv")
    table = nvidia_smi.parse_csv(done.stdout, done.returncode)
    assert table["state"] == "ok"
    for row, gpu in zip(table["rows"], kept.nvml()["gpus"], strict=True):
        assert row["pci.bus_id"] == pcie.bus_id(gpu["bus_id"])
        assert row["persistence_mode"] == "Enabled"
        assert {name: row[field] for field, name in FIELDS.items()} == {name: gpu[name] for name in FIELDS.values()}


def test_the_xml_as_we_parse_it_tells_what_pynvml_tells(kept):
    kept.emulator("set", "gpu.3.bmc_cap_mw=200000", "gpu.2.pcie_width=8")
    assert kept.smi("-i", "1", "-pl", "250").returncode == 0
    done, seen = kept.smi("-q", "-x"), kept.nvml()
    record = nvidia_smi.parse_xml(done.stdout, done.returncode)
    assert (record["state"], record["driver_version"], record["unreachable"]) == ("ok", seen["driver"], [])
    assert [ours(gpu) for gpu in record["gpus"]] == [theirs(gpu) for gpu in seen["gpus"]]
    for read, gpu in zip(record["gpus"], seen["gpus"], strict=True):
        assert (read["compute_mode"], gpu["compute_mode"]) == ("Default", 0)
        assert read["temperature_c"] == pytest.approx(gpu["temperature_c"], abs=3)
        assert read["power"]["draw_w"] == pytest.approx(gpu["draw_w"], abs=10)
    # All four being alike would prove little: the faults must have come through, each on its own card.
    power = [(gpu["power"]["requested_w"], gpu["power"]["enforced_w"]) for gpu in record["gpus"]]
    assert power == [(300, 300), (250, 250), (300, 300), (300, 200)]
    assert [gpu["pcie"]["width"] for gpu in record["gpus"]] == [16, 16, 8, 16]


def test_the_power_section_has_a_line_for_each_limit(kept):
    assert kept.smi("-i", "0", "-pl", "275").returncode == 0
    text = kept.smi("-i", "0", "-q", "-d", "POWER").stdout
    readings = dict(re.findall(r"^ +((?:Current|Requested|Default|Min|Max) Power Limit) +: ([\d.]+) W$", text, re.M))
    gpu = kept.nvml()["gpus"][0]
    wanted = {
        "Current": "enforced_w",
        "Requested": "requested_w",
        "Default": "default_w",
        "Min": "min_w",
        "Max": "max_w",
    }
    assert {word: float(readings[f"{word} Power Limit"]) for word in wanted} == {
        word: gpu[name] for word, name in wanted.items()
    }
    assert gpu["requested_w"] == 275


# --- what it sets --------------------------------------------------------------------------------


def test_a_cap_set_by_it_is_the_cap_that_pynvml_reads(kept):
    assert kept.smi("-i", "1", "-pl", "260").returncode == 0
    assert [gpu["requested_w"] for gpu in kept.nvml()["gpus"]] == [300, 260, 300, 300]


def test_a_cap_is_lost_with_the_last_client_when_persistence_is_off(host):
    done = host.smi("-i", "1", "-pl", "260")
    assert done.returncode == 0
    assert "persistence mode is disabled" in done.stdout
    assert [gpu["requested_w"] for gpu in host.nvml()["gpus"]] == [300, 300, 300, 300]


def test_persistence_switched_by_it_is_what_pynvml_reads(host):
    assert host.smi("-i", "2", "-pm", "1").returncode == 0
    assert [gpu["persistence"] for gpu in host.nvml()["gpus"]] == [False, False, True, False]


# --- how it fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "user", "status", "state"),
    [
        (("-i", "1", "-pl", "1000"), "root", 2, "bad_request"),
        (("--query-gpu=nonsense", "--format=csv"), "root", 2, "bad_request"),  # C54
        (("-i", "1", "-pl", "260"), "nobody", 4, "no_permission"),  # C39
        (("-i", "9"), "root", 6, "no_devices"),
    ],
    ids=["cap-too-high", "unknown-field", "not-root", "no-such-gpu"],
)
def test_what_it_refuses_and_changes_nothing(kept, words, user, status, state):
    done = kept.smi(*words, user=user)
    assert (done.returncode, nvidia_smi.state_of(done.returncode, done.stdout)) == (status, state)
    assert [gpu["requested_w"] for gpu in kept.nvml()["gpus"]] == [300, 300, 300, 300]


@pytest.mark.parametrize(
    ("fault", "status", "state"),
    [
        ("driver_loaded=0", 9, "no_driver"),  # C58
        ("module_version=550.54.14", 18, "driver_mismatch"),  # C02
        ("gpu.1.lost=1", 15, "lost"),
    ],
)
def test_c02_c58_a_sick_host_by_exit_status_in_every_form(host, fault, status, state):
    host.emulator("set", fault)
    for words in (("-L",), ("-q", "-x"), ("--query-gpu=uuid", "--format=csv")):
        done = host.smi(*words)
        assert done.returncode == status, words
        assert nvidia_smi.failure(done.returncode, done.stdout)["state"] == state, words


def test_the_list_still_names_the_cards_beside_a_lost_one(host):
    wanted = [gpu["uuid"] for gpu in host.nvml()["gpus"]]
    host.emulator("set", "gpu.1.lost=1")
    done = host.smi("-L")
    listed = nvidia_smi.parse_list(done.stdout, done.returncode)
    assert [gpu["uuid"] for gpu in listed["gpus"]] == [wanted[0], *wanted[2:]]
    assert ["GPU is lost" in gone["reason"] for gone in listed["unreachable"]] == [True]
