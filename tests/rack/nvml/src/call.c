/* Entering a call; see call.h. */
#define _GNU_SOURCE
#include "call.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct nvmlDevice_st emu_devices[EMU_MAX_GPUS];

static void sleep_ms(double ms)
{
    struct timespec left;
    if (ms < 0) /* negative: for ever. Ends with the process; a kernel's D state, which survives SIGKILL, cannot be had
                   here. */
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
