/* Memory health: ECC, remapped rows, retired pages. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    DEVICE(device);
    NEED(current && pending);
    *current = (nvmlEnableState_t)emu_gpu_int(gpu, "ecc_mode", 1);
    *pending = (nvmlEnableState_t)emu_gpu_int(gpu, "ecc_mode_pending", *current);
    return NVML_SUCCESS;
}

COMPUTED(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)

/* Takes effect at the next reset or boot (emulator.py), as on the real board; kept in the InfoROM. */
nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    SETTER(device);
    NEED(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return noop ? NVML_SUCCESS : emu_set_key(EMU_IDENTITY, gpu, "ecc_mode_pending", mode);
}

/* Errors are kept as totals; all of them count as DRAM unless ecc_<kind>_<sort>_sram gives SRAM its share. */
static nvmlReturn_t ecc_count(int gpu, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, bool sram,
                              unsigned long long *out)
{
    char key[64];
    NEED(out && type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT);
    if (!emu_gpu_int(gpu, "ecc_mode", 1))
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(key, sizeof(key), "ecc_%s_%s%s", counter == NVML_VOLATILE_ECC ? "volatile" : "aggregate",
             type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "corrected" : "uncorrected", sram ? "_sram" : "");
    *out = (unsigned long long)(counter == NVML_VOLATILE_ECC ? emu_life_int(gpu, key, 0) : emu_gpu_int(gpu, key, 0));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                         unsigned long long *out)
{
    DEVICE(device);
    return ecc_count(gpu, type, counter, false, out);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t place,
                                             unsigned long long *out)
{
    unsigned long long total, sram;
    DEVICE(device);
    NEED(place < NVML_MEMORY_LOCATION_COUNT);
    nvmlReturn_t got = ecc_count(gpu, type, counter, false, &total);
    if (got == NVML_SUCCESS)
        got = ecc_count(gpu, type, counter, true, &sram);
    if (got != NVML_SUCCESS)
        return got;
    NEED(out);
    if (place != NVML_MEMORY_LOCATION_DRAM && place != NVML_MEMORY_LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED; /* Ampere and newer tell only these two apart */
    *out = place == NVML_MEMORY_LOCATION_SRAM ? sram : total - emu_min((unsigned int)sram, (unsigned int)total);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *out)
{
    DEVICE(device);
    NEED(out);
    memset(out, 0, sizeof(*out));
    return ecc_count(gpu, type, counter, false, &out->deviceMemory);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
    DEVICE(device);
    NEED(out);
    if (out->version != nvmlEccSramErrorStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, sizeof(*out));
    out->version = nvmlEccSramErrorStatus_v1;
    nvmlReturn_t got = ecc_count(gpu, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_AGGREGATE_ECC, true, &out->aggregateCor);
    if (got == NVML_SUCCESS)
        got = ecc_count(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC, true, &out->aggregateUncSecDed);
    if (got == NVML_SUCCESS)
        got = ecc_count(gpu, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, true, &out->volatileCor);
    if (got == NVML_SUCCESS)
        got = ecc_count(gpu, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, true, &out->volatileUncSecDed);
    out->aggregateUncBucketOther = out->aggregateUncSecDed;
    out->bThresholdExceeded = (unsigned int)emu_gpu_int(gpu, "ecc_sram_threshold_exceeded", 0);
    return got;
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter)
{
    SETTER(device);
    NEED(counter < NVML_ECC_COUNTER_TYPE_COUNT);
    if (!emu_gpu_int(gpu, "ecc_mode", 1))
        return NVML_ERROR_NOT_SUPPORTED;
    if (noop)
        return NVML_SUCCESS;
    if (counter == NVML_VOLATILE_ECC)
        return emu_stored(emu_forget_life(gpu, "ecc_volatile_corrected") &&
                          emu_forget_life(gpu, "ecc_volatile_uncorrected") &&
                          emu_forget_life(gpu, "ecc_volatile_corrected_sram") &&
                          emu_forget_life(gpu, "ecc_volatile_uncorrected_sram"));
    emu_change zero[4];
    static const char *const keys[] = {"corrected", "uncorrected", "corrected_sram", "uncorrected_sram"};
    for (int i = 0; i < 4; i++) {
        snprintf(zero[i].key, sizeof(zero[i].key), "gpu.%d.ecc_aggregate_%s", gpu, keys[i]);
        zero[i].value = "0";
    }
    return emu_stored(emu_store(EMU_IDENTITY, zero, 4));
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                       unsigned int *pending, unsigned int *failure)
{
    DEVICE(device);
    NEED(corrected && uncorrected && pending && failure);
    if (emu_mig_instances(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = (unsigned int)emu_gpu_int(gpu, "remapped_corrected", 0);
    *uncorrected = (unsigned int)emu_gpu_int(gpu, "remapped_uncorrected", 0);
    *pending = (unsigned int)emu_gpu_int(gpu, "remapped_pending", 0);
    *failure = (unsigned int)emu_gpu_int(gpu, "remapped_failure", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    DEVICE(device);
    NEED(out);
    if (emu_mig_instances(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    /* Banks by how many spare rows are left. Every remapped row takes one bank from `max` to `high`, unless told in
     * full. */
    const char *told = emu_gpu(gpu, "remap_histogram");
    unsigned int banks = (unsigned int)emu_gpu_int(gpu, "remap_banks", 640);
    unsigned int rows =
        (unsigned int)(emu_gpu_int(gpu, "remapped_corrected", 0) + emu_gpu_int(gpu, "remapped_uncorrected", 0));
    memset(out, 0, sizeof(*out));
    if (told && sscanf(told, "%u,%u,%u,%u,%u", &out->max, &out->high, &out->partial, &out->low, &out->none) == 5)
        return NVML_SUCCESS;
    out->high = emu_min(rows, banks);
    out->max = banks - out->high;
    return NVML_SUCCESS;
}

/* Page retirement is older than Ampere's row remapping: not supported unless the state lists pages (addresses, comma
 * between). */
static nvmlReturn_t retired_pages(int gpu, nvmlPageRetirementCause_t cause, unsigned int *count,
                                  unsigned long long *addresses)
{
    NEED(count && cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT);
    const char *list = emu_gpu(gpu, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired_pages_double"
                                                                                             : "retired_pages_single");
    if (!list)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int room = *count, found = 0;
    for (const char *at = list; *at;) {
        char *end;
        unsigned long long address = strtoull(at, &end, 0);
        if (end == at)
            break;
        if (addresses && found < room)
            addresses[found] = address;
        found++;
        at = *end == ',' ? end + 1 : end;
    }
    *count = found;
    return addresses && room >= found ? NVML_SUCCESS : found ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    DEVICE(device);
    return retired_pages(gpu, cause, count, addresses);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *timestamps)
{
    DEVICE(device);
    unsigned int room = count ? *count : 0;
    nvmlReturn_t got = retired_pages(gpu, cause, count, addresses);
    for (unsigned int i = 0; got == NVML_SUCCESS && addresses && timestamps && i < room && i < *count; i++)
        timestamps[i] = 0;
    return got;
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "retired_pages_pending")
