"""MIG as the emulated library has it: the mode, instances, what fits, who may, what a restart leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml.host import LIBRARY, EmulatedHost

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason="NVML emulator not built: run ./rack images"),
    pytest.mark.skipif(os.geteuid() != 0, reason="MIG needs root"),
]

CODE = """
IDS = {"1g": 19, "1g+me": 20, "1g.20gb": 15, "2g": 14, "3g": 9, "4g": 5, "7g": 0}

def profiles(h):
    found = {}
    for slot in range(p.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = call_raw("nvmlDeviceGetGpuInstanceProfileInfo", h, slot)
        if not isinstance(info, dict):
            count = p.c_uint(8)
            places = (p.c_nvmlGpuInstancePlacement_t * 8)()
            p.nvmlDeviceGetGpuInstancePossiblePlacements(h, info.id, places, p.byref(count))
            found[info.name] = [info.id, info.sliceCount, info.instanceCount, info.memorySizeMB,
                           places[0].size, [places[i].start for i in range(count.value)]]
    return found

def call_raw(name, *arguments):
    try:
        return getattr(p, name)(*arguments)
    except p.NVMLError as error:
        return {"error": error.value}

def make(h, name, start=None, whole=True):
    if start is None:
        gi = call_raw("nvmlDeviceCreateGpuInstance", h, IDS[name])
    else:
        place = p.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = start
        gi = call_raw("nvmlDeviceCreateGpuInstanceWithPlacement", h, IDS[name], p.byref(place))
    if isinstance(gi, dict):
        return gi
    info = p.nvmlGpuInstanceGetInfo(gi)
    if whole:
        slot = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[int(name[0])]
        p.nvmlGpuInstanceCreateComputeInstance(gi, p.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, slot, 0).id)
    return [info.id, info.placement.start, info.placement.size]

def room(h):
    return {name: call("nvmlDeviceGetGpuInstanceRemainingCapacity", h, number) for name, number in IDS.items()}

def devices(h):
    found = []
    for index in range(7):
        one = call_raw("nvmlDeviceGetMigDeviceHandleByIndex", h, index)
        if isinstance(one, dict):
            break
        found.append(one)
    return found

h = gpu(0)
"""
ON = "p.nvmlDeviceSetMigMode(h, 1)\n"


@pytest.fixture
def host(tmp_path: Path) -> EmulatedHost:
    made = EmulatedHost(tmp_path / "host")
    assert made.command("init", "--profile", "a100x4", "--host", "gpu-a1") == 0
    return made


def asked(host: EmulatedHost, code: str) -> Any:
    return host.ask(CODE + code)


# ---- the mode ----

MODE = "show([p.nvmlDeviceSetMigMode(h, 1), p.nvmlDeviceGetMigMode(h)])"


def test_the_mode_of_an_idle_card_changes_at_once_and_lasts_over_a_restart(host: EmulatedHost) -> None:
    assert asked(host, MODE) == [0, [1, 1]]
    restart(host)
    assert host.read("nvmlDeviceGetMigMode") == [1, 1]


@pytest.mark.parametrize("key", ["processes_compute=4711:10", "persistence_mode=1"])
def test_the_mode_stays_pending_while_the_gpu_is_held(host: EmulatedHost, key: str) -> None:
    host.set(f"gpu.0.{key}")
    assert asked(host, MODE) == [19, [0, 1]]


@pytest.fixture
def client(host: EmulatedHost) -> Iterator[Any]:
    """Another NVML client, as nvidia-persistenced is."""
    process = host.client("p.nvmlInit()\nshow(0)\nsys.stdin.read()")
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_the_mode_stays_pending_while_another_client_is_connected_until_a_reset(
    host: EmulatedHost, client: Any
) -> None:
    assert asked(host, MODE) == [19, [0, 1]]
    client.kill()
    client.communicate()
    assert host.read("nvmlDeviceGetMigMode") == [0, 1]
    assert host.command("reset", "0") == 0
    assert host.read("nvmlDeviceGetMigMode") == [1, 1]


def test_asking_who_else_is_there_keeps_what_the_card_was_told(host: EmulatedHost, client: Any) -> None:
    """The library tries for the clients' lock to know; were it lost, the next client would make the cards forget."""
    assert asked(host, "p.nvmlDeviceSetPowerManagementLimit(gpu(1), 200000)\n" + MODE)[0] == 19
    assert host.read("nvmlDeviceGetPowerManagementLimit", 1) == 200000


