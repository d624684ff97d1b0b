"""What the emulated library answers, read by the real binding: its structures, every function, every profile."""

from __future__ import annotations

import ctypes
import json
import math
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keys
import pynvml
import pytest
from nvml.host import HERE, LIBRARY, EmulatedHost

MakeHost = Callable[..., EmulatedHost]

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="NVML emulator not built: run ./rack images")


@pytest.fixture
def make_host(tmp_path: Path) -> MakeHost:
    def make(profile: str = "a100x4", *words: str, host: str = "gpu-a1") -> EmulatedHost:
        made = EmulatedHost(tmp_path / host)
        assert made.command("init", "--profile", profile, "--host", host, *words) == 0
        return made

    return make


# ---- structures ----

BINDING_NAMES = {
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlPciInfoExt_v1_t": "nvmlPciInfoExt_v1_t",
    "nvmlRowRemapperHistogramValues_t": "c_nvmlRowRemapperHistogramValues",
    "nvmlDeviceAttributes_t": "c_nvmlDeviceAttributes",
    "nvmlProcessInfo_v1_t": None,  # the binding has no class for the oldest layout
}

READ_AS = {
    ("nvmlPowerValue_v2_t", "powerScope"): 4,
    ("nvmlGpuFabricInfo_t", "state"): 4,
    ("nvmlGpuFabricInfo_v2_t", "state"): 4,
}
"""One byte in NVIDIA's header, four in the binding: it takes the padding behind along, which must therefore be zero."""


def described() -> dict[str, Any]:
    return json.loads((LIBRARY.parent / "abi.json").read_text())


@pytest.mark.parametrize("name", sorted(described()) if LIBRARY.exists() else [])
def test_a_structure_of_the_binding_has_the_size_and_offsets_of_nvidias_header(name: str) -> None:
    wanted = described()[name]
    binding_name = BINDING_NAMES.get(name, f"c_{name}")
    if binding_name is None:
        return
    structure = getattr(pynvml, binding_name)
    found = [(getattr(structure, field).offset, getattr(structure, field).size) for field, *_ in structure._fields_]
    expected = [(offset, READ_AS.get((name, field), size)) for field, (offset, size) in wanted["fields"].items()]
    assert ctypes.sizeof(structure) == wanted["size"]
    assert found == expected


def test_power_scope_is_one_byte_with_padding_behind_it() -> None:
    """Read as an int it would see the padding, and real nvidia-smi would be refused."""
    assert described()["nvmlPowerValue_v2_t"]["fields"]["powerScope"] == [4, 1]


# ---- every function that notes and product name ----

GETTERS: dict[str, Any] = {
    "nvmlDeviceGetName": "NVIDIA A100 80GB PCIe",
    "nvmlDeviceGetMinorNumber": 0,
    "nvmlDeviceGetIndex": 0,
    "nvmlDeviceGetBrand": pynvml.NVML_BRAND_NVIDIA,
    "nvmlDeviceGetArchitecture": pynvml.NVML_DEVICE_ARCH_AMPERE,
    "nvmlDeviceGetCudaComputeCapability": [8, 0],
    "nvmlDeviceGetBoardPartNumber": "900-21001-0020-100",
    "nvmlDeviceGetVbiosVersion": "92.00.90.00.03",
    "nvmlDeviceGetInforomImageVersion": "1001.0230.00.03",
    "nvmlDeviceGetGspFirmwareVersion": "550.163.01",
    "nvmlDeviceValidateInforom": None,
    "nvmlDeviceGetPowerManagementLimit": 300000,
    "nvmlDeviceGetEnforcedPowerLimit": 300000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 300000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [150000, 300000],
    "nvmlDeviceGetPowerManagementMode": 1,
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 0,
    "nvmlDeviceGetPcieSpeed": 16000,
    "nvmlDeviceGetPcieLinkMaxSpeed": 4,
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetCurrentClocksEventReasons": 1,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
    "nvmlDeviceGetSupportedClocksEventReasons": 0x1FF,
    "nvmlDeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
    "nvmlDeviceGetMemoryInfo": {"total": 81920 << 20, "free": (81920 - 632) << 20, "used": 632 << 20},
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetDefaultEccMode": [1],  # the binding makes a list of it
    "nvmlDeviceGetRemappedRows": [0, 0, 0, 0],
    "nvmlDeviceGetRowRemapperHistogram": {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0},
    "nvmlDeviceGetRetiredPagesPendingStatus": {"error": 3},
    "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceIsMigDeviceHandle": "c_uint(0)",  # the binding forgets .value
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlDeviceGetMPSComputeRunningProcesses": [],
    "nvmlDeviceGetSupportedEventTypes": 0x1F,
    "nvmlDeviceGetFanSpeed": {"error": 3},
    "nvmlDeviceGetNumFans": 0,
    "nvmlDeviceGetDisplayMode": 0,
    "nvmlDeviceGetDisplayActive": 0,
    "nvmlDeviceGetMultiGpuBoard": 0,
    "nvmlDeviceGetBusType": 2,
    "nvmlDeviceGetNumGpuCores": 6912,
    "nvmlDeviceGetMemoryBusWidth": 5120,
    "nvmlDeviceGetEncoderUtilization": [0, 167000],
    "nvmlDeviceGetModuleId": {"error": 3},
    "nvmlDeviceGetAccountingMode": 0,
    "nvmlDeviceGetBridgeChipInfo": {"error": 3},
}
"""Function -> answer of the first GPU of a fresh a100x4."""

