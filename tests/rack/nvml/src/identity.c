/* What a card is, its firmware, and where it sits. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- identity ---- */

TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
NUMBER(nvmlDeviceGetModuleId, unsigned int, "module_id")
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, "cuda_cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, "memory_bus_width")
NUMBER(nvmlDeviceGetIrqNum, unsigned int, "irq")
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, "gpu_numa_node") /* GPU memory as a NUMA node: coherent systems only */
COMPUTED(nvmlDeviceGetBoardId, unsigned int, ({
             unsigned int d, b, n;
             emu_bus_id(gpu, &d, &b, &n);
             b << 8 | n;
         }))
COMPUTED(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
COMPUTED(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
COMPUTED(nvmlDeviceGetDisplayMode, nvmlEnableState_t, emu_gpu_int(gpu, "display_mode", 0))
COMPUTED(nvmlDeviceGetDisplayActive, nvmlEnableState_t, emu_gpu_int(gpu, "display_active", 0))
COMPUTED(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
COMPUTED(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE(device);
    const char *text = emu_gpu(gpu, "cuda_capability");
    NEED(major && minor);
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    DEVICE(one);
    (void)gpu;
    NEED(same && other);
    *same = one == other;
    return NVML_SUCCESS;
}

/* ---- firmware ---- */

TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *out,
                                         unsigned int length)
{
    static const char *const keys[NVML_INFOROM_COUNT] = {"inforom_oem", "inforom_ecc", "inforom_power"};
    DEVICE(device);
    NEED(object < NVML_INFOROM_COUNT);
    return emu_copy(out, length, emu_gpu(gpu, keys[object]));
}

/* Follows driver and ECC setting as the real one does, so it is no fingerprint of the firmware alone. */
nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned int *checksum)
{
    DEVICE(device);
    NEED(checksum);
    if (!emu_gpu_int(gpu, "inforom_valid", 1))
        return NVML_ERROR_CORRUPTED_INFOROM;
    unsigned int sum = 2166136261u; /* FNV-1a */
    const char *parts[] = {emu_gpu(gpu, "inforom_image"), emu_gpu(gpu, "serial"), emu_get("driver_version"),
                           emu_gpu(gpu, "ecc_mode")};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        for (const char *c = parts[i]; c && *c; c++)
            sum = (sum ^ (unsigned char)*c) * 16777619u;
    *checksum = (unsigned int)emu_gpu_int(gpu, "inforom_checksum", sum);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    DEVICE(device);
    return emu_gpu_int(gpu, "inforom_valid", 1) ? NVML_SUCCESS : NVML_ERROR_CORRUPTED_INFOROM;
}

nvmlReturn_t nvmlDeviceGetLastBBXFlushTime(nvmlDevice_t device, unsigned long long *timestamp, unsigned long *duration)
{
    DEVICE(device);
    NEED(timestamp && duration);
    *timestamp = 0; /* never flushed */
    *duration = 0;
    return NVML_SUCCESS;
}

/* Comes with the driver, so it follows the driver's version unless a fault says otherwise. */
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    DEVICE(device);
    const char *own = emu_gpu(gpu, "gsp");
    return emu_copy(version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, own ? own : emu_get("driver_version"));
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *by_default)
{
    DEVICE(device);
    NEED(enabled && by_default);
    *enabled = (unsigned int)emu_gpu_int(gpu, "gsp_mode", 1);
    *by_default = 1;
    return NVML_SUCCESS;
}

/* ---- where it sits ---- */

/* `0-15,32-47` into the bits of `words`. */
static void cpu_bits(const char *list, unsigned int count, unsigned long *words)
{
    const unsigned int bits = 8 * sizeof(unsigned long);
    memset(words, 0, count * sizeof(*words));
    for (const char *at = list; at && *at;) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at)
            return;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu / bits < count; cpu++)
            words[cpu / bits] |= 1ul << cpu % bits;
        at = *end == ',' ? end + 1 : end;
    }
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int count, unsigned long *cpus)
{
    DEVICE(device);
    NEED(cpus && count);
    cpu_bits(emu_gpu(gpu, "local_cpulist"), count, cpus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int count, unsigned long *cpus,
                                                 nvmlAffinityScope_t scope)
{
    DEVICE(device);
    (void)scope;
    NEED(cpus && count);
    cpu_bits(emu_gpu(gpu, "local_cpulist"), count, cpus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int count, unsigned long *nodes,
                                         nvmlAffinityScope_t scope)
{
    DEVICE(device);
    (void)scope;
    NEED(nodes && count);
    cpu_bits(emu_gpu(gpu, "numa_node"), count, nodes);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    DEVICE(one);
    NEED(level && other >= emu_devices && other < emu_devices + EMU_MAX_GPUS && other->slot < emu_gpu_count());
    bool same_node = emu_gpu_int(gpu, "numa_node", 0) == emu_gpu_int(other->slot, "numa_node", 0);
    *level = one == other ? NVML_TOPOLOGY_INTERNAL : same_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t what,
                                    nvmlGpuP2PStatus_t *status)
{
    DEVICE(one);
    NEED(status && other >= emu_devices && other < emu_devices + EMU_MAX_GPUS && other->slot < emu_gpu_count());
    bool bridged = emu_gpu_int(gpu, "nvlink_active", 0) && emu_gpu_int(gpu, "nvlink_peer", -1) == other->slot;
    *status = what == NVML_P2P_CAPS_INDEX_NVLINK && !bridged ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}
