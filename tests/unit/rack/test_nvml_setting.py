"""What NVML clients set: constraints, permissions, what is kept and what a driver forgets, many writers at once."""

from __future__ import annotations

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


SETTERS: list[tuple[str, tuple[int, ...], str, tuple[int, ...], Any, Any]] = [
    ("nvmlDeviceSetPersistenceMode", (1,), "nvmlDeviceGetPersistenceMode", (), 0, 1),
    ("nvmlDeviceSetPowerManagementLimit", (200000,), "nvmlDeviceGetPowerManagementLimit", (), 300000, 200000),
    ("nvmlDeviceSetComputeMode", (2,), "nvmlDeviceGetComputeMode", (), 0, 2),
    ("nvmlDeviceSetEccMode", (0,), "nvmlDeviceGetEccMode", (), [1, 1], [1, 0]),
    ("nvmlDeviceSetApplicationsClocks", (1512, 1200), "nvmlDeviceGetApplicationsClock", (0,), 1065, 1200),
    ("nvmlDeviceSetAccountingMode", (1,), "nvmlDeviceGetAccountingMode", (), 0, 1),
    # pending: persistence mode, set above, holds the GPU
    ("nvmlDeviceSetMigMode", (1,), "nvmlDeviceGetMigMode", (), [0, 0], [0, 1]),
]
SETTER_NAMES = [row[0] for row in SETTERS]

ALL_SETTERS = f"""
rows = {SETTERS!r}
def run():
    return [[call(getter, gpu(0), *more), (call(name, gpu(0), *value), call(getter, gpu(0), *more))[1]]
            for name, value, getter, more, *_ in rows]
"""


@needs_root
def test_every_setter_changes_what_its_getter_reads(host: EmulatedHost) -> None:
    assert host.ask(f"{ALL_SETTERS}\nshow(run())") == [list(row[4:]) for row in SETTERS]


@needs_root
def test_a_set_can_be_accepted_and_not_applied(host: EmulatedHost) -> None:
    host.set("gpu.0.noop.*=1")
    found = host.ask(f"{ALL_SETTERS}\nanswers = [call(n, gpu(0), *v) for n, v, *_ in rows]\nshow([answers, run()])")
    assert [answer for answer in found[0] if isinstance(answer, dict)] == []
    assert found[1] == [[row[4], row[4]] for row in SETTERS]


@needs_root
@pytest.mark.parametrize("key", ["gpu.0.set_power_noop=1", "gpu.0.noop.nvmlDeviceSetPowerManagementLimit=1"])
def test_a_power_limit_can_be_accepted_and_not_applied_on_one_gpu(host: EmulatedHost, key: str) -> None:
    host.set(key)
    code = "show([(put('PowerManagementLimit', i, 200000), get('PowerManagementLimit', i))"
    assert host.ask(f"{code} for i in (0, 1)])") == [[None, 300000], [None, 200000]]


@needs_root
def test_a_setter_without_root_is_refused_and_changes_nothing(host: EmulatedHost) -> None:
    # pytest's folders are closed to other users; a host's are not
    for folder in [host.root, *host.root.parents]:
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    code = f"{ALL_SETTERS}\nos.seteuid(65534)\np.nvmlInit()\n"
    code += "answers = [call(n, gpu(0), *v) for n, v, *_ in rows]\nshow([answers, run()])"
    answers, values = host.ask(code, init=False)
    assert answers == [{"error": 4}] * len(SETTERS)
    assert values == [[row[4], row[4]] for row in SETTERS]


@needs_root
@pytest.mark.parametrize(
    ("setter", "arguments", "code"),
    [
        ("nvmlDeviceSetPowerManagementLimit", (149999,), 2),
        ("nvmlDeviceSetPowerManagementLimit", (300001,), 2),
        ("nvmlDeviceSetPowerManagementLimit", (0,), 2),
        ("nvmlDeviceSetComputeMode", (1,), 3),
        ("nvmlDeviceSetComputeMode", (4,), 2),
        ("nvmlDeviceSetPersistenceMode", (2,), 2),
        ("nvmlDeviceSetApplicationsClocks", (1500, 1200), 2),
        ("nvmlDeviceSetMigMode", (2,), 2),
    ],
)
def test_a_value_outside_the_range_is_refused(
    host: EmulatedHost, setter: str, arguments: tuple[int, ...], code: int
) -> None:
    before = host.volatile
    assert host.read(setter, 0, *arguments) == {"error": code}
    assert host.volatile == before


