/* NVLink and fabric. PCIe boards have links that are down unless a bridge sits on them. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <string.h>

int emu_nvlink_count(int gpu) { return (int)emu_gpu_int(gpu, "nvlink_links", 0); }

static nvmlReturn_t link_exists(int gpu, unsigned int link)
{
    if (emu_nvlink_count(gpu) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return link < (unsigned int)emu_nvlink_count(gpu) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static bool link_up(int gpu, unsigned int link) { return emu_gpu_int(gpu, "nvlink_active", 0) >> link & 1; }

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
    DEVICE(device);
    NEED(state);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *state = link_up(gpu, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    DEVICE(device);
    NEED(version);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *version = (unsigned int)emu_gpu_int(gpu, "nvlink_version", 3);
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability,
                                           unsigned int *out)
{
    DEVICE(device);
    NEED(out && capability < NVML_NVLINK_CAP_COUNT);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *out = link_up(gpu, link) && capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *out)
{
    static const char *const names[NVML_NVLINK_ERROR_COUNT] = {"replay", "recovery", "crc_flit", "crc_data",
                                                               "ecc_data"};
    char key[64];
    DEVICE(device);
    NEED(out && counter < NVML_NVLINK_ERROR_COUNT);
    nvmlReturn_t got = link_exists(gpu, link);
    snprintf(key, sizeof(key), "nvlink_%u_%s", link, names[counter]);
    if (got == NVML_SUCCESS)
        *out = (unsigned long long)emu_gpu_int(gpu, key, 0);
    return got;
}

/* The peer at the other end of a bridge: gpu.N.nvlink_peer names its slot. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    NEED(pci);
    nvmlReturn_t got = link_exists(gpu, link);
    int peer = (int)emu_gpu_int(gpu, "nvlink_peer", -1);
    if (got != NVML_SUCCESS)
        return got;
    if (!link_up(gpu, link) || peer < 0 || peer >= emu_gpu_count())
        return NVML_ERROR_NOT_SUPPORTED;
    emu_fill_pci(peer, pci);
    return NVML_SUCCESS;
}

static unsigned char fabric_state(int gpu)
{
    return (unsigned char)emu_gpu_int(gpu, "fabric_state", NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    DEVICE(device);
    NEED(out);
    memset(out, 0, sizeof(*out));
    out->state = fabric_state(gpu);
    return out->state ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    DEVICE(device);
    NEED(out);
    if (out->version != nvmlGpuFabricInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, sizeof(*out));
    out->version = nvmlGpuFabricInfo_v2;
    out->state = fabric_state(gpu);
    return out->state ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
