# SPDX-License-Identifier: BSD-2-Clause
"""MIG through NVML: how a card is cut into instances, and the calls that change it.

Functions for the child of ``nvml.py``, which hands them pynvml and a GPU's handle and gives each a deadline.
They raise what pynvml raises. Instances are declared and made whole: one compute instance that takes all
of its GPU instance, as NVIDIA's mig-parted does it.
"""

from __future__ import annotations

import math
from ctypes import byref, c_uint
from types import ModuleType
from typing import Any, Callable, Dict

# nvmlReturn_t: what may be asked another way, and what a thing in use answers. INVALID_ARGUMENT: a number of a
# profile that this driver does not know.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
FUNCTION_NOT_FOUND = 13
IN_USE = 19
ARGUMENT_VERSION_MISMATCH = 25

COMPUTE_PROFILES = range(8)
# NVML_GPU_INSTANCE_PROFILE_* of the header of CUDA 12.4, up to 1_SLICE_REV2 (0x9): their names can be computed, the
# two REV1 being those with media extensions. Later ones (graphics) are known by the driver's name alone.
NAMED_PROFILES = range(10)
MEDIA_PROFILES = (0x7, 0x8)
# Placements a profile can have: as many as memory slices, 8 on the cards that there are.
MOST_PLACEMENTS = 32
# gpuInstanceId of a process that is on no instance, or on one that we may not be told.
NO_INSTANCE = 0xFFFFFFFF
WHOLE_ENGINE = 0

Record = Dict[str, Any]


def layout(nvml: ModuleType, gpu: Any) -> Record | None:
    """``read`` where MIG is on, None where it is off or not to be had: then nothing more is asked."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    except nvml.NVMLError as error:
        if error.value in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            return None
        raise
    return read(nvml, gpu) if current else None


def read(nvml: ModuleType, gpu: Any) -> Record:
    """Profiles of the card by name, and the instances that are there; none where MIG is off.

    A profile: id, slices (of compute), instances (at most), memory_mib, size (memory slices), starts (where one
    may lie). An instance: id, profile, start, size, compute (slices of each compute instance), devices
    (UUIDs of the MIG devices), processes (pids; those on an unknown instance count for every one).
    """
    current, _pending = nvml.nvmlDeviceGetMigMode(gpu)
    total_mib = nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20
    profiles: Record = {}
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = _profile(nvml, gpu, number, total_mib)
        if profile is not None:
            profiles.setdefault(profile.pop("name"), profile)
    instances = []
    if current:
        running = _running(nvml, gpu)
        devices = _devices(nvml, gpu)
        for name, profile in profiles.items():
            for handle in _gpu_instances(nvml, gpu, profile):
                instances.append(dict(_instance(nvml, handle, profile, running, devices), profile=name))
    return {"profiles": profiles, "instances": sorted(instances, key=lambda one: one["start"])}


def set_mode(nvml: ModuleType, gpu: Any, on: bool) -> bool:
    """Ask for the mode. True: in force. False: pending, because somebody holds the GPU."""
    activation = nvml.nvmlDeviceSetMigMode(gpu, int(on))
    return bool(activation == 0)


def create(nvml: ModuleType, gpu: Any, profile: int, start: int, size: int) -> int:
    """A whole instance at its place; its id comes back. One that an earlier, ended run left there is finished."""
    for handle in _gpu_instances(nvml, gpu, {"id": profile, "instances": MOST_PLACEMENTS}):
        if nvml.nvmlGpuInstanceGetInfo(handle).placement.start == start:
            break
    else:
        place = nvml.c_nvmlGpuInstancePlacement_t()
        place.start, place.size = start, size
        handle = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, byref(place))
    return _finish(nvml, handle)


def finish(nvml: ModuleType, gpu: Any, instance: int) -> int:
    """Give a GPU instance that has none its compute instance; without it nothing can run there."""
    return _finish(nvml, nvml.nvmlDeviceGetGpuInstanceById(gpu, instance))


def destroy(nvml: ModuleType, gpu: Any, instance: int) -> None:
    """Take an instance away, never one on which a process runs: NVML's own IN_USE in that case.

    Looked at once more here, because a job may have come since the plan was made.
    """
    if _pids(_running(nvml, gpu), instance):
        raise nvml.NVMLError(IN_USE)
    handle = nvml.nvmlDeviceGetGpuInstanceById(gpu, instance)
    for profile in _compute_profiles(nvml, handle):
        for inside in _compute_instances(nvml, handle, profile):
            nvml.nvmlComputeInstanceDestroy(inside)
    nvml.nvmlGpuInstanceDestroy(handle)


CALLS: dict[str, Callable[..., Any]] = {
    "read": read, "mode": set_mode, "create": create, "finish": finish, "destroy": destroy,
}  # fmt: skip


# --- profiles ----------------------------------------------------------------------------------


def _profile(nvml: ModuleType, gpu: Any, number: int, total_mib: int) -> Record | None:
    """One kind of instance that the card can be cut into, None when it cannot."""
    try:
        info = _profile_info(nvml, gpu, number)
    except nvml.NVMLError as error:
        if error.value in (NOT_SUPPORTED, INVALID_ARGUMENT):
            return None
        raise
    name = _plain_name(getattr(info, "name", ""))
    if not name and number not in NAMED_PROFILES:
        return None
    size, starts = _placements(nvml, gpu, info.id)
    return {
        "name": name or _computed_name(info, number, total_mib),
        "id": info.id, "slices": info.sliceCount, "instances": info.instanceCount,
        "memory_mib": info.memorySizeMB, "size": size, "starts": starts,
    }  # fmt: skip


def _profile_info(nvml: ModuleType, gpu: Any, number: int) -> Any:
    """The structure with the name, else the older one: that is all there is while MIG is off, or on older drivers."""
    try:
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, 2)
    except nvml.NVMLError as error:
        if error.value not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH):
            raise
    return nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, 1)


def _plain_name(name: Any) -> str:
    """``1g.10gb`` of ``MIG 1g.10gb``."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    return text[4:] if text.startswith("MIG ") else text


