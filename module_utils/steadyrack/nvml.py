# SPDX-License-Identifier: BSD-2-Clause
"""What NVML says of a node's GPUs, read and set in a child process with a deadline on every call.

The only file that touches pynvml. A record never holds a number that was not read: a field that the
driver does not support is None, with the raw error beside it under ``errors``.

Node states: ok, no_binding (pynvml is not on this host), no_library, no_driver, driver_mismatch,
no_permission, no_devices, timeout, error.
GPU states: ok, lost, reset_required, timeout, unreachable.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from functools import partial
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, Sequence

from . import files, nvml_mig, pcie
from .child import Channel, Child, ChildGoneError, ChildSilentError
from .errors import AccessError, DeadlineError, SteadyrackError, ToolError
from .nvml_fields import (
    BATCH,
    BUSY_PERCENT,
    COMPUTE_MODES,
    ERROR_NAMES,
    FIELDS,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LOAD_FIELDS,
    NOT_SUPPORTED,
    THROUGHPUT_FIELDS,
    empty_gpu,
    field_values,
    put_at,
    text,
)

# Where role node_agent puts the binding: looked at first, so that nothing else on the node shadows it.
BINDING_PATH = "/usr/lib/steadyrack/pynvml.py"

# Deadlines in seconds. The first contact initialises a GPU when persistence is off, which takes a
# few seconds a card; every later call takes microseconds when the card is well.
FIRST_CONTACT_S = 20.0
CALL_S = 5.0
PASS_S = 60.0

# Return values of nvml.h (nvmlReturn_t) that we act on; matched by number, never by text.
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
LIB_RM_VERSION_MISMATCH = 18
IN_USE = 19
INSUFFICIENT_RESOURCES = 23
UNKNOWN_ERROR = 999

INIT_STATES = {
    DRIVER_NOT_LOADED: "no_driver",
    LIBRARY_NOT_FOUND: "no_library",
    LIB_RM_VERSION_MISMATCH: "driver_mismatch",
    NO_PERMISSION: "no_permission",
}
# Errors of the card, not of one field: reading on would only repeat the first one under other names.
CARD_STATES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset_required"}

NEXT_STEPS = {
    "no_binding": "run role node_agent, which puts pynvml under /usr/lib/steadyrack",
    "no_library": "install the driver's user part (libnvidia-ml.so.1)",
    "no_driver": "load the kernel module (modprobe nvidia; dmesg says why it would not)",
    "driver_mismatch": "reboot, or unload and load the kernel module while no job runs",
    "no_permission": "run it as root, outside containers that lack CAP_SYS_ADMIN",
    "no_devices": "look for the GPUs with lspci; a cgroup or a login guard may hide them from this session",
    "timeout": "look for processes in state D and Xid lines in the kernel log; a reboot may be needed",
    "error": "look at the kernel log",
}

REPAIR = "python3 -m pip uninstall -y pynvml && python3 -m pip install --force-reinstall nvidia-ml-py"

# Load and link are sampled this often in a pass, this far apart: one look at a link proves nothing (C62).
LOAD_SAMPLES = 3
LOAD_PAUSE_S = 0.02

Record = Dict[str, Any]


class NvmlError(SteadyrackError):
    """A setter's answer other than success; ``code`` is NVML's number."""

    def __init__(self, thing: str, code: int, wanted: object, next_step: str | None = None) -> None:
        self.code = code
        super().__init__(thing, "{} ({})".format(ERROR_NAMES.get(code, "?"), code), wanted, next_step)


# --- the binding -------------------------------------------------------------------------------


def find_binding(path: str = BINDING_PATH) -> str | None:
    """The file of pynvml to load: ours, else the interpreter's; None when there is none.

    An interpreter that would load the old *package* of that name gets ToolError with the repair: it
    lacks newer calls, and which of the two wins depends on the order of installation.
    """
    if os.path.isfile(path):
        return path
    spec = importlib.util.find_spec("pynvml")
    if spec is None:
        return None
    if spec.origin is None or os.path.basename(spec.origin) != "pynvml.py":
        raise _old_binding(str(spec.origin))
    try:
        importlib.metadata.version("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        raise _old_binding(f"{spec.origin}, which does not belong to nvidia-ml-py") from None
    return spec.origin


def _old_binding(seen: str) -> ToolError:
    return ToolError("Python module pynvml", seen, "the file pynvml.py of the package nvidia-ml-py", REPAIR)


def load_binding(path: str = BINDING_PATH) -> ModuleType | None:
    """pynvml, loaded from its file; no NVIDIA library is touched by this. None when there is none."""
    origin = find_binding(path)
    if origin is None:
        return None
    loaded = sys.modules.get("pynvml")
    if loaded is not None and loaded.__file__ == origin:
        return loaded
    spec = importlib.util.spec_from_file_location("pynvml", origin)
    if spec is None or spec.loader is None:
        raise ToolError(origin, "not loadable as Python", "pynvml.py of nvidia-ml-py", REPAIR)
    module = importlib.util.module_from_spec(spec)
    # pynvml looks itself up by name while it makes its error classes.
    sys.modules["pynvml"] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ValueError) as error:
        del sys.modules["pynvml"]
        raise ToolError(origin, f"broken ({error})", "pynvml.py of nvidia-ml-py",
                        "run role node_agent again") from None  # fmt: skip
    return module


# --- versions ----------------------------------------------------------------------------------


def module_version(root: str = "/") -> str | None:
    """The version of the loaded kernel module, from /proc/driver/nvidia/version; None: not loaded."""
    text = files.read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""
    found = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text + "\n")
    return found.group(1) if found else None


def library_version(nvml_version: str | None, library: str | None) -> str | None:
    """The library's driver version: NVML's ``12.550.163.01`` without its first part, else the file's name."""
    if nvml_version and nvml_version.count(".") >= 2:
        return nvml_version.split(".", 1)[1]
    found = re.search(r"libnvidia-ml\.so\.(\d+(?:\.\d+)+)$", library or "")
    return found.group(1) if found else None


