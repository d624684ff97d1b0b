/* Which GPUs there are and how they are found; excluded, drained and removed ones. */
#define _GNU_SOURCE
#include "call.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static unsigned int drained; /* bit per slot: draining when this process connected */

/* ---- which GPUs there are ---- */

void emu_remember_drained(void)
{
    drained = 0;
    for (int i = 0; i < emu_gpu_count(); i++)
        if (emu_gpu_int(i, "drain", 0))
            drained |= 1u << i;
}

const char *emu_bus_id(int gpu, unsigned int *domain, unsigned int *bus, unsigned int *device)
{
    const char *text = emu_gpu(gpu, "bus_id");
    if (!text || sscanf(text, "%x:%x:%x", domain, bus, device) != 3)
        *domain = *bus = *device = 0;
    return text;
}

static uint64_t bus_key(int gpu)
{
    unsigned int domain, bus, device;
    emu_bus_id(gpu, &domain, &bus, &device);
    return (uint64_t)domain << 16 | bus << 8 | device;
}

static int by_bus(const void *a, const void *b)
{
    uint64_t left = bus_key(*(const int *)a), right = bus_key(*(const int *)b);
    return left < right ? -1 : left > right;
}

int emu_visible(int *slots)
{
    int count = 0;
    for (int i = 0; i < emu_gpu_count(); i++)
        if (!(drained >> i & 1) && !emu_gpu_int(i, "removed", 0) && !emu_gpu_int(i, "excluded", 0))
            slots[count++] = i;
    qsort(slots, (size_t)count, sizeof(int), by_bus);
    return count;
}

static nvmlReturn_t device_count(unsigned int *count)
{
    int slots[EMU_MAX_GPUS];
    NEED(count);
    *count = (unsigned int)emu_visible(slots);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    ENTER();
    return device_count(count);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER();
    return device_count(count);
}

/* A GPU that fell off the bus is still counted and keeps its index, but the look-up says so. */
static nvmlReturn_t hand_out(const char *function, int slot, nvmlDevice_t *device)
{
    nvmlReturn_t injected = emu_injected(function, slot);
    if (injected != NVML_SUCCESS)
        return injected;
    if (emu_gpu_int(slot, "lost", 0))
        return NVML_ERROR_GPU_IS_LOST;
    *device = &emu_devices[slot];
    return NVML_SUCCESS;
}

