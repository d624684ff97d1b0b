/* One GPU, reading and setting: identity, firmware, power, modes, PCIe, clocks, temperatures, memory health, NVLink, MIG, processes. */
#define _GNU_SOURCE
#include "call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- shapes that many functions share ---- */

/* Text kept under a key; absent = the GPU has no such thing. */
#define TEXT(name, key) \
    nvmlReturn_t name(nvmlDevice_t device, char *out, unsigned int length) \
    { \
        DEVICE(device); \
        return emu_copy(out, length, emu_gpu(gpu, key)); \
    }

/* A number kept under a key; absent = not supported by this GPU. */
static nvmlReturn_t number(int gpu, const char *key, unsigned int *out)
{
    const char *text = emu_gpu(gpu, key);
    NEED(out);
    if (!text || !*text)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)emu_gpu_int(gpu, key, 0);
    return NVML_SUCCESS;
}
#define NUMBER(name, type, key) \
    nvmlReturn_t name(nvmlDevice_t device, type *out) \
    { \
        DEVICE(device); \
        unsigned int value; \
        NEED(out); \
        nvmlReturn_t got = number(gpu, key, &value); \
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

static nvmlReturn_t stored(bool ok) { return ok ? NVML_SUCCESS : NVML_ERROR_UNKNOWN; }

static nvmlReturn_t set_gpu_key(emu_file file, int gpu, const char *key, long long value)
{
    char text[32];
    emu_change change = {.value = text};
    snprintf(text, sizeof(text), "%lld", value);
    snprintf(change.key, sizeof(change.key), "gpu.%d.%s", gpu, key);
    return stored(emu_store(file, &change, 1));
}

static unsigned int min_uint(unsigned int a, unsigned int b) { return a < b ? a : b; }

/* ---- identity ---- */

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
NUMBER(nvmlDeviceGetBrand, nvmlBrandType_t, "brand")
NUMBER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, "architecture")
NUMBER(nvmlDeviceGetModuleId, unsigned int, "module_id")
NUMBER(nvmlDeviceGetNumGpuCores, unsigned int, "cuda_cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned int, "memory_bus_width")
NUMBER(nvmlDeviceGetIrqNum, unsigned int, "irq")
NUMBER(nvmlDeviceGetNumaNodeId, unsigned int, "gpu_numa_node") /* GPU memory as a NUMA node: coherent systems only */
COMPUTED(nvmlDeviceGetBoardId, unsigned int, ({ unsigned int d, b, n; emu_bus_id(gpu, &d, &b, &n); b << 8 | n; }))
COMPUTED(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
COMPUTED(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
COMPUTED(nvmlDeviceGetDisplayMode, nvmlEnableState_t, emu_gpu_int(gpu, "display_mode", 0))
COMPUTED(nvmlDeviceGetDisplayActive, nvmlEnableState_t, emu_gpu_int(gpu, "display_active", 0))
COMPUTED(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
COMPUTED(nvmlDeviceGetPowerSource, nvmlPowerSource_t, NVML_POWER_SOURCE_AC)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE(device);
    const char *text = emu_gpu(gpu, "cuda_capability");
    NEED(major && minor);
    return text && sscanf(text, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    DEVICE(one);
    (void)gpu;
    NEED(same && other);
    *same = one == other;
    return NVML_SUCCESS;
}

/* ---- firmware ---- */

TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *out, unsigned int length)
{
    static const char *const keys[NVML_INFOROM_COUNT] = {"inforom_oem", "inforom_ecc", "inforom_power"};
    DEVICE(device);
    NEED(object < NVML_INFOROM_COUNT);
    return emu_copy(out, length, emu_gpu(gpu, keys[object]));
}

/* Follows driver and ECC setting as the real one does, so it is no fingerprint of the firmware alone. */
nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned int *checksum)
{
    DEVICE(device);
    NEED(checksum);
    if (!emu_gpu_int(gpu, "inforom_valid", 1))
        return NVML_ERROR_CORRUPTED_INFOROM;
    unsigned int sum = 2166136261u; /* FNV-1a */
    const char *parts[] = {emu_gpu(gpu, "inforom_image"), emu_gpu(gpu, "serial"), emu_get("driver_version"), emu_gpu(gpu, "ecc_mode")};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        for (const char *c = parts[i]; c && *c; c++)
            sum = (sum ^ (unsigned char)*c) * 16777619u;
    *checksum = (unsigned int)emu_gpu_int(gpu, "inforom_checksum", sum);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    DEVICE(device);
    return emu_gpu_int(gpu, "inforom_valid", 1) ? NVML_SUCCESS : NVML_ERROR_CORRUPTED_INFOROM;
}

nvmlReturn_t nvmlDeviceGetLastBBXFlushTime(nvmlDevice_t device, unsigned long long *timestamp, unsigned long *duration)
{
    DEVICE(device);
    NEED(timestamp && duration);
    *timestamp = 0; /* never flushed */
    *duration = 0;
    return NVML_SUCCESS;
}

/* Comes with the driver, so it follows the driver's version unless a fault says otherwise. */
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    DEVICE(device);
    const char *own = emu_gpu(gpu, "gsp");
    return emu_copy(version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, own ? own : emu_get("driver_version"));
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *by_default)
{
    DEVICE(device);
    NEED(enabled && by_default);
    *enabled = (unsigned int)emu_gpu_int(gpu, "gsp_mode", 1);
    *by_default = 1;
    return NVML_SUCCESS;
}

/* ---- PCI ---- */

void emu_fill_pci(int gpu, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    emu_bus_id(gpu, &pci->domain, &pci->bus, &pci->device);
    pci->pciDeviceId = (unsigned int)emu_gpu_int(gpu, "pci_device_id", 0);
    pci->pciSubSystemId = (unsigned int)emu_gpu_int(gpu, "pci_subsystem_id", 0);
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f);
    snprintf(pci->busId, sizeof(pci->busId), NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain, pci->bus & 0xff, pci->device & 0x1f);
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    NEED(pci);
    emu_fill_pci(gpu, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    NEED(pci);
    emu_fill_pci(gpu, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    NEED(pci);
    emu_fill_pci(gpu, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    nvmlPciInfo_t plain;
    DEVICE(device);
    NEED(pci);
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    emu_fill_pci(gpu, &plain);
    pci->domain = plain.domain;
    pci->bus = plain.bus;
    pci->device = plain.device;
    pci->pciDeviceId = plain.pciDeviceId;
    pci->pciSubSystemId = plain.pciSubSystemId;
    pci->baseClass = 0x03; /* display controller, */
    pci->subClass = 0x02;  /* 3D */
    memcpy(pci->busId, plain.busId, sizeof(pci->busId));
    return NVML_SUCCESS;
}

/* The link. Three facts: what the card can (pcie_device_…), what the slot can (pcie_system_…), what it runs at now. NVML's "max" is the
 * best of card AND system, so a card in an x8 slot reports max 8 and current 8: only the declared width tells. */
static unsigned int link_max(int gpu, const char *device_key, const char *system_key, unsigned int fallback)
{
    return min_uint((unsigned int)emu_gpu_int(gpu, device_key, fallback), (unsigned int)emu_gpu_int(gpu, system_key, fallback));
}
static unsigned int width_max(int gpu) { return link_max(gpu, "pcie_device_width", "pcie_system_width", 16); }
static unsigned int gen_max(int gpu) { return link_max(gpu, "pcie_device_gen", "pcie_system_gen", 4); }
static unsigned int width_now(int gpu) { return min_uint(width_max(gpu), (unsigned int)emu_gpu_int(gpu, "pcie_width", 16)); }
static unsigned int gen_now(int gpu) { return min_uint(gen_max(gpu), (unsigned int)emu_gpu_int(gpu, "pcie_gen", 6)); }

/* MT/s a lane of PCIe generations 1-6, from the PCIe specification; NVML calls them Mbps. */
static unsigned int speed_of(unsigned int generation)
{
    static const unsigned int speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    return generation < sizeof(speeds) / sizeof(speeds[0]) ? speeds[generation] : 0;
}

COMPUTED(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, gen_max(gpu))
COMPUTED(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, emu_gpu_int(gpu, "pcie_device_gen", 4))
COMPUTED(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, width_max(gpu))
COMPUTED(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, gen_now(gpu))
COMPUTED(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, width_now(gpu))
COMPUTED(nvmlDeviceGetPcieReplayCounter, unsigned int, emu_gpu_int(gpu, "pcie_replay", 0))
COMPUTED(nvmlDeviceGetPcieSpeed, unsigned int, speed_of(gen_now(gpu)))
/* The header's text says MBPS, its constants are an enumeration that runs as the generations do (4 = 16000). */
COMPUTED(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, gen_max(gpu))

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *kib_per_s)
{
    DEVICE(device);
    NEED(kib_per_s && counter < NVML_PCIE_UTIL_COUNT);
    *kib_per_s = (unsigned int)emu_gpu_int(gpu, counter == NVML_PCIE_UTIL_TX_BYTES ? "pcie_tx_kib_s" : "pcie_rx_kib_s", 0);
    return NVML_SUCCESS;
}

/* ---- power (mW) ---- */

unsigned int emu_power_limit(int gpu) { return (unsigned int)emu_life_int(gpu, "power_limit_mw", emu_gpu_int(gpu, "power_default_mw", 0)); }

/* The lowest of all limiters; the board controller's is the one that NVML cannot set. */
unsigned int emu_enforced_limit(int gpu)
{
    unsigned int asked = emu_power_limit(gpu);
    return min_uint(asked, (unsigned int)emu_gpu_int(gpu, "bmc_cap_mw", asked));
}

unsigned int emu_power_usage(int gpu)
{
    long long drawn = emu_gpu_int(gpu, "power_usage_mw", 0);
    return drawn <= 0 ? 0 : min_uint((unsigned int)drawn, emu_enforced_limit(gpu));
}

/* mJ since driver load. The base of a `sine:` value is its mean, which keeps the counter from running backwards. */
unsigned long long emu_energy(int gpu)
{
    double base = 0;
    const char *usage = emu_gpu(gpu, "power_usage_mw");
    struct timespec now;
    if (usage && sscanf(usage, "sine:%lf", &base) != 1)
        base = emu_number(usage, 0);
    clock_gettime(CLOCK_REALTIME, &now);
    double loaded = emu_number(emu_get("driver_load_time"), (double)now.tv_sec);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - loaded;
    return (unsigned long long)(emu_number(emu_gpu(gpu, "energy_mj"), 0) + (seconds > 0 ? seconds * base : 0));
}

COMPUTED(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
COMPUTED(nvmlDeviceGetPowerManagementLimit, unsigned int, emu_power_limit(gpu))
COMPUTED(nvmlDeviceGetEnforcedPowerLimit, unsigned int, emu_enforced_limit(gpu))
COMPUTED(nvmlDeviceGetPowerUsage, unsigned int, emu_power_usage(gpu))
COMPUTED(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, emu_energy(gpu))
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default_mw")

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min, unsigned int *max)
{
    DEVICE(device);
    NEED(min && max);
    nvmlReturn_t got = number(gpu, "power_min_mw", min);
    return got == NVML_SUCCESS ? number(gpu, "power_max_mw", max) : got;
}

static nvmlReturn_t set_power_limit(int gpu, bool noop, unsigned int limit)
{
    if (!emu_gpu(gpu, "power_max_mw"))
        return NVML_ERROR_NOT_SUPPORTED;
    NEED(limit >= (unsigned int)emu_gpu_int(gpu, "power_min_mw", 0) && limit <= (unsigned int)emu_gpu_int(gpu, "power_max_mw", 0));
    noop = noop || emu_gpu_int(gpu, "set_power_noop", 0);
    return noop ? NVML_SUCCESS : stored(emu_store_life(gpu, "power_limit_mw", limit));
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit)
{
    SETTER(device);
    return set_power_limit(gpu, noop, limit);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    SETTER(device);
    NEED(value);
    if (value->version != nvmlPowerValue_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (value->powerScope != NVML_POWER_SCOPE_GPU) /* an unsigned char with padding behind it, not an int */
        return NVML_ERROR_NOT_SUPPORTED;
    return set_power_limit(gpu, noop, value->powerValueMw);
}

/* ---- modes ---- */

COMPUTED(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, emu_persistence(gpu))

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    SETTER(device);
    NEED(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return noop ? NVML_SUCCESS : stored(emu_store_life(gpu, "persistence_mode", mode));
}

COMPUTED(nvmlDeviceGetComputeMode, nvmlComputeMode_t, emu_life_int(gpu, "compute_mode", 0))

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    SETTER(device);
    NEED(mode < NVML_COMPUTEMODE_COUNT);
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || emu_gpu_int(gpu, "mig_mode", 0)) /* gone since CUDA 8; not under MIG */
        return NVML_ERROR_NOT_SUPPORTED;
    return noop ? NVML_SUCCESS : stored(emu_store_life(gpu, "compute_mode", mode));
}

COMPUTED(nvmlDeviceGetAccountingMode, nvmlEnableState_t, emu_gpu_int(gpu, "accounting_mode", 0))
COMPUTED(nvmlDeviceGetAccountingBufferSize, unsigned int, 4000)

nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    SETTER(device);
    NEED(mode == NVML_FEATURE_DISABLED || mode == NVML_FEATURE_ENABLED);
    return noop ? NVML_SUCCESS : set_gpu_key(EMU_VOLATILE, gpu, "accounting_mode", mode);
}