def test_a_change_of_mode_makes_the_card_forget_its_cap(host: EmulatedHost) -> None:
    code = "p.nvmlDeviceSetPowerManagementLimit(h, 200000)\n" + ON + "show(get('PowerManagementLimit', 0))"
    assert asked(host, code) == 300000


def test_a_later_card_changes_the_mode_without_a_reset_and_forgets_it_at_boot(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path / "hopper")
    assert host.command("init", "--profile", "h100x8", "--host", "gpu-a1") == 0
    host.set("gpu.0.persistence_mode=1")
    assert asked(host, MODE) == [0, [1, 1]]
    restart(host)
    assert host.read("nvmlDeviceGetMigMode") == [0, 0]


def restart(host: EmulatedHost) -> None:
    for name in ("volatile", "clients"):
        (host.root / "run/nvml-emulator" / name).unlink()
    assert host.command("boot") == 0


# ---- what a card can be cut into ----


def test_the_profiles_of_an_a100_are_those_of_nvidias_guide(host: EmulatedHost) -> None:
    assert asked(host, ON + "show(profiles(h))") == {
        "MIG 1g.10gb": [19, 1, 7, 9856, 1, [0, 1, 2, 3, 4, 5, 6]],
        "MIG 1g.10gb+me": [20, 1, 1, 9856, 1, [0, 1, 2, 3, 4, 5, 6]],
        "MIG 1g.20gb": [15, 1, 4, 19968, 2, [0, 2, 4, 6]],
        "MIG 2g.20gb": [14, 2, 3, 19968, 2, [0, 2, 4]],
        "MIG 3g.40gb": [9, 3, 2, 40192, 4, [0, 4]],
        "MIG 4g.40gb": [5, 4, 1, 40192, 4, [0]],
        "MIG 7g.80gb": [0, 7, 1, 80384, 8, [0]],
    }


def test_the_profiles_of_an_a30_are_its_own(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path / "mixed")
    assert host.command("init", "--profile", "a100-a30", "--host", "gpu-a1") == 0
    found = asked(host, "h = gpu(3)\n" + ON + "show(profiles(h))")
    assert sorted(found) == ["MIG 1g.6gb", "MIG 1g.6gb+me", "MIG 2g.12gb", "MIG 2g.12gb+me", "MIG 4g.24gb"]
    assert found["MIG 2g.12gb"] == [5, 2, 2, 11672, 2, [0, 2]]


def test_with_the_mode_off_only_the_plain_call_tells_a_profile(host: EmulatedHost) -> None:
    code = (
        "show([call('nvmlDeviceGetGpuInstanceProfileInfo', h, 0), p.nvmlDeviceGetGpuInstanceProfileInfo(h, 0, 1).id])"
    )
    assert asked(host, code) == [{"error": 3}, 19]


def test_a_card_without_mig_says_so(host: EmulatedHost) -> None:
    host.set("gpu.0.mig_max_devices=0")
    code = "show([call('nvmlDeviceGetMigMode', h), call('nvmlDeviceGetGpuInstanceProfileInfo', h, 0, 1)])"
    assert asked(host, code) == [{"error": 3}] * 2


# ---- instances ----


def test_seven_small_instances_fill_the_card(host: EmulatedHost) -> None:
    made, more, left = asked(host, ON + "show([[make(h, '1g') for _ in range(7)], make(h, '1g'), room(h)])")
    assert made == [[7 + start, start, 1] for start in range(7)]
    assert more == {"error": 23}
    assert set(left.values()) == {0}