def same_version(one: str, other: str) -> bool:
    """True when the shorter is the beginning of the longer: nvidia-smi prints 535.161 for 535.161.08."""
    pairs = zip(one.split("."), other.split("."))
    return all(left == right for left, right in pairs)


# --- in the child ------------------------------------------------------------------------------


def _asked(nvml: ModuleType, call: Callable[[], Any]) -> tuple[Any, int | None]:
    """The value, or None and NVML's error number. One odd failure is asked again before it counts."""
    code = None
    for pause_s in (0.05, None):
        try:
            return text(call()), None
        except nvml.NVMLError as error:
            code = int(error.value)
        except nvml.NVMLLibraryMismatchError:
            # pynvml's own way to say that the library lacks this version of the call.
            code = FUNCTION_NOT_FOUND
        if code != UNKNOWN_ERROR or pause_s is None:
            break
        time.sleep(pause_s)
    return None, code


def _serve(nvml: ModuleType, root: str, channel: Channel) -> None:
    """The child's loop: start NVML once, then answer until the parent lets go."""
    channel.send({"begin": "nvmlInit", "first": True})
    _value, code = _asked(nvml, nvml.nvmlInit)
    versions = {}
    if code != LIBRARY_NOT_FOUND:
        for name, call in (("nvml_version", nvml.nvmlSystemGetNVMLVersion),
                           ("driver_version", nvml.nvmlSystemGetDriverVersion)):  # fmt: skip
            versions[name] = _asked(nvml, call)[0]
    count, count_code = _asked(nvml, nvml.nvmlDeviceGetCount) if code is None else (None, None)
    channel.send({"node": dict(versions, code=code or count_code, count=count, library=_mapped_library())})
    while True:
        request = channel.receive()
        if request["do"] == "read":
            _serve_read(nvml, root, channel, request)
        elif request["do"] == "mig":
            _serve_mig(nvml, channel, request)
        else:
            _serve_set(nvml, channel, request)


def _mapped_library() -> str | None:
    """The path of the NVML library this process has mapped; it carries the version on real systems."""
    maps = files.read_text("/proc/self/maps") or ""
    for line in maps.splitlines():
        if "libnvidia-ml.so" in line:
            return line[line.index("/") :].strip()
    return None


