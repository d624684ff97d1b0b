/* Persistence, compute, accounting and MIG modes. */
#define _GNU_SOURCE
#include "shapes.h"

/* ---- modes ---- */

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

/* ---- MIG: the mode only, no instances to compute on ---- */

/* True when instances are said to exist: then per-GPU memory health is not to be had. */
bool emu_mig_instances(int gpu) { return emu_gpu_int(gpu, "mig_mode", 0) && emu_gpu_int(gpu, "mig_instances", 0) > 0; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    DEVICE(device);
    NEED(current && pending);
    if (emu_gpu_int(gpu, "mig_max_devices", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = (unsigned int)emu_gpu_int(gpu, "mig_mode", 0);
    *pending = (unsigned int)emu_gpu_int(gpu, "mig_mode_pending", *current);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    SETTER(device);
    NEED(activation && mode <= NVML_DEVICE_MIG_ENABLE);
    if (emu_gpu_int(gpu, "mig_max_devices", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const char *running = emu_gpu(gpu, "processes_compute");
    *activation = running && *running ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    nvmlReturn_t done = noop ? NVML_SUCCESS : emu_set_key(EMU_IDENTITY, gpu, "mig_mode_pending", mode);
    if (done == NVML_SUCCESS && *activation == NVML_SUCCESS && !noop)
        done = emu_set_key(EMU_IDENTITY, gpu, "mig_mode", mode);
    return done;
}

COMPUTED(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, "mig_max_devices")

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    DEVICE(device);
    NEED(mig && index < (unsigned int)emu_gpu_int(gpu, "mig_max_devices", 0));
    return emu_gpu_int(gpu, "mig_mode", 0) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    DEVICE(mig);
    (void)gpu;
    NEED(device);
    return NVML_ERROR_INVALID_ARGUMENT; /* no handle of ours is one of a MIG device */
}
