"""Break the demo rack on purpose. Each fault says what it did, how it shows and what repairs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lab import faults_host, faults_time, hosts
from lab.say import RackError, number, step
from lab.topology import Host, Rack, load


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
            print(f"./rack fault {f'{name} {fault.usage}'.strip():50} {fault.text}")
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
    off = [name for name, (state, _) in hosts.states(rack).items() if state == "exited"]
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda name: hosts.start(rack, name), off))
        pids = {name: pid for name, (_, pid) in hosts.states(rack).items()}
        list(pool.map(lambda host: _heal_host(rack, host, pids[host.name]), rack.hosts.values()))


def _heal_host(rack: Rack, host: Host, pid: int) -> None:
    """One host: its cable from here, the rest by one command in it."""
    faults_host.heal_network(rack, host, pid)
    script = [faults_host.heal_host(rack, host), faults_time.heal_host(host)]
    if host.gpu_profile:
        script.append("nvml-emulator clear-faults")
    hosts.execute(rack, host.name, "sh", "-c", "\n".join([*script, "true"]))


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
    "mig": ["mig_mode=1"],
    "hang": ["delay_ms.nvmlDeviceGetPowerUsage=60000"],
}

FAULTS = {
    "clock": Fault(
        "UPSTREAM|all SECONDS|silent [PPM]", "an upstream's clock lies, drifts, or says nothing", faults_time.clock
    ),
    "bend": Fault(
        "RELAY SECONDS|silent|none",
        "one relay sees all its upstreams shifted, or hears none; the others are not touched",
        faults_time.bend,
    ),
    "leap": Fault(
        "UPSTREAM|all insert|delete|lost|smear|none",
        "an upstream announces a leap second, or its loss of time, or smears",
        faults_time.leap,
    ),
    "skew": Fault(
        "HOST SECONDS|none", "a host's own clock is ahead of all others (chronyd restarts)", faults_time.skew
    ),
    "rogue": Fault("HOST ADDRESS", "somebody adds a server to the running chronyd", faults_time.rogue),
    "daemon": Fault("HOST " + "|".join(faults_time.DAEMONS), "apt installs another time service", faults_time.daemon),
    "relay": Fault("RELAY stop|start", "a relay loses its power, and gets it back", faults_host.relay),
    "inside": Fault("RELAY cut|mend", "the relay's cable to its rack", faults_host.inside),
    "uplink": Fault("RELAY cut|mend", "the relay's way out", faults_host.uplink),
    "loss": Fault("HOST PERCENT|none", "packets that the host sends to its rack get lost", faults_host.loss),
    "flush": Fault("HOST", "somebody flushes all rules of nftables", faults_host.flush),
    "disk": Fault(
        "HOST full|free", "no room for chrony's logs (a small disk in memory in their place)", faults_host.disk
    ),
    "webhook": Fault("ok|error|hang", "what the receiver outside does with alarms", faults_host.webhook),
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
