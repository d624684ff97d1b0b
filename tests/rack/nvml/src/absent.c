/* What a passive PCIe board under a bare-metal driver has not, or has none of. Exported because nvidia-smi and pynvml
 * ask for it, and "Function Not Found" would be another answer (an old driver) than the true one. */
#define _GNU_SOURCE
#include "call.h"

#include <string.h>

#define NOT_SUPPORTED(name, ...) \
    nvmlReturn_t name(nvmlDevice_t device, __VA_ARGS__) \
    { \
        DEVICE(device); \
        (void)gpu; \
        return NVML_ERROR_NOT_SUPPORTED; \
    }

#pragma GCC diagnostic ignored "-Wunused-parameter"

NOT_SUPPORTED(nvmlDeviceGetDriverModel, nvmlDriverModel_t *current, nvmlDriverModel_t *pending) /* Windows */
NOT_SUPPORTED(nvmlDeviceGetGpuOperationMode, nvmlGpuOperationMode_t *current,
              nvmlGpuOperationMode_t *pending)                                   /* some Kepler boards */
NOT_SUPPORTED(nvmlDeviceGetBridgeChipInfo, nvmlBridgeChipHierarchy_t *hierarchy) /* boards with two GPUs */
NOT_SUPPORTED(nvmlDeviceGetC2cModeInfoV, nvmlC2cModeInfo_v1_t *info)             /* Grace */
NOT_SUPPORTED(nvmlDeviceGetAutoBoostedClocksEnabled, nvmlEnableState_t *enabled,
              nvmlEnableState_t *by_default)                       /* Kepler, Maxwell */
NOT_SUPPORTED(nvmlDeviceGetHostVgpuMode, nvmlHostVgpuMode_t *mode) /* vGPU hosts */
NOT_SUPPORTED(nvmlDeviceGetVgpuHeterogeneousMode, nvmlVgpuHeterogeneousMode_t *mode)
NOT_SUPPORTED(nvmlDeviceGetSupportedVgpus, unsigned int *count, nvmlVgpuTypeId_t *types)
NOT_SUPPORTED(nvmlDeviceGetCreatableVgpus, unsigned int *count, nvmlVgpuTypeId_t *types)
NOT_SUPPORTED(nvmlDeviceGetActiveVgpus, unsigned int *count, nvmlVgpuInstance_t *instances)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2, unsigned int fan, unsigned int *speed) /* passive */
NOT_SUPPORTED(nvmlDeviceGetGpcClkVfOffset, int *offset)                        /* overclocking: consumer boards */
NOT_SUPPORTED(nvmlDeviceGetConfComputeMemSizeInfo, nvmlConfComputeMemSizeInfo_t *info)
/* A ring of samples that a client can read in one go; here there is only the present value. */
NOT_SUPPORTED(nvmlDeviceGetSamples, nvmlSamplingType_t type, unsigned long long since, nvmlValueType_t *value_type,
              unsigned int *count, nvmlSample_t *samples)

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE(device);
    (void)gpu;
    NEED(memory);
    memset(memory, 0, sizeof(*memory)); /* confidential computing is off */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps,
                                       unsigned int *latency)
{
    DEVICE(device);
    (void)gpu;
    NEED(sessions && fps && latency);
    *sessions = *fps = *latency = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned int *count, nvmlEncoderSessionInfo_t *sessions)
{
    DEVICE(device);
    (void)gpu;
    (void)sessions;
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCStats(nvmlDevice_t device, nvmlFBCStats_t *stats)
{
    DEVICE(device);
    (void)gpu;
    NEED(stats);
    memset(stats, 0, sizeof(*stats));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned int *count, nvmlFBCSessionInfo_t *sessions)
{
    DEVICE(device);
    (void)gpu;
    (void)sessions;
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    DEVICE(device);
    (void)gpu;
    (void)pids;
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    DEVICE(device);
    (void)gpu;
    (void)pid;
    NEED(stats);
    return NVML_ERROR_NOT_FOUND; /* nothing ever computed here */
}
