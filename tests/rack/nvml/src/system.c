/* Start, stop, versions, error texts, finding GPUs, drain and removal. */
#define _GNU_SOURCE
#include "call.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

struct nvmlDevice_st emu_devices[EMU_MAX_GPUS];
static unsigned int drained; /* bit per slot: draining when this process connected */

/* ---- entering a call ---- */

static void sleep_ms(double ms)
{
    struct timespec left;
    if (ms < 0) /* negative: for ever. Ends with the process; a kernel's D state, which survives SIGKILL, cannot be had here. */
        for (;;)
            pause();
    left.tv_sec = (time_t)(ms / 1000);
    left.tv_nsec = (long)((ms - (double)left.tv_sec * 1000) * 1e6);
    while (nanosleep(&left, &left) != 0)
        ;
}

nvmlReturn_t emu_injected(const char *function, int gpu)
{
    const char *delay = emu_per_function("delay_ms", function, gpu);
    if (delay) {
        double ms = emu_number(delay, 0);
        emu_unlock(); /* other threads of the caller go on */
        sleep_ms(ms);
        emu_lock();
        emu_refresh();
    }
    const char *fault = emu_per_function("fault", function, gpu);
    return fault ? (nvmlReturn_t)atoi(fault) : NVML_SUCCESS;
}

void emu_leave(char *unused)
{
    (void)unused;
    emu_unlock();
}

nvmlReturn_t emu_enter(const char *function)
{
    emu_lock();
    if (!emu_attached())
        return NVML_ERROR_UNINITIALIZED;
    if (!emu_refresh())
        return NVML_ERROR_UNKNOWN; /* the driver went away under a client */
    return emu_injected(function, -1);
}

nvmlReturn_t emu_enter_device(const char *function, nvmlDevice_t device, int *gpu)
{
    emu_lock();
    if (!emu_attached())
        return NVML_ERROR_UNINITIALIZED;
    if (!emu_refresh())
        return NVML_ERROR_UNKNOWN;
    if (device < emu_devices || device >= emu_devices + EMU_MAX_GPUS || device->slot >= emu_gpu_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = device->slot;
    nvmlReturn_t injected = emu_injected(function, *gpu);
    if (injected == NVML_SUCCESS)
        injected = emu_injected(function, -1);
    if (injected != NVML_SUCCESS)
        return injected;
    return emu_gpu_int(*gpu, "lost", 0) || emu_gpu_int(*gpu, "removed", 0) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t emu_enter_setter(const char *function, nvmlDevice_t device, int *gpu, bool *noop)
{
    nvmlReturn_t entered = emu_enter_device(function, device, gpu);
    if (entered != NVML_SUCCESS)
        return entered;
    const char *drop = emu_per_function("noop", function, *gpu);
    if (!drop)
        drop = emu_per_function("noop", function, -1);
    *noop = drop && atoi(drop);
    return geteuid() == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t emu_copy(char *out, unsigned int length, const char *text)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!text)
        return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---- start and stop ---- */

static nvmlReturn_t start(const char *function)
{
    GUARD;
    (void)guard_;
    emu_lock();
    bool driver = emu_refresh() && emu_int("driver_loaded", 1);
    nvmlReturn_t injected = driver ? emu_injected(function, -1) : NVML_SUCCESS;
    if (!driver || injected != NVML_SUCCESS)
        return driver ? injected : NVML_ERROR_DRIVER_NOT_LOADED;
    const char *module = emu_get("module_version"), *library = emu_get("driver_version");
    if (module && library && strcmp(module, library) != 0)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    bool first = !emu_attached();
    nvmlReturn_t attached = emu_attach();
    if (attached == NVML_SUCCESS && first) {
        for (int i = 0; i < EMU_MAX_GPUS; i++)
            emu_devices[i].slot = i;
        emu_remember_drained();
    }
    return attached;
}

nvmlReturn_t nvmlInit(void) { return start(__func__); }
nvmlReturn_t nvmlInit_v2(void) { return start(__func__); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* NO_GPUS and NO_ATTACH change nothing here: GPUs are looked at on look-up anyway */
    return start(__func__);
}

nvmlReturn_t nvmlShutdown(void)
{
    GUARD;
    (void)guard_;
    emu_lock();
    return emu_detach();
}

/* Texts as the 550 library gives them. */
const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED: return "Already Initialized";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_IRQ_ISSUE: return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM: return "GPU access blocked by the operating system";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_MEMORY: return "Insufficient Memory";
    case NVML_ERROR_NO_DATA: return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

/* ---- versions ---- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER();
    return emu_copy(version, length, emu_get("driver_version"));
}

/* Works before nvmlInit: nvidia-smi prints it when nvmlInit reports a mismatch. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    GUARD;
    (void)guard_;
    emu_lock();
    emu_refresh();
    char text[96];
    const char *own = emu_get("nvml_version"), *driver = emu_get("driver_version");
    snprintf(text, sizeof(text), "%s.%s", NVML_API_VERSION_STR, driver ? driver : "0");
    return emu_copy(version, length, own ? own : text);
}

static nvmlReturn_t cuda_version(int *version)
{
    NEED(version);
    *version = (int)emu_int("cuda_version", 12040);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER();
    return cuda_version(version);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    return cuda_version(version);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER();
    NEED(name && length);
    char key[64], text[256] = "";
    snprintf(key, sizeof(key), "process.%u.name", pid);
    const char *known = emu_get(key);
    if (!known) {
        snprintf(key, sizeof(key), "/proc/%u/cmdline", pid);
        FILE *in = fopen(key, "re");
        if (!in)
            return NVML_ERROR_NOT_FOUND;
        size_t got = fread(text, 1, sizeof(text) - 1, in);
        fclose(in);
        text[got] = '\0'; /* arguments are separated by NUL: this is the program alone */
        known = text;
    }
    snprintf(name, length, "%s", known); /* the header: truncated, not refused */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, nvmlHwbcEntry_t *entries)
{
    ENTER();
    (void)entries;
    NEED(count);
    *count = 0; /* host interface cards are S-class units only */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    ENTER();
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

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
static nvmlReturn_t look_up(const char *function, bool (*matches)(int slot, const void *wanted), const void *wanted, nvmlDevice_t *device)
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

/* The header: looks below the given address, or at everything when it is a root port; here removed GPUs simply come back. */
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

/* ---- what nvidia-smi needs besides ---- */

static nvmlReturn_t internal_function(void) { return NVML_ERROR_NOT_SUPPORTED; }

/* nvidia-smi asks for tables of undocumented functions before anything else and gives up with "version mismatch" without them.
 * A table whose every entry answers "not supported" is enough for all that we use it for. First word: the size of the table. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
    enum { ENTRIES = 1024 };
    static nvmlReturn_t (*functions[ENTRIES])(void);
    (void)id;
    NEED(table);
    for (int i = 0; i < ENTRIES; i++)
        functions[i] = internal_function;
    *table = functions;
    return NVML_SUCCESS;
}
