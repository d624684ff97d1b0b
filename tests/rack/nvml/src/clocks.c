/* Temperatures, clocks, and what holds the clocks back. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <time.h>

/* ---- temperatures (degrees C) ---- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
    DEVICE(device);
    NEED(sensor < NVML_TEMPERATURE_COUNT);
    return emu_key(gpu, "temperature_gpu", out);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                               unsigned int *out)
{
    static const char *const keys[] = {"threshold_shutdown", "threshold_slowdown", "threshold_mem_max",
                                       "threshold_gpu_max"};
    DEVICE(device);
    NEED(threshold < NVML_TEMPERATURE_THRESHOLD_COUNT);
    if (threshold >= sizeof(keys) / sizeof(keys[0]))
        return NVML_ERROR_NOT_SUPPORTED; /* acoustic ones: boards with fans */
    return emu_key(gpu, keys[threshold], out);
}

NUMBER(nvmlDeviceGetFanSpeed, unsigned int, "fan_speed") /* passive boards have none */
COMPUTED(nvmlDeviceGetNumFans, unsigned int, emu_gpu_int(gpu, "fans", 0))

/* ---- clocks (MHz) ---- */

static const char *const clock_names[NVML_CLOCK_COUNT] = {"graphics", "sm", "mem", "video"};

static nvmlReturn_t clock_key(int gpu, const char *prefix, nvmlClockType_t type, unsigned int *out)
{
    char key[64];
    NEED(type < NVML_CLOCK_COUNT);
    snprintf(key, sizeof(key), "%s_%s", prefix, clock_names[type]);
    return emu_key(gpu, key, out);
}

static nvmlReturn_t app_clock(int gpu, nvmlClockType_t type, unsigned int *out)
{
    nvmlReturn_t got = clock_key(gpu, "app_clock_default", type == NVML_CLOCK_SM ? NVML_CLOCK_GRAPHICS : type, out);
    if (got != NVML_SUCCESS)
        return got;
    *out = (unsigned int)emu_life_int(gpu, type == NVML_CLOCK_MEM ? "app_clock_mem" : "app_clock_graphics", *out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock", type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock_max", type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock_max", type, clock);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return app_clock(gpu, type, clock);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "app_clock_default", type, clock);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *clock)
{
    DEVICE(device);
    switch (id) {
    case NVML_CLOCK_ID_CURRENT: return clock_key(gpu, "clock", type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET: return app_clock(gpu, type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT: return clock_key(gpu, "app_clock_default", type, clock);
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX: return clock_key(gpu, "clock_max", type, clock);
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* Steps from the highest down, as NVML lists them. */
static nvmlReturn_t clock_list(unsigned int top, unsigned int bottom, unsigned int step, unsigned int *count,
                               unsigned int *clocks)
{
    unsigned int room = *count, needed = (top - bottom) / step + 1;
    *count = needed;
    if (!clocks || room < needed)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < needed; i++)
        clocks[i] = top - i * step;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
    DEVICE(device);
    unsigned int top;
    NEED(count);
    nvmlReturn_t got = clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &top);
    return got == NVML_SUCCESS ? clock_list(top, top, 1, count, clocks) : got; /* HBM boards have one */
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count,
                                                  unsigned int *clocks)
{
    DEVICE(device);
    unsigned int top, only;
    NEED(count);
    nvmlReturn_t got = clock_key(gpu, "clock_max", NVML_CLOCK_GRAPHICS, &top);
    if (got == NVML_SUCCESS)
        got = clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &only);
    if (got == NVML_SUCCESS && memory != only)
        got = NVML_ERROR_NOT_FOUND;
    return got == NVML_SUCCESS ? clock_list(top, 210, 15, count, clocks) : got;
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory, unsigned int graphics)
{
    SETTER(device);
    unsigned int top_memory = 0, top_graphics = 0;
    clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &top_memory);
    clock_key(gpu, "clock_max", NVML_CLOCK_GRAPHICS, &top_graphics);
    NEED(memory == top_memory && graphics >= 210 && graphics <= top_graphics);
    if (noop)
        return NVML_SUCCESS;
    return emu_stored(emu_store_life(gpu, "app_clock_mem", memory) &&
                      emu_store_life(gpu, "app_clock_graphics", graphics));
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    SETTER(device);
    return noop ? NVML_SUCCESS
                : emu_stored(emu_forget_life(gpu, "app_clock_mem") && emu_forget_life(gpu, "app_clock_graphics"));
}

static nvmlReturn_t lock_clocks(int gpu, bool noop, const char *which, unsigned int min, unsigned int max)
{
    char low[64], high[64];
    NEED(min <= max);
    snprintf(low, sizeof(low), "locked_clock_%s_min", which);
    snprintf(high, sizeof(high), "locked_clock_%s_max", which);
    return noop ? NVML_SUCCESS : emu_stored(emu_store_life(gpu, low, min) && emu_store_life(gpu, high, max));
}

static nvmlReturn_t unlock_clocks(int gpu, bool noop, const char *which)
{
    char low[64], high[64];
    snprintf(low, sizeof(low), "locked_clock_%s_min", which);
    snprintf(high, sizeof(high), "locked_clock_%s_max", which);
    return noop ? NVML_SUCCESS : emu_stored(emu_forget_life(gpu, low) && emu_forget_life(gpu, high));
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min, unsigned int max)
{
    SETTER(device);
    return lock_clocks(gpu, noop, "graphics", min, max);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    SETTER(device);
    return unlock_clocks(gpu, noop, "graphics");
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min, unsigned int max)
{
    SETTER(device);
    return lock_clocks(gpu, noop, "mem", min, max);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    SETTER(device);
    return unlock_clocks(gpu, noop, "mem");
}

/* Told outright by clocks_event_reasons, else what follows from load and power: idle, or held at the cap. */
static unsigned long long event_reasons(int gpu)
{
    const char *told = emu_gpu(gpu, "clocks_event_reasons");
    if (told)
        return (unsigned long long)emu_number(told, 0);
    if (emu_gpu_int(gpu, "utilization_gpu", 0) == 0)
        return nvmlClocksEventReasonGpuIdle;
    return emu_gpu_int(gpu, "power_usage_mw", 0) >= emu_enforced_limit(gpu) ? nvmlClocksEventReasonSwPowerCap
                                                                            : nvmlClocksEventReasonNone;
}

COMPUTED(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, event_reasons(gpu))
COMPUTED(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, event_reasons(gpu))
COMPUTED(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
COMPUTED(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
COMPUTED(nvmlDeviceGetPerformanceState, nvmlPstates_t, emu_gpu_int(gpu, "pstate", 0))
COMPUTED(nvmlDeviceGetPowerState, nvmlPstates_t, emu_gpu_int(gpu, "pstate", 0))

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t *time_ns)
{
    static const char *const names[NVML_PERF_POLICY_COUNT] = {"power",       "thermal",         "sync_boost",
                                                              "board_limit", "low_utilization", "reliability"};
    struct timespec now;
    char key[64];
    DEVICE(device);
    NEED(time_ns && policy < NVML_PERF_POLICY_COUNT);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(key, sizeof(key), "violation_%s_ns", names[policy] ? names[policy] : "other");
    time_ns->referenceTime = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    time_ns->violationTime = (unsigned long long)emu_gpu_int(gpu, key, 0);
    return NVML_SUCCESS;
}