/* ---- MIG: the mode only, no instances to compute on ---- */

/* True when instances are said to exist: then per-GPU memory health is not to be had. */
bool emu_mig_instances(int gpu) { return emu_gpu_int(gpu, "mig_mode", 0) && emu_gpu_int(gpu, "mig_instances", 0) > 0; }

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    DEVICE(device);
    NEED(current && pending);
    if (emu_gpu_int(gpu, "mig_max_devices", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = (unsigned int)emu_gpu_int(gpu, "mig_mode", 0);
    *pending = (unsigned int)emu_gpu_int(gpu, "mig_mode_pending", *current);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    SETTER(device);
    NEED(activation && mode <= NVML_DEVICE_MIG_ENABLE);
    if (emu_gpu_int(gpu, "mig_max_devices", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const char *running = emu_gpu(gpu, "processes_compute");
    *activation = running && *running ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    nvmlReturn_t done = noop ? NVML_SUCCESS : set_gpu_key(EMU_IDENTITY, gpu, "mig_mode_pending", mode);
    if (done == NVML_SUCCESS && *activation == NVML_SUCCESS && !noop)
        done = set_gpu_key(EMU_IDENTITY, gpu, "mig_mode", mode);
    return done;
}

COMPUTED(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, "mig_max_devices")

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    DEVICE(device);
    NEED(mig && index < (unsigned int)emu_gpu_int(gpu, "mig_max_devices", 0));
    return emu_gpu_int(gpu, "mig_mode", 0) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    DEVICE(mig);
    (void)gpu;
    NEED(device);
    return NVML_ERROR_INVALID_ARGUMENT; /* no handle of ours is one of a MIG device */
}

/* ---- temperatures (degrees C) ---- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
    DEVICE(device);
    NEED(sensor < NVML_TEMPERATURE_COUNT);
    return number(gpu, "temperature_gpu", out);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold, unsigned int *out)
{
    static const char *const keys[] = {"threshold_shutdown", "threshold_slowdown", "threshold_mem_max", "threshold_gpu_max"};
    DEVICE(device);
    NEED(threshold < NVML_TEMPERATURE_THRESHOLD_COUNT);
    if (threshold >= sizeof(keys) / sizeof(keys[0]))
        return NVML_ERROR_NOT_SUPPORTED; /* acoustic ones: boards with fans */
    return number(gpu, keys[threshold], out);
}

NUMBER(nvmlDeviceGetFanSpeed, unsigned int, "fan_speed") /* passive boards have none */
COMPUTED(nvmlDeviceGetNumFans, unsigned int, emu_gpu_int(gpu, "fans", 0))

/* ---- clocks (MHz) ---- */

static const char *const clock_names[NVML_CLOCK_COUNT] = {"graphics", "sm", "mem", "video"};

static nvmlReturn_t clock_key(int gpu, const char *prefix, nvmlClockType_t type, unsigned int *out)
{
    char key[64];
    NEED(type < NVML_CLOCK_COUNT);
    snprintf(key, sizeof(key), "%s_%s", prefix, clock_names[type]);
    return number(gpu, key, out);
}

static nvmlReturn_t app_clock(int gpu, nvmlClockType_t type, unsigned int *out)
{
    nvmlReturn_t got = clock_key(gpu, "app_clock_default", type == NVML_CLOCK_SM ? NVML_CLOCK_GRAPHICS : type, out);
    if (got != NVML_SUCCESS)
        return got;
    *out = (unsigned int)emu_life_int(gpu, type == NVML_CLOCK_MEM ? "app_clock_mem" : "app_clock_graphics", *out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock", type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock_max", type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "clock_max", type, clock);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return app_clock(gpu, type, clock);
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    DEVICE(device);
    return clock_key(gpu, "app_clock_default", type, clock);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *clock)
{
    DEVICE(device);
    switch (id) {
    case NVML_CLOCK_ID_CURRENT: return clock_key(gpu, "clock", type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET: return app_clock(gpu, type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT: return clock_key(gpu, "app_clock_default", type, clock);
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX: return clock_key(gpu, "clock_max", type, clock);
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

/* Steps from the highest down, as NVML lists them. */
static nvmlReturn_t clock_list(unsigned int top, unsigned int bottom, unsigned int step, unsigned int *count, unsigned int *clocks)
{
    unsigned int room = *count, needed = (top - bottom) / step + 1;
    *count = needed;
    if (!clocks || room < needed)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < needed; i++)
        clocks[i] = top - i * step;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
    DEVICE(device);
    unsigned int top;
    NEED(count);
    nvmlReturn_t got = clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &top);
    return got == NVML_SUCCESS ? clock_list(top, top, 1, count, clocks) : got; /* HBM boards have one */
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count, unsigned int *clocks)
{
    DEVICE(device);
    unsigned int top, only;
    NEED(count);
    nvmlReturn_t got = clock_key(gpu, "clock_max", NVML_CLOCK_GRAPHICS, &top);
    if (got == NVML_SUCCESS)
        got = clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &only);
    if (got == NVML_SUCCESS && memory != only)
        got = NVML_ERROR_NOT_FOUND;
    return got == NVML_SUCCESS ? clock_list(top, 210, 15, count, clocks) : got;
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory, unsigned int graphics)
{
    SETTER(device);
    unsigned int top_memory = 0, top_graphics = 0;
    clock_key(gpu, "clock_max", NVML_CLOCK_MEM, &top_memory);
    clock_key(gpu, "clock_max", NVML_CLOCK_GRAPHICS, &top_graphics);
    NEED(memory == top_memory && graphics >= 210 && graphics <= top_graphics);
    if (noop)
        return NVML_SUCCESS;
    return stored(emu_store_life(gpu, "app_clock_mem", memory) && emu_store_life(gpu, "app_clock_graphics", graphics));
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    SETTER(device);
    return noop ? NVML_SUCCESS : stored(emu_forget_life(gpu, "app_clock_mem") && emu_forget_life(gpu, "app_clock_graphics"));
}

static nvmlReturn_t lock_clocks(int gpu, bool noop, const char *which, unsigned int min, unsigned int max)
{
    char low[64], high[64];
    NEED(min <= max);
    snprintf(low, sizeof(low), "locked_clock_%s_min", which);
    snprintf(high, sizeof(high), "locked_clock_%s_max", which);
    return noop ? NVML_SUCCESS : stored(emu_store_life(gpu, low, min) && emu_store_life(gpu, high, max));
}

static nvmlReturn_t unlock_clocks(int gpu, bool noop, const char *which)
{
    char low[64], high[64];
    snprintf(low, sizeof(low), "locked_clock_%s_min", which);
    snprintf(high, sizeof(high), "locked_clock_%s_max", which);
    return noop ? NVML_SUCCESS : stored(emu_forget_life(gpu, low) && emu_forget_life(gpu, high));
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min, unsigned int max)
{
    SETTER(device);
    return lock_clocks(gpu, noop, "graphics", min, max);
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    SETTER(device);
    return unlock_clocks(gpu, noop, "graphics");
}

nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min, unsigned int max)
{
    SETTER(device);
    return lock_clocks(gpu, noop, "mem", min, max);
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    SETTER(device);
    return unlock_clocks(gpu, noop, "mem");
}

/* Told outright by clocks_event_reasons, else what follows from load and power: idle, or held at the cap. */
static unsigned long long event_reasons(int gpu)
{
    const char *told = emu_gpu(gpu, "clocks_event_reasons");
    if (told)
        return (unsigned long long)emu_number(told, 0);
    if (emu_gpu_int(gpu, "utilization_gpu", 0) == 0)
        return nvmlClocksEventReasonGpuIdle;
    return emu_gpu_int(gpu, "power_usage_mw", 0) >= emu_enforced_limit(gpu) ? nvmlClocksEventReasonSwPowerCap : nvmlClocksEventReasonNone;
}

COMPUTED(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, event_reasons(gpu))
COMPUTED(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, event_reasons(gpu))
COMPUTED(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
COMPUTED(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
COMPUTED(nvmlDeviceGetPerformanceState, nvmlPstates_t, emu_gpu_int(gpu, "pstate", 0))
COMPUTED(nvmlDeviceGetPowerState, nvmlPstates_t, emu_gpu_int(gpu, "pstate", 0))

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *time_ns)
{
    static const char *const names[NVML_PERF_POLICY_COUNT] = {"power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"};
    struct timespec now;
    char key[64];
    DEVICE(device);
    NEED(time_ns && policy < NVML_PERF_POLICY_COUNT);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(key, sizeof(key), "violation_%s_ns", names[policy] ? names[policy] : "other");
    time_ns->referenceTime = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    time_ns->violationTime = (unsigned long long)emu_gpu_int(gpu, key, 0);
    return NVML_SUCCESS;
}

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

/* ---- memory health ---- */

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
    return noop ? NVML_SUCCESS : set_gpu_key(EMU_IDENTITY, gpu, "ecc_mode_pending", mode);
}

/* Errors are kept as totals; all of them count as DRAM unless ecc_<kind>_<sort>_sram gives SRAM its share. */
static nvmlReturn_t ecc_count(int gpu, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, bool sram, unsigned long long *out)
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

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *out)
{
    DEVICE(device);
    return ecc_count(gpu, type, counter, false, out);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t place, unsigned long long *out)
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
    *out = place == NVML_MEMORY_LOCATION_SRAM ? sram : total - min_uint((unsigned int)sram, (unsigned int)total);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *out)
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
        return stored(emu_forget_life(gpu, "ecc_volatile_corrected") && emu_forget_life(gpu, "ecc_volatile_uncorrected") &&
                      emu_forget_life(gpu, "ecc_volatile_corrected_sram") && emu_forget_life(gpu, "ecc_volatile_uncorrected_sram"));
    emu_change zero[4];
    static const char *const keys[] = {"corrected", "uncorrected", "corrected_sram", "uncorrected_sram"};
    for (int i = 0; i < 4; i++) {
        snprintf(zero[i].key, sizeof(zero[i].key), "gpu.%d.ecc_aggregate_%s", gpu, keys[i]);
        zero[i].value = "0";
    }
    return stored(emu_store(EMU_IDENTITY, zero, 4));
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending,
                                       unsigned int *failure)
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
    /* Banks by how many spare rows are left. Every remapped row takes one bank from `max` to `high`, unless told in full. */
    const char *told = emu_gpu(gpu, "remap_histogram");
    unsigned int banks = (unsigned int)emu_gpu_int(gpu, "remap_banks", 640);
    unsigned int rows = (unsigned int)(emu_gpu_int(gpu, "remapped_corrected", 0) + emu_gpu_int(gpu, "remapped_uncorrected", 0));
    memset(out, 0, sizeof(*out));
    if (told && sscanf(told, "%u,%u,%u,%u,%u", &out->max, &out->high, &out->partial, &out->low, &out->none) == 5)
        return NVML_SUCCESS;
    out->high = min_uint(rows, banks);
    out->max = banks - out->high;
    return NVML_SUCCESS;
}

