# SPDX-License-Identifier: BSD-2-Clause
"""What one pass of NVML reads of a GPU: the fields of a record, their readers and NVML's words for its numbers.

Plain functions of the loaded pynvml and a handle; nvml.py loads the one, has the other and runs them in its child.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any, Callable, Dict, Tuple

from . import nvml_mig, pcie

# Return values of nvml.h (nvmlReturn_t) by which a reader goes on; nvml.py has the others.
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
CORRUPTED_INFOROM = 14
ARGUMENT_VERSION_MISMATCH = 25
# Answers that mean: this card or this driver has no such thing (a field number newer than the driver gives 2).
ABSENT = (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH)

ERROR_NAMES = {
    1: "UNINITIALIZED", 2: "INVALID_ARGUMENT", 3: "NOT_SUPPORTED", 4: "NO_PERMISSION", 5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND", 7: "INSUFFICIENT_SIZE", 8: "INSUFFICIENT_POWER", 9: "DRIVER_NOT_LOADED", 10: "TIMEOUT",
    11: "IRQ_ISSUE", 12: "LIBRARY_NOT_FOUND", 13: "FUNCTION_NOT_FOUND", 14: "CORRUPTED_INFOROM", 15: "GPU_IS_LOST",
    16: "RESET_REQUIRED", 17: "OPERATING_SYSTEM", 18: "LIB_RM_VERSION_MISMATCH", 19: "IN_USE", 20: "MEMORY",
    21: "NO_DATA", 22: "VGPU_ECC_NOT_SUPPORTED", 23: "INSUFFICIENT_RESOURCES", 24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH", 26: "DEPRECATED", 27: "NOT_READY", 28: "GPU_NOT_FOUND", 29: "INVALID_STATE",
    999: "UNKNOWN",
}  # fmt: skip

# nvmlClocksEventReasons*, bit by bit.
EVENT_REASONS = (
    (0x1, "idle"), (0x2, "application_clocks"), (0x4, "sw_power_cap"), (0x8, "hw_slowdown"), (0x10, "sync_boost"),
    (0x20, "sw_thermal"), (0x40, "hw_thermal"), (0x80, "hw_power_brake"), (0x100, "display_clocks"),
)  # fmt: skip
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
INFOROM_OBJECTS = ((0, "oem"), (1, "ecc"), (2, "power"))
# nvmlTemperatureThresholds_t: shut down; slowed down by hardware; memory slowed down by software; GPU below its base
# clock.
THRESHOLDS = ((0, "shutdown_c"), (1, "slowdown_c"), (2, "memory_max_c"), (3, "gpu_max_c"))
# nvmlFieldValue_t: value type to the member of the union that holds it.
VALUE_TYPES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
# As many links as any board has (NVML_NVLINK_MAX_LINKS of newer drivers); a driver ends the list itself.
MOST_NVLINKS = 36

Record = Dict[str, Any]
Field = Tuple[str, Callable[[ModuleType, Any], Any]]


def text(value: Any) -> Any:
    """Some calls of pynvml hand back bytes where others give text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000.0


def _limits(nvml: ModuleType, handle: Any) -> Record:
    low, high = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    return {"min_w": _watts(low), "max_w": _watts(high)}


def _event_reasons(nvml: ModuleType, handle: Any) -> list[str]:
    """Reasons by name; the older name of the call on drivers before 535."""
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError as error:
        if error.value != FUNCTION_NOT_FOUND:
            raise
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    names = [name for bit, name in EVENT_REASONS if mask & bit]
    rest = mask & ~sum(bit for bit, _name in EVENT_REASONS)
    return names + ([f"0x{rest:x}"] if rest else [])


def _ecc_mode(nvml: ModuleType, handle: Any) -> Record:
    current, pending = nvml.nvmlDeviceGetEccMode(handle)
    return {"current": bool(current), "pending": bool(pending)}


def _ecc_errors(kind: int, counter: int) -> Callable[[ModuleType, Any], int]:
    """kind 0 corrected, 1 uncorrected; counter 0 volatile (since initialisation), 1 aggregate (for life)."""
    return lambda nvml, handle: int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


def _remapped(nvml: ModuleType, handle: Any) -> Record:
    corrected, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"corrected": corrected, "uncorrected": uncorrected, "pending": bool(pending), "failure": bool(failure)}


def _mig(nvml: ModuleType, handle: Any) -> Record:
    current, pending = nvml.nvmlDeviceGetMigMode(handle)
    return {"current": bool(current), "pending": bool(pending)}


