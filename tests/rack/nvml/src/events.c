/* Events. emulator.py appends `event.<seq>=<gpu>:<type>:<data>` to the volatile file and raises `event_seq`; a set
 * remembers the sequence number at which each GPU was registered: what happened before registration is not delivered,
 * as in the real library. */
#define _GNU_SOURCE
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The file is looked at this often while waiting. inotify would be prompter, but its instances are few per user and
 * every container of the rack shares root's. */
#define POLL_NS 20000000

struct nvmlEventSet_st {
    unsigned long long types[EMU_MAX_GPUS];
    long long since[EMU_MAX_GPUS]; /* events up to this number are history for this GPU */
    long long delivered;           /* events up to this number were handed out */
};

static long long last_event(void) { return emu_int("event_seq", 0); }

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER();
    NEED(set);
    *set = calloc(1, sizeof(**set));
    if (*set)
        (*set)->delivered = last_event();
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER();
    NEED(set);
    free(set);
    return NVML_SUCCESS;
}

/* What 550 knows; a newer binding's "all" has more bits and is refused. */
static unsigned long long supported(int gpu)
{
    return (unsigned long long)emu_number(emu_gpu(gpu, "event_types"),
                                          (double)(nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |
                                                   nvmlEventTypePState | nvmlEventTypeXidCriticalError |
                                                   nvmlEventTypeClock));
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    DEVICE(device);
    NEED(types);
    *types = supported(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    DEVICE(device);
    NEED(set);
    if (types & ~supported(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!set->types[gpu])
        set->since[gpu] = last_event();
    set->types[gpu] |= types;
    return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (long long last = last_event(); set->delivered < last;) {
        char key[48];
        int slot;
        unsigned long long type, value;
        long long number = ++set->delivered;
        snprintf(key, sizeof(key), "event.%lld", number);
        const char *text = emu_get(key);
        if (!text || sscanf(text, "%d:%llx:%llu", &slot, &type, &value) != 3 || slot < 0 || slot >= emu_gpu_count())
            continue; /* old ones are dropped from the file */
        if (number <= set->since[slot] || !(set->types[slot] & type))
            continue;
        data->device = &emu_devices[slot];
        data->eventType = type;
        data->eventData = value;
        data->gpuInstanceId = data->computeInstanceId = 0xffffffffu;
        return true;
    }
    return false;
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

static nvmlReturn_t wait_for(const char *function, nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    GUARD;
    (void)guard_;
    nvmlReturn_t entered = emu_enter(function);
    if (entered != NVML_SUCCESS)
        return entered;
    NEED(set && data);
    for (long long end = now_ns() + timeout_ms * 1000000ll;;) {
        if (next_event(set, data))
            return NVML_SUCCESS;
        long long left = end - now_ns();
        if (left <= 0)
            return NVML_ERROR_TIMEOUT;
        struct timespec nap = {0, left < POLL_NS ? left : POLL_NS};
        emu_unlock();
        nanosleep(&nap, NULL);
        emu_lock();
        if (!emu_attached())
            return NVML_ERROR_UNINITIALIZED;
        emu_refresh();
    }
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return wait_for(__func__, set, data, timeout_ms);
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    return wait_for(__func__, set, data, timeout_ms);
}