@pytest.mark.parametrize(
    ("layout", "left"),
    [
        ([("3g", (4, 4))], {"1g": 4, "1g+me": 1, "1g.20gb": 2, "2g": 2, "3g": 1, "4g": 1, "7g": 0}),
        ([("4g", (0, 4)), ("3g", (4, 4))], dict.fromkeys(["1g", "1g+me", "1g.20gb", "2g", "3g", "4g", "7g"], 0)),
        ([("2g", (0, 2)), ("1g", (2, 1))], {"1g": 4, "1g+me": 1, "1g.20gb": 2, "2g": 1, "3g": 1, "4g": 0, "7g": 0}),
        ([("1g+me", (6, 1))], {"1g": 6, "1g+me": 0, "1g.20gb": 3, "2g": 3, "3g": 1, "4g": 1, "7g": 0}),
    ],
)
def test_what_still_fits_follows_from_places(host: EmulatedHost, layout: list[Any], left: dict[str, int]) -> None:
    assert asked(host, ON + f"for one in {layout!r}:\n    make(h, *one)\nshow(room(h))") == left


@pytest.mark.parametrize(("name", "place", "code"), [("3g", (2, 4), 2), ("3g", (0, 4), 23), ("2g", (0, 4), 2)])
def test_a_place_that_is_taken_or_impossible_is_refused(
    host: EmulatedHost, name: str, place: tuple[int, int], code: int
) -> None:
    assert asked(host, ON + f"make(h, '1g', (1, 1))\nshow(make(h, {name!r}, {place!r}))") == {"error": code}


def test_instances_need_the_mode(host: EmulatedHost) -> None:
    assert asked(host, "show([make(h, '1g'), call('nvmlDeviceGetMigDeviceHandleByIndex', h, 0)])") == [{"error": 3}] * 2


def test_all_of_it_but_the_profiles_needs_root(host: EmulatedHost) -> None:
    for folder in [host.root, *host.root.parents]:
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    asked(host, ON + "make(h, '3g')\nshow(0)")
    code = "n = p.c_uint(8)\nout = (p.c_nvmlGpuInstance_t * 8)()\nplaces = (p.c_nvmlGpuInstancePlacement_t * 8)()\n"
    code += "gi = p.nvmlDeviceGetGpuInstanceById(h, 1)\nos.seteuid(65534)\n"
    code += "show([make(h, '1g'), call('nvmlDeviceGetGpuInstances', h, 9, out, p.byref(n)),"
    code += " call('nvmlGpuInstanceDestroy', gi),"
    code += " call('nvmlDeviceGetGpuInstancePossiblePlacements', h, 9, places, p.byref(n)),"
    code += " call('nvmlDeviceGetGpuInstanceById', h, 1), call('nvmlDeviceSetMigMode', h, 0)])"
    assert asked(host, code) == [{"error": 4}] * 6


INSIDE = "gi = p.nvmlDeviceGetGpuInstanceById(h, 1)\nci = p.nvmlGpuInstanceGetComputeInstanceById(gi, 0)\n"


def test_an_instance_with_a_compute_instance_or_a_process_is_in_use(host: EmulatedHost) -> None:
    code = ON + "make(h, '3g')\n"
    assert asked(host, code + INSIDE + "show(call('nvmlGpuInstanceDestroy', gi))") == {"error": 19}
    host.set("gpu.0.processes_compute=4711:100:1:0")
    held = INSIDE + "show([call('nvmlComputeInstanceDestroy', ci), [[one.pid, one.gpuInstanceId, one.computeInstanceId]"
    held += " for one in p.nvmlDeviceGetComputeRunningProcesses(h)]])"
    assert asked(host, held) == [{"error": 19}, [[4711, 1, 0]]]
    host.set("gpu.0.processes_compute=")
    free = INSIDE + "show([call('nvmlComputeInstanceDestroy', ci), call('nvmlGpuInstanceDestroy', gi),"
    free += " call('nvmlGpuInstanceGetInfo', gi)])"
    assert asked(host, free) == [0, 0, {"error": 2}]


