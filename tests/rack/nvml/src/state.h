/* What one host's emulated driver knows: two text files and who is connected.
 *
 * identity   <root>/var/lib/nvml-emulator/identity   survives a restart: profile, serials, firmware, aggregate ECC,
 * faults volatile   <root>/run/nvml-emulator/volatile       lost at a restart: caps, persistence, compute mode,
 * counters, events clients    <root>/run/nvml-emulator/clients        every client holds a shared flock on it; its text
 * is the epoch (below)
 *
 * Lines are `key=value`. `gpu.N.key` belongs to GPU N (N = the slot in the profile, not the NVML index); `gpu.*.key` is
 * the default for all. A volatile value wins over an identity value. README.md lists the keys.
 *
 * The epoch. A real driver forgets caps, compute mode and volatile ECC counts of a GPU when its last client leaves with
 * persistence mode off. Nobody is there to do the forgetting when a client is killed, so it is done late: whoever
 * connects and can take the clients file's lock exclusively knows that nobody else was connected, and raises the epoch
 * by one. A GPU's lifecycle values count only if persistence mode is on or if they were stored in the present epoch.
 */
#ifndef NVML_EMULATOR_STATE_H
#define NVML_EMULATOR_STATE_H

/* Without this the header renames nvmlInit to nvmlInit_v2 and so on, and __func__ would not be the exported name. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stdbool.h>

#ifndef NVML_FI_DEV_POWER_REQUESTED_LIMIT
#error "nvml.h is older than CUDA 12.4 (no field 192): take libnvidia-ml-dev from Debian 13"
#endif

#define EMU_MAX_GPUS 32

#pragma GCC visibility push(hidden)

typedef enum { EMU_IDENTITY, EMU_VOLATILE, EMU_FILES } emu_file;

/* Serialises the threads of this process. Held while a call runs, let go while it sleeps. */
void emu_lock(void);
void emu_unlock(void);

/* Re-reads a file whose stat changed. False when the driver is not there: no identity, or /run not prepared since boot.
 */
bool emu_refresh(void);

/* Connects this process (shared flock, epoch); the second and later calls only count. */
nvmlReturn_t emu_attach(void);
nvmlReturn_t emu_detach(void);
bool emu_attached(void);
/* True when no other process is connected. */
bool emu_alone(void);

/* NULL when the key is nowhere. Pointers live until the next emu_refresh() or update. */
const char *emu_get(const char *key);
const char *emu_gpu(int gpu, const char *key);
/* Like emu_gpu, but NULL when the GPU went through de-initialisation since the value was stored. */
const char *emu_life(int gpu, const char *key);

/* Numbers: decimal, 0x hex, or `sine:base,amplitude,period_s,phase_rad` which is evaluated now. */
double emu_number(const char *text, double fallback);
long long emu_gpu_int(int gpu, const char *key, long long fallback);
long long emu_life_int(int gpu, const char *key, long long fallback);
long long emu_int(const char *key, long long fallback);

/* `gpu.N.<prefix>.<function>`, or with gpu < 0 `<prefix>.<function>`: the exact export name, the name without _vN, or
 * `*`. */
const char *emu_per_function(const char *prefix, const char *function, int gpu);

int emu_gpu_count(void);
bool emu_persistence(int gpu);

/* Read-modify-write under the file's lock, replaced by rename: no reader sees half a file, no writer loses another's
 * change. A NULL value deletes. Returns false when the file cannot be written. */
typedef struct {
    char key[96];
    const char *value;
} emu_change;
bool emu_store(emu_file file, const emu_change *changes, int count);
/* Stores `value` (empty deletes) if the key still has the value `seen` (empty: none). False: read and decide again. */
bool emu_swap(emu_file file, const char *key, const char *seen, const char *value);
/* Stores lifecycle values of one GPU in the present epoch; what an earlier epoch left behind is dropped first. */
bool emu_store_life(int gpu, const char *key, long long value);
bool emu_forget_life(int gpu, const char *key);

#pragma GCC visibility pop
#endif
