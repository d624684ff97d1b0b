# SPDX-License-Identifier: BSD-2-Clause
"""What nvidia-smi printed, as records: a second witness beside NVML. Text in, record out; runs nothing.

Three forms: ``-q -x`` (XML), ``--query-gpu=… --format=csv`` and ``-L``. The exit status is looked at
first, for a failing nvidia-smi prints its message where data is expected. A value that is missing is
None, with nvidia-smi's own word for it beside it under ``raw``.
"""

from __future__ import annotations

import csv
import re
from typing import Any, Dict
from xml.etree import ElementTree

from . import pcie
from .errors import InputError, ToolError

Record = Dict[str, Any]

# nvidia-smi's exit status, from its manual ("RETURN VALUE"); the states are those of nvml.
RC_STATES = {
    0: "ok",
    2: "bad_request",
    3: "not_supported",
    4: "no_permission",
    6: "no_devices",
    8: "no_power",
    9: "no_driver",
    10: "interrupt_trouble",
    12: "no_library",
    13: "function_missing",
    14: "corrupted_inforom",
    15: "lost",
    18: "driver_mismatch",
}
# Failures that concern one GPU: what was printed for the others is still good.
_PARTIAL = ("lost", "corrupted_inforom", "no_power", "interrupt_trouble")

# The words for "no value" over driver generations, without brackets, lower case. "[Unknown Error]"
# and ERR! are failures of one field, not of the row.
NO_VALUE = (
    "n/a", "not supported", "unknown", "not found", "not available", "none", "unknown error",
    "requested functionality has been deprecated", "err!", "gpu is lost", "gpu requires reset",
    "insufficient permissions", "function not found", "",
)  # fmt: skip

_UNREACHABLE = re.compile(
    r"Unable to determine the device handle for (?:GPU|gpu)\s*([0-9a-f:.]+):\s*(.*)", re.IGNORECASE
)
# What it prints beside the data and that is none, for instance at status 14.
_WARNING = re.compile(r"\s*WARNING: .*")
_FIELD = re.compile(r"[a-z][a-z0-9_.]*")
_VERSION = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)+)", re.IGNORECASE)
_BAD_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_GPU_LINE = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[0-9a-f-]+)\)\s*", re.IGNORECASE)
_MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[0-9a-z/-]+)\)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

# XML places of the limits. Up to 530 everything was in power_readings; 535 renamed it to
# gpu_power_readings and put a module_power_readings for whole boards beside it, which is never read.
_POWER_OLD = {"requested_w": "power_limit", "enforced_w": "enforced_power_limit"}
_POWER_NEW = {"requested_w": "requested_power_limit", "enforced_w": "current_power_limit"}
_POWER_BOTH = {"default_w": "default_power_limit", "min_w": "min_power_limit", "max_w": "max_power_limit"}
_DRAW = ("power_draw", "instant_power_draw", "average_power_draw")


def state_of(rc: int, text: str = "") -> str:
    """The state a run of nvidia-smi tells by its exit status; its text decides where the status is 255.

    6 is "no GPU visible" (a cgroup or a login guard may hide them), which is not "this node has none".
    """
    if rc in RC_STATES and rc != 0:
        return RC_STATES[rc]
    if "Driver/library version mismatch" in text:
        return "driver_mismatch"
    if "couldn't communicate with the NVIDIA driver" in text:
        return "no_driver"
    if "No devices were found" in text:
        return "no_devices"
    if _UNREACHABLE.search(text):
        return "lost"
    if _BAD_FIELD.search(text):
        return "bad_request"
    return "ok" if rc == 0 else "error"


def failure(rc: int, text: str) -> Record:
    """What a failing run says: ``state``, the ``library_version`` it names, GPUs it could not reach."""
    version = _VERSION.search(text)
    return {
        "state": state_of(rc, text),
        "rc": rc,
        "library_version": version.group(1) if version else None,
        "unreachable": unreachable(text),
        "unknown_fields": _BAD_FIELD.findall(text),
        "text": text.strip()[:500],
    }


def unreachable(text: str) -> list[Record]:
    """GPUs that nvidia-smi names as not reachable, in any spelling of the sentence and of the bus id."""
    return [
        {"bus_id": _address(found.group(1)), "reason": found.group(2).strip(), "raw": found.group(0).strip()}
        for found in _UNREACHABLE.finditer(text)
    ]


def _without_messages(text: str) -> tuple[list[str], list[str]]:
    """The lines of data, and the warnings that stood among them; lines about unreachable GPUs are in neither."""
    lines = [line for line in text.splitlines() if line.strip() and not _UNREACHABLE.search(line)]
    warned = [line.strip() for line in lines if _WARNING.fullmatch(line)]
    return [line for line in lines if not _WARNING.fullmatch(line)], warned


def _address(text: str) -> str | None:
    """The bus id in sysfs form, None for one mangled beyond recognition (kept raw by the caller)."""
    try:
        return pcie.bus_id(text.strip(":"))
    except InputError:
        return None


