/* Prints, as JSON, size and field offsets of every structure that crosses the library's border, as NVIDIA's header has
 * them. The tests compare the binding's ctypes structures with this: a wrong field shows as numbers, not as a crash. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <nvml.h>
#include <stddef.h>
#include <stdio.h>

static const char *between_structs = "", *between_fields = "";

#define STRUCT(type) \
    typedef type this_type; \
    printf("%s\n \"" #type "\": {\"size\": %zu, \"fields\": {", between_structs, sizeof(type)); \
    between_structs = ","; \
    between_fields = "";
#define F(field) \
    printf("%s\"" #field "\": [%zu, %zu]", between_fields, offsetof(this_type, field), \
           sizeof(((this_type *)0)->field)); \
    between_fields = ", ";
#define END printf("}}");

/* clang-format off */
int main(void)
{
    printf("{");
    { STRUCT(nvmlPciInfo_t) F(busIdLegacy) F(domain) F(bus) F(device) F(pciDeviceId) F(pciSubSystemId) F(busId) END }
    {
        STRUCT(nvmlPciInfoExt_v1_t) F(version) F(domain) F(bus) F(device) F(pciDeviceId) F(pciSubSystemId) F(baseClass)
        F(subClass) F(busId) END
    }
    { STRUCT(nvmlUtilization_t) F(gpu) F(memory) END }
    { STRUCT(nvmlMemory_t) F(total) F(free) F(used) END }
    { STRUCT(nvmlMemory_v2_t) F(version) F(total) F(reserved) F(free) F(used) END }
    { STRUCT(nvmlBAR1Memory_t) F(bar1Total) F(bar1Free) F(bar1Used) END }
    { STRUCT(nvmlProcessInfo_v1_t) F(pid) F(usedGpuMemory) END }
    { STRUCT(nvmlProcessInfo_v2_t) F(pid) F(usedGpuMemory) F(gpuInstanceId) F(computeInstanceId) END }
    { STRUCT(nvmlRowRemapperHistogramValues_t) F(max) F(high) F(partial) F(low) F(none) END }
    { STRUCT(nvmlViolationTime_t) F(referenceTime) F(violationTime) END }
    { STRUCT(nvmlEccErrorCounts_t) F(l1Cache) F(l2Cache) F(deviceMemory) F(registerFile) END }
    {
        STRUCT(nvmlEccSramErrorStatus_v1_t)
        F(version) F(aggregateUncParity) F(aggregateUncSecDed) F(aggregateCor) F(volatileUncParity)
        F(volatileUncSecDed) F(volatileCor)
        F(aggregateUncBucketL2) F(aggregateUncBucketSm) F(aggregateUncBucketPcie) F(aggregateUncBucketMcu)
        F(aggregateUncBucketOther)
        F(bThresholdExceeded) END
    }
    {
        STRUCT(nvmlFieldValue_t) F(fieldId) F(scopeId) F(timestamp) F(latencyUsec) F(valueType) F(nvmlReturn) F(value)
        END
    }
    { STRUCT(nvmlEventData_t) F(device) F(eventType) F(eventData) F(gpuInstanceId) F(computeInstanceId) END }
    { STRUCT(nvmlExcludedDeviceInfo_t) F(pciInfo) F(uuid) END }
    { STRUCT(nvmlGpuFabricInfo_t) F(clusterUuid) F(status) F(cliqueId) F(state) END }
    { STRUCT(nvmlGpuFabricInfo_v2_t) F(version) F(clusterUuid) F(status) F(cliqueId) F(state) F(healthMask) END }
    { STRUCT(nvmlPowerValue_v2_t) F(version) F(powerScope) F(powerValueMw) END }
    {
        STRUCT(nvmlDeviceAttributes_t) F(multiprocessorCount) F(sharedCopyEngineCount) F(sharedDecoderCount)
        F(sharedEncoderCount) F(sharedJpegCount) F(sharedOfaCount) F(gpuInstanceSliceCount) F(computeInstanceSliceCount)
        F(memorySizeMB) END
    }
    { STRUCT(nvmlGpuInstancePlacement_t) F(start) F(size) END }
    {
        STRUCT(nvmlGpuInstanceProfileInfo_t) F(id) F(isP2pSupported) F(sliceCount) F(instanceCount)
        F(multiprocessorCount) F(copyEngineCount) F(decoderCount) F(encoderCount) F(jpegCount) F(ofaCount)
        F(memorySizeMB) END
    }
    {
        STRUCT(nvmlGpuInstanceProfileInfo_v2_t) F(version) F(id) F(isP2pSupported) F(sliceCount) F(instanceCount)
        F(multiprocessorCount) F(copyEngineCount) F(decoderCount) F(encoderCount) F(jpegCount) F(ofaCount)
        F(memorySizeMB) F(name) END
    }
    { STRUCT(nvmlGpuInstanceInfo_t) F(device) F(id) F(profileId) F(placement) END }
    {
        STRUCT(nvmlComputeInstanceProfileInfo_t) F(id) F(sliceCount) F(instanceCount) F(multiprocessorCount)
        F(sharedCopyEngineCount) F(sharedDecoderCount) F(sharedEncoderCount) F(sharedJpegCount) F(sharedOfaCount) END
    }
    {
        STRUCT(nvmlComputeInstanceProfileInfo_v2_t) F(version) F(id) F(sliceCount) F(instanceCount)
        F(multiprocessorCount) F(sharedCopyEngineCount) F(sharedDecoderCount) F(sharedEncoderCount) F(sharedJpegCount)
        F(sharedOfaCount) F(name) END
    }
    { STRUCT(nvmlComputeInstanceInfo_t) F(device) F(gpuInstance) F(id) F(profileId) F(placement) END }
    { STRUCT(nvmlHwbcEntry_t) F(hwbcId) F(firmwareVersion) END }
    printf("\n}\n");
    return 0;
}
