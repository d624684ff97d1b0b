#!/usr/bin/env python3
"""Holdover by simulation: what the clocks of a site do once a cable is cut, configured as role time_sync does it.

Runs real chronyd in clknetsim, thousands of times faster than time passes; see docs/holdover.md for how to get
both. Four hosts: a server outside (true time), a relay, two GPU nodes. They run `--locked` hours, then the chosen
arrow is cut. Prints a line a run: hours until a clock has been 1 ms and 30 ms wrong, and how far the two nodes parted.

    holdover_sim.py --chronyd PATH --clknetsim FOLDER --cut relay --profile typical --seeds 1 2 3

Run it as any user but root: clknetsim starts chronyd without the right to set a clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

# A crystal: (random walk per sqrt(s), daily swing, step while a job heats the machine), as fractions.
PROFILES = {"quiet": (1e-10, 1e-7, 0.0), "typical": (1e-9, 5e-7, 1e-6), "poor": (3e-9, 2e-6, 3e-6)}
BASE = {2: 20e-6, 3: -8e-6, 4: 31e-6}  # how fast each clock runs by itself
OUTSIDE, RELAY, NODES = 1, 2, (3, 4)
# Jobs run and rest for these seconds; not in step, or the nodes' errors would hide each other. A relay runs none.
JOBS = {3: (7200, 7200), 4: (9000, 5400)}
# A crystal grows faster or slower with heat; the two nodes are of opposite kinds, the worst case for a pair.
HEAT = {2: 1, 3: 1, 4: -1}
START = 1262304000  # clknetsim's first second
COMMON = "maxclockerror 5\nmaxslewrate 500\nlogchange 1\n"


def configuration(number: int) -> str:
    """chrony.conf of a host, as role time_sync writes it; steps are left to the first three updates."""
    if number == OUTSIDE:
        return "local stratum 1\nallow\n"
    if number == RELAY:
        line = f"server 192.168.123.{OUTSIDE} iburst minpoll 6 maxpoll 8 maxdelay 0.2"
        return f"{line}\nallow\nlocal stratum 10 orphan distance 0.1\nmaxdistance 0.5\nmakestep 1 3\n{COMMON}"
    return f"server 192.168.123.{RELAY} iburst minpoll 4 maxpoll 4\nport 0\nmakestep 0.1 3\n{COMMON}"


def network(profile: str, cut: str, cut_s: float) -> str:
    """clknetsim's description of clocks and cables; `cut` is what stops at `cut_s` (relay, outside)."""
    walk, daily, job = PROFILES[profile]
    lines = []
    for number, base in BASE.items():
        shape = f"(* {HEAT[number] * daily:g} (sine 86400)) (sum (* {walk:g} (normal)))"
        if number in JOBS:
            shape += " (* {:g} (pulse {} {}))".format(HEAT[number] * job, *JOBS[number])
        lines.append(f"node{number}_freq = (+ {base:g} {shape})")
        lines.append(f"node{number}_offset = {0.02 * (number - 1):g}")

    # A packet with a delay below 0 is lost: once time is past the cut, max(time, cut) equals time.
    def arrow(one: int, other: int, delay: str, lost: bool) -> None:
        gone = f" (* -10 (equal 0.1 (max time {cut_s:g}) time))" if lost else ""
        for sender, receiver in ((one, other), (other, one)):
            lines.append(f"node{sender}_delay{receiver} = (+ {delay}{gone})")

    arrow(OUTSIDE, RELAY, "5e-3 (* 5e-4 (exponential))", cut == "outside")
    for node in NODES:
        arrow(RELAY, node, "5e-5 (* 1e-5 (exponential))", cut == "relay")
    return "\n".join(lines) + "\n"


def simulate(args: argparse.Namespace, seed: int, folder: Path) -> Path:
    """One run; the file with a line a second, a column a host."""
    cut_s = args.locked * 3600
    (folder / "conf").write_text(network(args.profile, args.cut, cut_s))
    clients = []
    for number in (OUTSIDE, RELAY, *NODES):
        own = folder / f"chrony.{number}"
        fixed = f"pidfile {folder}/pid.{number}\ncmdport 0\nbindcmdaddress /\n"
        own.write_text(fixed + configuration(number))
        seen = {
            **os.environ, "LD_PRELOAD": str(args.clknetsim / "clknetsim.so"), "CLKNETSIM_NODE": str(number),
            "CLKNETSIM_SOCKET": str(folder / "sock"), "CLKNETSIM_START_DATE": str(START),
            "CLKNETSIM_RANDOM_SEED": str(seed),
        }  # fmt: skip
        log = (folder / f"log.{number}").open("w")
        clients.append(subprocess.Popen([args.chronyd, "-d", "-f", own], env=seen, stdout=log, stderr=log))
    seconds = int((args.locked + args.hours) * 3600)
    server = [args.clknetsim / "clknetsim", "-s", folder / "sock", "-o", folder / "offsets", "-l", str(seconds)]
    try:
        noise = {**os.environ, "CLKNETSIM_RANDOM_SEED": str(seed)}
        subprocess.run([*server, folder / "conf", "4"], check=True, stdout=subprocess.DEVNULL, env=noise)
    finally:
        for client in clients:
            client.terminate()
            client.wait()
    return folder / "offsets"


def figures(offsets: Path, cut_s: int) -> dict[str, float | None]:
    """Hours after the cut until the worst of relay and nodes was that wrong; None: not within the run."""
    found: dict[str, float | None] = dict.fromkeys(
        ("locked_ms", "relay_1ms", "relay_30ms", "node_1ms", "node_30ms", "apart_1ms", "apart_30ms")
    )
    worst = 0.0
    with offsets.open() as lines:
        for second, line in enumerate(lines):
            values = [float(word) * 1e3 for word in line.split()]
            errors = {"relay": abs(values[1]), "node": max(abs(values[2]), abs(values[3]))}
            errors["apart"] = abs(values[2] - values[3])
            if cut_s - 86400 < second < cut_s:
                worst = max(worst, errors["node"])
            if second < cut_s:
                continue
            for name, error in errors.items():
                for limit in (1, 30):
                    if error > limit and found[f"{name}_{limit}ms"] is None:
                        found[f"{name}_{limit}ms"] = round((second - cut_s) / 3600, 2)
    return {**found, "locked_ms": round(worst, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chronyd", type=Path, required=True)
    parser.add_argument("--clknetsim", type=Path, required=True)
    parser.add_argument("--cut", choices=("relay", "outside"), required=True)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="typical")
    parser.add_argument("--locked", type=float, default=48, help="hours before the cut")
    parser.add_argument("--hours", type=float, default=72, help="hours after it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    for seed in args.seeds:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = figures(simulate(args, seed, Path(folder)), int(args.locked * 3600))
        told = " ".join(f"{name}={'-' if value is None else value}" for name, value in found.items())
        print(
            f"cut={args.cut} profile={args.profile} seed={seed} {told} ({time.monotonic() - began:.0f} s)", flush=True
        )


if __name__ == "__main__":
    main()
