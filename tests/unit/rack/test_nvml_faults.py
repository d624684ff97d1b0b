"""Every fault that can be injected shows in the library as the real failure would, and goes away again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml.host import LIBRARY, EmulatedHost

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="NVML emulator not built: run ./rack images")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML setters need root")


@pytest.fixture
def host(tmp_path: Path) -> EmulatedHost:
    made = EmulatedHost(tmp_path / "host")
    assert made.command("init", "--profile", "a100x4", "--host", "gpu-a1") == 0
    return made


# ---- the driver ----


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("fault.nvmlInit=18", 18),
        ("fault.nvmlInit=4", 4),
        ("fault.nvmlInit=999", 999),
        ("fault.nvmlInitWithFlags=9", 9),
        ("driver_loaded=0", 9),
        ("module_version=535.261.03", 18),
    ],
)
def test_a_driver_fault_is_what_init_answers(host: EmulatedHost, key: str, code: int) -> None:
    host.set(key)
    assert host.ask("show(call('nvmlInit'))", init=False) == {"error": code}
    host.set(key.split("=", maxsplit=1)[0] + "=")
    assert host.ask("show(call('nvmlInit'))", init=False) is None


def test_a_host_without_state_has_no_driver(tmp_path: Path) -> None:
    assert EmulatedHost(tmp_path).ask("show(call('nvmlInit'))", init=False) == {"error": 9}


def test_the_library_tells_its_version_even_when_the_module_is_another(host: EmulatedHost) -> None:
    """nvidia-smi prints it below "Driver/library version mismatch"."""
    host.set("module_version=535.261.03")
    # past the binding, which has no functions before a successful nvmlInit
    code = "import ctypes; lib = ctypes.CDLL('libnvidia-ml.so.1'); text = ctypes.create_string_buffer(80)\n"
    code += "show([lib.nvmlInit_v2(), lib.nvmlSystemGetNVMLVersion(text, 80), text.value.decode()])"
    assert host.ask(code, init=False) == [18, 0, "12.550.163.01"]


# ---- a GPU ----


def test_a_lost_gpu_fails_in_the_look_up_and_in_every_call_and_the_others_go_on(host: EmulatedHost) -> None:
    process = host.client(
        "p.nvmlInit()\nh = gpu(1)\nshow(p.nvmlDeviceGetName(h))\nsys.stdin.readline()\n"
        "names = ['nvmlDeviceGetName', 'nvmlDeviceGetPowerUsage', 'nvmlDeviceGetEccMode', 'nvmlDeviceGetPciInfo']\n"
        "show([p.nvmlDeviceGetCount(), [call(n, h) for n in names],"
        " call('nvmlDeviceSetPowerManagementLimit', h, 200000),"
        f" [call('nvmlDeviceGetHandleByIndex', i) == {{'error': 15}} for i in range(4)],"
        f" call('nvmlDeviceGetHandleByUUID', {host.identity['gpu.1.uuid']!r}),"
        " call('nvmlDeviceGetHandleByPciBusId', '0000:4b:00.0'),"
        " call('nvmlDeviceGetName', gpu(2))])"
    )
    assert process.stdout is not None
    process.stdout.readline()
    host.set("gpu.1.lost=1")
    out, error = process.communicate("\n", timeout=30)
    lost = {"error": 15}
    assert json.loads(out) == [4, [lost] * 4, lost, [False, True, False, False], lost, lost, "NVIDIA A100 80GB PCIe"], (
        error
    )


@pytest.mark.parametrize("code", [3, 4, 15, 16, 17, 999])
def test_a_function_of_one_gpu_answers_with_the_injected_code(host: EmulatedHost, code: int) -> None:
    host.set(f"gpu.2.fault.nvmlDeviceGetRemappedRows={code}")
    found = host.ask(
        "show([call('nvmlDeviceGetRemappedRows', gpu(i)) for i in (1, 2)] + [call('nvmlDeviceGetName', gpu(2))])"
    )
    assert found == [[0, 0, 0, 0], {"error": code}, "NVIDIA A100 80GB PCIe"]


def test_a_fault_may_be_named_without_the_versions_suffix_and_for_all_gpus(host: EmulatedHost) -> None:
    host.set(
        "fault.nvmlDeviceGetCount=999",
        "gpu.*.fault.nvmlDeviceGetPciInfo=17",
        "gpu.3.fault.nvmlDeviceGetHandleByIndex=17",
    )
    found = host.ask("show([call('nvmlDeviceGetCount'), get('PciInfo', 0), call('nvmlDeviceGetHandleByIndex', 3)])")
    assert found == [{"error": 999}, {"error": 17}, {"error": 17}]


def test_every_function_of_a_gpu_can_fail_at_once(host: EmulatedHost) -> None:
    process = host.client("p.nvmlInit()\nh = gpu(0)\nshow(0)\nsys.stdin.readline()\nshow([call(n, h) for n in"
                          " ('nvmlDeviceGetName', 'nvmlDeviceGetPowerUsage')] + [get('Name', 1)])")  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    host.set("gpu.0.fault.*=16")
    assert process.communicate("\n", timeout=30)[0].strip() == '[{"error": 16}, {"error": 16}, "NVIDIA A100 80GB PCIe"]'


def test_one_field_value_can_fail_alone(host: EmulatedHost) -> None:
    host.set("gpu.0.fault.field.192=3", "fault.field.82=999")
    assert host.ask("show([v.nvmlReturn for v in p.nvmlDeviceGetFieldValues(gpu(0), [190, 192, 82])])") == [0, 3, 999]


def test_a_driver_too_old_for_a_function_says_function_not_found(host: EmulatedHost) -> None:
    host.set("fault.nvmlDeviceGetCurrentClocksEventReasons=13")
    assert host.read("nvmlDeviceGetCurrentClocksEventReasons") == {"error": 13}
    assert host.ask("show(call('nvmlDeviceGetTemperatureV', gpu(0), 0))") == {"error": 13}  # not in 550 at all


# ---- slow and hanging ----


def test_a_slow_function_is_slow_and_leaves_other_threads_alone(host: EmulatedHost) -> None:
    host.set("gpu.0.delay_ms.nvmlDeviceGetPowerUsage=400")
    slow, quick = host.ask(
        "import threading\nh = [gpu(0), gpu(1)]\ntimes = {}\n"
        "def work(i):\n    t = time.monotonic(); p.nvmlDeviceGetPowerUsage(h[i]); times[i] = time.monotonic() - t\n"
        "threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; show([times[0], times[1]])"
    )
    assert slow >= 0.4
    assert quick < 0.3


def test_a_hanging_function_hangs_until_the_process_is_killed(host: EmulatedHost) -> None:
    host.set("gpu.0.delay_ms.nvmlDeviceGetPowerUsage=-1")
    process = host.client("p.nvmlInit()\nshow(0)\np.nvmlDeviceGetPowerUsage(gpu(0))\nshow(1)")
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    assert process.communicate(timeout=5)[0] == ""


def test_init_can_hang_too(host: EmulatedHost) -> None:
    host.set("delay_ms.nvmlInit=300")
    assert host.ask("t = time.monotonic(); p.nvmlInit(); show(time.monotonic() - t)", init=False) >= 0.3


# ---- the link ----

LINK = """
h = gpu(1)
show([p.nvmlDeviceGetCurrPcieLinkWidth(h), p.nvmlDeviceGetMaxPcieLinkWidth(h), p.nvmlDeviceGetCurrPcieLinkGeneration(h),
      p.nvmlDeviceGetMaxPcieLinkGeneration(h), p.nvmlDeviceGetGpuMaxPcieLinkGeneration(h), p.nvmlDeviceGetPcieSpeed(h),
      p.nvmlDeviceGetPcieLinkMaxSpeed(h)])