WITH_ARGUMENTS: list[tuple[str, tuple[int, ...], Any]] = [
    ("nvmlDeviceGetInforomVersion", (0,), "2.0"),
    ("nvmlDeviceGetInforomVersion", (1,), "6.16"),
    ("nvmlDeviceGetInforomVersion", (2,), {"error": 3}),
    ("nvmlDeviceGetTemperatureThreshold", (0,), 92),
    ("nvmlDeviceGetTemperatureThreshold", (1,), 89),
    ("nvmlDeviceGetTemperatureThreshold", (2,), 95),
    ("nvmlDeviceGetTemperatureThreshold", (3,), 85),
    ("nvmlDeviceGetTemperatureThreshold", (5,), {"error": 3}),
    ("nvmlDeviceGetClockInfo", (0,), 210),
    ("nvmlDeviceGetMaxClockInfo", (0,), 1410),
    ("nvmlDeviceGetApplicationsClock", (0,), 1065),
    ("nvmlDeviceGetDefaultApplicationsClock", (2,), 1512),
    ("nvmlDeviceGetClock", (0, 3), 1410),
    ("nvmlDeviceGetSupportedMemoryClocks", (), [1512]),
    ("nvmlDeviceGetTotalEccErrors", (0, 0), 0),
    ("nvmlDeviceGetTotalEccErrors", (1, 1), 0),
    ("nvmlDeviceGetMemoryErrorCounter", (1, 0, 2), 0),
    ("nvmlDeviceGetMemoryErrorCounter", (1, 0, 7), 0),
    ("nvmlDeviceGetMemoryErrorCounter", (1, 0, 0), {"error": 3}),
    ("nvmlDeviceGetRetiredPages", (1,), {"error": 3}),
    ("nvmlDeviceGetNvLinkState", (0,), 0),
    ("nvmlDeviceGetNvLinkState", (11,), 0),
    ("nvmlDeviceGetNvLinkState", (12,), {"error": 2}),
    ("nvmlDeviceGetNvLinkVersion", (0,), 3),
    ("nvmlDeviceGetNvLinkErrorCounter", (0, 0), 0),
    ("nvmlDeviceGetNvLinkCapability", (0, 0), 0),
    ("nvmlDeviceGetNvLinkRemotePciInfo", (0,), {"error": 3}),
    ("nvmlDeviceGetMigDeviceHandleByIndex", (0,), {"error": 3}),
    ("nvmlDeviceGetPcieThroughput", (0,), 0),
    ("nvmlDeviceGetCpuAffinity", (1,), [0xFFFF0000FFFF]),
    ("nvmlDeviceGetMemoryAffinity", (1, 0), [1]),
    ("nvmlDeviceGetTemperature", (1,), {"error": 2}),
]


def test_every_function_answers_on_a_healthy_a100(make_host: MakeHost) -> None:
    host = make_host()
    code = (
        f"plain = {list(GETTERS)!r}\nwith_arguments = {[row[:2] for row in WITH_ARGUMENTS]!r}\n"
        "show([{name: call(name, gpu(0)) for name in plain},"
        " [call(name, gpu(0), *rest) for name, rest in with_arguments]])"
    )
    plain, with_arguments = host.ask(code)
    assert plain == GETTERS
    assert [
        (name, rest, got) for (name, rest, _), got in zip(WITH_ARGUMENTS, with_arguments, strict=True)
    ] == WITH_ARGUMENTS