def _inforom(number: int) -> Callable[[ModuleType, Any], Any]:
    return lambda nvml, handle: nvml.nvmlDeviceGetInforomVersion(handle, number)


def _inforom_valid(nvml: ModuleType, handle: Any) -> bool:
    """False when a checksum in the InfoROM is wrong, which NVML tells as an error."""
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except nvml.NVMLError as error:
        if error.value != CORRUPTED_INFOROM:
            raise
        return False
    return True


def _utilization(nvml: ModuleType, handle: Any) -> Record:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_percent": int(rates.gpu), "memory_percent": int(rates.memory)}


def _retired_pages(nvml: ModuleType, handle: Any) -> Record:
    """Pages taken out of use on cards before Ampere, by cause; the plain call, for _v2 of pynvml is broken."""
    single, double = (len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))
    return {"single": single, "double": double, "pending": bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))}


def _sram(nvml: ModuleType, handle: Any) -> Record:
    """Errors in SRAM over the board's life, and whether NVIDIA's own limit for them has been passed."""
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return {
        "corrected": int(status.aggregateCor),
        "uncorrected": int(status.aggregateUncParity) + int(status.aggregateUncSecDed),
        "threshold_exceeded": bool(status.bThresholdExceeded),
    }


def _nvlinks(nvml: ModuleType, handle: Any) -> list[str]:
    """``up`` or ``down`` for each link of the board, with or without a bridge on it."""
    links: list[str] = []
    for number in range(MOST_NVLINKS):
        try:
            state = nvml.nvmlDeviceGetNvLinkState(handle, number)
        except nvml.NVMLError as error:
            # Past the last link. A board without any says so for the first.
            if links and error.value in ABSENT:
                break
            raise
        links.append("up" if state else "down")
    return links