def _serve_read(nvml: ModuleType, root: str, channel: Channel, request: Record) -> None:
    """Read the GPUs with the given places in the driver's order, then those bus ids that did not answer."""
    seen = set(request["seen"])
    handles = []
    for number in request["places"]:
        key = f"place {number}"
        channel.send({"begin": "nvmlDeviceGetHandleByIndex", "gpu": key, "first": True})
        handle, code = _asked(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, number))
        if handle is None:
            channel.send({"gpu": key, "failed": code})
            continue
        address, well = _serve_fields(nvml, channel, key, handle)
        seen.add(address)
        handles += [(key, handle)] if well else []
    for address in request["bus_ids"]:
        if address not in seen:
            _serve_missing(nvml, root, channel, address)
    _serve_load(nvml, channel, handles)
    channel.send({"done": True})


def _serve_load(nvml: ModuleType, channel: Channel, handles: Sequence[tuple[str, Any]]) -> None:
    """Sample load and link of all GPUs in turn; one that is idle, or fails, in one round is left out of the next."""
    for round_ in range(LOAD_SAMPLES):
        if round_ and handles:
            time.sleep(LOAD_PAUSE_S)
        handles = [(key, handle) for key, handle in handles if _serve_sample(nvml, channel, key, handle)]


def _serve_sample(nvml: ModuleType, channel: Channel, key: str, handle: Any) -> bool:
    """Send one sample; True when the GPU is at work, so that more of them tell something."""
    sample: Record = {"tx_kib_s": None, "rx_kib_s": None}
    codes = {}
    channel.send({"begin": "load sample", "gpu": key})
    for name, call in LOAD_FIELDS:
        sample[name], codes[name] = _asked(nvml, partial(call, nvml, handle))
    load = sample["utilization"] or {"gpu_percent": 0, "memory_percent": 0}
    busy = sample["pstate"] == 0 and any(load.values())
    for name, call in THROUGHPUT_FIELDS if busy and load["gpu_percent"] < BUSY_PERCENT else ():
        sample[name], codes[name] = _asked(nvml, partial(call, nvml, handle))
    failed = {name: code for name, code in codes.items() if code is not None}
    channel.send({"gpu": key, "sample": sample, "codes": failed})
    return busy


def _serve_missing(nvml: ModuleType, root: str, channel: Channel, address: str) -> None:
    """Ask for a GPU that is on the bus but not in the driver's list; its error tells why."""
    channel.send({"begin": "nvmlDeviceGetHandleByPciBusId", "gpu": address, "first": True})
    handle, code = _asked(nvml, partial(nvml.nvmlDeviceGetHandleByPciBusId, address))
    if handle is not None:
        _serve_fields(nvml, channel, address, handle)
        return
    channel.send({"gpu": address, "failed": code})
    # The kernel module still knows whom it lost. Read here, because this file can hang as well.
    channel.send({"begin": "/proc/driver/nvidia", "gpu": address})
    channel.send({"gpu": address, "field": "uuid", "value": _uuid_by_kernel(root, address), "code": None})


def _uuid_by_kernel(root: str, address: str) -> str | None:
    """The UUID that the kernel module has for a slot, None when it has none."""
    text = files.read_text(os.path.join(root, "proc/driver/nvidia/gpus", address, "information")) or ""
    found = re.search(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})\s*$", text, re.MULTILINE | re.IGNORECASE)
    return found.group(1) if found else None


def _serve_fields(nvml: ModuleType, channel: Channel, key: str, handle: Any) -> tuple[str | None, bool]:
    """Send every field of one GPU; give its bus id and whether it is well. An error of the card ends it early."""
    address = None
    for name, call in FIELDS:
        channel.send({"begin": name, "gpu": key})
        value, code = _asked(nvml, partial(call, nvml, handle))
        channel.send({"gpu": key, "field": name, "value": value, "code": code})
        if code in CARD_STATES:
            return address, False
        address = value if name == "bus_id" else address
    _serve_batch(nvml, channel, key, handle)
    return address, True


