/* Utilisation, memory, processes. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdlib.h>
#include <string.h>

/* ---- load and memory ---- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    DEVICE(device);
    NEED(out);
    if (emu_gpu_int(gpu, "mig_mode", 0))
        return NVML_ERROR_NOT_SUPPORTED;
    out->gpu = (unsigned int)emu_gpu_int(gpu, "utilization_gpu", 0);
    out->memory = (unsigned int)emu_gpu_int(gpu, "utilization_memory", 0);
    return NVML_SUCCESS;
}

#define ENGINE(name, key) \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *percent, unsigned int *period_us) \
    { \
        DEVICE(device); \
        NEED(percent && period_us); \
        *percent = (unsigned int)emu_gpu_int(gpu, key, 0); \
        *period_us = 167000; \
        return NVML_SUCCESS; \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, "utilization_encoder")
ENGINE(nvmlDeviceGetDecoderUtilization, "utilization_decoder")
ENGINE(nvmlDeviceGetJpgUtilization, "utilization_jpeg")
ENGINE(nvmlDeviceGetOfaUtilization, "utilization_ofa")

static void memory(int gpu, unsigned long long *total, unsigned long long *reserved, unsigned long long *used)
{
    *total = (unsigned long long)emu_gpu_int(gpu, "memory_mib", 0) << 20;
    *reserved = (unsigned long long)emu_gpu_int(gpu, "memory_reserved_mib", 0) << 20;
    *used = (unsigned long long)emu_gpu_int(gpu, "memory_used_mib", 0) << 20;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    DEVICE(device);
    unsigned long long reserved;
    NEED(out);
    memory(gpu, &out->total, &reserved, &out->used);
    out->used += reserved; /* v1 counts the driver's share as used */
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    DEVICE(device);
    NEED(out);
    if (out->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory(gpu, &out->total, &out->reserved, &out->used);
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    DEVICE(device);
    NEED(out);
    out->bar1Total = (unsigned long long)emu_gpu_int(gpu, "bar1_mib", 0) << 20;
    out->bar1Used = 1ull << 20;
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

#define NOT_IN_MIG 0xffffffffu

struct process {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gi, ci;
};

/* `pid:MiB;pid:MiB`, with MIG `pid:MiB:GPU instance:compute instance` */
static unsigned int process_list(const char *list, struct process *out, unsigned int room)
{
    unsigned int found = 0;
    for (const char *at = list; at && *at;) {
        char *end;
        unsigned long pid = strtoul(at, &end, 10);
        if (end == at)
            break;
        unsigned long long mib = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        unsigned int gi = *end == ':' ? (unsigned int)strtoul(end + 1, &end, 10) : NOT_IN_MIG;
        unsigned int ci = *end == ':' ? (unsigned int)strtoul(end + 1, &end, 10) : NOT_IN_MIG;
        if (found < room) {
            out[found].pid = (unsigned int)pid;
            out[found].bytes = mib << 20;
            out[found].gi = gi;
            out[found].ci = ci;
        }
        found++;
        at = *end == ';' ? end + 1 : end;
    }
    return found;
}

#define MAX_PROCESSES 256

bool emu_runs_on(int gpu, unsigned int gpu_instance)
{
    static const char *const keys[] = {"processes_compute", "processes_mps"};
    struct process list[MAX_PROCESSES];
    for (int k = 0; k < 2; k++)
        for (unsigned int i = process_list(emu_gpu(gpu, keys[k]), list, MAX_PROCESSES); i-- > 0;)
            if (list[i].gi == gpu_instance)
                return true;
    return false;
}

static nvmlReturn_t processes(int gpu, const char *key, unsigned int *count, nvmlProcessInfo_t *infos)
{
    struct process list[MAX_PROCESSES];
    NEED(count && (infos || *count == 0));
    unsigned int room = *count, found = process_list(emu_gpu(gpu, key), list, MAX_PROCESSES);
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++) {
        memset(&infos[i], 0, sizeof(infos[i]));
        infos[i].pid = list[i].pid;
        infos[i].usedGpuMemory = list[i].bytes;
        infos[i].gpuInstanceId = list[i].gi;
        infos[i].computeInstanceId = list[i].ci;
    }
    return NVML_SUCCESS;
}

/* _v2 and _v3 share a layout; the first version had only pid and memory. */
static nvmlReturn_t processes_v1(int gpu, const char *key, unsigned int *count, nvmlProcessInfo_v1_t *infos)
{
    struct process list[MAX_PROCESSES];
    NEED(count && (infos || *count == 0));
    unsigned int room = *count, found = process_list(emu_gpu(gpu, key), list, MAX_PROCESSES);
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++) {
        infos[i].pid = list[i].pid;
        infos[i].usedGpuMemory = list[i].bytes;
    }
    return NVML_SUCCESS;
}

#define PROCESSES(name, key) \
    nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) \
    { \
        DEVICE(device); \
        return processes(gpu, key, count, infos); \
    } \
    nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) \
    { \
        DEVICE(device); \
        return processes(gpu, key, count, infos); \
    } \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) \
    { \
        DEVICE(device); \
        return processes_v1(gpu, key, count, infos); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, "processes_compute")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "processes_graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, "processes_mps")
