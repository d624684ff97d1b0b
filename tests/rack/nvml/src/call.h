/* What every exported function does first: take the lock, be initialised, find the GPU, obey injected delays and
 * errors. */
#ifndef NVML_EMULATOR_CALL_H
#define NVML_EMULATOR_CALL_H

#include "state.h"

struct nvmlDevice_st {
    int slot;   /* N of the state's gpu.N.* keys */
    int gi, ci; /* of a MIG device: its GPU instance and compute instance */
};

#pragma GCC visibility push(hidden)

extern struct nvmlDevice_st emu_devices[EMU_MAX_GPUS];

nvmlReturn_t emu_enter(const char *function);
nvmlReturn_t emu_enter_device(const char *function, nvmlDevice_t device, int *gpu);
/* Setters: root only. Then *noop tells whether the set is to be accepted and dropped (key noop.<function>). */
nvmlReturn_t emu_enter_setter(const char *function, nvmlDevice_t device, int *gpu, bool *noop);
/* The injected delay, then the injected error: of one GPU, or of the host with gpu < 0. */
nvmlReturn_t emu_injected(const char *function, int gpu);
void emu_leave(char *unused);

nvmlReturn_t emu_copy(char *out, unsigned int length, const char *text);

/* Slots that this process sees, in bus order; an index is a position in it. */
int emu_visible(int *slots);
/* What cannot change while the process is connected is looked at when it connects. */
void emu_remember_drained(void);

const char *emu_bus_id(int gpu, unsigned int *domain, unsigned int *bus, unsigned int *device);
void emu_fill_pci(int gpu, nvmlPciInfo_t *pci);
int emu_slot_of_pci(const nvmlPciInfo_t *pci);

unsigned int emu_power_limit(int gpu);
unsigned int emu_enforced_limit(int gpu);
unsigned int emu_power_usage(int gpu);
unsigned long long emu_energy(int gpu);
bool emu_mig_instances(int gpu);
/* The MIG device of that UUID, NULL when there is none. */
nvmlDevice_t emu_mig_named(const char *uuid);
/* True when a process runs on that GPU instance. */
bool emu_runs_on(int gpu, unsigned int gpu_instance);
int emu_nvlink_count(int gpu);

nvmlReturn_t emu_field(int gpu, nvmlFieldValue_t *field);

#pragma GCC visibility pop

/* The cleanup attribute lets go of the lock on every way out, so that a function can simply return. */
#define GUARD __attribute__((cleanup(emu_leave))) char guard_ = 0
#define ENTER() \
    GUARD; \
    (void)guard_; \
    do { \
        nvmlReturn_t entered_ = emu_enter(__func__); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)
#define DEVICE(handle) \
    GUARD; \
    (void)guard_; \
    int gpu; \
    do { \
        nvmlReturn_t entered_ = emu_enter_device(__func__, handle, &gpu); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)
#define SETTER(handle) \
    GUARD; \
    (void)guard_; \
    int gpu; \
    bool noop; \
    do { \
        nvmlReturn_t entered_ = emu_enter_setter(__func__, handle, &gpu, &noop); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)
#define NEED(condition) \
    do { \
        if (!(condition)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

#endif
