/* MIG: the mode, GPU instances, compute instances, and the MIG devices that they make.
 *
 * What a card can be cut into comes from its profile (keys mig_profile_N, N = NVML_GPU_INSTANCE_PROFILE_*). What it is
 * cut into lies in the volatile state: the mode lasts over a restart, the instances do not. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MAX_STARTS 8
#define MAX_INSTANCES 16
#define MAX_COMPUTE 8
#define LIST_SIZE 1024

struct nvmlGpuInstance_st {
    int gpu;
    unsigned int id;
};
struct nvmlComputeInstance_st {
    int gpu;
    unsigned int gi, id;
};

static struct nvmlGpuInstance_st gpu_instances[EMU_MAX_GPUS][MAX_INSTANCES];
static struct nvmlComputeInstance_st compute_instances[EMU_MAX_GPUS][MAX_INSTANCES][MAX_COMPUTE];
static struct nvmlDevice_st mig_devices[EMU_MAX_GPUS][MAX_INSTANCES][MAX_COMPUTE];

/* ---- profiles ---- */

struct profile {
    char name[32];
    unsigned int id, slices, instances, sms, copy, decoders, jpeg, ofa, mib, size, count, starts[MAX_STARTS];
};

/* `name:id:slices:instances:SMs:copy engines:decoders:JPEG:OFA:MiB:memory slices:start,start,...` */
static bool profile_in(int gpu, unsigned int slot, struct profile *out)
{
    char key[32];
    int end = 0;
    snprintf(key, sizeof(key), "mig_profile_%u", slot);
    const char *text = emu_gpu(gpu, key);
    memset(out, 0, sizeof(*out));
    if (!text || sscanf(text, "%31[^:]:%u:%u:%u:%u:%u:%u:%u:%u:%u:%u:%n", out->name, &out->id, &out->slices,
                        &out->instances, &out->sms, &out->copy, &out->decoders, &out->jpeg, &out->ofa, &out->mib,
                        &out->size, &end) != 11)
        return false;
    for (const char *at = text + end; *at && out->count < MAX_STARTS; at += *at == ',') {
        char *rest;
        out->starts[out->count++] = (unsigned int)strtoul(at, &rest, 10);
        if (rest == at)
            return false;
        at = rest;
    }
    return out->count > 0;
}

static bool profile_with(int gpu, unsigned int id, struct profile *out)
{
    for (unsigned int slot = 0; slot < NVML_GPU_INSTANCE_PROFILE_COUNT; slot++)
        if (profile_in(gpu, slot, out) && out->id == id)
            return true;
    return false;
}

/* Memory slices of the whole card: its biggest profile takes them all. */
static unsigned int memory_slices(int gpu)
{
    struct profile one;
    unsigned int most = 0;
    for (unsigned int slot = 0; slot < NVML_GPU_INSTANCE_PROFILE_COUNT; slot++)
        if (profile_in(gpu, slot, &one) && one.size > most)
            most = one.size;
    return most;
}

static bool mig_known(int gpu) { return emu_gpu_int(gpu, "mig_max_devices", 0) != 0; }
static bool mig_on(int gpu) { return emu_gpu_int(gpu, "mig_mode", 0) != 0; }

/* ---- instances, as they lie in the state ---- */

struct instance {
    unsigned int gi, ci, profile, start; /* ci: of compute instances only */
};

/* `id:profile:start;...` of GPU instances, `gpu instance/id:profile:start;...` of compute instances. */
static int instances(const char *text, bool compute, struct instance *out)
{
    int count = 0, end;
    for (const char *at = text; at && *at && count < MAX_INSTANCES * MAX_COMPUTE; at += *at == ';') {
        struct instance *one = &out[count];
        one->ci = 0;
        int got = compute ? sscanf(at, "%u/%u:%u:%u%n", &one->gi, &one->ci, &one->profile, &one->start, &end) - 1
                          : sscanf(at, "%u:%u:%u%n", &one->gi, &one->profile, &one->start, &end);
        if (got != 3 || one->gi >= MAX_INSTANCES || one->ci >= MAX_COMPUTE)
            break;
        count++;
        at += end;
    }
    return count;
}

