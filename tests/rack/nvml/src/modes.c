/* Persistence, compute and accounting modes. */
#define _GNU_SOURCE
#include "shapes.h"

COMPUTED(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, emu_persistence(gpu))

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    SETTER(device);
    NEED(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return noop ? NVML_SUCCESS : emu_stored(emu_store_life(gpu, "persistence_mode", mode));
}

COMPUTED(nvmlDeviceGetComputeMode, nvmlComputeMode_t, emu_life_int(gpu, "compute_mode", 0))

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    SETTER(device);
    NEED(mode < NVML_COMPUTEMODE_COUNT);
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD ||
        emu_gpu_int(gpu, "mig_mode", 0)) /* gone since CUDA 8; not under MIG */
        return NVML_ERROR_NOT_SUPPORTED;
    return noop ? NVML_SUCCESS : emu_stored(emu_store_life(gpu, "compute_mode", mode));
}

COMPUTED(nvmlDeviceGetAccountingMode, nvmlEnableState_t, emu_gpu_int(gpu, "accounting_mode", 0))
COMPUTED(nvmlDeviceGetAccountingBufferSize, unsigned int, 4000)

nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    SETTER(device);
    NEED(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return noop ? NVML_SUCCESS : emu_set_key(EMU_VOLATILE, gpu, "accounting_mode", mode);
}