def _serve_batch(nvml: ModuleType, channel: Channel, key: str, handle: Any) -> None:
    """Send the values that one call gives by number, those with an odd failure asked for once more."""
    channel.send({"begin": "nvmlDeviceGetFieldValues", "gpu": key})
    answers = _asked_batch(nvml, handle, [number for _name, number in BATCH])
    odd = [place for place, (_value, code) in enumerate(answers) if code == UNKNOWN_ERROR]
    for place, answer in zip(odd, _asked_batch(nvml, handle, [BATCH[place][1] for place in odd]) if odd else ()):
        answers[place] = answer
    for (name, _number), (value, code) in zip(BATCH, answers):
        channel.send({"gpu": key, "field": name, "value": value, "code": code})


def _asked_batch(nvml: ModuleType, handle: Any, numbers: list[int]) -> list[tuple[Any, int | None]]:
    """Value and error of each number; an error of the whole call is that of every one."""
    answers, code = _asked(nvml, partial(field_values, nvml, handle, numbers))
    return [(None, code)] * len(numbers) if answers is None else answers


def _serve_set(nvml: ModuleType, channel: Channel, request: Record) -> None:
    """Make one setting of one GPU. The plain power call: pynvml's _v2 ignores what the driver answers."""
    setters = {
        "power_limit": nvml.nvmlDeviceSetPowerManagementLimit,
        "persistence": nvml.nvmlDeviceSetPersistenceMode,
        "compute_mode": nvml.nvmlDeviceSetComputeMode,
    }
    channel.send({"begin": request["do"], "gpu": request["uuid"], "first": True})
    handle, code = _asked(nvml, partial(nvml.nvmlDeviceGetHandleByUUID, request["uuid"]))
    if handle is not None:
        _value, code = _asked(nvml, partial(setters[request["do"]], handle, request["value"]))
    channel.send({"set": request["do"], "code": code})


def _serve_mig(nvml: ModuleType, channel: Channel, request: Record) -> None:
    """One of the calls of ``nvml_mig`` on one GPU."""
    channel.send({"begin": "mig " + request["call"], "gpu": request["uuid"], "first": True})
    value = None
    handle, code = _asked(nvml, partial(nvml.nvmlDeviceGetHandleByUUID, request["uuid"]))
    if handle is not None:
        value, code = _asked(nvml, partial(nvml_mig.CALLS[request["call"]], nvml, handle, **request["with"]))
    channel.send({"set": request["call"], "code": code, "value": value})


# --- in the parent -----------------------------------------------------------------------------


