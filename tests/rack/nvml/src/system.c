/* Start, stop, versions, error texts, and what nvidia-smi asks for before anything else. */
#define _GNU_SOURCE
#include "call.h"

#include <stdio.h>
#include <string.h>

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

/* Texts as the 550 library gives them, compared one by one. */
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
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: return "vGPU ECC not supported";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED: return "Invalid Frequency";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED: return "Requested functionality has been deprecated";
    case NVML_ERROR_NOT_READY: return "System is not in ready state";
    case NVML_ERROR_GPU_NOT_FOUND: return "No supported GPUs were found";
    case NVML_ERROR_INVALID_STATE: return "Resource not in correct state to perform requested operation";
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

/* ---- what nvidia-smi needs besides ---- */

static nvmlReturn_t internal_function(void) { return NVML_ERROR_NOT_SUPPORTED; }

/* The one slot that is filled, because operators ask for it: seen to be called with a device and a place for a number
 * by `nvidia-smi --query-gpu=enforced.power.limit` of 535.261.03 and 550.163.01, and by nothing else. */
enum { ENTRIES = 1024, SLOT_ENFORCED_LIMIT = 108 };

/* nvidia-smi asks for tables of undocumented functions before anything else and gives up with "version mismatch"
 * without them. A table whose entries answer "not supported" is enough for nearly all that we use it for. */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
    static void (*functions[ENTRIES])(void);
    (void)id;
    NEED(table);
    for (int i = 0; i < ENTRIES; i++)
        functions[i] = (void (*)(void))internal_function;
    functions[SLOT_ENFORCED_LIMIT] = (void (*)(void))nvmlDeviceGetEnforcedPowerLimit;
    *table = functions;
    return NVML_SUCCESS;
}