/* Looks through what is visible; `matches` decides. The injected errors of function and GPU are taken in hand_out(). */
static nvmlReturn_t look_up(const char *function, bool (*matches)(int slot, const void *wanted), const void *wanted,
                            nvmlDevice_t *device)
{
    int slots[EMU_MAX_GPUS], count = emu_visible(slots);
    for (int i = 0; i < count; i++)
        if (matches(slots[i], wanted))
            return hand_out(function, slots[i], device);
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_index(const char *function, unsigned int index, nvmlDevice_t *device)
{
    int slots[EMU_MAX_GPUS];
    unsigned int count = (unsigned int)emu_visible(slots);
    NEED(device && index < count);
    return hand_out(function, slots[index], device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    return by_index(__func__, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    return by_index(__func__, index, device);
}

static bool matches_uuid(int slot, const void *wanted)
{
    const char *uuid = emu_gpu(slot, "uuid");
    return uuid && strcasecmp(uuid, wanted) == 0;
}

static bool matches_serial(int slot, const void *wanted)
{
    const char *serial = emu_gpu(slot, "serial");
    return serial && strcmp(serial, wanted) == 0;
}

struct bus_address {
    unsigned int domain, bus, device;
};

static bool matches_bus(int slot, const void *wanted)
{
    struct bus_address own;
    emu_bus_id(slot, &own.domain, &own.bus, &own.device);
    return memcmp(&own, wanted, sizeof(own)) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    NEED(uuid && device);
    nvmlDevice_t mig = strncmp(uuid, "MIG-", 4) == 0 ? emu_mig_named(uuid) : NULL;
    if (mig) {
        *device = mig;
        return emu_injected(__func__, mig->slot);
    }
    return look_up(__func__, matches_uuid, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    ENTER();
    NEED(serial && device);
    return look_up(__func__, matches_serial, serial, device);
}

static nvmlReturn_t by_bus_id(const char *function, const char *text, nvmlDevice_t *device)
{
    struct bus_address wanted = {0, 0, 0};
    NEED(text && device);
    /* 00000000:31:00.0, 0000:31:00.0 or 31:00.0 */
    if (sscanf(text, "%x:%x:%x", &wanted.domain, &wanted.bus, &wanted.device) != 3) {
        wanted.domain = 0;
        NEED(sscanf(text, "%x:%x", &wanted.bus, &wanted.device) == 2);
    }
    return look_up(function, matches_bus, &wanted, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
{
    ENTER();
    return by_bus_id(__func__, text, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    ENTER();
    return by_bus_id(__func__, text, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    DEVICE(device);
    NEED(index);
    int slots[EMU_MAX_GPUS], count = emu_visible(slots);
    for (int i = 0; i < count; i++)
        if (slots[i] == gpu) {
            *index = (unsigned int)i;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_GPU_IS_LOST;
}

/* ---- excluded by module option ---- */

static int excluded_slots(int *slots)
{
    int count = 0;
    for (int i = 0; i < emu_gpu_count(); i++)
        if (emu_gpu_int(i, "excluded", 0))
            slots[count++] = i;
    return count;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int *count)
{
    int slots[EMU_MAX_GPUS];
    ENTER();
    NEED(count);
    *count = (unsigned int)excluded_slots(slots);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int index, nvmlExcludedDeviceInfo_t *info)
{
    int slots[EMU_MAX_GPUS];
    ENTER();
    NEED(info && index < (unsigned int)excluded_slots(slots));
    memset(info, 0, sizeof(*info));
    emu_fill_pci(slots[index], &info->pciInfo);
    return emu_copy(info->uuid, sizeof(info->uuid), emu_gpu(slots[index], "uuid"));
}

/* ---- drain, remove, discover ---- */

int emu_slot_of_pci(const nvmlPciInfo_t *pci)
{
    for (int i = 0; pci && i < emu_gpu_count(); i++) {
        struct bus_address own;
        emu_bus_id(i, &own.domain, &own.bus, &own.device);
        if (own.domain == pci->domain && own.bus == pci->bus && own.device == pci->device)
            return i;
    }
    return -1;
}

static nvmlReturn_t set_flag(int slot, const char *name, const char *value)
{
    emu_change change = {.value = value};
    snprintf(change.key, sizeof(change.key), "gpu.%d.%s", slot, name);
    return emu_store(EMU_VOLATILE, &change, 1) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceModifyDrainState(nvmlPciInfo_t *pci, nvmlEnableState_t state)
{
    ENTER();
    int slot = emu_slot_of_pci(pci);
    NEED(slot >= 0 && (state == NVML_FEATURE_DISABLED || state == NVML_FEATURE_ENABLED));
    nvmlReturn_t injected = emu_injected(__func__, slot);
    if (injected != NVML_SUCCESS)
        return injected;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    if (emu_persistence(slot))
        return NVML_ERROR_IN_USE;
    return set_flag(slot, "drain", state == NVML_FEATURE_ENABLED ? "1" : NULL);
}

nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *pci, nvmlEnableState_t *state)
{
    ENTER();
    int slot = emu_slot_of_pci(pci);
    NEED(slot >= 0 && state);
    *state = emu_gpu_int(slot, "drain", 0) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

static nvmlReturn_t remove_gpu(const char *function, nvmlPciInfo_t *pci)
{
    int slot = emu_slot_of_pci(pci);
    NEED(slot >= 0);
    nvmlReturn_t injected = emu_injected(function, slot);
    if (injected != NVML_SUCCESS)
        return injected;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    const char *running = emu_gpu(slot, "processes_compute");
    if (emu_persistence(slot) || !emu_gpu_int(slot, "drain", 0) || (running && *running))
        return NVML_ERROR_IN_USE;
    return set_flag(slot, "removed", "1");
}

nvmlReturn_t nvmlDeviceRemoveGpu(nvmlPciInfo_t *pci)
{
    ENTER();
    return remove_gpu(__func__, pci);
}

nvmlReturn_t nvmlDeviceRemoveGpu_v2(nvmlPciInfo_t *pci, nvmlDetachGpuState_t gpu_state, nvmlPcieLinkState_t link_state)
{
    ENTER();
    (void)gpu_state;
    (void)link_state;
    return remove_gpu(__func__, pci);
}

/* The header: looks below the given address, or at everything when it is a root port; here removed GPUs simply come
 * back. */
nvmlReturn_t nvmlDeviceDiscoverGpus(nvmlPciInfo_t *pci)
{
    ENTER();
    NEED(pci);
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    for (int i = 0; i < emu_gpu_count(); i++)
        if (emu_gpu_int(i, "removed", 0) && (emu_slot_of_pci(pci) == i || emu_slot_of_pci(pci) < 0)) {
            nvmlReturn_t done = set_flag(i, "removed", NULL);
            if (done == NVML_SUCCESS)
                done = set_flag(i, "drain", NULL);
            if (done != NVML_SUCCESS)
                return done;
        }
    emu_remember_drained();
    return NVML_SUCCESS;
}