class Session:
    """One pass over the GPUs: read, set, read back, on one child as long as it answers.

    Use as a context manager. ``abandoned`` names children that could not be killed.
    """

    def __init__(
        self,
        root: str = "/",
        binding: str = BINDING_PATH,
        call_s: float = CALL_S,
        first_contact_s: float = FIRST_CONTACT_S,
        pass_s: float = PASS_S,
    ) -> None:
        self.root = root
        self.call_s = call_s
        self.first_contact_s = first_contact_s
        self.pass_s = pass_s
        self.abandoned: list[int] = []
        # GPUs that hung in this session, by their place: they are not asked again by a later read of it.
        self.hung: dict[str, Record] = {}
        self._nvml = load_binding(binding)
        self._child: Child | None = None
        self._node: Record = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.drop()

    def read(self, bus_ids: Sequence[str] = ()) -> Record:
        """The node's record with a list ``gpus``.

        ``bus_ids`` are the GPUs that the PCI bus shows: one that NVML does not list is asked for by
        its address, so that a lost GPU has a name.
        """
        node = self._start()
        gpus: list[Record] = []
        if node["state"] == "ok":
            gpus = _Reading(self, node["count"], [pcie.bus_id(text) for text in bus_ids]).run()
        return dict(node, gpus=sorted(gpus, key=lambda gpu: gpu["bus_id"] or "~"), abandoned=list(self.abandoned))

    def set_power_limit(self, uuid: str, milliwatts: int) -> None:
        """Ask for a power limit; the caller reads it back. NvmlError on any answer but success."""
        self._set("power_limit", uuid, milliwatts, f"a power limit of {milliwatts / 1000.0:g} W")

    def set_persistence(self, uuid: str, on: bool) -> None:
        """Set NVML's own persistence mode; only where no nvidia-persistenced owns it."""
        self._set("persistence", uuid, int(on), "persistence mode {}".format("on" if on else "off"))

    def set_compute_mode(self, uuid: str, mode: str) -> None:
        """Set who may open a context on a GPU: a word of COMPUTE_MODES. Contexts that are open stay open."""
        number = next(number for number, word in COMPUTE_MODES.items() if word == mode)
        self._set("compute_mode", uuid, number, f"compute mode {mode}")

    def read_mig(self, uuid: str) -> Record:
        """What the card can be cut into and what it is cut into, also while MIG is off; see ``nvml_mig.read``."""
        return dict(self._mig("read", uuid, "the card's MIG profiles"))

    def set_mig_mode(self, uuid: str, on: bool) -> bool:
        """Ask for the MIG mode. True: in force, and on Ampere the GPU was reset for it. False: pending."""
        return bool(self._mig("mode", uuid, "MIG {}".format("on" if on else "off"), on=on))

    def create_mig_instance(self, uuid: str, profile: Record, start: int) -> int:
        """Make a whole instance of a profile from ``read_mig`` at its place; the id comes back."""
        wanted = "a MIG instance of {} slices at {}".format(profile["slices"], start)
        return int(self._mig("create", uuid, wanted, profile=profile["id"], start=start, size=profile["size"]))

    def finish_mig_instance(self, uuid: str, instance: int) -> None:
        """Give a GPU instance that has none its compute instance."""
        self._mig("finish", uuid, f"a compute instance in MIG instance {instance}", instance=instance)

    def destroy_mig_instance(self, uuid: str, instance: int) -> None:
        """Take an instance away; NvmlError with IN_USE while a process runs on it."""
        self._mig("destroy", uuid, f"MIG instance {instance} taken away", instance=instance)

    def _mig(self, call: str, uuid: str, wanted: str, **arguments: Any) -> Any:
        return self._asked({"do": "mig", "call": call, "uuid": uuid, "with": arguments}, wanted)["value"]

    def _set(self, what: str, uuid: str, value: int, wanted: str) -> None:
        self._asked({"do": what, "uuid": uuid, "value": value}, wanted)

    def _asked(self, request: Record, wanted: str) -> Record:
        """The child's answer about one GPU; a typed error when it refuses, ends or is silent."""
        uuid = request["uuid"]
        node = self._start()
        if node["state"] != "ok" or self._child is None:
            raise ToolError("NVML on this host", node["state"], "ok", NEXT_STEPS.get(node["state"]))
        try:
            self._child.send(request)
            answer = self.answer()
        except (ChildSilentError, ChildGoneError) as trouble:
            self.drop()
            raise DeadlineError(uuid, _no_answer(trouble), wanted, NEXT_STEPS["timeout"]) from None
        if answer["code"] is not None:
            raise _set_error(uuid, int(answer["code"]), wanted)
        return answer

    def _start(self) -> Record:
        """A child with NVML started, and what it says of the node. A live child is used again."""
        if self._child is not None:
            return self._node
        if self._nvml is None:
            self._node = _node_record("no_binding", None, {}, self.root)
            return self._node
        self._child = Child(partial(_serve, self._nvml, self.root))
        try:
            found = self.answer()["node"]
        except ChildSilentError:
            self._node = _node_record("timeout", None, {}, self.root)
        except ChildGoneError as gone:
            self._node = _node_record("error", gone.how, {}, self.root)
        else:
            self._node = _node_record(_node_state(found), found["code"], found, self.root)
        if self._node["state"] != "ok":
            self.drop()
        return self._node

    def answer(self) -> Record:
        """The child's next message that is not an announcement, each within its own deadline."""
        while True:
            message = self.message()
            if "begin" not in message:
                return message

    def message(self, deadline_s: float | None = None) -> Record:
        """The child's next message. After an announced first contact the longer deadline holds."""
        if self._child is None:
            raise ChildGoneError("no child")
        return self._child.receive(deadline_s or self.first_contact_s)

    def request(self, message: Record) -> None:
        """Send the child something, starting one if the last was dropped."""
        node = self._start()
        if node["state"] != "ok" or self._child is None:
            raise ChildGoneError("NVML is in state {}".format(node["state"]))
        self._child.send(message)

    def drop(self) -> None:
        """Let go of the child, whether it hangs or not; the next use starts another."""
        if self._child is not None and not self._child.stop():
            self.abandoned.append(self._child.pid)
        self._child = None


