"""`./rack demo`: from a fresh machine to a rack that has been built, checked and can be broken, in one command."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab import hosts, setup
from lab.paths import ROOT, STATE
from lab.say import RackError, step
from lab.topology import load

TABLE = ROOT / "reports" / "demo" / "acceptance.txt"
AFTERWARDS = """
This rack is emulated: real Debian hosts with real systemd, sshd, chronyd and squid in containers; the GPUs are a
libnvidia-ml.so.1 of our own under the real pynvml, and a PCI tree of our own under the real readers.

look around   ./rack shell gpu-a1                      a root shell (leave with exit)
              ./rack shell gpu-a1 steadyrack status    what the node itself says
break it      ./rack fault cap gpu-a1 2 200            somebody lowers a power cap behind our back
              ./rack fault clock ntp1 0.05             one upstream time server lies by 50 ms
              ./rack fault relay relay-a1 stop         one of site a's two relays loses its power
              ./rack fault --list                      everything else that can go wrong
see it        .rack/venv/bin/ansible-playbook site.yml --check --diff
repair it     .rack/venv/bin/ansible-playbook site.yml
again         ./rack demo                              goes on from what is there
remove it     ./rack down                              (./rack down --purge: the images too)
"""


def demo() -> int:
    """Run the demo; the exit code is site.yml's."""
    setup.setup()
    rack = load("demo")
    hosts.up(rack)
    TABLE.unlink(missing_ok=True)
    step("ansible-playbook site.yml (log: .rack/demo/site.log)")
    code = playbook(["site.yml"], log=rack.state / "site.log")
    if not TABLE.exists():
        raise RackError(
            "site.yml did not get as far as the acceptance checks",
            f"exit code {code}",
            "read .rack/demo/site.log; running ./rack demo again goes on from what is there",
        )
    step("what is now true on each host")
    print(f"\n{TABLE.read_text()}\nin full: reports/demo/acceptance.json, .xml (JUnit)")
    print(AFTERWARDS)
    return code


def playbook(words: list[str], log: Path | None = None) -> int:
    """ansible-playbook from the locked environment, shown as it goes and kept in `log`."""
    env = {**os.environ, **setup.environment(), "ANSIBLE_FORCE_COLOR": "0", "PYTHONUNBUFFERED": "1"}
    if log:
        log.parent.mkdir(parents=True, exist_ok=True)
        env["ANSIBLE_LOG_PATH"] = str(log)
        log.unlink(missing_ok=True)
    return subprocess.call([setup.tool("ansible-playbook"), *words], cwd=ROOT, env=env, stdin=subprocess.DEVNULL)


def table(rows: list[dict[str, str]]) -> str:
    """Rows of equal keys as aligned columns under a heading."""
    if not rows:
        return "(nothing)"
    heads = list(rows[0])
    widths = {head: max(len(head), *(len(str(row[head])) for row in rows)) for head in heads}
    lines = ["  ".join(head.upper().ljust(widths[head]) for head in heads).rstrip()]
    lines += ["  ".join(str(row[head]).ljust(widths[head]) for head in heads).rstrip() for row in rows]
    return "\n".join(lines)


def forget() -> None:
    """Remove the virtual environment and everything else under .rack/."""
    shutil.rmtree(STATE, ignore_errors=True)
    step("removed .rack/")
