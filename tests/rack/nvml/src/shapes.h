/* Shapes that many functions share: a text, a number, a number that is worked out. */
#ifndef NVML_EMULATOR_SHAPES_H
#define NVML_EMULATOR_SHAPES_H

#include "call.h"

#pragma GCC visibility push(hidden)

/* A number kept under a key; absent = not supported by this GPU. */
nvmlReturn_t emu_key(int gpu, const char *key, unsigned int *out);
/* What a setter answers when the state was, or could not be, written. */
nvmlReturn_t emu_stored(bool ok);
/* Stores one number of one GPU outside its lifecycle. */
nvmlReturn_t emu_set_key(emu_file file, int gpu, const char *key, long long value);

#pragma GCC visibility pop

static inline unsigned int emu_min(unsigned int a, unsigned int b) { return a < b ? a : b; }

/* Text kept under a key; absent = the GPU has no such thing. */
#define TEXT(name, key) \
    nvmlReturn_t name(nvmlDevice_t device, char *out, unsigned int length) \
    { \
        DEVICE(device); \
        return emu_copy(out, length, emu_gpu(gpu, key)); \
    }

/* A number kept under a key. */
#define NUMBER(name, type, key) \
    nvmlReturn_t name(nvmlDevice_t device, type *out) \
    { \
        DEVICE(device); \
        unsigned int value; \
        NEED(out); \
        nvmlReturn_t got = emu_key(gpu, key, &value); \
        if (got == NVML_SUCCESS) \
            *out = (type)value; \
        return got; \
    }

/* A number that is worked out from several keys. */
#define COMPUTED(name, type, expression) \
    nvmlReturn_t name(nvmlDevice_t device, type *out) \
    { \
        DEVICE(device); \
        NEED(out); \
        *out = (type)(expression); \
        return NVML_SUCCESS; \
    }

#endif