class _Reading:
    """One read of all GPUs, going on past those that hang or kill the child."""

    def __init__(self, session: Session, count: int, bus_ids: list[str]) -> None:
        self.session = session
        self.bus_ids = bus_ids
        self.places = list(range(count))
        self.found: dict[str, Record] = dict(session.hung)
        self.give_up = time.monotonic() + session.pass_s
        # The GPU and the call the child announced last, and the deadline that holds for it.
        self.now: tuple[str | None, str, float] = (None, "request", session.call_s)

    def run(self) -> list[Record]:
        """Every GPU's record, each in one of the GPU states."""
        while not self._one_child():
            pass
        return _named(list(self.found.items()), self.bus_ids)

    def _one_child(self) -> bool:
        """Read on with one child; False when it had to be dropped and GPUs remain."""
        left = [place for place in self.places if f"place {place}" not in self.found]
        seen = [gpu["bus_id"] for gpu in self.found.values() if gpu["bus_id"]]
        asked = [address for address in self.bus_ids if address not in self.found]
        self.now = (None, "request", self.session.call_s)
        try:
            self.session.request({"do": "read", "places": left, "seen": seen, "bus_ids": asked})
            while True:
                message = self.session.message(self.now[2])
                if "done" in message:
                    return True
                self._take(message)
        except ChildSilentError:
            return self._stuck("timeout", f"no answer within {self.now[2]:g} s", left)
        except ChildGoneError as gone:
            return self._stuck("unreachable", gone.how, left)

    def _take(self, message: Record) -> None:
        """File one message of the child."""
        if "begin" in message:
            first = message.get("first", False)
            deadline = self.session.first_contact_s if first else self.session.call_s
            self.now = (message["gpu"], message["begin"], deadline)
            return
        gpu = self.found.setdefault(message["gpu"], empty_gpu())
        if "failed" in message:
            gpu["state"] = CARD_STATES.get(message["failed"], "unreachable")
            gpu["error"] = _raw(message["failed"], "handle look-up")
            return
        if "sample" in message:
            self._take_sample(gpu, message["sample"], message["codes"])
            return
        put_at(gpu, message["field"], message["value"])
        if message["code"] is not None:
            gpu["errors"][message["field"]] = _raw(message["code"], message["field"])
            if message["code"] in CARD_STATES:
                gpu["state"] = CARD_STATES[message["code"]]
                gpu["error"] = _raw(message["code"], message["field"])

    def _take_sample(self, gpu: Record, sample: Record, codes: dict[str, int]) -> None:
        """File a look at load and link; a card lost meanwhile is lost."""
        errors = {name: _raw(code, name) for name, code in codes.items()}
        gpu["load_samples"].append(dict(sample, errors=errors))
        ending = next((name for name, code in codes.items() if code in CARD_STATES), None)
        if ending is not None:
            gpu["state"], gpu["error"] = CARD_STATES[codes[ending]], errors[ending]

    def _stuck(self, state: str, why: str, left: list[int]) -> bool:
        """Blame the GPU whose call was announced; True when there is no going on."""
        self.session.drop()
        key, call, _deadline = self.now
        if key is not None:
            gpu = self.found.setdefault(key, empty_gpu())
            gpu["state"], gpu["error"] = state, {"code": None, "name": why, "call": call}
            self.session.hung[key] = gpu
        if key is not None and time.monotonic() < self.give_up:
            return False
        for place in left:
            name = f"place {place}"
            if name not in self.found:
                reason = {"code": None, "name": "not reached: " + why, "call": call}
                self.found[name] = dict(empty_gpu(), state="timeout", error=reason)
        return True