def test_versions_and_counts_of_the_system(make_host: MakeHost) -> None:
    host = make_host()
    found = host.ask(
        "show([p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetNVMLVersion(), p.nvmlSystemGetCudaDriverVersion(),"
        " p.nvmlDeviceGetCount(), p.nvmlUnitGetCount(), p.nvmlGetExcludedDeviceCount(),"
        " p.nvmlSystemGetProcessName(os.getpid())])"
    )
    assert found[:-1] == ["550.163.01", "12.550.163.01", 12040, 4, 0, 0]
    assert Path(found[-1]).name == Path(sys.executable).name


def test_structures_with_a_version_word_are_filled(make_host: MakeHost) -> None:
    found = make_host().ask(
        "memory = p.nvmlDeviceGetMemoryInfo(gpu(0), version=p.nvmlMemory_v2)\n"
        "sram = p.c_nvmlEccSramErrorStatus_v1_t(); sram.version = p.nvmlEccSramErrorStatus_v1\n"
        "p.nvmlDeviceGetSramEccErrorStatus(gpu(0), p.byref(sram))\n"
        "ext = p.nvmlPciInfoExt_v1_t(); ext.version = p.nvmlPciInfoExt_v1\n"
        "p.nvmlDeviceGetPciInfoExt(gpu(0), p.byref(ext))\n"
        "wrong = p.c_nvmlEccSramErrorStatus_v1_t(); wrong.version = 7\n"
        "show([memory.reserved, memory.free, sram.bThresholdExceeded, ext.baseClass, ext.subClass, ext.busId,\n"
        "      call('nvmlDeviceGetSramEccErrorStatus', gpu(0), p.byref(wrong))])"
    )
    assert found == [632 << 20, (81920 - 632) << 20, 0, 3, 2, "00000000:31:00.0", {"error": 25}]


FIELDS: dict[int, Any] = {
    1: 1, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0, 91: 12, 94: 0, 95: 0, 142: 0, 143: 0, 144: 0, 145: 0, 173: 0, 183: 0,
    185: "error 3", 187: 150000, 188: 300000, 189: 300000, 190: 300000, 192: 300000, 193: "error 3", 230: "error 3",
    999: "error 3",
}  # fmt: skip

ASK_FIELDS = """
def field(value):
    if value.nvmlReturn:
        return f"error {value.nvmlReturn}"
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}[value.valueType]
    return getattr(value.value, member)
"""


def test_field_values_carry_a_return_code_each(make_host: MakeHost) -> None:
    found = make_host().ask(
        f"{ASK_FIELDS}\nshow([field(v) for v in p.nvmlDeviceGetFieldValues(gpu(0), {list(FIELDS)})])"
    )
    assert dict(zip(FIELDS, found, strict=True)) == FIELDS


def test_power_fields_of_module_and_memory_are_not_supported_on_a_pcie_board(make_host: MakeHost) -> None:
    code = f"{ASK_FIELDS}\nshow([field(v) for v in p.nvmlDeviceGetFieldValues(gpu(0), [(190, s) for s in (0, 1, 2)])])"
    assert make_host().ask(code) == [300000, "error 3", "error 3"]


# ---- values that move ----


def test_a_sine_value_is_what_its_formula_says_now(make_host: MakeHost) -> None:
    host = make_host()
    host.set(
        "gpu.0.temperature_gpu=sine:60,10,7,0.5", "gpu.0.temperature_memory=71", "gpu.0.power_usage_mw=sine:2e5,5e4,7,0"
    )
    code = f"{ASK_FIELDS}\nshow([time.time(), p.nvmlDeviceGetTemperature(gpu(0), 0), p.nvmlDeviceGetPowerUsage(gpu(0)),"
    now, core, watts, memory = host.ask(code + " field(p.nvmlDeviceGetFieldValues(gpu(0), [82])[0])])")
    angle = 2 * math.pi * (now % 7) / 7
    assert core == pytest.approx(60 + 10 * math.sin(angle + 0.5), abs=1)
    assert watts == pytest.approx(200000 + 50000 * math.sin(angle), abs=1000)
    assert memory == 71


def test_power_draw_stays_at_the_enforced_limit_and_names_the_cap_as_reason(make_host: MakeHost) -> None:
    host = make_host()
    host.set("gpu.0.power_usage_mw=290000", "gpu.0.utilization_gpu=100", "gpu.0.bmc_cap_mw=210000")
    found = host.ask(
        "show([call(f, gpu(0)) for f in ('nvmlDeviceGetPowerUsage', 'nvmlDeviceGetCurrentClocksEventReasons')])"
    )
    assert found == [210000, 0x4]


