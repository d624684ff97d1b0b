/* nvmlDeviceGetFieldValues: many facts in one call, each with its own return code. */
#define _GNU_SOURCE
#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Newer than the CUDA 12.4 header, asked for by newer bindings; the 550 driver answers NOT_SUPPORTED unless the state
 * has a value. */
#define FI_GET_GPU_RECOVERY_ACTION 230

/* Fields that are one number under one key. `fallback` is used when the key is absent; UNSUPPORTED then means
 * NOT_SUPPORTED. */
#define UNSUPPORTED (-1)
static const struct {
    unsigned int id;
    const char *key;
    int fallback;
    nvmlValueType_t type;
} plain_fields[] = {
    {NVML_FI_DEV_MEMORY_TEMP, "temperature_memory", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_ECC_CURRENT, "ecc_mode", 1, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, "pcie_replay", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, "pcie_replay_rollover", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, "pcie_l0_to_recovery", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, "pcie_correctable", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, "pcie_naks_received", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, "pcie_receiver_errors", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_BAD_TLP, "pcie_bad_tlp", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, "pcie_naks_sent", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, "pcie_bad_dllp", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, "pcie_non_fatal", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, "pcie_fatal", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, "pcie_unsupported_requests", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, "pcie_lcrc", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, "pcie_lane_errors", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED, "mig_resetless", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_NVLINK_LINK_COUNT, "nvlink_links", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_C2C_LINK_COUNT, "c2c_links", 0, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_MIN_LIMIT, "power_min_mw", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_MAX_LIMIT, "power_max_mw", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, "power_default_mw", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
    /* margins to the limit, on Ada, Hopper and newer only; negative ones lie above it */
    {NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, "tlimit_shutdown", UNSUPPORTED, NVML_VALUE_TYPE_SIGNED_INT},
    {NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, "tlimit_slowdown", UNSUPPORTED, NVML_VALUE_TYPE_SIGNED_INT},
    {NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, "tlimit_mem_max", UNSUPPORTED, NVML_VALUE_TYPE_SIGNED_INT},
    {NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, "tlimit_gpu_max", UNSUPPORTED, NVML_VALUE_TYPE_SIGNED_INT},
    {NVML_FI_DEV_RETIRED_PENDING, "retired_pages_pending", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
    {FI_GET_GPU_RECOVERY_ACTION, "recovery_action", UNSUPPORTED, NVML_VALUE_TYPE_UNSIGNED_INT},
};

/* Memory health: not to be had while MIG instances exist. */
static const struct {
    unsigned int id;
    const char *key;
} remap_fields[] = {
    {NVML_FI_DEV_REMAPPED_COR, "remapped_corrected"},
    {NVML_FI_DEV_REMAPPED_UNC, "remapped_uncorrected"},
    {NVML_FI_DEV_REMAPPED_PENDING, "remapped_pending"},
    {NVML_FI_DEV_REMAPPED_FAILURE, "remapped_failure"},
};

static const struct {
    unsigned int id;
    const char *key;
    bool volatile_count;
} ecc_fields[] = {
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, "ecc_volatile_corrected", true},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, "ecc_volatile_uncorrected", true},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, "ecc_aggregate_corrected", false},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, "ecc_aggregate_uncorrected", false},
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static nvmlReturn_t as_uint(nvmlFieldValue_t *field, unsigned int value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    field->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t as_ull(nvmlFieldValue_t *field, unsigned long long value)
{
    field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    field->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t plain_field(int gpu, nvmlFieldValue_t *field)
{
    for (size_t i = 0; i < COUNT_OF(plain_fields); i++) {
        if (plain_fields[i].id != field->fieldId)
            continue;
        const char *text = emu_gpu(gpu, plain_fields[i].key);
        if ((!text || !*text) && plain_fields[i].fallback == UNSUPPORTED)
            return NVML_ERROR_NOT_SUPPORTED;
        long long value = emu_gpu_int(gpu, plain_fields[i].key, plain_fields[i].fallback);
        as_uint(field, (unsigned int)value);
        field->valueType = plain_fields[i].type;
        if (field->valueType == NVML_VALUE_TYPE_SIGNED_INT)
            field->value.siVal = (int)value;
        return NVML_SUCCESS;
    }
    for (size_t i = 0; i < COUNT_OF(remap_fields); i++)
        if (remap_fields[i].id == field->fieldId)
            return emu_mig_instances(gpu) ? NVML_ERROR_NOT_SUPPORTED
                                          : as_uint(field, (unsigned int)emu_gpu_int(gpu, remap_fields[i].key, 0));
    for (size_t i = 0; i < COUNT_OF(ecc_fields); i++)
        if (ecc_fields[i].id == field->fieldId) {
            if (!emu_gpu_int(gpu, "ecc_mode", 1))
                return NVML_ERROR_NOT_SUPPORTED;
            long long count = ecc_fields[i].volatile_count ? emu_life_int(gpu, ecc_fields[i].key, 0)
                                                           : emu_gpu_int(gpu, ecc_fields[i].key, 0);
            return as_ull(field, (unsigned long long)count);
        }
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t emu_field(int gpu, nvmlFieldValue_t *field)
{
    /* Power fields take a scope: whole GPU, module, memory. PCIe boards answer for the GPU. */
    bool power = field->fieldId >= NVML_FI_DEV_POWER_AVERAGE && field->fieldId <= NVML_FI_DEV_POWER_REQUESTED_LIMIT;
    if (power && field->scopeId != NVML_POWER_SCOPE_GPU)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->fieldId) {
    case NVML_FI_DEV_ECC_PENDING:
        return as_uint(field, (unsigned int)emu_gpu_int(gpu, "ecc_mode_pending", emu_gpu_int(gpu, "ecc_mode", 1)));
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_ENERGY: return as_ull(field, emu_energy(gpu));
    case NVML_FI_DEV_POWER_AVERAGE:
        if (!emu_gpu_int(gpu, "power_average", 1)) /* GA100 has no one second average */
            return NVML_ERROR_NOT_SUPPORTED;
        return as_uint(field, emu_power_usage(gpu));
    case NVML_FI_DEV_POWER_INSTANT: return as_uint(field, emu_power_usage(gpu));
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: return as_uint(field, emu_enforced_limit(gpu));
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT: return as_uint(field, emu_power_limit(gpu));
    case NVML_FI_DEV_NVLINK_GET_STATE:
        if (field->scopeId >= (unsigned int)emu_nvlink_count(gpu))
            return NVML_ERROR_NOT_SUPPORTED;
        return as_uint(field, emu_gpu_int(gpu, "nvlink_active", 0) >> field->scopeId & 1);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        if (!emu_gpu_int(gpu, "nvlink_active", 0))
            return NVML_ERROR_NOT_SUPPORTED;
        return as_uint(field, (unsigned int)emu_gpu_int(gpu, "nvlink_speed_mbps", 25781));
    default: return plain_field(gpu, field);
    }
}

/* Injected per field: `gpu.N.fault.field.<id>=<code>`. */
static nvmlReturn_t injected_field(int gpu, unsigned int id)
{
    char key[48];
    snprintf(key, sizeof(key), "fault.field.%u", id);
    const char *code = emu_gpu(gpu, key);
    if (!code)
        code = emu_get(key);
    return code ? (nvmlReturn_t)atoi(code) : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    DEVICE(device);
    struct timespec now;
    NEED(values && count > 0);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = injected_field(gpu, values[i].fieldId);
        if (values[i].nvmlReturn == NVML_SUCCESS)
            values[i].nvmlReturn = emu_field(gpu, &values[i]);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceClearFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    SETTER(device);
    (void)gpu;
    (void)noop;
    NEED(values && count > 0);
    for (int i = 0; i < count; i++)
        values[i].nvmlReturn =
            NVML_ERROR_NOT_SUPPORTED; /* the header lists no field of a PCIe board that could be cleared */
    return NVML_SUCCESS;
}