/* Page retirement is older than Ampere's row remapping: not supported unless the state lists pages (addresses, comma between). */
static nvmlReturn_t retired_pages(int gpu, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses)
{
    NEED(count && cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT);
    const char *list = emu_gpu(gpu, cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? "retired_pages_double" : "retired_pages_single");
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

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses)
{
    DEVICE(device);
    return retired_pages(gpu, cause, count, addresses);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses,
                                          unsigned long long *timestamps)
{
    DEVICE(device);
    unsigned int room = count ? *count : 0;
    nvmlReturn_t got = retired_pages(gpu, cause, count, addresses);
    for (unsigned int i = 0; got == NVML_SUCCESS && addresses && timestamps && i < room && i < *count; i++)
        timestamps[i] = 0;
    return got;
}

NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, "retired_pages_pending")

/* ---- NVLink: PCIe boards have links that are down unless a bridge sits on them ---- */

int emu_nvlink_count(int gpu) { return (int)emu_gpu_int(gpu, "nvlink_links", 0); }

static nvmlReturn_t link_exists(int gpu, unsigned int link)
{
    if (emu_nvlink_count(gpu) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return link < (unsigned int)emu_nvlink_count(gpu) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static bool link_up(int gpu, unsigned int link) { return emu_gpu_int(gpu, "nvlink_active", 0) >> link & 1; }

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
    DEVICE(device);
    NEED(state);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *state = link_up(gpu, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    DEVICE(device);
    NEED(version);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *version = (unsigned int)emu_gpu_int(gpu, "nvlink_version", 3);
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability, unsigned int *out)
{
    DEVICE(device);
    NEED(out && capability < NVML_NVLINK_CAP_COUNT);
    nvmlReturn_t got = link_exists(gpu, link);
    if (got == NVML_SUCCESS)
        *out = link_up(gpu, link) && capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return got;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter, unsigned long long *out)
{
    static const char *const names[NVML_NVLINK_ERROR_COUNT] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    char key[64];
    DEVICE(device);
    NEED(out && counter < NVML_NVLINK_ERROR_COUNT);
    nvmlReturn_t got = link_exists(gpu, link);
    snprintf(key, sizeof(key), "nvlink_%u_%s", link, names[counter]);
    if (got == NVML_SUCCESS)
        *out = (unsigned long long)emu_gpu_int(gpu, key, 0);
    return got;
}

/* The peer at the other end of a bridge: gpu.N.nvlink_peer names its slot. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    DEVICE(device);
    NEED(pci);
    nvmlReturn_t got = link_exists(gpu, link);
    int peer = (int)emu_gpu_int(gpu, "nvlink_peer", -1);
    if (got != NVML_SUCCESS)
        return got;
    if (!link_up(gpu, link) || peer < 0 || peer >= emu_gpu_count())
        return NVML_ERROR_NOT_SUPPORTED;
    emu_fill_pci(peer, pci);
    return NVML_SUCCESS;
}

static unsigned char fabric_state(int gpu) { return (unsigned char)emu_gpu_int(gpu, "fabric_state", NVML_GPU_FABRIC_STATE_NOT_SUPPORTED); }

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    DEVICE(device);
    NEED(out);
    memset(out, 0, sizeof(*out));
    out->state = fabric_state(gpu);
    return out->state ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    DEVICE(device);
    NEED(out);
    if (out->version != nvmlGpuFabricInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(out, 0, sizeof(*out));
    out->version = nvmlGpuFabricInfo_v2;
    out->state = fabric_state(gpu);
    return out->state ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* ---- where it sits ---- */

/* `0-15,32-47` into the bits of `words`. */
static void cpu_bits(const char *list, unsigned int count, unsigned long *words)
{
    const unsigned int bits = 8 * sizeof(unsigned long);
    memset(words, 0, count * sizeof(*words));
    for (const char *at = list; at && *at;) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at)
            return;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu / bits < count; cpu++)
            words[cpu / bits] |= 1ul << cpu % bits;
        at = *end == ',' ? end + 1 : end;
    }
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int count, unsigned long *cpus)
{
    DEVICE(device);
    NEED(cpus && count);
    cpu_bits(emu_gpu(gpu, "local_cpulist"), count, cpus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int count, unsigned long *cpus, nvmlAffinityScope_t scope)
{
    DEVICE(device);
    (void)scope;
    NEED(cpus && count);
    cpu_bits(emu_gpu(gpu, "local_cpulist"), count, cpus);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int count, unsigned long *nodes, nvmlAffinityScope_t scope)
{
    DEVICE(device);
    (void)scope;
    NEED(nodes && count);
    cpu_bits(emu_gpu(gpu, "numa_node"), count, nodes);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    DEVICE(one);
    NEED(level && other >= emu_devices && other < emu_devices + EMU_MAX_GPUS && other->slot < emu_gpu_count());
    bool same_node = emu_gpu_int(gpu, "numa_node", 0) == emu_gpu_int(other->slot, "numa_node", 0);
    *level = one == other ? NVML_TOPOLOGY_INTERNAL : same_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
    DEVICE(one);
    NEED(status && other >= emu_devices && other < emu_devices + EMU_MAX_GPUS && other->slot < emu_gpu_count());
    bool bridged = emu_gpu_int(gpu, "nvlink_active", 0) && emu_gpu_int(gpu, "nvlink_peer", -1) == other->slot;
    *status = what == NVML_P2P_CAPS_INDEX_NVLINK && !bridged ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

/* ---- processes ---- */

struct process {
    unsigned int pid;
    unsigned long long bytes;
};

/* `pid:MiB;pid:MiB` */
static unsigned int process_list(const char *list, struct process *out, unsigned int room)
{
    unsigned int found = 0;
    for (const char *at = list; at && *at;) {
        char *end;
        unsigned long pid = strtoul(at, &end, 10);
        if (end == at)
            break;
        unsigned long long mib = *end == ':' ? strtoull(end + 1, &end, 10) : 0;
        if (found < room) {
            out[found].pid = (unsigned int)pid;
            out[found].bytes = mib << 20;
        }
        found++;
        at = *end == ';' ? end + 1 : end;
    }
    return found;
}

#define MAX_PROCESSES 256

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
        infos[i].gpuInstanceId = infos[i].computeInstanceId = 0xffffffffu; /* not in MIG */
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
