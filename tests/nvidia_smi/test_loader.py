"""The emulator stays the library that programs load, whatever the package of NVIDIA's library does beside it."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.slow

EMULATOR = "/usr/local/lib/nvml-emulator/libnvidia-ml.so.1"
MAPPED = """
import ctypes, re
ctypes.CDLL("libnvidia-ml.so.1")
print(*sorted({path for path in re.findall(r"/\\S+", open("/proc/self/maps").read()) if "nvidia-ml" in path}))
"""
ABI = """
import ctypes, glob, json, pynvml, re
names = sorted(set(re.findall(r'_nvmlGetFunctionPointer\\("(\\w+)"\\)', open(pynvml.__file__).read())))
(real,) = glob.glob("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.*.*")
libraries = {"nvidia": ctypes.CDLL(real), "emulator": ctypes.CDLL("@EMULATOR@")}
print(json.dumps({who: [name for name in names if hasattr(library, name)] for who, library in libraries.items()}))
""".replace("@EMULATOR@", EMULATOR)


def known_to_the_loader(host) -> list[str]:
    """Paths under which `ldconfig -p` has the library, in its order."""
    return re.findall(r"^\s*libnvidia-ml\.so\.1 .*=> (\S+)$", host.sh("ldconfig -p"), re.M)


def loaded(host) -> list[str]:
    """What a program without any environment (systemd, cron, sudo) gets."""
    done = host.run("env", "-i", "/usr/bin/python3", "-c", MAPPED)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_emulator_comes_first_beside_nvidias_library_reinstalled_and_purged(host):
    first, *others = known_to_the_loader(host)
    assert first == EMULATOR
    assert others, "NVIDIA's library is not installed: nothing is proved"
    assert loaded(host) == [EMULATOR]

    host.apt("install", "--reinstall", "libnvidia-ml1")
    assert known_to_the_loader(host)[0] == EMULATOR
    assert loaded(host) == [EMULATOR]

    host.apt("purge", "libnvidia-ml1")  # and nvidia-smi, which needs it
    try:
        assert known_to_the_loader(host) == [EMULATOR]
        assert loaded(host) == [EMULATOR]
        assert len(host.nvml()["gpus"]) == 4
    finally:
        host.apt("install", "nvidia-smi")
    assert known_to_the_loader(host)[0] == EMULATOR
    assert loaded(host) == [EMULATOR]


def test_every_function_of_the_emulator_is_one_of_nvidias_library_550(smi_hosts):
    """550 is the driver that is emulated; 535 lacks five of the functions."""
    done = smi_hosts["trixie"].run("python3", "-c", ABI)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["emulator"]) > 100
    assert set(found["emulator"]) - set(found["nvidia"]) == set()