def _computed_name(info: Any, number: int, total_mib: int) -> str:
    """The name as NVIDIA makes it: slices, and the share of memory in eighths, rounded up, of the card's GB."""
    eighths = math.ceil(info.memorySizeMB / total_mib * 8)
    gigabytes = round(eighths / 8 * math.ceil(total_mib / 1024))
    media = "+me" if number in MEDIA_PROFILES else ""
    return f"{info.sliceCount}g.{gigabytes}gb{media}"


def _placements(nvml: ModuleType, gpu: Any, profile: int) -> tuple[int, list[int]]:
    """Memory slices that one takes, and where it may begin."""
    count = c_uint(MOST_PLACEMENTS)
    places = (nvml.c_nvmlGpuInstancePlacement_t * MOST_PLACEMENTS)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, places, byref(count))
    found = [places[position] for position in range(count.value)]
    return (found[0].size if found else 0), [place.start for place in found]


# --- instances ---------------------------------------------------------------------------------


def _gpu_instances(nvml: ModuleType, gpu: Any, profile: Record) -> list[Any]:
    """Handles of the GPU instances of a profile."""
    room = max(1, profile["instances"])
    count = c_uint(room)
    found = (nvml.c_nvmlGpuInstance_t * room)()
    nvml.nvmlDeviceGetGpuInstances(gpu, profile["id"], found, byref(count))
    return [found[position] for position in range(count.value)]


def _instance(nvml: ModuleType, handle: Any, profile: Record, running: list[tuple[int, int]],
              devices: dict[int, list[str]]) -> Record:  # fmt: skip
    info = nvml.nvmlGpuInstanceGetInfo(handle)
    compute = []
    for one in _compute_profiles(nvml, handle):
        compute += [one.sliceCount] * len(_compute_instances(nvml, handle, one))
    return {
        "id": info.id, "start": info.placement.start, "size": profile["size"], "compute": sorted(compute),
        "devices": devices.get(info.id, []), "processes": _pids(running, info.id),
    }  # fmt: skip


def _compute_profiles(nvml: ModuleType, handle: Any) -> list[Any]:
    """What a GPU instance can be cut into once more, biggest last; the biggest is the whole of it."""
    found = []
    for number in COMPUTE_PROFILES:
        try:
            found.append(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, number, WHOLE_ENGINE, 1))
        except nvml.NVMLError as error:
            if error.value not in (NOT_SUPPORTED, INVALID_ARGUMENT):
                raise
    return sorted(found, key=lambda one: int(one.sliceCount))


def _compute_instances(nvml: ModuleType, handle: Any, profile: Any) -> list[Any]:
    room = max(1, profile.instanceCount)
    count = c_uint(room)
    found = (nvml.c_nvmlComputeInstance_t * room)()
    nvml.nvmlGpuInstanceGetComputeInstances(handle, profile.id, found, byref(count))
    return [found[position] for position in range(count.value)]


def _finish(nvml: ModuleType, handle: Any) -> int:
    profiles = _compute_profiles(nvml, handle)
    if not any(_compute_instances(nvml, handle, one) for one in profiles):
        nvml.nvmlGpuInstanceCreateComputeInstance(handle, profiles[-1].id)
    return int(nvml.nvmlGpuInstanceGetInfo(handle).id)


def _devices(nvml: ModuleType, gpu: Any) -> dict[int, list[str]]:
    """UUIDs of the MIG devices by GPU instance: what a job is given in CUDA_VISIBLE_DEVICES."""
    found: dict[int, list[str]] = {}
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except nvml.NVMLError as error:
            if error.value == NOT_FOUND:
                continue
            raise
        found.setdefault(nvml.nvmlDeviceGetGpuInstanceId(device), []).append(nvml.nvmlDeviceGetUUID(device))
    return found


# --- processes ---------------------------------------------------------------------------------


def _running(nvml: ModuleType, gpu: Any) -> list[tuple[int, int]]:
    """Pid and GPU instance of each process that computes on the card."""
    processes = list(nvml.nvmlDeviceGetComputeRunningProcesses(gpu))
    try:
        processes += nvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)
    except nvml.NVMLError as error:
        if error.value not in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            raise
    return [(int(one.pid), int(one.gpuInstanceId)) for one in processes]


def _pids(running: list[tuple[int, int]], instance: int) -> list[int]:
    """Pids on an instance; one whose instance is not told may be on any."""
    return sorted({pid for pid, where in running if where in (instance, NO_INSTANCE)})