def _named(found: list[tuple[str, Record]], bus_ids: list[str]) -> list[Record]:
    """The records with bus ids. A GPU whose look-up failed by place is the one that failed by address.

    Records found by address stand for the nameless ones; a nameless one that has no such
    counterpart stays, without a name, so that the count is never too small.
    """
    by_place = [gpu for key, gpu in found if key.startswith("place ")]
    by_address = [(key, gpu) for key, gpu in found if not key.startswith("place ")]
    named = [gpu for gpu in by_place if gpu["bus_id"]]
    nameless = [gpu for gpu in by_place if not gpu["bus_id"]]
    for address, gpu in by_address:
        if any(other["bus_id"] == address for other in named):
            continue
        gpu["bus_id"] = address
        named.append(gpu)
        if nameless:
            nameless.pop()
    unanswered = [address for address in bus_ids if all(gpu["bus_id"] != address for gpu in named)]
    if len(nameless) == 1 and len(unanswered) == 1:
        nameless[0]["bus_id"] = unanswered[0]
    return named + nameless


def _raw(code: int | None, call: str) -> Record:
    """NVML's own error, kept beside the value that is missing because of it."""
    return {"code": code, "name": ERROR_NAMES.get(code or 0, str(code)), "call": call}


def _node_state(found: Record) -> str:
    if found["code"] is not None:
        return INIT_STATES.get(found["code"], "error")
    return "ok" if found["count"] else "no_devices"


def _node_record(state: str, cause: Any, found: Record, root: str) -> Record:
    """What is known of the node beside its GPUs, with a sentence when it is not well."""
    loaded = module_version(root)
    library = library_version(found.get("nvml_version"), found.get("library"))
    code = cause if isinstance(cause, int) else None
    return {
        "state": state,
        "reason": None if state == "ok" else _node_reason(state, cause, loaded, library),
        "next_step": NEXT_STEPS.get(state),
        "code": code,
        "count": found.get("count"),
        "driver_version": found.get("driver_version") or loaded,
        "module_version": loaded,
        "library_version": library,
        "library": found.get("library"),
    }


def _node_reason(state: str, cause: Any, loaded: str | None, library: str | None) -> str:
    reasons = {
        "no_binding": "the Python module pynvml is not on this host",
        "no_library": "libnvidia-ml.so.1 is not in the loader's path",
        "no_driver": "the nvidia kernel module is not loaded",
        "driver_mismatch": "kernel module {}, library {}".format(loaded or "unknown", library or "unknown"),
        "no_permission": f"NVML may not be started by uid {os.geteuid()} here",
        "no_devices": "NVML started and lists no GPU",
        "timeout": "NVML did not start within its deadline",
    }
    name = ERROR_NAMES.get(cause, cause) if isinstance(cause, int) else cause
    return reasons.get(state, f"NVML did not start: {name}")


def _no_answer(trouble: Exception) -> str:
    return trouble.how if isinstance(trouble, ChildGoneError) else "no answer within the deadline"


def _set_error(uuid: str, code: int, wanted: str) -> SteadyrackError:
    """What a refused setting means to the person who asked for it."""
    if code == NO_PERMISSION:
        return AccessError(uuid, "NO_PERMISSION (4)", wanted,
                           "run it as root and not in a container: it needs CAP_SYS_ADMIN")  # fmt: skip
    steps = {
        INVALID_ARGUMENT: "compare with the card's limits in `steadyrack status`",
        NOT_SUPPORTED: "this card cannot be set: leave it out of the policy by a match of its own",
        NOT_FOUND: "this GPU is no longer there: look at the bus and the kernel log",
        GPU_IS_LOST: "the GPU fell off the bus: power the host off and on, then reseat the card",
        RESET_REQUIRED: "drain the host and reset the GPU",
        OPERATING_SYSTEM: "a cgroup or the operating system blocks the device node",
        IN_USE: "a process uses it: it is done at a later run, when that has ended",
        INSUFFICIENT_RESOURCES: "what is there leaves no room: compare with `nvidia-smi mig -lgi`",
    }
    return NvmlError(uuid, code, wanted, steps.get(code, "look at the kernel log"))


def read_node(root: str = "/", bus_ids: Iterable[str] = (), **deadlines: Any) -> Record:
    """One pass that only reads; see ``Session.read``."""
    with Session(root, **deadlines) as session:
        return session.read(list(bus_ids))