@needs_root
def test_the_two_ends_of_the_range_are_accepted(host: EmulatedHost) -> None:
    code = "show([(put('PowerManagementLimit', 0, w), get('PowerManagementLimit', 0))[1]"
    assert host.ask(f"{code} for w in (150000, 300000)])") == [150000, 300000]


@needs_root
def test_the_bindings_v2_setter_hides_a_refusal(host: EmulatedHost) -> None:
    """It returns 0 whatever the library answers: why the product uses the plain call and reads back."""
    found = host.ask(
        "v = p.c_nvmlPowerValue_v2_t(); v.version = p.nvmlPowerValue_v2; v.powerScope = 0; v.powerValueMw = 999999\n"
        "show([p.nvmlDeviceSetPowerManagementLimit_v2(gpu(0), 0, 999999), p.nvmlDeviceGetPowerManagementLimit(gpu(0))])"
    )
    assert found == [0, 300000]


@needs_root
def test_compute_mode_cannot_be_changed_under_mig(host: EmulatedHost) -> None:
    assert host.ask("p.nvmlDeviceSetMigMode(gpu(0), 1)\nshow(call('nvmlDeviceSetComputeMode', gpu(0), 2))") == {
        "error": 3
    }


# ---- requested, enforced ----


@needs_root
def test_a_board_controllers_cap_is_enforced_and_not_requested(host: EmulatedHost) -> None:
    host.set("gpu.0.bmc_cap_mw=180000")
    code = "[get('PowerManagementLimit', 0), get('EnforcedPowerLimit', 0)]"
    found = host.ask(
        f"a = {code}\nput('PowerManagementLimit', 0, 160000)\nb = {code}\n"
        "fields = [v.value.uiVal for v in p.nvmlDeviceGetFieldValues(gpu(0), [190, 192])]\nshow([a, b, fields])"
    )
    assert found == [[300000, 180000], [160000, 160000], [160000, 160000]]


# ---- the life of a GPU's settings ----

SET_ALL = """
h = gpu(1)
p.nvmlDeviceSetPowerManagementLimit(h, 200000)
p.nvmlDeviceSetComputeMode(h, 2)
p.nvmlDeviceSetApplicationsClocks(h, 1512, 1200)
show(0)
"""
LIFE = """
h = gpu(1)
show([p.nvmlDeviceGetPowerManagementLimit(h), p.nvmlDeviceGetComputeMode(h), p.nvmlDeviceGetApplicationsClock(h, 0),
      p.nvmlDeviceGetTotalEccErrors(h, 1, 0), p.nvmlDeviceGetTotalEccErrors(h, 1, 1)])
"""
FORGOTTEN, KEPT = [300000, 0, 1065, 0, 9], [200000, 2, 1200, 4, 9]


@pytest.fixture
def client(host: EmulatedHost) -> Iterator[Any]:
    """An NVML client that is connected until the test ends it."""
    process = host.client("p.nvmlInit()\nshow(0)\nsys.stdin.read()")
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def wounded(host: EmulatedHost) -> None:
    host.set("gpu.1.ecc_volatile_uncorrected=4", "gpu.1.ecc_aggregate_uncorrected=9")


@needs_root
def test_settings_are_forgotten_when_the_last_client_leaves(host: EmulatedHost) -> None:
    host.ask(SET_ALL)
    wounded(host)
    assert host.ask(LIFE) == FORGOTTEN


@needs_root
def test_settings_are_kept_while_another_client_is_connected(host: EmulatedHost, client: Any) -> None:
    host.ask(SET_ALL)
    wounded(host)
    assert host.ask(LIFE) == KEPT
    client.kill()
    client.communicate()
    assert host.ask(LIFE) == FORGOTTEN