"""


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["gpu.1.pcie_width=8"], [8, 16, 4, 4, 4, 16000, 4]),
        # the case that "current equals maximum" lets pass
        (["gpu.1.pcie_system_width=8"], [8, 8, 4, 4, 4, 16000, 4]),
        (["gpu.1.pcie_width=8", "gpu.1.pcie_system_width=8"], [8, 8, 4, 4, 4, 16000, 4]),
        (["gpu.1.pcie_gen=1"], [16, 16, 1, 4, 4, 2500, 4]),
        (["gpu.1.pcie_system_gen=3"], [16, 16, 3, 3, 4, 8000, 3]),
    ],
)
def test_link_faults(host: EmulatedHost, keys: list[str], wanted: list[int]) -> None:
    host.set(*keys)
    assert host.ask(LINK) == wanted


# ---- firmware and memory ----


@pytest.mark.parametrize(
    ("key", "function", "answer"),
    [
        ("vbios=92.00.45.00.01", "nvmlDeviceGetVbiosVersion", "92.00.45.00.01"),
        ("inforom_valid=0", "nvmlDeviceValidateInforom", {"error": 14}),
        ("inforom_valid=0", "nvmlDeviceGetInforomConfigurationChecksum", {"error": 14}),
        ("gsp=535.86.10", "nvmlDeviceGetGspFirmwareVersion", "535.86.10"),
        ("remapped_pending=1", "nvmlDeviceGetRemappedRows", [0, 0, 1, 0]),
        ("remapped_failure=1", "nvmlDeviceGetRemappedRows", [0, 0, 0, 1]),
        ("remapped_uncorrected=3", "nvmlDeviceGetRowRemapperHistogram",
         {"max": 637, "high": 3, "partial": 0, "low": 0, "none": 0}),
        ("remap_histogram=600,30,8,1,1", "nvmlDeviceGetRowRemapperHistogram",
         {"max": 600, "high": 30, "partial": 8, "low": 1, "none": 1}),
        ("clocks_event_reasons=0x88", "nvmlDeviceGetCurrentClocksEventReasons", 0x88),
        ("uuid=GPU-11111111-2222-3333", "nvmlDeviceGetUUID", "GPU-11111111-2222-3333"),
        ("serial=1320000000001", "nvmlDeviceGetSerial", "1320000000001"),
        ("pcie_replay=12", "nvmlDeviceGetPcieReplayCounter", 12),
        ("mig_max_devices=0", "nvmlDeviceGetMigMode", {"error": 3}),
    ],
)  # fmt: skip
def test_what_is_changed_on_one_gpu_shows_there_and_nowhere_else(
    host: EmulatedHost, key: str, function: str, answer: Any
) -> None:
    code = f"show([call({function!r}, gpu(i)) for i in (1, 2)])"
    host.set(f"gpu.1.{key}")
    sick, neighbour = host.ask(code)
    assert sick == answer != neighbour
    assert host.command("clear-faults") == 0
    healed, same = host.ask(code)
    assert healed != answer
    assert same == neighbour


def test_memory_health_is_not_supported_while_mig_instances_exist(host: EmulatedHost) -> None:
    host.set("gpu.0.mig_mode=1", "gpu.0.mig_gpu_instances=1:9:0")
    code = "show([call('nvmlDeviceGetRemappedRows', gpu(0)), p.nvmlDeviceGetFieldValues(gpu(0), [142])[0].nvmlReturn])"
    assert host.ask(code) == [{"error": 3}, 3]


def test_pages_retired_by_an_older_card_are_listed(host: EmulatedHost) -> None:
    host.set("gpu.0.retired_pages_double=0x1000,0x2000", "gpu.0.retired_pages_pending=1")
    assert host.ask("show([get('RetiredPages', 0, 1), get('RetiredPagesPendingStatus', 0)])") == [
        [0x1000, 0x2000], 1,
    ]  # fmt: skip


def test_an_excluded_gpu_is_not_enumerated_but_listed_as_excluded(host: EmulatedHost) -> None:
    host.set("gpu.3.excluded=1")
    info = "p.nvmlGetExcludedDeviceInfoByIndex(0)"
    found = host.ask(f"show([p.nvmlDeviceGetCount(), p.nvmlGetExcludedDeviceCount(), {info}.pci.busId])")
    assert found == [3, 1, "00000000:CA:00.0"]


# ---- Xid ----

LISTEN = """
p.nvmlInit()
events = p.nvmlEventSetCreate()
p.nvmlDeviceRegisterEvents(gpu(1), p.nvmlEventTypeXidCriticalError, events)
show(0)
while True:
    try:
        data = p.nvmlEventSetWait_v2(events, 3000)
    except p.NVMLError as error:
        show({"error": error.value})
        break
    show([p.nvmlDeviceGetIndex(data.device), data.eventType, data.eventData])
    if data.eventData == 999:
        break
