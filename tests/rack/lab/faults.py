"""Break the demo rack on purpose. Each fault says what it did, how it shows and what repairs it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

from lab import hosts
from lab.say import RackError, step
from lab.topology import Rack, load


@dataclass(frozen=True)
class Fault:
    usage: str
    text: str
    inject: Callable[[Rack, list[str]], None]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="every fault with its words")
    parser.add_argument("words", nargs="*", help="FAULT and its words")


def command(args: argparse.Namespace) -> int:
    if args.list or not args.words:
        for name, fault in FAULTS.items():
            print(f"./rack fault {f'{name} {fault.usage}'.strip():42} {fault.text}")
        return 0
    inject(load(args.rack), args.words[0], args.words[1:])
    return 0


def inject(rack: Rack, name: str, words: list[str]) -> None:
    """Break one thing. Raises RackError for a fault nobody knows or words that do not fit."""
    if name not in FAULTS:
        raise RackError(f"no fault is called {name!r}", "known: " + ", ".join(FAULTS))
    fault = FAULTS[name]
    need = [word for word in fault.usage.split() if not word.startswith("[")]
    if not len(need) <= len(words) <= len(fault.usage.split()):
        raise RackError(f"fault {name} takes: {fault.usage or 'no words'}", "given: " + (" ".join(words) or "none"))
    fault.inject(rack, words)
    step(f"fault {name} {' '.join(words)}: done")


def number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RackError(f"{what} is a number", f"given: {text!r}") from None


def _outside(rack: Rack, clock: str) -> str:
    """The host that runs the upstream `clock`."""
    for host in rack.hosts.values():
        if clock in host.upstream_clocks:
            return host.name
    known = ", ".join(name for host in rack.hosts.values() for name in host.upstream_clocks)
    raise RackError(f"no upstream is called {clock!r}", f"known: {known}")


def _clock(rack: Rack, words: list[str]) -> None:
    name, offset = words[0], words[1]
    text = "silent" if offset == "silent" else f"{number(offset, 'an offset in seconds')}"
    if len(words) > 2:
        text += f" {number(words[2], 'a rate in ppm')} {time.time()}"
    path = f"/var/lib/upstream-clocks/{name}"
    hosts.execute(rack, _outside(rack, name), "sh", "-c", f"cat >{path}.new && mv {path}.new {path}", stdin=text + "\n")


def _uplink(rack: Rack, words: list[str]) -> None:
    """More specific routes than the uplink's: the relay can send nothing out, the rack side is not touched."""
    relay, state = words
    if state not in ("cut", "mend"):
        raise RackError("an uplink is cut or mended", f"given: {state!r}")
    outside = rack.networks["outside"].subnet
    for half in (*outside.subnets(1), "0.0.0.0/1", "128.0.0.0/1"):
        verb = ["replace", "unreachable"] if state == "cut" else ["del", "unreachable"]
        hosts.execute(rack, relay, "ip", "route", *verb, str(half), check=state == "cut")


def _cap(rack: Rack, words: list[str]) -> None:
    _emulator(rack, words[0], "set", f"gpu.{words[1]}.power_limit_mw={int(number(words[2], 'watts') * 1000)}")


def _gpu(rack: Rack, words: list[str]) -> None:
    host, index, what = words
    if what not in GPU_FAULTS:
        raise RackError(f"no GPU fault is called {what!r}", "known: " + ", ".join(GPU_FAULTS))
    _emulator(rack, host, "set", *(f"gpu.{index}.{key}" for key in GPU_FAULTS[what]))


def _driver(rack: Rack, words: list[str]) -> None:
    codes = {"missing": "9", "mismatch": "18"}
    if words[1] not in codes:
        raise RackError("a driver is missing or mismatch", f"given: {words[1]!r}")
    _emulator(rack, words[0], "set", f"fault.nvmlInit={codes[words[1]]}")


def _key(rack: Rack, words: list[str]) -> None:
    _emulator(rack, words[0], "set", words[1])


def _xid(rack: Rack, words: list[str]) -> None:
    _emulator(rack, words[0], "xid", words[1], words[2], "--journal")


def _heal_gpus(rack: Rack, words: list[str]) -> None:
    _emulator(rack, words[0], "clear-faults")


def _line(rack: Rack, words: list[str]) -> None:
    host, path, text = words
    hosts.execute(rack, host, "sh", "-c", 'printf "%s\\n" "$2" >>"$1"', "sh", path, text)


def _service(rack: Rack, words: list[str]) -> None:
    verb, host, unit = words[1], words[0], words[2]
    if verb not in ("stop", "mask", "disable"):
        raise RackError("a service is stopped, disabled or masked", f"given: {verb!r}")
    if verb != "stop":
        hosts.execute(rack, host, "systemctl", verb, "--now", unit)
    else:
        hosts.execute(rack, host, "systemctl", "stop", unit)


def _restart_unit(rack: Rack, words: list[str]) -> None:
    hosts.execute(rack, words[0], "systemctl", "restart", words[1])


def _heal(rack: Rack, _: list[str]) -> None:
    """Take every emulated fault back. What was done to files and services is site.yml's to repair."""
    for host in rack.hosts.values():
        if host.upstream_clocks:
            hosts.execute(rack, host.name, "sh", "-c", "rm -f /var/lib/upstream-clocks/*")
        if host.gpu_profile:
            _emulator(rack, host.name, "clear-faults")
        if "outside" in host.networks and len(host.networks) > 1:
            _uplink(rack, [host.name, "mend"])


def _emulator(rack: Rack, host: str, *words: str) -> None:
    if not rack.host(host).gpu_profile:
        raise RackError(f"{host} has no GPUs")
    hosts.execute(rack, host, "nvml-emulator", *words)


GPU_FAULTS = {
    "lost": ["lost=1"],
    "narrow": ["pcie_width=8"],
    "slot-x8": ["pcie_width=8", "pcie_system_width=8"],
    "vbios": ["vbios=92.00.45.00.01"],
    "ignores-caps": ["set_power_noop=1"],
    "hang": ["delay_ms.nvmlDeviceGetPowerUsage=60000"],
}

FAULTS = {
    "clock": Fault("UPSTREAM SECONDS|silent [PPM]", "an upstream's clock lies, drifts, or says nothing", _clock),
    "uplink": Fault("RELAY cut|mend", "the relay's way out", _uplink),
    "cap": Fault("HOST GPU WATTS", "somebody sets another power cap", _cap),
    "gpu": Fault("HOST GPU " + "|".join(GPU_FAULTS), "a card fails", _gpu),
    "xid": Fault("HOST GPU CODE", "an Xid event, in NVML and in the journal", _xid),
    "driver": Fault("HOST missing|mismatch", "no driver, or library and module of two versions", _driver),
    "emulator": Fault("HOST KEY=VALUE", "any key of the NVML emulator (tests/rack/nvml/README.md)", _key),
    "line": Fault("HOST FILE TEXT", "somebody appends a line to a file", _line),
    "service": Fault("HOST stop|disable|mask UNIT", "somebody stops a service", _service),
    "restart-unit": Fault("HOST UNIT", "a service starts again, with whatever its files now say", _restart_unit),
    "heal-gpus": Fault("HOST", "emulated GPU faults of one host end", _heal_gpus),
    "heal": Fault("", "every emulated fault ends; files and services are site.yml's to repair", _heal),
}
