#!/usr/bin/python3
"""The emulated NVIDIA driver of a demo rack host: makes its state, changes it, shows it as files, breaks it.

The library libnvidia-ml.so.1 beside it reads the same state. README.md explains; `emulator.py keys` lists the keys.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Callable, Optional, Sequence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import keys
import pcitree
import statefiles
from statefiles import View, root, run_dir, split_key, update

CONFIG = "etc/nvml-emulator.conf"
"""Says that this host has GPUs and which: PROFILE=, HOST=, any number of SET=key=value."""
PROFILES = HERE / "profiles"
LIBRARY = "/usr/local/lib/nvml-emulator/libnvidia-ml.so.1"
Action = Callable[[argparse.Namespace], Optional[int]]
KEPT_EVENTS = 64
XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError"""
CUDA_OF_DRIVER = {"535": "12020", "550": "12040", "570": "12080"}
"""Highest CUDA version of a driver branch, from NVIDIA's release notes."""
XID_TEXT = {
    13: "Graphics Exception: ESR 0x505730=0x10011", 31: "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    43: "Ch 00000008", 45: "Ch 00000008", 48: "DBE (double bit error) detected", 62: "Internal micro-controller halt",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate",
    64: "Row Remapper: Failed to mark row for remapping", 74: "NVLink: fatal error detected on link 0",
    79: "GPU has fallen off the bus.", 92: "High single-bit ECC error rate", 94: "Contained: CE User Channel",
    95: "Uncontained: FBHUB", 119: "Timeout waiting for RPC from GSP!", 120: "GSP Error",
}  # fmt: skip


class EmulatorError(Exception):
    """One line for the operator; nothing was changed unless it says so."""


# ---- identity ----


def profile_values(name: str) -> dict[str, str]:
    path = PROFILES / f"{name}.profile"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROFILES.glob("*.profile")))
        raise EmulatorError(f"no profile {name!r}; known: {known}")
    return statefiles.parse(path.read_text())


def generated(host: str, gpu: int) -> dict[str, str]:
    """UUID and serial of a GPU: the same host name gives the same ones on every machine."""
    seed = f"steadyrack-demo/{host}/{gpu}"
    digits = int(hashlib.sha256(seed.encode()).hexdigest(), 16) % 10**9
    return {f"gpu.{gpu}.uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, seed)}", f"gpu.{gpu}.serial": f"1320{digits:09d}"}


def fresh_identity(profile: str, host: str, overrides: dict[str, str]) -> dict[str, str]:
    values = {**profile_values(profile), "profile": profile, "host": host}
    for gpu in range(int(values["gpu_count"])):
        values.update(generated(host, gpu))
    branch = overrides.get("driver_version", "").split(".")[0]
    if branch in CUDA_OF_DRIVER:
        values["cuda_version"] = CUDA_OF_DRIVER[branch]
    values.update(overrides)
    values.update({f"override.{key}": value for key, value in overrides.items()})
    return values


def overrides_in(identity: dict[str, str]) -> dict[str, str]:
    return {key[len("override.") :]: value for key, value in identity.items() if key.startswith("override.")}


def init(profile: str, host: str, overrides: dict[str, str], replace: bool = False) -> str:
    for key in overrides:
        keys.find(key)
    wanted = fresh_identity(profile, host, overrides)
    with update(statefiles.identity_path()) as values:
        if values and not replace:
            same = (values.get("profile"), values.get("host"), overrides_in(values)) == (profile, host, overrides)
            if not same:
                raise EmulatorError(
                    f"this host has the cards of profile {values.get('profile')}, host {values.get('host')}, "
                    f"changed by {overrides_in(values) or 'nothing'}; give --replace to put in others"
                )
            return "kept"
        values.clear()
        values.update(wanted)
    return "made"


def load_driver() -> None:
    """What a boot does: /run is empty, pending ECC and MIG modes take effect; Hopper forgets the MIG mode."""
    statefiles.run_dir().mkdir(parents=True, exist_ok=True)
    clients = statefiles.clients_path()
    if not clients.exists():
        clients.write_text("0\n")
    clients.chmod(0o666)  # any user may be an NVML client, and the first one raises the epoch
    with update(statefiles.volatile_path()) as values:
        new = "driver_load_time" not in values
        values.setdefault("driver_load_time", f"{time.time():.3f}")
    if new:
        view = View()
        with update(statefiles.identity_path()) as values:
            for gpu in range(int(values.get("gpu_count", "0"))):
                if view.flag(gpu, "mig_resetless"):
                    for name in ("mig_mode", "mig_mode_pending"):
                        values.pop(f"gpu.{gpu}.{name}", None)
                apply_pending(values, gpu)