static int by_gi(const void *a, const void *b)
{
    const struct instance *left = a, *right = b;
    return (int)(left->gi * MAX_COMPUTE + left->ci) - (int)(right->gi * MAX_COMPUTE + right->ci);
}

struct listing {
    struct instance list[MAX_INSTANCES * MAX_COMPUTE];
    int count;
    char text[LIST_SIZE]; /* as it lay there: what a change is compared with */
    bool compute;
};

static void look(int gpu, bool compute, struct listing *out)
{
    const char *text = compute ? emu_gpu(gpu, "mig_compute_instances") : emu_gpu(gpu, "mig_gpu_instances");
    snprintf(out->text, sizeof(out->text), "%s", text && mig_on(gpu) ? text : "");
    out->compute = compute;
    out->count = instances(out->text, compute, out->list);
    qsort(out->list, (size_t)out->count, sizeof(out->list[0]), by_gi);
}

static const struct instance *find_in(const struct listing *all, unsigned int gi, unsigned int ci)
{
    for (int i = 0; i < all->count; i++)
        if (all->list[i].gi == gi && all->list[i].ci == ci)
            return &all->list[i];
    return NULL;
}

/* Writes the listing with `added` and without `removed`; false when another process changed it meanwhile. */
static bool write_back(int gpu, const struct listing *all, const struct instance *added, const struct instance *removed)
{
    char text[LIST_SIZE] = "", key[96];
    size_t used = 0;
    for (int i = 0; i <= all->count; i++) {
        const struct instance *one = i < all->count ? &all->list[i] : added;
        if (!one || one == removed)
            continue;
        const char *between = used ? ";" : "";
        used += (size_t)(all->compute ? snprintf(text + used, sizeof(text) - used, "%s%u/%u:%u:%u", between, one->gi,
                                                 one->ci, one->profile, one->start)
                                      : snprintf(text + used, sizeof(text) - used, "%s%u:%u:%u", between, one->gi,
                                                 one->profile, one->start));
    }
    snprintf(key, sizeof(key), "gpu.%d.%s", gpu, all->compute ? "mig_compute_instances" : "mig_gpu_instances");
    return emu_swap(EMU_VOLATILE, key, all->text, text);
}

/* True when instances exist: then per-GPU memory health is not to be had. */
bool emu_mig_instances(int gpu)
{
    struct listing all;
    look(gpu, false, &all);
    return all.count > 0;
}

/* ---- the mode ---- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    DEVICE(device);
    NEED(current && pending);
    if (!mig_known(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = (unsigned int)emu_gpu_int(gpu, "mig_mode", 0);
    *pending = (unsigned int)emu_gpu_int(gpu, "mig_mode_pending", *current);
    return NVML_SUCCESS;
}

/* Ampere changes the mode by a reset of the GPU, which nobody may hold; later ones (mig_resetless) only need it idle. */
static bool held(int gpu)
{
    const char *running = emu_gpu(gpu, "processes_compute");
    if ((running && *running) || emu_mig_instances(gpu))
        return true;
    return !emu_gpu_int(gpu, "mig_resetless", 0) && (emu_persistence(gpu) || !emu_alone());
}