def _processes(nvml: ModuleType, handle: Any) -> Record:
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    used = [(int(one.pid), one.usedGpuMemory) for one in found]
    listed = [{"pid": pid, "used_mib": None if size is None else size // 2**20} for pid, size in used]
    return {"processes": len(listed), "process_pids": listed}


def _threshold(number: int) -> Callable[[ModuleType, Any], int]:
    return lambda nvml, handle: int(nvml.nvmlDeviceGetTemperatureThreshold(handle, number))


# What one pass reads of a GPU, in this order: who it is first, so that a later hang has a name.
# A dotted name is a place in the record; a call that gives several values spreads them there.
FIELDS: tuple[Field, ...] = (
    ("bus_id", lambda nvml, gpu: pcie.bus_id(text(nvml.nvmlDeviceGetPciInfo(gpu).busId))),
    ("uuid", lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu)),
    ("serial", lambda nvml, gpu: nvml.nvmlDeviceGetSerial(gpu)),
    ("minor", lambda nvml, gpu: nvml.nvmlDeviceGetMinorNumber(gpu)),
    ("name", lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu)),
    ("architecture", lambda nvml, gpu: nvml.nvmlDeviceGetArchitecture(gpu)),
    ("part_number", lambda nvml, gpu: nvml.nvmlDeviceGetBoardPartNumber(gpu)),
    ("vbios", lambda nvml, gpu: nvml.nvmlDeviceGetVbiosVersion(gpu)),
    ("inforom.image", lambda nvml, gpu: nvml.nvmlDeviceGetInforomImageVersion(gpu)),
    *(("inforom." + name, _inforom(number)) for number, name in INFOROM_OBJECTS),
    ("gsp", lambda nvml, gpu: nvml.nvmlDeviceGetGspFirmwareVersion(gpu)),
    ("persistence", lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu))),
    ("power.requested_w", lambda nvml, gpu: _watts(nvml.nvmlDeviceGetPowerManagementLimit(gpu))),
    ("power.enforced_w", lambda nvml, gpu: _watts(nvml.nvmlDeviceGetEnforcedPowerLimit(gpu))),
    ("power.default_w", lambda nvml, gpu: _watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu))),
    ("power.limits", _limits),
    ("power.draw_w", lambda nvml, gpu: _watts(nvml.nvmlDeviceGetPowerUsage(gpu))),
    ("compute_mode", lambda nvml, gpu: _compute_mode(nvml.nvmlDeviceGetComputeMode(gpu))),
    ("pcie.gen", lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    ("pcie.width", lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
    ("pcie.gen_max", lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    ("pcie.width_max", lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)),
    ("pcie.gen_device_max", lambda nvml, gpu: nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu)),
    ("temperature_c", lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    ("event_reasons", _event_reasons),
    ("ecc.mode", _ecc_mode),
    ("ecc.corrected_volatile", _ecc_errors(0, 0)),
    ("ecc.uncorrected_volatile", _ecc_errors(1, 0)),
    ("ecc.corrected_aggregate", _ecc_errors(0, 1)),
    ("ecc.uncorrected_aggregate", _ecc_errors(1, 1)),
    ("remapped_rows", _remapped),
    ("mig", _mig),
    ("mig_layout", nvml_mig.layout),
    ("processes", _processes),
    ("pstate", lambda nvml, gpu: nvml.nvmlDeviceGetPerformanceState(gpu)),
    ("utilization", _utilization),
    ("inforom.valid", _inforom_valid),
    ("retired_pages", _retired_pages),
    ("sram", _sram),
    ("nvlink.links", _nvlinks),
    # mJ since the driver was loaded: less than before means that its counters began anew.
    ("energy_mj", lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)),
    ("pcie_errors.replay", lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu)),
    # How far from the nearest slowdown, in degrees; drivers before 570 lack the call.
    ("margin_c", lambda nvml, gpu: nvml.nvmlDeviceGetMarginTemperature(gpu)),
    *(("thresholds." + name, _threshold(number)) for number, name in THRESHOLDS),
)
# Values that nvmlDeviceGetFieldValues gives by number, all in one call and each with its own answer (NVML_FI_DEV_*).
BATCH: tuple[tuple[str, int], ...] = (
    ("memory_temperature_c", 82),
    ("pcie_errors.replay_rollover", 95),
    ("pcie_errors.correctable", 173),
    ("pcie_errors.naks_received", 174),
    ("pcie_errors.receiver", 175),
    ("pcie_errors.bad_tlp", 176),
    ("pcie_errors.naks_sent", 177),
    ("pcie_errors.bad_dllp", 178),
    ("pcie_errors.non_fatal", 179),
    ("pcie_errors.fatal", 180),
    ("pcie_errors.unsupported_requests", 181),
    ("pcie_errors.lcrc", 182),
    ("pcie_errors.lane", 183),
    # Where the card acts, in the terms of margin_c (Ada and newer).
    ("tlimits.shutdown_c", 193),
    ("tlimits.slowdown_c", 194),
    ("tlimits.memory_max_c", 195),
    ("tlimits.gpu_max_c", 196),
    ("recovery_action", 230),
)
# Load and link, looked at several times within a pass. The throughput takes the driver 20 ms of counting for each
# direction (nvml.h), so it is asked for only where utilisation leaves open whether the GPU is at work: above nothing,
# and below this (ours).
BUSY_PERCENT = 50
LOAD_FIELDS: tuple[Field, ...] = (
    ("pstate", lambda nvml, gpu: nvml.nvmlDeviceGetPerformanceState(gpu)),
    ("utilization", _utilization),
    ("gen", lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
)
THROUGHPUT_FIELDS: tuple[Field, ...] = (
    ("tx_kib_s", lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, 0)),
    ("rx_kib_s", lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, 1)),
)
# A field that holds several values at the place above it.
SPREAD = {"power.limits": ("min_w", "max_w"), "processes": ("processes", "process_pids")}


def _compute_mode(number: int) -> str:
    return COMPUTE_MODES.get(number, str(number))


def field_values(nvml: ModuleType, handle: Any, numbers: list[int]) -> list[tuple[Any, int | None]]:
    """For each field number its value, or None and NVML's error number for that one."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, numbers)
    return [
        (getattr(one.value, VALUE_TYPES[one.valueType]), None) if one.nvmlReturn == 0 else (None, int(one.nvmlReturn))
        for one in answers
    ]


def empty_gpu() -> Record:
    """A record with every field of ``FIELDS`` present and None: what is known of an unread GPU."""
    record: Record = {"state": "ok", "error": None, "errors": {}, "load_samples": []}
    for name in [name for name, _call in FIELDS] + [name for name, _number in BATCH]:
        put_at(record, name, None)
    return record


def put_at(record: Record, name: str, value: Any) -> None:
    """Put a value at its dotted place."""
    where, _dot, last = name.rpartition(".")
    holder = record.setdefault(where, {}) if where else record
    if name in SPREAD:
        for key in SPREAD[name]:
            holder[key] = None if value is None else value[key]
    else:
        holder[last] = value