def apply_pending(values: dict[str, str], gpu: int) -> None:
    for mode in ("ecc_mode", "mig_mode"):
        pending = values.pop(f"gpu.{gpu}.{mode}_pending", None)
        if pending is not None:
            values[f"gpu.{gpu}.{mode}"] = pending


# ---- changing ----


def parse_assignments(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or "\n" in word:
            raise EmulatorError(f"not key=value: {word!r}")
        found[key] = value
    return found


def set_values(wanted: dict[str, str]) -> None:
    """An empty value deletes the key, which gives the default or the profile-wide value back."""
    view = require_identity()
    for key in wanted:
        keys.find(key)
        gpu = split_key(key)[0]
        if gpu not in (None, "*") and int(gpu or 0) >= view.count:
            raise EmulatorError(f"{key}: this host has GPUs 0 to {view.count - 1}")
    in_run = {key: value for key, value in wanted.items() if keys.find(key).volatile}
    lasting = {key: value for key, value in wanted.items() if key not in in_run}
    if lasting:
        with update(statefiles.identity_path()) as values:
            for key, value in lasting.items():
                _assign(values, key, value)
    if in_run:
        with update(statefiles.volatile_path()) as values:
            for key, value in in_run.items():
                gpu, name = split_key(key)
                if name in statefiles.LIFECYCLE or name == "persistence_mode":
                    for one in range(view.count) if gpu == "*" else [int(gpu or 0)]:
                        statefiles.set_lifecycle(values, one, name, value or None)
                else:
                    _assign(values, key, value)


def _assign(values: dict[str, str], key: str, value: str) -> None:
    if value:
        values[key] = value
    else:
        values.pop(key, None)


def clear_faults() -> None:
    """The host as its profile and name make it. What NVML callers set (caps, modes) stays."""
    require_identity()

    def kept(values: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in values.items() if split_key(key)[0] and keys.find(key).setting}

    with update(statefiles.identity_path()) as values:
        settings = kept(values)
        fresh = fresh_identity(values["profile"], values["host"], overrides_in(values))
        values.clear()
        values.update(fresh)
        values.update(settings)
    with update(statefiles.volatile_path()) as values:
        stays = kept(values)
        stays.update(
            {key: value for key, value in values.items() if key.startswith("event") or key == "driver_load_time"}
        )
        values.clear()
        values.update(stays)


def reset(gpu: int) -> None:
    """A GPU reset: its volatile state is forgotten, pending modes take effect. Refused while persistence holds it."""
    view = require_gpu(gpu)
    if view.flag(gpu, "persistence_mode"):
        raise EmulatorError(f"GPU {gpu} is in use: persistence mode holds it (nvidia-smi would say the same)")
    with update(statefiles.identity_path()) as values:
        apply_pending(values, gpu)
        for key in ("lost", "remapped_pending", "recovery_action"):
            values.pop(f"gpu.{gpu}.{key}", None)
    with update(statefiles.volatile_path()) as values:
        for key in [key for key in values if key.startswith(f"gpu.{gpu}.")]:
            del values[key]


def raise_xid(gpu: int, code: int, pid: str, name: str, journal: bool) -> str:
    view = require_gpu(gpu)
    with update(statefiles.volatile_path()) as values:
        number = int(values.get("event_seq", "0")) + 1
        values["event_seq"] = str(number)
        values[f"event.{number}"] = f"{gpu}:{XID_EVENT:x}:{code}"
        values.pop(f"event.{number - KEPT_EVENTS}", None)
    address = (view.gpu(gpu, "bus_id") or "").rsplit(".", 1)[0]
    line = f"NVRM: Xid (PCI:{address}): {code}, pid={pid}, name={name}, {XID_TEXT.get(code, 'error')}"
    if journal:
        # A container has no kernel log of its own: the line comes under the kernel's name, not from the kernel, so it
        # is found by `journalctl -t kernel`, not by `journalctl -k`.
        subprocess.run(["systemd-cat", "-t", "kernel", "-p", "err"], input=line + "\n", text=True, check=True)
    return line


def require_identity() -> View:
    view = View()
    if not view.identity:
        raise EmulatorError(f"no identity in {statefiles.identity_path()}: run nvml-emulator init first")
    return view


def require_gpu(gpu: int) -> View:
    view = require_identity()
    if not 0 <= gpu < view.count:
        raise EmulatorError(f"this host has GPUs 0 to {view.count - 1}, not {gpu}")
    return view


# ---- files in the kernel's places ----

REAL_MODULES = "sys-module"
"""Below run_dir(): the kernel's own /sys/module, bound here before ours covers it."""


def places() -> dict[str, Path]:
    return {"pci": root() / "sys/bus/pci", "driver": root() / "proc/driver", "module": root() / "sys/module"}


def is_covered(place: Path) -> bool:
    """True when something other than the kernel's own file system lies on `place`."""
    try:
        return os.stat(place).st_dev != os.stat(place.parent.parent if place.name == "pci" else place.parent).st_dev
    except FileNotFoundError:
        return False


def tree_dir(name: str) -> Path:
    """Where a tree is rendered: below /run, or straight onto a place the container's maker bound a directory to."""
    own = run_dir() / "tree" / name
    place = places()[name]
    if not own.is_dir() and root() == Path("/") and is_covered(place):
        return place
    return own


def render() -> None:
    view = require_identity()
    real = run_dir() / REAL_MODULES
    pcitree.write(pcitree.pci_tree(view), tree_dir("pci"))
    pcitree.write(pcitree.driver_tree(view), tree_dir("driver"))
    pcitree.write(pcitree.module_tree(view, real if real.is_dir() else None), tree_dir("module"))


def rendered() -> bool:
    return (run_dir() / "tree").is_dir() or any(is_covered(place) for place in places().values() if root() == Path("/"))


def mount(bind: Sequence[str] = ("mount", "--bind")) -> list[str]:
    """Bind the trees over /sys/bus/pci, /proc/driver and /sys/module. What is covered already is left alone.

    Below another root there is no kernel to cover: a test reads the rendered trees, or links to them.
    """
    done: list[str] = []
    render()
    if root() != Path("/"):
        return done
    for name, place in places().items():
        if is_covered(place):
            continue
        if name == "module":
            real = run_dir() / REAL_MODULES
            real.mkdir(exist_ok=True)
            _run([*bind, str(place), str(real)])
            render()
        _run([*bind, str(run_dir() / "tree" / name), str(place)])
        done.append(str(place))
    return done


def umount() -> list[str]:
    done = []
    for name, place in places().items():
        if is_covered(place) and (run_dir() / "tree" / name).is_dir():
            _run(["umount", str(place)])
            done.append(str(place))
    real = run_dir() / REAL_MODULES
    if os.path.ismount(real):
        _run(["umount", str(real)])
        real.rmdir()
    return done


def _run(command: list[str]) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode != 0:
        raise EmulatorError(
            f"{' '.join(command)}: {result.stdout.strip() or result.returncode} (bind mounts need CAP_SYS_ADMIN)"
        )


# ---- commands ----


def read_config() -> dict[str, list[str]]:
    path = root() / CONFIG
    found: dict[str, list[str]] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith("#"):
                found.setdefault(key, []).append(value)
    return found


def boot() -> None:
    """What the unit runs: cards as /etc/nvml-emulator.conf says, driver loaded, files in the kernel's places.

    Without that file the cards that `init` put in stay.
    """
    config = read_config()
    existing = View().identity
    if config:
        profile, host = config.get("PROFILE", ["a100x4"])[-1], config.get("HOST", [socket.gethostname()])[-1]
        overrides = parse_assignments(config.get("SET", []))
        # Another profile or host name in the configuration is another set of cards, put in while the host was off.
        same = (existing.get("profile"), existing.get("host"), overrides_in(existing)) == (profile, host, overrides)
        print(f"identity: {init(profile, host, overrides, replace=not same)}")
    require_identity()
    load_driver()
    print(f"mounted: {', '.join(mount()) or 'already'}")


STATUS_KEYS = ("bus_id", "uuid", "serial", "name", "vbios", "persistence_mode", "power_limit_mw", "lost")


def status() -> dict[str, object]:
    view = require_identity()
    fresh = fresh_identity(view.identity["profile"], view.identity["host"], overrides_in(view.identity))
    changed = {key: value for key, value in view.identity.items() if fresh.get(key) != value}
    missing = {key: None for key in fresh if key not in view.identity}
    return {
        "profile": view.identity["profile"],
        "host": view.identity["host"],
        "driver_loaded": view.driver_loaded and statefiles.volatile_path().exists(),
        "driver_version": view.get("driver_version"),
        "module_version": view.module_version,
        "clients_connected": statefiles.clients_connected(),
        "covered": [str(place) for place in places().values() if root() == Path("/") and is_covered(place)],
        "differs_from_profile": {**changed, **missing},
        "volatile": view.volatile,
        "gpus": [{key: view.gpu(gpu, key) for key in STATUS_KEYS} for gpu in range(view.count)],
    }


class Nvml:
    """The few calls of the library that the stand-in for nvidia-persistenced makes."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("NVML_EMULATOR_LIB") or LIBRARY)
        self.check("nvmlInit_v2", self.library.nvmlInit_v2())

    @staticmethod
    def check(what: str, code: int) -> None:
        if code != 0:
            raise EmulatorError(f"{what} answered {code}")

    def set_persistence(self, mode: int) -> list[str]:
        """Set it on every GPU; a sick one does not keep the others from it. Returns complaints."""
        complaints = []
        count = ctypes.c_uint()
        self.check("nvmlDeviceGetCount_v2", self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            code = self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
            if code == 0:
                code = self.library.nvmlDeviceSetPersistenceMode(handle, mode)
            if code != 0:
                complaints.append(f"GPU {index}: persistence mode {mode} answered {code}")
        return complaints


def notify(message: str) -> None:
    """sd_notify(3), for Type=notify."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.sendall(message.encode())


def persistenced(off: bool) -> int:
    """Stands in for nvidia-persistenced: a client that holds persistence mode on while it runs.

    --off puts right what is left when it was killed.
    """
    nvml = Nvml()
    for complaint in nvml.set_persistence(0 if off else 1):
        print(complaint, file=sys.stderr)
    if off:
        return 0
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    notify("READY=1\nSTATUS=persistence mode is on (NVML emulator)")
    signal.sigwait(stop)
    notify("STOPPING=1")
    for complaint in nvml.set_persistence(0):
        print(complaint, file=sys.stderr)
    nvml.library.nvmlShutdown()
    return 0


def print_keys() -> None:
    tables = {
        "host": keys.HOST, "host, by pattern": keys.HOST_PATTERNS,
        "gpu.N.": keys.GPU, "gpu.N., by pattern": keys.PATTERNS,
    }  # fmt: skip
    for title, table in tables.items():
        print(f"[{title}]")
        for name, key in table.items():
            print(f"  {name:32}{'volatile  ' if key.volatile else '          '}{key.meaning}")


def _init(args: argparse.Namespace) -> None:
    print(init(args.profile, args.host, parse_assignments(args.set), args.replace))
    load_driver()


def _get(args: argparse.Namespace) -> int:
    keys.find(args.key)
    gpu, name = split_key(args.key)
    value = View().get(args.key) if gpu in (None, "*") else View().gpu(int(gpu or 0), name)
    if value is None:
        return 1
    print(value)
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvml-emulator", description="the emulated NVIDIA driver of this host")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, do: Action, about: str, shown: bool = False) -> argparse.ArgumentParser:
        """`shown`: what it changes shows in the rendered files."""
        one = commands.add_parser(name, help=about)
        one.set_defaults(do=do, shown=shown)
        return one

    one = command("init", _init, "make the host's cards; keeps those that are there", shown=True)
    one.add_argument("--profile", required=True)
    one.add_argument("--host", default=socket.gethostname())
    one.add_argument("--replace", action="store_true", help="other cards than before")
    differs = "differs from the profile, e.g. driver_version=535.261.03"
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=differs)
    command("boot", lambda _: boot(), "what the unit runs at boot")
    command("get", _get, "the value in force; exit code 1 when there is none").add_argument("key")
    one = command("set", lambda args: set_values(parse_assignments(args.words)), "change keys", shown=True)
    one.add_argument("words", nargs="+", metavar="KEY=VALUE", help="an empty value goes back to the default")
    command("clear-faults", lambda _: clear_faults(), "everything as the profile has it; caps, modes stay", shown=True)
    command("reset", lambda args: reset(args.gpu), "reset a GPU", shown=True).add_argument("gpu", type=int)
    one = command(
        "xid", lambda args: print(raise_xid(args.gpu, args.code, args.pid, args.name, args.journal)), "raise an Xid"
    )
    one.add_argument("gpu", type=int)
    one.add_argument("code", type=int)
    one.add_argument("--pid", default="'<unknown>'")
    one.add_argument("--name", default="<unknown>")
    one.add_argument("--journal", action="store_true", help="also write the kernel's line to the journal")
    command("tree", lambda _: render(), "render PCI tree, /proc/driver, /sys/module below /run/nvml-emulator/tree")
    command("mount", lambda _: print("\n".join(mount())), "bind them over the kernel's places")
    command("umount", lambda _: print("\n".join(umount())), "take them away again")
    command("status", lambda _: print(json.dumps(status(), indent=1)), "what is emulated now, as JSON")
    one = command("persistenced", lambda args: persistenced(args.off), "stand in for nvidia-persistenced")
    one.add_argument("--off", action="store_true")
    command("keys", lambda _: print_keys(), "every key and its meaning")
    return parser


def run(args: argparse.Namespace) -> int:
    code = args.do(args)
    if args.shown and rendered():
        render()
    return code or 0


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run(arguments().parse_args(argv))
    except (EmulatorError, keys.UnknownKeyError, OSError, subprocess.CalledProcessError) as error:
        print(f"nvml-emulator: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
