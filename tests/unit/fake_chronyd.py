"""A chronyd that is only remembered: a ``chronyc`` in front of PATH that keeps whom it asks and whom it serves.

It behaves as releases 4.0 to 4.8 do where it matters here: started anew it reads its files; ``reload sources``
adds and removes what came from the directory and leaves what ``add server`` brought; ``accheck`` takes the
longest matching network. The real daemon is tried in the demo rack.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_node import FakeNode

CHRONYC = """\
import glob, ipaddress, json, sys, time
STATE, UNITS, LOG, CONF, SOURCES = {state!r}, {units!r}, {log!r}, {conf!r}, {sources!r}
args = sys.argv[1:]
state, unit = json.load(open(STATE)), json.load(open(UNITS)).get("chrony.service", {{}})
flags = [arg for arg in args if arg.startswith("-") and len(arg) == 2]
words = [arg for arg in args if arg not in flags]
lines = words if "-m" in flags else [" ".join(words)]

def say(text, rc=1):
    print(text); json.dump(state, open(STATE, "w")); sys.exit(rc)

def configured():
    rows = [line.split() for name in sorted(glob.glob(SOURCES)) for line in open(name)]
    return [row[1] for row in rows if row and row[0] == "server"]

def new(name, from_file):
    known = name if name[:1].isdigit() or ":" in name else state["addresses"].get(name)
    state["serial"] = state.get("serial", 0) + 1
    return {{"name": name, "address": known or "ID#%010d" % state["serial"], "file": from_file}}

if unit.get("active") != "active":
    say("506 Cannot talk to daemon")
if unit.get("restarts", 0) != state["starts"]:
    state["starts"] = unit.get("restarts", 0)
    state["sources"] = [new(name, True) for name in configured()]
    try:
        rows = [line.split() for line in open(CONF)]
    except OSError:
        rows = []
    state["allow"] = [[row[1], True] for row in rows if row and row[0] == "allow"]
    state["local"] = next((" ".join(row[1:]) for row in rows if row and row[0] == "local"), None)
    state["steps"] = True

def prefix_of(address):
    if state.get("world"): best = (-1, True)
    else: best = (-1, False)
    for network, verdict in state["allow"]:
        if ipaddress.ip_address(address) in ipaddress.ip_network(network):
            best = max(best, (ipaddress.ip_network(network).prefixlen, verdict))
    return best[1]

for line in lines:
    command = line.split()
    if "-c" not in flags and command[0] != "accheck":
        open(LOG, "a").write(json.dumps(["chronyc", line]) + "\\n")
    if command[0] in state["refused"]:
        say(state["refused"][command[0]])
    if command[0] == "tracking":
        print(state["tracking"].format(now=time.time()))
    elif command[0] == "sources":
        looks = state.setdefault("looks", 0); state["looks"] += 1
        listed = state["sources"] + ([new("passing.example", False)] if looks in state["restless"] else [])
        for source in listed:
            name = source["name"] if "-N" in flags else source["address"]
            mode = "#" if source.get("refclock") else "^"
            print(f"{{mode}},*,{{name}},2,6,377,12,-0.000006252,-0.000006312,0.000172011")
    elif command[0] == "accheck":
        print("208 Access allowed" if prefix_of(command[1]) else "209 Access denied")
    elif command[0] == "deny" and command[1:] == ["all"]:
        state["allow"], state["world"] = [], False
    elif command[0] == "allow":
        if command[1:] == ["all"]: state["world"] = True
        elif command[1] not in state["deaf"]: state["allow"].append([command[1], True])
    elif command[0] == "local":
        state["local"] = None if command[1] == "off" else " ".join(command[1:])
    elif command[0] == "makestep":
        state["steps"] = command[2] != "0"
    elif command[0] == "reload":
        wanted = configured()
        state["sources"] = [one for one in state["sources"] if not one["file"] or one["name"] in wanted]
        have = [one["name"] for one in state["sources"]]
        state["sources"] += [new(name, True) for name in wanted if name not in have]
    elif command[0] == "add":
        assert command[1] == "server"
        state["sources"].append(new(command[2], False))
        state["added"] = state.get("added", []) + [line]
    elif command[0] == "delete":
        kept = [one for one in state["sources"] if one["address"] != command[1]]
        if len(kept) == len(state["sources"]): say("503 No such source")
        gone = [one for one in state["sources"] if one["address"] == command[1]]
        state["sources"] = kept + [one for one in gone if one["name"] in state["returning"]]
    elif command[0] == "rekey":
        pass
    else:
        say("501 Not authorised")
    if "-c" not in flags and command[0] != "accheck": print("200 OK")
json.dump(state, open(STATE, "w"))
"""

FOLLOWING = "0AD50115,10.213.1.21,3,{now:.6f},0.000001,0.0,0.0,0.274,0.004,0.189,0.0001,0.0001,16.0,Normal"
GUESSING = FOLLOWING.replace("0.189", "1000000.0")
LOST = "00000000,,0,0.000000000,0.0,0.0,0.0,0.274,0.000,0.000,1.0,1.0,0.0,Not synchronised"


class FakeChronyd:
    """What the daemon does now, to be looked at and to be spoilt."""

    def __init__(self, node: FakeNode, conf: Path, sourcedir: Path) -> None:
        self.node, self.path = node, node.root / "chronyd.json"
        self.path.write_text("{}")
        self.change(
            starts=0, sources=[], allow=[], world=False, local=None, steps=True, refused={}, returning=[], deaf=[],
            restless=[], addresses={}, tracking=LOST,
        )  # fmt: skip
        words = {"state": self.path, "units": node.state, "log": node.log, "conf": conf}
        words["sources"] = sourcedir / "*.sources"
        node.python_program("chronyc", CHRONYC.format(**{name: str(path) for name, path in words.items()}), "-IS")

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.path.read_text())
        return state

    def change(self, **values: Any) -> None:
        self.path.write_text(json.dumps({**json.loads(self.path.read_text()), **values}))

    def add(self, name: str, address: str | None = None, **more: Any) -> None:
        """A source that no file of ours names."""
        source = {"name": name, "address": address or name, "file": False, **more}
        self.change(sources=[*self.state["sources"], source])

    def lose(self, name: str) -> None:
        self.change(sources=[source for source in self.state["sources"] if source["name"] != name])

    @property
    def names(self) -> list[str]:
        return [source["name"] for source in self.state["sources"]]