static nvmlReturn_t activate(int gpu, unsigned int mode)
{
    bool ok = emu_set_key(EMU_IDENTITY, gpu, "mig_mode", mode) == NVML_SUCCESS;
    /* The reset forgets what the card was told, as any other does. */
    if (ok && !emu_gpu_int(gpu, "mig_resetless", 0))
        ok = emu_forget_life(gpu, "power_limit_mw") && emu_forget_life(gpu, "compute_mode") &&
             emu_forget_life(gpu, "app_clock_graphics") && emu_forget_life(gpu, "app_clock_mem");
    return emu_stored(ok);
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    SETTER(device);
    NEED(activation && mode <= NVML_DEVICE_MIG_ENABLE);
    if (!mig_known(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    bool change = mode != (unsigned int)emu_gpu_int(gpu, "mig_mode", 0);
    *activation = change && held(gpu) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (noop)
        return NVML_SUCCESS;
    nvmlReturn_t done = emu_set_key(EMU_IDENTITY, gpu, "mig_mode_pending", mode);
    return done == NVML_SUCCESS && change && *activation == NVML_SUCCESS ? activate(gpu, mode) : done;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, "mig_max_devices")

/* ---- GPU instance profiles ---- */

/* What both versions of the structure hold. */
#define FILL(info, from) \
    do { \
        (info)->id = (from).id; \
        (info)->sliceCount = (from).slices; \
        (info)->instanceCount = (from).instances; \
        (info)->multiprocessorCount = (from).sms; \
        (info)->copyEngineCount = (from).copy; \
        (info)->decoderCount = (from).decoders; \
        (info)->jpegCount = (from).jpeg; \
        (info)->ofaCount = (from).ofa; \
        (info)->memorySizeMB = (from).mib; \
    } while (0)

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    struct profile one;
    DEVICE(device);
    NEED(info && profile < NVML_GPU_INSTANCE_PROFILE_COUNT);
    if (!mig_known(gpu) || !profile_in(gpu, profile, &one))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof(*info));
    FILL(info, one);
    return NVML_SUCCESS;
}

/* nvml.h: this one wants the mode enabled, the plain one only a card that knows MIG. */
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct profile one;
    DEVICE(device);
    NEED(info && profile < NVML_GPU_INSTANCE_PROFILE_COUNT);
    if (info->version != nvmlGpuInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!mig_on(gpu) || !profile_in(gpu, profile, &one))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof(*info));
    info->version = nvmlGpuInstanceProfileInfo_v2;
    FILL(info, one);
    snprintf(info->name, sizeof(info->name), "MIG %s", one.name);
    return NVML_SUCCESS;
}

static bool root(void) { return geteuid() == 0; }

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile_id,
                                                           nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
    struct profile one;
    DEVICE(device);
    NEED(count);
    if (!root())
        return NVML_ERROR_NO_PERMISSION;
    if (!mig_known(gpu) || !profile_with(gpu, profile_id, &one))
        return NVML_ERROR_NOT_SUPPORTED;
    if (placements && *count < one.count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = one.count;
    for (unsigned int i = 0; placements && i < one.count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){.start = one.starts[i], .size = one.size};
    return NVML_SUCCESS;
}

/* ---- GPU instances ---- */

