/* See shapes.h. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>

nvmlReturn_t emu_key(int gpu, const char *key, unsigned int *out)
{
    const char *text = emu_gpu(gpu, key);
    NEED(out);
    if (!text || !*text)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)emu_gpu_int(gpu, key, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t emu_stored(bool ok) { return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN; }

nvmlReturn_t emu_set_key(emu_file file, int gpu, const char *key, long long value)
{
    char text[32];
    emu_change change = {.value = text};
    snprintf(text, sizeof(text), "%lld", value);
    snprintf(change.key, sizeof(change.key), "gpu.%d.%s", gpu, key);
    return emu_stored(emu_store(file, &change, 1));
}
