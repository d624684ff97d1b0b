"""GPUs on the PCI bus: who is there, who fell off, how wide the way up is."""

from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import errors, pcie
from hypothesis import given
from hypothesis import strategies as st

GPU = {
    "vendor": "0x10de",
    "device": "0x20b5",
    "class": "0x030200",
    "numa_node": "0",
    "config": b"\xde\x10\xb5\x20" + b"\x01" * 60,
}
WELL = {
    "current_link_width": "16",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "16.0 GT/s PCIe",
}


def link(current, maximum="16", speed="16.0 GT/s PCIe"):
    return {
        "current_link_width": current,
        "max_link_width": maximum,
        "current_link_speed": speed,
        "max_link_speed": "16.0 GT/s PCIe",
    }


class Bus:
    """A PCI tree with real relative links, as below /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def add(self, chain: str, **files) -> None:
        """A device at the end of a chain such as 0000:30:02.0/0000:31:00.0 (root port first)."""
        place = self.root / "sys/devices/pci0000:30" / chain
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        entry = self.root / "sys/bus/pci/devices" / place.name
        entry.symlink_to(Path("../../../devices/pci0000:30") / chain)

    def gpus(self):
        return pcie.read_gpus(str(self.root))


@pytest.fixture
def bus(tmp_path):
    return Bus(tmp_path)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:31:00.0", "0000:31:00.0"),  # NVML busId
        ("00000000:CA:00.0", "0000:ca:00.0"),
        ("0000:31:00.0", "0000:31:00.0"),
        ("31:00.0", "0000:31:00.0"),  # lspci
        ("PCI:0000:31:00", "0000:31:00.0"),  # Xid
        ("000:BA:80.0", None),  # C52: device 80 does not exist on a bus of 32
        ("0000:07:00.0", "0000:07:00.0"),
        ("0001:07:00.1", "0001:07:00.1"),
        ("10000:01:00.0", "10000:01:00.0"),  # VMD domains are longer
    ],
)
def test_every_spelling_of_an_address_becomes_the_one_of_sysfs(text, address):
    if address is None:
        assert pcie.bus_id(text) == "0000:ba:80.0"  # kept recognisable: nvidia-smi printed it so
    else:
        assert pcie.bus_id(text) == address


@pytest.mark.parametrize("text", ["", "0", "GPU-1234", "0000:31:00.8", "31:0.0", "0000-31-00.0"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(errors.InputError, match="PCI bus id"):
        pcie.bus_id(text)


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_nvml_form_and_sysfs_form_of_any_address_meet(domain, number, device, function):
    nvml = f"{domain:08X}:{number:02X}:{device:02X}.{function}"
    sysfs = f"{domain:04x}:{number:02x}:{device:02x}.{function}"
    assert pcie.bus_id(nvml) == pcie.bus_id(sysfs) == sysfs


def test_only_nvidia_display_devices_count(bus):
    bus.add("0000:30:02.0", vendor="0x8086", device="0x347a", **{"class": "0x060400"}, **WELL)
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **WELL)
    bus.add("0000:30:02.0/0000:31:00.1", **{**GPU, "class": "0x040300"})  # the audio function of the same card
    bus.add("0000:30:03.0", **{**GPU, "class": "0x068000"})  # an NVSwitch
    bus.add("0000:30:04.0", **{**GPU, "vendor": "0x1a03", "class": "0x030000"})  # the BMC's VGA
    assert [gpu["bus_id"] for gpu in bus.gpus()] == ["0000:31:00.0"]


def test_a_host_without_a_pci_bus_has_no_gpus(tmp_path):
    assert pcie.read_gpus(str(tmp_path)) == []


def test_c47_a_gpu_that_answers_with_ones_has_fallen_off_and_its_neighbour_has_not(bus):
    bus.add("0000:30:02.0", **WELL)
    bus.add(
        "0000:30:02.0/0000:31:00.0", **{**GPU, "config": b"\xff" * 64}, revision="0xa1", **link("63", "63", "Unknown")
    )
    bus.add("0000:30:03.0", **WELL)
    bus.add("0000:30:03.0/0000:32:00.0", **GPU, revision="0xa1", **WELL)
    fallen, well = bus.gpus()
    assert (fallen["bus_id"], fallen["on_bus"]) == ("0000:31:00.0", False)
    assert well["on_bus"] is True
    assert fallen["link"]["hops"][0]["width"] is None  # 63 is six bits of ones, not a width


def test_c47_revision_ff_tells_where_the_configuration_space_cannot_be_read(bus):
    without = {key: value for key, value in GPU.items() if key != "config"}
    bus.add("0000:30:02.0", **without, revision="0xff")
    bus.add("0000:30:03.0", **without, revision="0xa1")
    bus.add("0000:30:04.0", **without)
    assert [gpu["on_bus"] for gpu in bus.gpus()] == [False, True, None]


def judged(bus, declared=16):
    return pcie.judge_width(bus.gpus()[0]["link"], declared)


def test_a_link_of_the_declared_width_passes(bus):
    bus.add("0000:30:02.0", **WELL)
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **WELL)
    assert judged(bus)["verdict"] == "pass"


def test_c59_low_speed_on_an_idle_gpu_is_no_finding(bus):
    slow = link("16", speed="2.5 GT/s PCIe")
    bus.add("0000:30:02.0", **slow)
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **slow)
    assert bus.gpus()[0]["link"]["speed_gt"] == 2.5
    assert judged(bus)["verdict"] == "pass"


def test_c61_a_link_trained_too_narrow_fails_by_its_numbers(bus):
    bus.add("0000:30:02.0", **link("8"))
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **link("8"))
    found = judged(bus)
    assert (found["verdict"], found["state"]) == ("fail", "degraded")
    assert "x8 at 0000:30:02.0 -> 0000:31:00.0" in found["reason"]


def test_a_card_in_a_narrow_slot_fails_though_it_runs_at_the_most_it_can_get(bus):
    bus.add("0000:30:02.0", **link("8", maximum="8"))
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **link("8", maximum="16"))
    assert judged(bus)["state"] == "narrow_slot"


def test_a_card_that_is_narrower_than_declared_is_called_so(bus):
    bus.add("0000:30:02.0", **link("8", maximum="16"))
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **link("8", maximum="8"))
    assert judged(bus)["state"] == "narrow_device"
    assert judged(bus, declared=8)["verdict"] == "pass"


def test_a_narrow_hop_above_a_switch_is_found_and_named(bus):
    bus.add("0000:30:02.0", **link("8"))
    bus.add("0000:30:02.0/0000:31:00.0", **link("8"))  # the switch's upper side
    bus.add("0000:30:02.0/0000:31:00.0/0000:32:01.0", **WELL)  # its lower side
    bus.add("0000:30:02.0/0000:31:00.0/0000:32:01.0/0000:33:00.0", **GPU, **WELL)
    found = judged(bus)
    assert found["state"] == "upstream"
    assert "x8 at 0000:30:02.0 -> 0000:31:00.0" in found["reason"]


@pytest.mark.parametrize("text", ["Unknown", "0", "255", "63", "", "sixteen"])
def test_a_width_that_is_none_is_unknown_and_never_a_pass(bus, text):
    bus.add("0000:30:02.0", **link(text))
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **link(text))
    assert judged(bus)["verdict"] == "unknown"


def test_a_way_that_tells_only_in_part_is_unknown_unless_it_already_fails(bus):
    bus.add("0000:30:02.0", **link("Unknown"))
    bus.add("0000:30:02.0/0000:31:00.0", **GPU, **WELL)
    assert judged(bus)["verdict"] == "unknown"


def test_a_gpu_without_a_port_above_it_is_read_too(bus):
    bus.add("0000:31:00.0", **GPU, **WELL)
    (gpu,) = bus.gpus()
    assert gpu["link"]["narrow_at"] == "0000:31:00.0"
    assert gpu["link"]["port_max"] is None


@pytest.mark.parametrize(
    ("text", "speed"),
    [("16.0 GT/s PCIe", 16.0), ("8 GT/s", 8.0), ("2.5 GT/s PCIe", 2.5), ("Unknown", None), (None, None)],
)
def test_c60_speeds_of_all_kernels_are_read_and_unknown_stays_unknown(text, speed):
    assert pcie.speed(text) == speed


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("1", 1), ("-1", None)])
def test_a_numa_node_that_firmware_does_not_tell_is_unknown(bus, text, node):
    bus.add("0000:31:00.0", **{**GPU, "numa_node": text})
    assert bus.gpus()[0]["numa_node"] == node


# --- peers and disks ---------------------------------------------------------------------------


def space(*capabilities, whole=True):
    """A configuration space with extended capabilities (id, control word at 6), chained from 0x100 on."""
    data = bytearray(b"\x86\x80" + b"\x00" * (0xFFE if whole else 0xFE))
    for place, (number, control) in enumerate(capabilities):
        at, last = 0x100 + place * 0x40, place == len(capabilities) - 1
        head = number | 1 << 16 | (0 if last else at + 0x40) << 20
        data[at : at + 8] = head.to_bytes(4, "little") + b"\x00\x00" + control.to_bytes(2, "little")
    return bytes(data)


LOOP = space((0x1, 0))[:0x100] + (0x1 | 1 << 16 | 0x100 << 20).to_bytes(4, "little") + b"\x00" * 0xEFC


@pytest.mark.parametrize(
    ("config", "redirect"),
    [
        (space((0x1, 0), (0xD, 0x1D)), True),  # SV, RR, CR, UF: what the kernel sets with an IOMMU
        (space((0xD, 0x04)), True),
        (space((0xD, 0x01)), False),  # source validation alone
        (space((0xD, 0x00)), False),
        (space((0x1, 0xFFFF)), False),  # no ACS
        (space(), False),
        (space(whole=False), None),  # 256 bytes of it
        (b"\x86\x80" + b"\x00" * 62, None),  # not root
        (b"\xff" * 0x1000, None),
        (LOOP, None),
        (None, None),
    ],
)
def test_access_control_is_read_from_extended_configuration_space(config, redirect):
    assert pcie.acs_redirect(config) is redirect


def test_the_bridges_above_a_card_and_its_iommu_group_are_read(bus):
    bus.add("0000:30:02.0", **WELL, config=space((0xD, 0x1D)))
    bus.add("0000:30:02.0/0000:31:00.0", **WELL)
    bus.add("0000:30:02.0/0000:31:00.0/0000:32:00.0", **GPU, **WELL)
    card = bus.root / "sys/devices/pci0000:30/0000:30:02.0/0000:31:00.0/0000:32:00.0"
    (card / "iommu_group").symlink_to("../../../../../kernel/iommu_groups/17")
    assert bus.gpus()[0]["peers"] == {
        "bridges": [{"bus_id": "0000:31:00.0", "redirect": None}, {"bus_id": "0000:30:02.0", "redirect": True}],
        "iommu_group": "17",
    }


def test_nvme_controllers_are_found_with_their_links(bus):
    bus.add("0000:30:02.0", **link("4", maximum="4"))
    bus.add("0000:30:02.0/0000:31:00.0", **{**GPU, "vendor": "0x144d", "class": "0x010802"}, **link("2", maximum="4"))
    bus.add("0000:30:03.0", **{**GPU, "class": "0x010601"})  # SATA
    (disk,) = pcie.read_nvme(str(bus.root))
    assert (disk["bus_id"], disk["link"]["width"], disk["link"]["port_max"]) == ("0000:31:00.0", 2, 4)
    assert bus.gpus() == []
