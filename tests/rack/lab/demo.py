"""`./rack demo`: from a fresh machine to a rack that has been built, checked and can be broken, in one command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from lab import hosts, setup
from lab.paths import ROOT, STATE
from lab.say import RackError, step
from lab.topology import load

REPORT = ROOT / "reports" / "demo" / "acceptance.json"
AFTERWARDS = """
This rack is emulated: real Debian hosts with real systemd, sshd, chronyd and squid in containers; the GPUs are a
libnvidia-ml.so.1 of our own under the real pynvml, and a PCI tree of our own under the real readers.

look around   ./rack shell gpu-a1                      a root shell (leave with exit)
              ./rack shell gpu-a1 steadyrack status    what the node itself says
break it      ./rack fault cap gpu-a1 2 200            somebody lowers a power cap behind our back
              ./rack fault clock ntp1 0.05             one upstream time server lies by 50 ms
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
    REPORT.unlink(missing_ok=True)
    step("ansible-playbook site.yml (log: .rack/demo/site.log)")
    code = playbook(["site.yml"], log=rack.state / "site.log")
    if not REPORT.exists():
        raise RackError(
            "site.yml did not get as far as the acceptance checks",
            f"exit code {code}",
            "read .rack/demo/site.log; running ./rack demo again goes on from what is there",
        )
    step("what is now true on each host")
    report = json.loads(REPORT.read_text())
    print()
    print(table(summary(report["checks"])))
    print(f"\n{count(report['checks'])}   reports/demo/acceptance.json, .xml (JUnit)")
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


def summary(rows: Iterable[Mapping[str, object]]) -> list[dict[str, str]]:
    """One line for each host and check id: the worst verdict, how many subjects, and what was measured."""
    order = {"fail": 0, "unknown": 1, "not_judged": 2, "pass": 3}
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for row in rows:
        groups.setdefault((str(row.get("host", "")), str(row["id"])), []).append(row)
    lines = []
    for (host, check), members in groups.items():
        worst = min(members, key=lambda row: order.get(str(row["verdict"]), 1))
        unit = f" {worst['unit']}" if worst.get("unit") else ""
        reason = str(worst.get("reason") or "") if worst["verdict"] != "pass" else ""
        shown = "; ".join(dict.fromkeys(str(row["measured"]) for row in members if row.get("measured") is not None))
        lines.append(
            {
                "host": host,
                "check": check,
                "verdict": str(worst["verdict"]),
                "subjects": str(len(members)),
                "measured": (reason or f"{shown}{unit}")[:70],
            }
        )
    return lines


def count(rows: Iterable[Mapping[str, object]]) -> str:
    """`12 pass, 1 fail`: every verdict that occurs is named; unknown is never folded into pass."""
    verdicts = [str(row["verdict"]) for row in rows]
    return (
        ", ".join(
            f"{verdicts.count(word)} {word}" for word in ("pass", "fail", "unknown", "not_judged") if word in verdicts
        )
        or "no checks"
    )


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
