"""Records of cards as nvml gives them, for tests of what is made of a record."""

from ansible.module_utils.steadyrack import nvml_fields
from gpu_node import SLOTS

UUID = "GPU-657227da-611f-5a74-89fc-c3e616de4e02"


def card(**fields):
    """A well A100's record; a dotted name is written with two underscores."""
    gpu = nvml_fields.empty_gpu()
    values = {
        "bus_id": SLOTS[0], "uuid": UUID, "serial": "1", "temperature_c": 40, "memory_temperature_c": 45,
        "event_reasons": [], "ecc.mode": {"current": True, "pending": True}, "ecc.corrected_aggregate": 0,
        "ecc.uncorrected_aggregate": 0, "sram": {"corrected": 0, "uncorrected": 0, "threshold_exceeded": False},
        "remapped_rows": {"corrected": 0, "uncorrected": 0, "pending": False, "failure": False},
        "inforom.valid": True, "thresholds.shutdown_c": 92, "thresholds.slowdown_c": 89, "thresholds.gpu_max_c": 85,
        "thresholds.memory_max_c": 95, "pcie_errors.replay": 0, "nvlink.links": ["down"] * 12, "energy_mj": 1000,
    }  # fmt: skip
    for name, value in {**values, **{name.replace("__", "."): value for name, value in fields.items()}}.items():
        nvml_fields.put_at(gpu, name, value)
    for name in ("retired_pages", "recovery_action", "margin_c"):
        gpu["errors"][name] = {"code": 3, "name": "NOT_SUPPORTED", "call": name}
    return gpu


def failing(gpu, *names, code=999, word="UNKNOWN"):
    """The same card with fields that could not be read."""
    for name in names:
        nvml_fields.put_at(gpu, name, None)
        gpu["errors"][name] = {"code": code, "name": word, "call": name}
    return gpu