p.nvmlEventSetFree(events)
"""


@pytest.fixture
def listener(host: EmulatedHost) -> Iterator[Any]:
    host.command("xid", "1", "31")  # before registration: never delivered
    process = host.client(LISTEN)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    yield process
    process.kill()
    process.communicate()


def test_an_xid_is_delivered_only_after_registration_and_only_for_the_gpu(host: EmulatedHost, listener: Any) -> None:
    for gpu, code in ((0, 79), (1, 79), (2, 31), (1, 999)):
        host.command("xid", str(gpu), str(code))
    assert listener.stdout.readline() == "[1, 8, 79]\n"
    assert listener.stdout.readline() == "[1, 8, 999]\n"


def test_waiting_without_an_event_times_out_in_the_time_given(host: EmulatedHost) -> None:
    code = "s = p.nvmlEventSetCreate(); p.nvmlDeviceRegisterEvents(gpu(0), 8, s); t = time.monotonic()\n"
    found, seconds = host.ask(code + "show([call('nvmlEventSetWait_v2', s, 150), time.monotonic() - t])")
    assert found == {"error": 10}
    assert 0.15 <= seconds < 1


def test_event_types_that_the_driver_does_not_know_are_refused(host: EmulatedHost) -> None:
    code = "s = p.nvmlEventSetCreate(); h = gpu(0); every = p.nvmlEventTypeAll; known = get('SupportedEventTypes', 0)\n"
    code += "show([call('nvmlDeviceRegisterEvents', h, types, s) for types in (every, every & known)])"
    assert host.ask(code) == [{"error": 3}, None]


def test_old_events_are_dropped_from_the_state(host: EmulatedHost) -> None:
    for _ in range(70):
        host.command("xid", "0", "13")
    kept = [key for key in host.volatile if key.startswith("event.")]
    assert len(kept) == 64
    assert host.volatile["event_seq"] == "70"


def test_the_kernels_line_for_an_xid(host: EmulatedHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.command("xid", "0", "79", "--pid", "4711", "--name", "python")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "NVRM: Xid (PCI:0000:31:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    )