def value(text: str | None) -> str | None:
    """A cell's text, None when it is one of nvidia-smi's words for no value."""
    if text is None:
        return None
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1].strip()
    return None if bare.lower() in NO_VALUE else bare


def number(text: str | None) -> float | None:
    """The number in ``228.82``, ``420.00 W`` or ``16x``; None for no value, ToolError for anything else."""
    known = value(text)
    if known is None:
        return None
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*(?:[A-Za-z%/]+)?", known)
    if not found:
        raise ToolError("nvidia-smi", repr(text), "a number with its unit", "report this text and the driver version")
    return float(found.group(1))


# --- csv ---------------------------------------------------------------------------------------


def parse_csv(text: str, rc: int = 0) -> Record:
    """``state``, ``rows``, ``messages`` and ``unreachable`` of a ``--query-gpu`` run printed with its header line.

    Keys are the field names without their unit. Numbers become floats; a cell without a value is None
    and its word stays under ``raw``, as does one that should be a number of the header's unit and is none. Rows of
    other GPUs are kept when one GPU is not reachable. Nothing printed at all is state ``no_output``.
    """
    state = state_of(rc, text)
    record: Record = {"state": state, "rc": rc, "rows": [], "messages": [], "unreachable": unreachable(text)}
    if state not in ("ok", *_PARTIAL):
        return dict(failure(rc, text), rows=[])
    lines, record["messages"] = _without_messages(text)
    if not lines:
        return dict(record, state="no_output") if state == "ok" else record
    table = list(csv.reader(lines, skipinitialspace=True))
    header = [re.sub(r"\s*\[.*\]$", "", cell.strip()) for cell in table[0]]
    units = ["[" in cell for cell in table[0]]
    strange = [name for name in header if not _FIELD.fullmatch(name)]
    if strange:
        raise ToolError("nvidia-smi --query-gpu", f"{strange[0]!r} where the name of a field belongs",
                        "its header line", "ask without noheader")  # fmt: skip
    record["rows"] = [_csv_row(header, units, cells) for cells in table[1:]]
    return record


def _csv_row(header: list[str], units: list[bool], cells: list[str]) -> Record:
    if len(cells) != len(header):
        raise ToolError("nvidia-smi --query-gpu", f"{len(cells)} cells", f"{len(header)} as in its header",
                        "report this text and the driver version")  # fmt: skip
    row: Record = {"raw": {}}
    for name, has_unit, cell in zip(header, units, cells):
        row[name] = _csv_value(name, value(cell))
        if has_unit and not isinstance(row[name], float):
            row[name] = None
        if row[name] is None:
            row["raw"][name] = cell.strip()
    return row


# Fields that look like numbers on some cards and are names all the same.
_NAMES = ("name", "serial", "uuid", "vbios_version", "driver_version", "pci.bus_id", "gpu_bus_id", "gpu_uuid",
          "gpu_name", "gpu_serial", "pci.device_id", "compute_cap", "inforom.img", "inforom.oem", "inforom.ecc",
          "inforom.pwr", "count_raw")  # fmt: skip


def _csv_value(name: str, text: str | None) -> Any:
    """A bus id normalised, a name as text, a number as float."""
    if text is None:
        return None
    if name in ("pci.bus_id", "gpu_bus_id"):
        return _address(text) or text
    if name in _NAMES or not _NUMBER.match(text):
        return text
    try:
        return number(text)
    except ToolError:
        return text


def without_unknown(fields: list[str], text: str, required: tuple[str, ...] = ("uuid",)) -> list[str]:
    """The fields to ask for again when this driver does not know some of them.

    ToolError when a required one is unknown: then the driver is too old or too new for us.
    """
    unknown = _BAD_FIELD.findall(text)
    for name in unknown:
        if name in required:
            raise ToolError(f"nvidia-smi field {name}", "unknown to this driver", "a driver that has it",
                            "compare `nvidia-smi --help-query-gpu` and the pinned driver version")  # fmt: skip
    return [name for name in fields if name not in unknown]


# --- XML ---------------------------------------------------------------------------------------


def parse_xml(text: str, rc: int = 0) -> Record:
    """``state``, ``driver_version`` and ``gpus`` of ``-q -x``, in the names of nvml's records.

    ToolError for text that is not its XML, or whose power block has neither known layout.
    """
    state = state_of(rc, "" if text.lstrip().startswith("<") else text)
    if state not in ("ok", *_PARTIAL):
        return dict(failure(rc, text), gpus=[])
    start = text.find("<?xml")
    end = text.rfind("</nvidia_smi_log>")
    body = text[max(start, 0) : end + len("</nvidia_smi_log>") if end >= 0 else None]
    try:
        top = ElementTree.fromstring(body)  # noqa: S314  a root program of this host, not the network
    except ElementTree.ParseError as error:
        raise ToolError("nvidia-smi -q -x", f"not XML ({error})", "its XML", "run it by hand") from None
    if top.tag != "nvidia_smi_log":
        raise ToolError("nvidia-smi -q -x", f"<{top.tag}>", "<nvidia_smi_log>", "run it by hand")
    return {
        "state": state, "rc": rc, "driver_version": value(top.findtext("driver_version")),
        "gpus": [_xml_gpu(gpu) for gpu in top.iter("gpu")], "unreachable": unreachable(text),
    }  # fmt: skip


