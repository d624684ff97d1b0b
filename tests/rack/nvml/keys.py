"""Every key of the emulator's state: what it means, and which of the two files it lives in.

`emulator.py keys` prints this; a test holds it against the keys that the C sources read.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

import statefiles


class Key(NamedTuple):
    meaning: str
    volatile: bool = False
    """Lost at a restart of the host."""
    setting: bool = False
    """Changed through NVML in normal operation: clear-faults leaves it as it is."""


HOST: dict[str, Key] = {
    "profile": Key("name of the profile the identity was made from"),
    "host": Key("host name that serials and UUIDs were made from"),
    "gpu_count": Key("GPUs in the profile"),
    "driver_version": Key("version of the user library, e.g. 550.163.01"),
    "module_version": Key("version of the loaded module, if not the library's: nvmlInit then fails with 18"),
    "driver_loaded": Key("0: no kernel module, nvmlInit fails with 9, /proc/driver/nvidia is gone"),
    "nvml_version": Key("NVML version string, if not 12.<driver_version>"),
    "cuda_version": Key("CUDA driver version as a number, 12040 = 12.4"),
    "driver_load_time": Key(
        "seconds since 1970 at which the driver was loaded: energy counts from here", volatile=True
    ),
    "event_seq": Key("number of the last event", volatile=True),
}

GPU: dict[str, Key] = {
    # identity
    "name": Key("product name"),
    "uuid": Key("GPU-…, follows the GPU"),
    "serial": Key("13 digits, follows the board"),
    "bus_id": Key("0000:31:00.0, follows the slot"),
    "minor": Key("N of /dev/nvidiaN"),
    "module_id": Key("module number; absent on PCIe boards"),
    "board_part_number": Key("board part number"),
    "brand": Key("nvmlBrandType_t, 14 = NVIDIA"),
    "architecture": Key("NVML_DEVICE_ARCH_*, 7 Ampere, 9 Hopper"),
    "cuda_capability": Key("major.minor"),
    "cuda_cores": Key("number of CUDA cores"),
    "memory_bus_width": Key("bits"),
    "irq": Key("interrupt number of GPU 0"),
    "gpu_numa_node": Key("GPU memory as a NUMA node; coherent systems only"),
    "display_mode": Key("1: a display is connected"),
    "display_active": Key("1: a display is in use"),
    "numa_node": Key("NUMA node of the slot"),
    "local_cpulist": Key("CPUs near the slot, 0-15,32-47"),
    # firmware
    "vbios": Key("VBIOS version"),
    "inforom_image": Key("InfoROM image version"),
    "inforom_oem": Key("InfoROM object OEM"),
    "inforom_ecc": Key("InfoROM object ECC"),
    "inforom_power": Key("InfoROM object PWR"),
    "inforom_checksum": Key("configuration checksum, if not computed"),
    "inforom_valid": Key("0: validation fails with 14"),
    "gsp": Key("GSP firmware version, if not the driver's"),
    "gsp_mode": Key("0: GSP firmware off"),
    # PCI
    "pci_device_id": Key("0xDDDDVVVV"),
    "pci_subsystem_id": Key("0xDDDDVVVV"),
    "pci_revision": Key("revision byte"),
    "pci_path": Key("way from the root complex: pci0000:30/0000:30:02.0[/upstream port/downstream port]"),
    "pcie_width": Key("lanes in use now, at most what card and slot can (default: that)"),
    "pcie_gen": Key("generation in use now, at most what card and slot can (default: that)"),
    "pcie_device_width": Key("lanes of the card"),
    "pcie_device_gen": Key("generation of the card"),
    "pcie_system_width": Key("lanes of the slot"),
    "pcie_system_gen": Key("generation of the slot"),
    "pcie_uplink_width": Key("lanes in use between a switch and the root port, default 16; seen in the PCI tree only"),
    "pcie_tx_kib_s": Key("PCIe throughput out", volatile=True),
    "pcie_rx_kib_s": Key("PCIe throughput in", volatile=True),
    "pcie_replay": Key("replay counter (also field 94)", volatile=True),
    "pcie_replay_rollover": Key("field 95", volatile=True),
    "pcie_l0_to_recovery": Key("field 169", volatile=True),
    "pcie_correctable": Key("field 173", volatile=True),
    "pcie_naks_received": Key("field 174", volatile=True),
    "pcie_receiver_errors": Key("field 175", volatile=True),
    "pcie_bad_tlp": Key("field 176", volatile=True),
    "pcie_naks_sent": Key("field 177", volatile=True),
    "pcie_bad_dllp": Key("field 178", volatile=True),
    "pcie_non_fatal": Key("field 179", volatile=True),
    "pcie_fatal": Key("field 180", volatile=True),
    "pcie_unsupported_requests": Key("field 181", volatile=True),
    "pcie_lcrc": Key("field 182", volatile=True),
    "pcie_lane_errors": Key("field 183", volatile=True),
    # power, mW
    "power_min_mw": Key("lowest limit that can be set"),
    "power_max_mw": Key("highest limit that can be set"),
    "power_default_mw": Key("limit after initialisation"),
    "power_limit_mw": Key("limit asked for through NVML (lifecycle)", volatile=True, setting=True),
    "power_usage_mw": Key("draw; at most the enforced limit; sine: allowed"),
    "power_average": Key("0: no one second average (GA100)"),
    "bmc_cap_mw": Key("limit set by the board controller: enforced, not requested, not removable through NVML"),
    "set_power_noop": Key("1: a power limit is accepted and dropped"),
    "energy_mj": Key("added to the energy since driver load", volatile=True),
    # modes
    "persistence_mode": Key("0 or 1", volatile=True, setting=True),
    "epoch": Key("internal: when the lifecycle values were stored", volatile=True, setting=True),
    "compute_mode": Key("0 default, 2 prohibited, 3 exclusive process (lifecycle)", volatile=True, setting=True),
    "accounting_mode": Key("0 or 1", volatile=True, setting=True),
    "mig_mode": Key("0 or 1; clear-faults makes the card whole again"),
    "mig_mode_pending": Key("becomes mig_mode at the next reset or boot"),
    "mig_gpu_instances": Key(
        "GPU instances, id:profile id:first memory slice;… with mig_mode=1 memory health is then not supported",
        volatile=True,
    ),
    "mig_compute_instances": Key("compute instances, GPU instance/id:profile id:first slice;…", volatile=True),
    "mig_max_devices": Key("0: no MIG"),
    "mig_resetless": Key("field 184; 1: the MIG mode changes without a reset, and is off after a boot"),
    "ecc_mode": Key("0 or 1", setting=True),
    "ecc_mode_pending": Key("becomes ecc_mode at the next reset or boot", setting=True),
    # temperatures, degrees C
    "temperature_gpu": Key("core; sine: allowed"),
    "temperature_memory": Key("HBM, field 82; sine: allowed; absent: not supported"),
    "threshold_shutdown": Key("threshold"),
    "threshold_slowdown": Key("threshold"),
    "threshold_mem_max": Key("threshold"),
    "threshold_gpu_max": Key("threshold"),
    "tlimit_shutdown": Key("field 193; Ada and newer"),
    "tlimit_slowdown": Key("field 194; Ada and newer"),
    "tlimit_mem_max": Key("field 195; Ada and newer"),
    "tlimit_gpu_max": Key("field 196; Ada and newer"),
    "fan_speed": Key("percent; absent on passive boards"),
    "fans": Key("number of fans"),
    # clocks, MHz
    **{f"clock_{name}": Key("clock now") for name in ("graphics", "sm", "mem", "video")},
    **{f"clock_max_{name}": Key("highest clock") for name in ("graphics", "sm", "mem", "video")},
    **{f"app_clock_default_{name}": Key("default application clock") for name in ("graphics", "mem", "sm", "video")},
    "app_clock_graphics": Key("application clock asked for (lifecycle)", volatile=True, setting=True),
    "app_clock_mem": Key("application clock asked for (lifecycle)", volatile=True, setting=True),
    **{
        f"locked_clock_{name}_{end}": Key("locked clocks asked for (lifecycle)", volatile=True, setting=True)
        for name in ("graphics", "mem")
        for end in ("min", "max")
    },
    "clocks_event_reasons": Key("bit mask, if not worked out from load and power"),
    "pstate": Key("performance state, 0-15"),
    **{
        f"violation_{name}_ns": Key("time held back by this policy", volatile=True)
        for name in ("power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability", "other")
    },
    # load and memory
    "utilization_gpu": Key("percent; sine: allowed", volatile=True),
    "utilization_memory": Key("percent", volatile=True),
    "utilization_encoder": Key("percent", volatile=True),
    "utilization_decoder": Key("percent", volatile=True),
    "utilization_jpeg": Key("percent", volatile=True),
    "utilization_ofa": Key("percent", volatile=True),
    "memory_mib": Key("memory"),
    "memory_reserved_mib": Key("the driver's share"),
    "memory_used_mib": Key("memory of processes", volatile=True),
    "bar1_mib": Key("BAR1"),
    "processes_compute": Key("pid:MiB;pid:MiB, with MIG pid:MiB:GPU instance:compute instance", volatile=True),
    "processes_graphics": Key("pid:MiB;pid:MiB", volatile=True),
    "processes_mps": Key("pid:MiB;pid:MiB", volatile=True),
    # memory health
    **{
        f"ecc_volatile_{kind}": Key("ECC errors since initialisation (lifecycle)", volatile=True)
        for kind in ("corrected", "uncorrected")
    },
    **{f"ecc_aggregate_{kind}": Key("ECC errors of the board's life") for kind in ("corrected", "uncorrected")},
    **{
        f"ecc_volatile_{kind}_sram": Key("of these in SRAM (lifecycle)", volatile=True)
        for kind in ("corrected", "uncorrected")
    },
    **{f"ecc_aggregate_{kind}_sram": Key("of these in SRAM") for kind in ("corrected", "uncorrected")},
    "ecc_sram_threshold_exceeded": Key("1: bThresholdExceeded"),
    "remapped_corrected": Key("rows remapped for correctable errors"),
    "remapped_uncorrected": Key("rows remapped for uncorrectable errors"),
    "remapped_pending": Key("1: a remapping waits for a reset"),
    "remapped_failure": Key("1: a remapping failed"),
    "remap_banks": Key("banks with spare rows"),
    "remap_histogram": Key("max,high,partial,low,none, if not worked out"),
    "retired_pages_single": Key("addresses; absent: not supported (Ampere remaps rows instead)"),
    "retired_pages_double": Key("addresses; absent: not supported"),
    "retired_pages_pending": Key("0 or 1; absent: not supported"),
    "recovery_action": Key("field 230; absent: not supported (driver 550)"),
    # NVLink
    "nvlink_links": Key("links of the board, with or without a bridge"),
    "nvlink_active": Key("bit mask of links that are up"),
    "nvlink_peer": Key("slot of the GPU at the other end of the bridge"),
    "nvlink_version": Key("NVLink version"),
    "nvlink_speed_mbps": Key("field 90"),
    "c2c_links": Key("field 170"),
    "fabric_state": Key("0 not supported, 3 completed"),
    # presence
    "lost": Key("1: fell off the bus; every call and the look-up fail with 15"),
    "removed": Key("1: taken out of the driver's view (nvmlDeviceRemoveGpu); indices close up", volatile=True),
    "drain": Key("1: not seen by processes that start now", volatile=True),
    "excluded": Key("1: left out by the module option NVreg_ExcludedGpus"),
    "event_types": Key("supported event types"),
}

PATTERNS: dict[str, Key] = {
    r"(fault|noop|delay_ms)\.(\*|nvml\w+)": Key("error code, dropped set, delay (negative: for ever) of one function"),
    r"fault\.field\.\d+": Key("error code of one field value"),
    r"mig_profile_\d": Key(
        "what the card can be cut into, by NVML_GPU_INSTANCE_PROFILE_*: "
        "name:id:slices:instances:SMs:copy engines:decoders:JPEG:OFA:MiB:memory slices:start,start…; empty: not this"
    ),
    r"nvlink_\d+_(replay|recovery|crc_flit|crc_data|ecc_data)": Key("error counter of one link", volatile=True),
}
HOST_PATTERNS: dict[str, Key] = {
    r"(fault|noop|delay_ms)\.(\*|nvml\w+)": Key("the same for every GPU, or for calls without one"),
    r"fault\.field\.\d+": Key("the same for every GPU"),
    r"process\.\d+\.name": Key("name of a process", volatile=True),
    r"event\.\d+": Key("<gpu>:<type, hex>:<data>", volatile=True),
    r"override\.\S+": Key("what init was told to change in the profile"),
}


class UnknownKeyError(Exception):
    """Thing seen and what was meant, perhaps."""


def find(key: str) -> Key:
    """The key's entry. A misspelt key would be a fault that never happens, so it is refused."""
    gpu, name = statefiles.split_key(key)
    table, patterns = (HOST, HOST_PATTERNS) if gpu is None else (GPU, PATTERNS)
    entry: Key | None = table.get(name)
    if entry is None:
        entry = next((value for pattern, value in patterns.items() if re.fullmatch(pattern, name)), None)
    if entry is None:
        near: list[str] = difflib.get_close_matches(name, [*HOST, *GPU], n=3)
        where = "" if gpu is not None or name not in GPU else " (it belongs to a GPU: gpu.N." + name + ")"
        raise UnknownKeyError(
            f"no key {key!r}{where}" + (f"; near: {', '.join(near)}" if near else "") + "; see: emulator.py keys"
        )
    return entry
