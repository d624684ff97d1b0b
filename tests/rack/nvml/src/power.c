/* Power, in mW: limits asked for and enforced, draw, energy. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <time.h>

unsigned int emu_power_limit(int gpu)
{
    return (unsigned int)emu_life_int(gpu, "power_limit_mw", emu_gpu_int(gpu, "power_default_mw", 0));
}

/* The lowest of all limiters; the board controller's is the one that NVML cannot set. */
unsigned int emu_enforced_limit(int gpu)
{
    unsigned int asked = emu_power_limit(gpu);
    return emu_min(asked, (unsigned int)emu_gpu_int(gpu, "bmc_cap_mw", asked));
}

unsigned int emu_power_usage(int gpu)
{
    long long drawn = emu_gpu_int(gpu, "power_usage_mw", 0);
    return drawn <= 0 ? 0 : emu_min((unsigned int)drawn, emu_enforced_limit(gpu));
}

/* mJ since driver load. The base of a `sine:` value is its mean, which keeps the counter from running backwards. */
unsigned long long emu_energy(int gpu)
{
    double base = 0;
    const char *usage = emu_gpu(gpu, "power_usage_mw");
    struct timespec now;
    if (usage && sscanf(usage, "sine:%lf", &base) != 1)
        base = emu_number(usage, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    double loaded = emu_number(emu_get("driver_load_time"), (double)now.tv_sec);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - loaded;
    return (unsigned long long)(emu_number(emu_gpu(gpu, "energy_mj"), 0) + (seconds > 0 ? seconds * base : 0));
}

COMPUTED(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
COMPUTED(nvmlDeviceGetPowerManagementLimit, unsigned int, emu_power_limit(gpu))
COMPUTED(nvmlDeviceGetEnforcedPowerLimit, unsigned int, emu_enforced_limit(gpu))
COMPUTED(nvmlDeviceGetPowerUsage, unsigned int, emu_power_usage(gpu))
COMPUTED(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, emu_energy(gpu))
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_mw")

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min, unsigned int *max)
{
    DEVICE(device);
    NEED(min && max);
    nvmlReturn_t got = emu_key(gpu, "power_min_mw", min);
    return got == NVML_SUCCESS ? emu_key(gpu, "power_max_mw", max) : got;
}

static nvmlReturn_t set_power_limit(int gpu, bool noop, unsigned int limit)
{
    if (!emu_gpu(gpu, "power_max_mw"))
        return NVML_ERROR_NOT_SUPPORTED;
    NEED(limit >= (unsigned int)emu_gpu_int(gpu, "power_min_mw", 0) &&
         limit <= (unsigned int)emu_gpu_int(gpu, "power_max_mw", 0));
    noop = noop || emu_gpu_int(gpu, "set_power_noop", 0);
    return noop ? NVML_SUCCESS : emu_stored(emu_store_life(gpu, "power_limit_mw", limit));
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
    SETTER(device);
    return set_power_limit(gpu, noop, limit);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    SETTER(device);
    NEED(value);
    if (value->version != nvmlPowerValue_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (value->powerScope != NVML_POWER_SCOPE_GPU) /* an unsigned char with padding behind it, not an int */
        return NVML_ERROR_NOT_SUPPORTED;
    return set_power_limit(gpu, noop, value->powerValueMw);
}