@needs_root
def test_settings_are_kept_with_persistence_mode_on(host: EmulatedHost) -> None:
    host.ask("p.nvmlDeviceSetPersistenceMode(gpu(1), 1)\n" + SET_ALL)
    wounded(host)
    assert host.ask(LIFE) == KEPT
    host.ask("p.nvmlDeviceSetPersistenceMode(gpu(1), 0)\nshow(0)")
    assert host.ask(LIFE) == FORGOTTEN


@needs_root
def test_persistence_mode_turned_on_late_does_not_bring_back_what_was_forgotten(host: EmulatedHost) -> None:
    host.ask(SET_ALL)
    wounded(host)
    assert host.ask("p.nvmlDeviceSetPersistenceMode(gpu(1), 1)\n" + LIFE) == FORGOTTEN


@needs_root
def test_a_client_that_is_not_root_makes_the_gpu_forget_too(host: EmulatedHost) -> None:
    host.ask(SET_ALL)
    wounded(host)
    for folder in [host.root, *host.root.parents]:
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    assert host.ask("os.seteuid(65534)\np.nvmlInit()\n" + LIFE, init=False) == FORGOTTEN


@needs_root
def test_a_restart_of_the_host_loses_what_is_volatile_and_keeps_the_cards(host: EmulatedHost) -> None:
    host.ask("p.nvmlDeviceSetPersistenceMode(gpu(1), 1)\np.nvmlDeviceSetEccMode(gpu(1), 0)\n" + SET_ALL)
    wounded(host)
    before = host.identity
    for name in ("volatile", "clients"):
        (host.root / "run/nvml-emulator" / name).unlink()
    assert host.ask("show(call('nvmlInit'))", init=False) == {"error": 9}
    assert host.command("boot") == 0
    found = host.ask("show([get(name, 1) for name in ('PowerManagementLimit', 'PersistenceMode', 'EccMode', 'UUID')])")
    assert found == [300000, 0, [0, 0], before["gpu.1.uuid"]]


@needs_root
def test_a_cap_set_behind_our_back_is_seen_by_a_client_that_is_running(host: EmulatedHost) -> None:
    code = "show(p.nvmlDeviceGetPowerManagementLimit(h))\n"
    process = host.client(f"p.nvmlInit()\nh = gpu(2)\n{code}sys.stdin.readline()\n{code}")
    assert process.stdout is not None
    assert process.stdout.readline() == "300000\n"
    host.set("gpu.2.power_limit_mw=170000")
    assert process.communicate("\n")[0] == "170000\n"


@needs_root
def test_clearing_ecc_counts_leaves_the_other_kind(host: EmulatedHost) -> None:
    code = "c = [get('TotalEccErrors', 1, 1, k) for k in (0, 1)]; p.nvmlDeviceClearEccErrorCounts(gpu(1), 1)\n"
    host.ask("p.nvmlDeviceSetPersistenceMode(gpu(1), 1); show(0)")
    wounded(host)
    assert host.ask(code + "show([c, [get('TotalEccErrors', 1, 1, k) for k in (0, 1)]])") == [
        [4, 9],
        [4, 0],
    ]


@needs_root
def test_ecc_counts_are_not_supported_with_ecc_off(host: EmulatedHost) -> None:
    host.set("gpu.1.ecc_mode=0")
    assert host.read("nvmlDeviceGetTotalEccErrors", 1, 1, 0) == {"error": 3}


# ---- drain, remove ----

DRAIN = "pci = p.nvmlDeviceGetPciInfo(gpu(1))\n"


@needs_root
def test_a_drained_gpu_is_not_seen_by_new_processes_and_the_rest_is_renumbered(host: EmulatedHost) -> None:
    found = host.ask(
        DRAIN + "a = call('nvmlDeviceModifyDrainState', pci, 1)\n"
        "show([a, p.nvmlDeviceGetCount(), call('nvmlDeviceQueryDrainState', pci)])"
    )
    assert found == [None, 4, 1]
    found = host.ask(
        "show([p.nvmlDeviceGetCount(), p.nvmlDeviceGetPciInfo(gpu(1)).busId, p.nvmlDeviceGetMinorNumber(gpu(1)),"
        f" call('nvmlDeviceGetHandleByUUID', {host.identity['gpu.1.uuid']!r})])"
    )
    assert found == [3, "00000000:B1:00.0", 2, {"error": 6}]