def test_energy_counts_from_driver_load(make_host: MakeHost) -> None:
    host = make_host()
    host.set("gpu.0.power_usage_mw=100000", f"driver_load_time={time.time() - 60}")
    first, later = host.ask(
        "a = get('TotalEnergyConsumption', 0); time.sleep(0.05)\nshow([a, get('TotalEnergyConsumption', 0)])"
    )
    assert first == pytest.approx(6_000_000, rel=0.05)  # 60 s of 100 W in mJ
    assert later > first


# ---- identity ----

IDENTITY = """
show([[p.nvmlDeviceGetUUID(h), p.nvmlDeviceGetSerial(h), p.nvmlDeviceGetPciInfo(h).busId,
       p.nvmlDeviceGetPciInfo(h).busIdLegacy, p.nvmlDeviceGetMinorNumber(h),
       p.nvmlDeviceGetName(h), p.nvmlDeviceGetPowerManagementLimitConstraints(h)]
      for h in map(gpu, range(p.nvmlDeviceGetCount()))])
"""


@pytest.mark.parametrize(
    ("profile", "buses", "names", "ranges"),
    [
        ("a100x4", "31 4B B1 CA", ["NVIDIA A100 80GB PCIe"] * 4, [[150000, 300000]] * 4),
        ("a100-a30", "31 4B B1 CA", ["NVIDIA A100 80GB PCIe"] * 3 + ["NVIDIA A30"],
         [[150000, 300000]] * 3 + [[100000, 165000]]),
        ("h100x8", "18 19 3A 3B 9A 9B BA BB", ["NVIDIA H100 PCIe"] * 8, [[200000, 350000]] * 8),
    ],
)  # fmt: skip
def test_a_profile_is_the_cards_it_says(
    make_host: MakeHost, profile: str, buses: str, names: list[str], ranges: list[Any]
) -> None:
    rows = make_host(profile).ask(IDENTITY)
    assert [row[2] for row in rows] == [f"00000000:{bus}:00.0" for bus in buses.split()]
    assert [row[3] for row in rows] == [f"0000:{bus}:00.0" for bus in buses.split()]
    assert [row[5] for row in rows] == names
    assert [row[6] for row in rows] == ranges
    assert len({row[0] for row in rows}) == len({row[1] for row in rows}) == len({row[4] for row in rows}) == len(rows)


def test_the_minor_number_need_not_follow_the_index(make_host: MakeHost) -> None:
    assert [row[4] for row in make_host("h100x8").ask(IDENTITY)] == [3, 2, 1, 0, 7, 6, 5, 4]


def test_an_h100_has_margins_to_its_temperature_limit_and_an_average_power(make_host: MakeHost) -> None:
    code = f"{ASK_FIELDS}\nshow([field(v) for v in p.nvmlDeviceGetFieldValues(gpu(0), [193, 194, 195, 196, 185])])"
    found = make_host("h100x8").ask(code)
    assert found[:4] == [-8, -2, 0, 0]
    assert found[4] > 40000


def test_another_driver_version_goes_through_every_string(make_host: MakeHost) -> None:
    host = make_host("a100x4", "--set", "driver_version=535.261.03")
    code = "show([p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetNVMLVersion(), p.nvmlSystemGetCudaDriverVersion(),"
    assert host.ask(code + " call('nvmlDeviceGetGspFirmwareVersion', gpu(0))])") == [
        "535.261.03",
        "12.535.261.03",
        12020,
        "535.261.03",
    ]


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        ("nvmlDeviceGetHandleByPciBusId", "00000000:B1:00.0"),
        ("nvmlDeviceGetHandleByPciBusId", "0000:b1:00.0"),
        ("nvmlDeviceGetHandleByPciBusId", "b1:00.0"),
        ("nvmlDeviceGetHandleByUUID", "gpu.2.uuid"),
        ("nvmlDeviceGetHandleBySerial", "gpu.2.serial"),
    ],
)
def test_a_gpu_is_found_by_what_names_it(make_host: MakeHost, function: str, argument: str) -> None:
    host = make_host()
    wanted = host.identity.get(argument, argument)
    assert host.ask(f"show(p.nvmlDeviceGetIndex(p.{function}({wanted!r})))") == 2


