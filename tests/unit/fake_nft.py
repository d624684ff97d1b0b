"""nft, unshare and systemd-run as small executables beside those of fake_node.py.

This machine may have neither nft nor the right to use it. The fake keeps one table as text: what the code is to
decide (load, try, confirm, go back) does not depend on what stands in the rules. The real one is in molecule.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from fake_node import FakeNode

NFT = """\
import json, os, re, sys
args = sys.argv[1:]
scratch = os.environ.get("FAKE_SCRATCH")
state = scratch or {state!r}
if not scratch: open({log!r}, "a").write(json.dumps(["nft", *args]) + "\\n")
if os.path.exists({broken!r}):
    print(open({broken!r}).read(), file=sys.stderr); sys.exit(1)
def live():
    return json.load(open(state)) if os.path.exists(state) else None
def absent():
    print("Error: No such file or directory", file=sys.stderr); sys.exit(1)
def shown(table, values):
    text = table["text"]
    for name, packets in table["counters"].items() if values else ():
        text = text.replace("counter %s {{ }}" % name, "counter %s {{ packets %d bytes 0 }}" % (name, packets))
    return text
if args[:1] == ["delete"]:
    os.path.exists(state) and os.unlink(state); sys.exit(0)
if "list" in args and "counters" in args:
    table = live() or {{"counters": {{}}}}
    where = {{"family": "inet", "table": "t", "bytes": 0}}
    found = [{{"counter": {{**where, "name": name, "packets": n}}}} for name, n in table["counters"].items()]
    print(json.dumps({{"nftables": [{{"metainfo": {{}}}}, *found]}})); sys.exit(0)
if "list" in args:
    table = live()
    print(shown(table, "--stateless" not in args) if table else absent(), end=""); sys.exit(0)
path = args[args.index("-f") + 1]
text = sys.stdin.read() if path == "-" else open(path).read()
if "BAD" in text:
    print("Error: syntax error, unexpected BAD", file=sys.stderr); sys.exit(1)
if "-c" in args: sys.exit(0)
table = live()
if "delete table inet t\\n" in text:
    table, text = None, text.split("delete table inet t\\n", 1)[1]
if not text.strip():
    os.path.exists(state) and os.unlink(state); sys.exit(0)
counters = dict(table["counters"] if table else {{}})
for name, packets in re.findall(r"counter (\\w+) \\{{(?: packets (\\d+) bytes \\d+)? *\\}}", text):
    counters[name] = int(packets or counters.get(name, 0))
text = re.sub(r"(counter \\w+ \\{{) packets \\d+ bytes \\d+ *(\\}})", r"\\1 \\2", text)
text = "".join(line + "\\n" for line in text.splitlines() if not line.strip().startswith("#"))
json.dump({{"text": text, "counters": counters}}, open(state, "w"))
"""
UNSHARE = """#!/bin/sh
# unshare --net -- PROGRAM …: an empty namespace
shift 2
FAKE_SCRATCH={folder}/scratch.$$
export FAKE_SCRATCH
"$@"
rc=$?
rm -f "$FAKE_SCRATCH"
exit $rc
"""


class FakeNft:
    """The table of a fake node, and the timer that would bring back the old one."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.state = node.root / "nft.json"
        self.broken = node.root / "nft.broken"
        self.timer = node.root / "timer"
        words = {"state": str(self.state), "log": str(node.log), "broken": str(self.broken)}
        node.python_program("nft", NFT.format(**words))
        node.program("unshare", UNSHARE.format(folder=shlex.quote(str(node.root))))
        note = f'printf "[\\"systemd-run\\"]\\n" >> {shlex.quote(str(node.log))}'
        timer = shlex.quote(str(self.timer))
        node.program("systemd-run", f'#!/bin/sh\n{note}\nprintf "%s\\n" "$@" > {timer}\n')

    @property
    def table(self) -> dict[str, Any] | None:
        return json.loads(self.state.read_text()) if self.state.exists() else None

    def edit(self, text: str | None, **counters: int) -> None:
        """Somebody else changes the live table, or (None) flushes it."""
        if text is None:
            self.state.unlink(missing_ok=True)
        else:
            self.state.write_text(json.dumps({"text": text, "counters": counters}))

    def counted(self, **counters: int) -> None:
        table = self.table or {}
        table["counters"].update(counters)
        self.state.write_text(json.dumps(table))

    def fire(self) -> None:
        """The time for a confirmation is over: what systemd-run was given is run."""
        words = self.timer.read_text().splitlines()
        subprocess.run(words[words.index("--") + 1 :], check=False, env={"PATH": f"{self.node.bin}:/usr/bin:/bin"})


def fake_nft(node: FakeNode) -> FakeNft:
    return FakeNft(node)


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