/* What every function below asks for first. */
static nvmlReturn_t may_change(int gpu)
{
    if (!root())
        return NVML_ERROR_NO_PERMISSION;
    return mig_on(gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static bool overlaps(int gpu, const struct listing *all, unsigned int start, unsigned int size)
{
    for (int i = 0; i < all->count; i++) {
        struct profile other;
        if (profile_with(gpu, all->list[i].profile, &other) && start < all->list[i].start + other.size &&
            all->list[i].start < start + size)
            return true;
    }
    return false;
}

/* How many more of a profile fit, and where the first of them would lie. */
static unsigned int room(int gpu, const struct profile *one, const struct listing *all, unsigned int *first)
{
    unsigned int there = 0, found = 0;
    for (int i = 0; i < all->count; i++)
        there += all->list[i].profile == one->id;
    for (unsigned int i = 0; i < one->count && there + found < one->instances; i++)
        if (!overlaps(gpu, all, one->starts[i], one->size) && found++ == 0)
            *first = one->starts[i];
    return found;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile_id,
                                                       unsigned int *count)
{
    struct profile one;
    struct listing all;
    unsigned int first;
    DEVICE(device);
    NEED(count);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    if (!profile_with(gpu, profile_id, &one))
        return NVML_ERROR_NOT_SUPPORTED;
    look(gpu, false, &all);
    *count = room(gpu, &one, &all, &first);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(int gpu, unsigned int profile_id, const nvmlGpuInstancePlacement_t *placement,
                           nvmlGpuInstance_t *out)
{
    struct profile one;
    struct listing all;
    struct instance made;
    unsigned int first = 0;
    NEED(out);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    NEED(profile_with(gpu, profile_id, &one));
    do {
        look(gpu, false, &all);
        if (room(gpu, &one, &all, &first) == 0)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        if (placement) {
            bool possible = false;
            for (unsigned int i = 0; i < one.count; i++)
                possible = possible || (one.starts[i] == placement->start && one.size == placement->size);
            NEED(possible);
            if (overlaps(gpu, &all, placement->start, placement->size))
                return NVML_ERROR_INSUFFICIENT_RESOURCES;
            first = placement->start;
        }
        /* Ids as seen on cards: the place in a tree of halves, the whole card being 0. */
        made = (struct instance){.gi = memory_slices(gpu) / one.size - 1 + first / one.size, .profile = one.id,
                                 .start = first};
    } while (!write_back(gpu, &all, &made, NULL));
    *out = &gpu_instances[gpu][made.gi];
    (*out)->gpu = gpu;
    (*out)->id = made.gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *instance)
{
    DEVICE(device);
    return create(gpu, profile_id, NULL, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile_id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance)
{
    DEVICE(device);
    NEED(placement);
    return create(gpu, profile_id, placement, instance);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile_id, nvmlGpuInstance_t *found,
                                       unsigned int *count)
{
    struct profile one;
    struct listing all;
    DEVICE(device);
    NEED(found && count);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    NEED(profile_with(gpu, profile_id, &one));
    look(gpu, false, &all);
    *count = 0;
    for (int i = 0; i < all.count; i++)
        if (all.list[i].profile == profile_id) {
            nvmlGpuInstance_t handle = &gpu_instances[gpu][all.list[i].gi];
            *handle = (struct nvmlGpuInstance_st){.gpu = gpu, .id = all.list[i].gi};
            found[(*count)++] = handle;
        }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    struct listing all;
    DEVICE(device);
    NEED(instance);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    look(gpu, false, &all);
    if (!find_in(&all, id, 0))
        return NVML_ERROR_NOT_FOUND;
    *instance = &gpu_instances[gpu][id];
    **instance = (struct nvmlGpuInstance_st){.gpu = gpu, .id = id};
    return NVML_SUCCESS;
}

/* Enters through a GPU instance; `info` is what the state says of it now. */
static nvmlReturn_t enter_instance(const char *function, nvmlGpuInstance_t handle, int *gpu, struct listing *all,
                                   const struct instance **info)
{
    const struct nvmlGpuInstance_st *first = &gpu_instances[0][0];
    bool ours = handle >= first && handle < first + EMU_MAX_GPUS * MAX_INSTANCES;
    nvmlReturn_t entered = emu_enter_device(function, ours ? &emu_devices[handle->gpu] : NULL, gpu);
    if (entered != NVML_SUCCESS)
        return entered;
    look(*gpu, false, all);
    *info = find_in(all, handle->id, 0);
    return *info ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define INSTANCE(handle) \
    GUARD; \
    (void)guard_; \
    int gpu; \
    struct listing all; \
    const struct instance *info_; \
    do { \
        nvmlReturn_t entered_ = enter_instance(__func__, handle, &gpu, &all, &info_); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    struct profile one;
    INSTANCE(instance);
    NEED(out && profile_with(gpu, info_->profile, &one));
    *out = (nvmlGpuInstanceInfo_t){.device = &emu_devices[gpu], .id = info_->gi, .profileId = info_->profile,
                                   .placement = {.start = info_->start, .size = one.size}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct listing inside;
    INSTANCE(instance);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    look(gpu, true, &inside);
    for (int i = 0; i < inside.count; i++)
        if (inside.list[i].gi == info_->gi)
            return NVML_ERROR_IN_USE;
    if (emu_runs_on(gpu, info_->gi))
        return NVML_ERROR_IN_USE;
    while (info_ && !write_back(gpu, &all, NULL, info_)) {
        look(gpu, false, &all);
        info_ = find_in(&all, instance->id, 0);
    }
    return NVML_SUCCESS;
}

/* ---- compute instances ---- */

static const unsigned int compute_slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 0};

/* The compute profile's id is its number, as seen on cards. */
static bool compute_profile(int gpu, const struct instance *of, unsigned int number, struct profile *parent)
{
    return number < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && profile_with(gpu, of->profile, parent) &&
           compute_slices[number] > 0 && compute_slices[number] <= parent->slices;
}

#define FILL_COMPUTE(out, number, parent) \
    do { \
        (out)->id = number; \
        (out)->sliceCount = compute_slices[number]; \
        (out)->instanceCount = (parent).slices / (out)->sliceCount; \
        (out)->multiprocessorCount = (parent).sms * (out)->sliceCount / (parent).slices; \
        (out)->sharedCopyEngineCount = (parent).copy; \
        (out)->sharedDecoderCount = (parent).decoders; \
        (out)->sharedJpegCount = (parent).jpeg; \
        (out)->sharedOfaCount = (parent).ofa; \
    } while (0)

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                          unsigned int engine, nvmlComputeInstanceProfileInfo_t *out)
{
    struct profile parent;
    INSTANCE(instance);
    NEED(out && engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT);
    if (!compute_profile(gpu, info_, profile, &parent))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof(*out));
    FILL_COMPUTE(out, profile, parent);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                           unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_v2_t *out)
{
    struct profile parent;
    INSTANCE(instance);
    NEED(out && engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT);
    if (out->version != nvmlComputeInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!compute_profile(gpu, info_, profile, &parent))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof(*out));
    out->version = nvmlComputeInstanceProfileInfo_v2;
    FILL_COMPUTE(out, profile, parent);
    if (out->sliceCount == parent.slices)
        snprintf(out->name, sizeof(out->name), "MIG %s", parent.name);
    else
        snprintf(out->name, sizeof(out->name), "MIG %uc.%s", out->sliceCount, parent.name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                  nvmlComputeInstance_t *out)
{
    struct profile parent;
    struct listing inside;
    struct instance made;
    INSTANCE(instance);
    NEED(out);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    if (!compute_profile(gpu, info_, profile_id, &parent))
        return NVML_ERROR_NOT_SUPPORTED;
    do {
        unsigned int taken = 0, id = 0;
        look(gpu, true, &inside);
        for (int i = 0; i < inside.count; i++)
            if (inside.list[i].gi == info_->gi) {
                taken += compute_slices[inside.list[i].profile];
                id += inside.list[i].ci == id; /* sorted by id: the first that is free */
            }
        if (taken + compute_slices[profile_id] > parent.slices)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        made = (struct instance){.gi = info_->gi, .ci = id, .profile = profile_id, .start = taken};
    } while (!write_back(gpu, &inside, &made, NULL));
    *out = &compute_instances[gpu][made.gi][made.ci];
    **out = (struct nvmlComputeInstance_st){.gpu = gpu, .gi = made.gi, .id = made.ci};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile_id,
                                                nvmlComputeInstance_t *found, unsigned int *count)
{
    struct profile parent;
    struct listing inside;
    INSTANCE(instance);
    NEED(found && count);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    if (!compute_profile(gpu, info_, profile_id, &parent))
        return NVML_ERROR_NOT_SUPPORTED;
    look(gpu, true, &inside);
    *count = 0;
    for (int i = 0; i < inside.count; i++)
        if (inside.list[i].gi == info_->gi && inside.list[i].profile == profile_id) {
            nvmlComputeInstance_t handle = &compute_instances[gpu][info_->gi][inside.list[i].ci];
            *handle = (struct nvmlComputeInstance_st){.gpu = gpu, .gi = info_->gi, .id = inside.list[i].ci};
            found[(*count)++] = handle;
        }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *out)
{
    struct listing inside;
    INSTANCE(instance);
    NEED(out);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    look(gpu, true, &inside);
    if (!find_in(&inside, info_->gi, id))
        return NVML_ERROR_NOT_FOUND;
    *out = &compute_instances[gpu][info_->gi][id];
    **out = (struct nvmlComputeInstance_st){.gpu = gpu, .gi = info_->gi, .id = id};
    return NVML_SUCCESS;
}

/* Enters through a compute instance; `inside` lists all of the GPU's. */
static nvmlReturn_t enter_compute(const char *function, nvmlComputeInstance_t handle, int *gpu, struct listing *inside,
                                  const struct instance **info)
{
    const struct nvmlComputeInstance_st *first = &compute_instances[0][0][0];
    bool ours = handle >= first && handle < first + EMU_MAX_GPUS * MAX_INSTANCES * MAX_COMPUTE;
    nvmlReturn_t entered = emu_enter_device(function, ours ? &emu_devices[handle->gpu] : NULL, gpu);
    if (entered != NVML_SUCCESS)
        return entered;
    look(*gpu, true, inside);
    *info = find_in(inside, handle->gi, handle->id);
    return *info ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define COMPUTE(handle) \
    GUARD; \
    (void)guard_; \
    int gpu; \
    struct listing inside; \
    const struct instance *info_; \
    do { \
        nvmlReturn_t entered_ = enter_compute(__func__, handle, &gpu, &inside, &info_); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    COMPUTE(instance);
    NEED(out);
    nvmlGpuInstance_t parent = &gpu_instances[gpu][info_->gi];
    *parent = (struct nvmlGpuInstance_st){.gpu = gpu, .id = info_->gi};
    *out = (nvmlComputeInstanceInfo_t){
        .device = &emu_devices[gpu],
        .gpuInstance = parent,
        .id = info_->ci,
        .profileId = info_->profile,
        .placement = {.start = info_->start, .size = compute_slices[info_->profile]},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    COMPUTE(instance);
    nvmlReturn_t may = may_change(gpu);
    if (may != NVML_SUCCESS)
        return may;
    if (emu_runs_on(gpu, info_->gi))
        return NVML_ERROR_IN_USE;
    while (info_ && !write_back(gpu, &inside, NULL, info_)) {
        look(gpu, true, &inside);
        info_ = find_in(&inside, instance->gi, instance->id);
    }
    return NVML_SUCCESS;
}

/* ---- MIG devices ---- */

static bool is_mig_device(nvmlDevice_t device)
{
    const struct nvmlDevice_st *first = &mig_devices[0][0][0];
    return device >= first && device < first + EMU_MAX_GPUS * MAX_INSTANCES * MAX_COMPUTE;
}

/* The GPU of a handle of either kind, and for a MIG device its compute instance; NULL once that was destroyed. */
static nvmlReturn_t enter_either(const char *function, nvmlDevice_t device, int *gpu, struct listing *inside,
                                 const struct instance **info)
{
    bool mig = is_mig_device(device);
    nvmlReturn_t entered = emu_enter_device(function, mig ? &emu_devices[device->slot] : device, gpu);
    *info = NULL;
    if (entered != NVML_SUCCESS || !mig)
        return entered;
    look(*gpu, true, inside);
    *info = find_in(inside, (unsigned int)device->gi, (unsigned int)device->ci);
    return *info ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

#define EITHER(handle) \
    GUARD; \
    (void)guard_; \
    int gpu; \
    struct listing inside; \
    const struct instance *mig; \
    do { \
        nvmlReturn_t entered_ = enter_either(__func__, handle, &gpu, &inside, &mig); \
        if (entered_ != NVML_SUCCESS) \
            return entered_; \
    } while (0)

static nvmlDevice_t hand_out(int gpu, const struct instance *one)
{
    nvmlDevice_t device = &mig_devices[gpu][one->gi][one->ci];
    *device = (struct nvmlDevice_st){.slot = gpu, .gi = (int)one->gi, .ci = (int)one->ci};
    return device;
}

/* Drivers before 470 name a MIG device by its place below the GPU, later ones by a UUID of its own. */
static void name_of(int gpu, const struct instance *one, char *out, size_t size)
{
    const char *parent = emu_gpu(gpu, "uuid");
    if (emu_number(emu_get("driver_version"), 0) < 470) {
        snprintf(out, size, "MIG-%s/%u/%u", parent, one->gi, one->ci);
        return;
    }
    /* The same GPU and place give the same UUID, in FNV-1a's bits with the version and variant of a made-up UUID. */
    uint64_t half[2] = {14695981039346656037u, 1099511628211u};
    char seed[128];
    snprintf(seed, sizeof(seed), "%s/%u/%u", parent, one->gi, one->ci);
    for (int i = 0; i < 2; i++)
        for (const char *c = seed; *c; c++)
            half[i] = (half[i] ^ (unsigned char)*c) * 1099511628211u;
    snprintf(out, size, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned int)(half[0] >> 32),
             (unsigned int)(half[0] >> 16 & 0xffff), (unsigned int)(half[0] & 0xfff),
             (unsigned int)(half[1] >> 48 & 0x3fff) | 0x8000, (unsigned long long)(half[1] & 0xffffffffffffull));
}

nvmlDevice_t emu_mig_named(const char *uuid)
{
    char name[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    for (int i = 0; i < emu_gpu_count(); i++) {
        struct listing inside;
        look(i, true, &inside);
        for (int k = 0; k < inside.count; k++) {
            name_of(i, &inside.list[k], name, sizeof(name));
            if (strcasecmp(name, uuid) == 0)
                return hand_out(i, &inside.list[k]);
        }
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length)
{
    char name[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    EITHER(device);
    if (!mig)
        return emu_copy(out, length, emu_gpu(gpu, "uuid"));
    name_of(gpu, mig, name, sizeof(name));
    return emu_copy(out, length, name);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int length)
{
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    struct listing all;
    struct profile parent;
    EITHER(device);
    const char *card = emu_gpu(gpu, "name");
    if (!mig || !card)
        return emu_copy(out, length, card);
    look(gpu, false, &all);
    const struct instance *around = find_in(&all, mig->gi, 0);
    NEED(around && profile_with(gpu, around->profile, &parent));
    snprintf(name, sizeof(name), "%.40s MIG %s", card, parent.name);
    return emu_copy(out, length, name);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    EITHER(device);
    NEED(is_mig);
    *is_mig = mig != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    EITHER(device);
    NEED(id);
    if (!mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = mig->gi;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    EITHER(device);
    NEED(id);
    if (!mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = mig->ci;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    struct listing all;
    struct profile parent;
    EITHER(device);
    NEED(out);
    if (!mig)
        return NVML_ERROR_NOT_SUPPORTED; /* of a whole GPU */
    look(gpu, false, &all);
    const struct instance *around = find_in(&all, mig->gi, 0);
    NEED(around && profile_with(gpu, around->profile, &parent));
    memset(out, 0, sizeof(*out));
    out->computeInstanceSliceCount = compute_slices[mig->profile];
    out->gpuInstanceSliceCount = parent.slices;
    out->multiprocessorCount = parent.sms * out->computeInstanceSliceCount / parent.slices;
    out->sharedCopyEngineCount = parent.copy;
    out->sharedDecoderCount = parent.decoders;
    out->sharedJpegCount = parent.jpeg;
    out->sharedOfaCount = parent.ofa;
    out->memorySizeMB = parent.mib;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    struct listing inside;
    DEVICE(device);
    NEED(mig && index < (unsigned int)emu_gpu_int(gpu, "mig_max_devices", 0));
    if (!mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    look(gpu, true, &inside);
    if (index >= (unsigned int)inside.count)
        return NVML_ERROR_NOT_FOUND;
    *mig = hand_out(gpu, &inside.list[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    EITHER(device);
    NEED(parent && mig);
    *parent = &emu_devices[gpu];
    return NVML_SUCCESS;
}