def test_what_is_not_there_is_not_found(make_host: MakeHost) -> None:
    found = make_host().ask(
        "show([call('nvmlDeviceGetHandleByUUID', 'GPU-0'), call('nvmlDeviceGetHandleByPciBusId', '0000:99:00.0'),"
        " call('nvmlDeviceGetHandleByIndex', 4)])"
    )
    assert found == [{"error": 6}, {"error": 6}, {"error": 2}]


def test_calls_before_init_and_after_shutdown_say_so(make_host: MakeHost) -> None:
    code = (
        "first = call('nvmlDeviceGetCount'); p.nvmlInit(); p.nvmlInit(); p.nvmlShutdown()\n"
        "second = call('nvmlDeviceGetCount')\n"
        "p.nvmlShutdown(); show([first, second, call('nvmlDeviceGetCount'), call('nvmlShutdown')])"
    )
    assert make_host().ask(code, init=False) == [{"error": 1}, 4, {"error": 1}, {"error": 1}]


def test_processes_of_a_gpu_are_listed_with_their_memory(make_host: MakeHost) -> None:
    host = make_host()
    host.set("gpu.1.processes_compute=4711:1024;4712:10", "process.4711.name=/usr/bin/train")
    found = host.ask(
        "show([[(q.pid, q.usedGpuMemory) for q in get('ComputeRunningProcesses', 1)],"
        " p.nvmlSystemGetProcessName(4711)])"
    )
    assert found == [[[4711, 1 << 30], [4712, 10 << 20]], "/usr/bin/train"]


def test_nvidia_smi_finds_its_table_of_internal_functions(make_host: MakeHost) -> None:
    """Without the table it gives up; slot 108 is what it asks for enforced.power.limit."""
    host = make_host()
    host.set("gpu.0.bmc_cap_mw=180000")
    code = """
import ctypes
table, limit = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
found = p.nvmlLib.nvmlInternalGetExportTable(ctypes.byref(table), b"0" * 16)
function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
answers = [function(table[slot])(gpu(0), ctypes.byref(limit)) for slot in (0, 1023, 108)]
show([found, answers, limit.value])
"""
    assert host.ask(code) == [0, [3, 3, 0], 180000]


def test_errors_have_the_drivers_own_texts(make_host: MakeHost) -> None:
    texts = {
        2: "Invalid Argument",
        4: "Insufficient Permissions",
        15: "GPU is lost",
        18: "Driver/library version mismatch",
    }
    code = "text = p.nvmlLib.nvmlErrorString; text.restype = p.c_char_p\n"
    code += f"show([text(i).decode() for i in {list(texts)}])"
    assert make_host().ask(code) == list(texts.values())


def test_a_bridged_pair_shows_its_links_up(make_host: MakeHost) -> None:
    host = make_host()
    host.set("gpu.0.nvlink_active=0xfff", "gpu.0.nvlink_peer=1", "gpu.0.nvlink_3_crc_flit=7")
    found = host.ask(
        "h = gpu(0)\nshow([p.nvmlDeviceGetNvLinkState(h, 5), p.nvmlDeviceGetNvLinkRemotePciInfo(h, 0).busId,"
        " p.nvmlDeviceGetNvLinkErrorCounter(h, 3, 2), p.nvmlDeviceGetNvLinkState(gpu(1), 0)])"
    )
    assert found == [1, "00000000:4B:00.0", 7, 0]


def test_every_key_that_the_library_reads_is_described() -> None:
    """A key that `set` refuses could never be set; one that nothing reads would be a fault that never happens."""
    sources = "".join(path.read_text() for path in sorted((HERE / "src").glob("*.c")))
    literal = re.findall(
        r"emu_(?:key|set_key|gpu|gpu_int|life|life_int|store_life|forget_life)"
        r'\((?:EMU_\w+, )?(?:gpu|slot|i|other->slot|slots\[\w+\]|peer),\s*"(\w+)"',
        sources,
    )
    table = re.findall(r"\{(?:NVML_)?FI_\w+", sources)
    in_tables = re.findall(r'\{(?:NVML_)?FI_\w+, "(\w+)"', sources)
    assert len(in_tables) == len(table)
    macros = re.findall(r'^(?:TEXT|NUMBER|ENGINE|PROCESSES)\(.*"(\w+)"\)', sources, re.M)
    assert set(literal) | set(in_tables) | set(macros) <= set(keys.GPU)
    host_keys = re.findall(r'emu_(?:get|int)\("(\w+)"', sources)
    assert set(host_keys) <= set(keys.HOST)