def test_a_gpu_instance_may_be_cut_further(host: EmulatedHost) -> None:
    code = ON + "make(h, '3g', whole=False)\ngi = p.nvmlDeviceGetGpuInstanceById(h, 1)\n"
    code += "made = [call_raw('nvmlGpuInstanceCreateComputeInstance', gi, n) for n in (0, 1, 0)]\n"
    code += "infos = [p.nvmlComputeInstanceGetInfo_v2(one) for one in made[:2]]\n"
    code += "names = [p.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, n, 0).name for n in (0, 2)]\n"
    code += "show([[[i.id, i.profileId, i.placement.start, i.placement.size] for i in infos], made[2], names])"
    assert asked(host, code) == [[[0, 0, 0, 1], [1, 1, 1, 2]], {"error": 23}, ["MIG 1c.3g.40gb", "MIG 3g.40gb"]]


def test_mig_devices_have_ids_names_and_uuids_of_their_own(host: EmulatedHost) -> None:
    code = ON + "make(h, '3g'); make(h, '3g')\n"
    code += "show([[p.nvmlDeviceGetGpuInstanceId(d), p.nvmlDeviceGetComputeInstanceId(d), p.nvmlDeviceGetUUID(d),"
    code += (
        " p.nvmlDeviceGetName(d), p.nvmlDeviceIsMigDeviceHandle(d).value, p.nvmlDeviceGetAttributes(d).memorySizeMB,"
    )
    code += " p.nvmlDeviceGetUUID(p.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)),"
    code += " p.nvmlDeviceGetGpuInstanceId(p.nvmlDeviceGetHandleByUUID(p.nvmlDeviceGetUUID(d)))] for d in devices(h)])"
    first, second = asked(host, code)
    assert first[:2] + second[:2] == [1, 0, 2, 0]
    assert first[2].startswith("MIG-")
    assert len(first[2]) == 40
    assert first[2] != second[2]
    name, uuid = "NVIDIA A100 80GB PCIe MIG 3g.40gb", host.identity["gpu.0.uuid"]
    assert (first[3:], second[3:]) == ([name, 1, 40192, uuid, 1], [name, 1, 40192, uuid, 2])


def test_c49_a_driver_before_470_names_a_mig_device_by_its_place(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path / "old")
    assert host.command("init", "--profile", "a100x4", "--host", "gpu-a1", "--set", "driver_version=460.106.00") == 0
    found = asked(host, ON + "make(h, '3g')\nshow([p.nvmlDeviceGetUUID(d) for d in devices(h)])")
    assert found == [f"MIG-{host.identity['gpu.0.uuid']}/1/0"]


def test_the_mode_is_not_given_up_while_instances_stand(host: EmulatedHost) -> None:
    code = ON + "make(h, '1g')\nshow([p.nvmlDeviceSetMigMode(h, 0), p.nvmlDeviceGetMigMode(h)])"
    assert asked(host, code) == [19, [1, 0]]


def test_instances_go_with_a_restart_and_the_mode_stays(host: EmulatedHost) -> None:
    asked(host, ON + "make(h, '3g')\nshow(0)")
    assert asked(host, "show([room(h)['3g'], p.nvmlDeviceGetMigMode(h)])") == [1, [1, 1]]
    restart(host)
    assert asked(host, "show([room(h)['3g'], p.nvmlDeviceGetMigMode(h)])") == [2, [1, 1]]


def test_a_card_is_whole_again_when_faults_are_cleared(host: EmulatedHost) -> None:
    asked(host, ON + "make(h, '3g')\nshow(0)")
    assert host.command("clear-faults") == 0
    assert host.read("nvmlDeviceGetMigMode") == [0, 0]
    assert asked(host, ON + "show(room(h)['3g'])") == 2


def test_two_processes_creating_at_once_take_different_places(host: EmulatedHost) -> None:
    asked(host, ON + "show(0)")
    code = CODE.replace("h = gpu(0)", "p.nvmlInit()\nh = gpu(0)") + "show(0)\nsys.stdin.readline()\n"
    code += "show([make(h, '1g')[0] for _ in range(3)])"
    clients = [host.client(code) for _ in range(2)]
    for process in clients:
        assert process.stdout is not None
        process.stdout.readline()
    for process in clients:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = [process.communicate(timeout=30)[0] for process in clients]
    assert sorted(int(word) for text in found for word in text.strip().strip("[]").split(",")) == [7, 8, 9, 10, 11, 12]
