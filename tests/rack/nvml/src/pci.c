/* PCI addresses and the PCIe link. */
#define _GNU_SOURCE
#include "shapes.h"

#include <stdio.h>
#include <string.h>

void emu_fill_pci(int gpu, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof(*pci));
    emu_bus_id(gpu, &pci->domain, &pci->bus, &pci->device);
    pci->pciDeviceId = (unsigned int)emu_gpu_int(gpu, "pci_device_id", 0);
    pci->pciSubSystemId = (unsigned int)emu_gpu_int(gpu, "pci_subsystem_id", 0);
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0x1f);
    snprintf(pci->busId, sizeof(pci->busId), NVML_DEVICE_PCI_BUS_ID_FMT, pci->domain, pci->bus & 0xff,
             pci->device & 0x1f);
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

/* The link. Three facts: what the card can (pcie_device_…), what the slot can (pcie_system_…), what it runs at now.
 * NVML's "max" is the best of card AND system, so a card in an x8 slot reports max 8 and current 8: only the declared
 * width tells. */
static unsigned int link_max(int gpu, const char *device_key, const char *system_key, unsigned int fallback)
{
    return emu_min((unsigned int)emu_gpu_int(gpu, device_key, fallback),
                   (unsigned int)emu_gpu_int(gpu, system_key, fallback));
}
static unsigned int width_max(int gpu) { return link_max(gpu, "pcie_device_width", "pcie_system_width", 16); }
static unsigned int gen_max(int gpu) { return link_max(gpu, "pcie_device_gen", "pcie_system_gen", 4); }
static unsigned int width_now(int gpu)
{
    return emu_min(width_max(gpu), (unsigned int)emu_gpu_int(gpu, "pcie_width", 16));
}
static unsigned int gen_now(int gpu) { return emu_min(gen_max(gpu), (unsigned int)emu_gpu_int(gpu, "pcie_gen", 6)); }

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
    *kib_per_s =
        (unsigned int)emu_gpu_int(gpu, counter == NVML_PCIE_UTIL_TX_BYTES ? "pcie_tx_kib_s" : "pcie_rx_kib_s", 0);
    return NVML_SUCCESS;
}