def _xml_gpu(gpu: ElementTree.Element) -> Record:
    """One GPU of the XML. Identity falls back on what there is; a serial may be missing or N/A."""
    link = gpu.find("pci/pci_gpu_link_info")
    recovery = value(gpu.findtext("gpu_recovery_action"))
    return {
        "bus_id": _address(gpu.get("id") or gpu.findtext("pci/pci_bus_id") or ""),
        "uuid": value(gpu.findtext("uuid")),
        "serial": value(gpu.findtext("serial")),
        "name": value(gpu.findtext("product_name")),
        "vbios": value(gpu.findtext("vbios_version")),
        # The board's, as NVML's part number is; the GPU's own is N/A on the cards we know.
        "part_number": value(gpu.findtext("board_part_number")) or value(gpu.findtext("gpu_part_number")),
        "inforom": {"image": value(gpu.findtext("inforom_version/img_version"))},
        "persistence": _switch(gpu.findtext("persistence_mode")),
        "compute_mode": value(gpu.findtext("compute_mode")),
        "temperature_c": number(gpu.findtext("temperature/gpu_temp")),
        "power": power(gpu),
        "pcie": {
            "width": pcie.width(_lanes(link, "link_widths/current_link_width")),
            "width_max": pcie.width(_lanes(link, "link_widths/max_link_width")),
            "gen": number(_find(link, "pcie_gen/current_link_gen")),
            "gen_max": number(_find(link, "pcie_gen/max_link_gen")),
        },
        "recovery_action": gpu.findtext("gpu_recovery_action") if recovery is None else recovery,
    }


def power(gpu: ElementTree.Element) -> Record:
    """The limits and the draw in W, from either layout; the block for whole modules never counts."""
    block, names = gpu.find("gpu_power_readings"), _POWER_NEW
    if block is None:
        block, names = gpu.find("power_readings"), _POWER_OLD
    if block is None or all(block.find(name) is None for name in names.values()):
        tags = ", ".join(child.tag for child in gpu if "power" in child.tag) or "none"
        raise ToolError("nvidia-smi -q -x", f"power blocks: {tags}", "gpu_power_readings or power_readings with limits",
                        "this driver prints a layout we do not know: report it with its version")  # fmt: skip
    record: Record = {key: number(block.findtext(name)) for key, name in {**names, **_POWER_BOTH}.items()}
    draws = [number(block.findtext(name)) for name in _DRAW if block.find(name) is not None]
    record["draw_w"] = next((draw for draw in draws if draw is not None), None)
    return record


def recovery_state(action: str | None) -> str:
    """``ok``, ``out_of_service`` or ``unknown_word`` for nvidia-smi's GPU Recovery Action; None: not told."""
    if action is None:
        return "not_told"
    word = action.strip().lower()
    if word == "none":
        return "ok"
    known = ("reset", "reboot", "drain p2p", "drain and reset", "gpu reset", "node reboot", "bus reset")
    return "out_of_service" if word in known else "unknown_word"


def _switch(text: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((value(text) or "").lower())


def _find(element: ElementTree.Element | None, path: str) -> str | None:
    return None if element is None else element.findtext(path)


def _lanes(element: ElementTree.Element | None, path: str) -> str | None:
    """``16x`` as sysfs would say it."""
    text = value(_find(element, path))
    return None if text is None else text.rstrip("xX")


# --- list --------------------------------------------------------------------------------------


def parse_list(text: str, rc: int = 0) -> Record:
    """``state`` and ``gpus`` of ``-L``; MIG devices stand under the GPU they are cut from."""
    state = state_of(rc, text)
    if state not in ("ok", *_PARTIAL):
        return dict(failure(rc, text), gpus=[])
    gpus: list[Record] = []
    lines, messages = _without_messages(text)
    for line in lines:
        found, slice_ = _GPU_LINE.fullmatch(line), _MIG_LINE.fullmatch(line)
        if found:
            gpus.append({"uuid": found.group(3), "name": found.group(2), "mig": []})
        elif slice_ and gpus:
            gpus[-1]["mig"].append({"profile": slice_.group(1), "uuid": slice_.group(3)})
        else:
            raise ToolError("nvidia-smi -L", repr(line), "a GPU or a MIG device", "report this text")
    if not lines and state == "ok":
        state = "no_output"  # a node without GPUs says so, with status 6
    return {"state": state, "rc": rc, "gpus": gpus, "messages": messages, "unreachable": unreachable(text)}