@needs_root
def test_drain_and_removal_are_refused_while_persistence_mode_holds_the_gpu(host: EmulatedHost) -> None:
    code = "p.nvmlDeviceSetPersistenceMode(gpu(1), 1)\n" + DRAIN
    assert (
        host.ask(code + "show([call('nvmlDeviceModifyDrainState', pci, 1), call('nvmlDeviceRemoveGpu', pci)])")
        == [{"error": 19}] * 2
    )


@needs_root
def test_a_removed_gpu_is_gone_until_it_is_discovered_again(host: EmulatedHost) -> None:
    found = host.ask(
        DRAIN + "h = gpu(1)\np.nvmlDeviceModifyDrainState(pci, 1); p.nvmlDeviceRemoveGpu(pci)\n"
        "a = [p.nvmlDeviceGetCount(), call('nvmlDeviceGetName', h)]\np.nvmlDeviceDiscoverGpus(pci)\n"
        "show([a, p.nvmlDeviceGetCount()])"
    )
    assert found == [[3, {"error": 15}], 4]


# ---- many at once ----


@needs_root
def test_four_processes_setting_at_once_lose_no_update(host: EmulatedHost) -> None:
    """Each sets its own GPU and, in turn, keys of another: a lost update would leave some GPU at an older value."""
    host.ask("[p.nvmlDeviceSetPersistenceMode(gpu(i), 1) for i in range(4)]; show(0)")
    code = "p.nvmlInit()\nshow(0)\nsys.stdin.readline()\nh = gpu({0})\n"
    code += "for n in range(100):\n    p.nvmlDeviceSetPowerManagementLimit(h, 150000 + 1000 * {0} + n)\n"
    code += "    assert p.nvmlDeviceGetPowerManagementLimit(h) == 150000 + 1000 * {0} + n\nshow(1)"
    clients = [host.client(code.format(index)) for index in range(4)]
    for process in clients:
        assert process.stdout is not None
        process.stdout.readline()
    for process in clients:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for round_ in range(20):  # the command writes the same file meanwhile
        host.set(f"gpu.0.pcie_replay={round_}")
    for process in clients:
        out, error = process.communicate(timeout=30)
        assert (out, process.returncode) == ("1\n", 0), error
    assert [host.volatile[f"gpu.{i}.power_limit_mw"] for i in range(4)] == [
        str(150000 + 1000 * i + 99) for i in range(4)
    ]
    assert host.volatile["gpu.0.pcie_replay"] == "19"


@needs_root
def test_threads_of_one_process_may_call_at_once(host: EmulatedHost) -> None:
    code = """
import threading
failures = []
def work(i):
    try:
        for n in range(50):
            p.nvmlDeviceSetPowerManagementLimit(gpu(i), 160000 + n)
            if p.nvmlDeviceGetPowerManagementLimit(gpu(i)) != 160000 + n:
                failures.append(i)
    except Exception as error:
        failures.append(str(error))
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
show(failures)
"""
    assert host.ask(code) == []


@needs_root
def test_a_read_costs_little(host: EmulatedHost) -> None:
    """A monitor reads dozens of values a second from eight GPUs; a set rewrites a file."""
    code = "h = gpu(0)\nt = time.perf_counter()\nfor _ in range(2000): p.nvmlDeviceGetPowerManagementLimit(h)\n"
    assert host.ask(f"{code}show((time.perf_counter() - t) / 2000)") < 0.0005


def test_half_a_file_is_never_seen(host: EmulatedHost) -> None:
    """The state is replaced by rename: what is there beside it, from a writer that was killed, is not read."""
    (host.root / "run/nvml-emulator/volatile.1.tmp").write_text("gpu.0.power_limit_mw=1")
    started = time.monotonic()
    assert host.read("nvmlDeviceGetPowerManagementLimit") == 300000
    assert time.monotonic() - started < 10
