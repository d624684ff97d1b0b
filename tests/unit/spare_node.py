"""An emulated node whose spare policy is exercised: orders to spare_worker.py, and what one sees of the node."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from gpu_node import NODE_PYTHON, REPOSITORY, GpuNode, policy

CAP_W, MIN_W = 250, 150
TOTAL = 4
# A journal whose cursors are line numbers; what it is asked beside the cursor is left out.
JOURNALCTL = r"""#!/bin/sh
from=0
for word in "$@"; do
  case $word in --after-cursor=*) from=${word#*=} ;; --lines=1) from=$(($(wc -l <"@") - 1)) ;; esac
done
[ "$from" -lt 0 ] && from=0
tail -n +$((from + 1)) "@"
"""


class SpareNode:
    """A node with four GPUs and spares, and a worker that runs passes on it."""

    def __init__(self, root: Path, spares: int = 1, **more: Any) -> None:
        self.node = GpuNode(root)
        self.node.make("a100x4")
        self.uuids = [self.node.uuid(number) for number in range(TOTAL)]
        self.journal = root / "journal"
        self.journal.write_text("")
        self.node.program("journalctl", JOURNALCTL.replace("@", str(self.journal)))
        self.wish(spares, **more)
        worker, package = REPOSITORY / "tests/unit/spare_worker.py", REPOSITORY / "module_utils"
        command = [NODE_PYTHON, str(worker), str(package), str(root)]
        self.worker = subprocess.Popen(
            command, env=self.node.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        assert self.worker.stdin is not None
        self.worker.stdin.close()
        self.worker.wait(10)

    def wish(self, count: int, **more: Any) -> None:
        """The policy: how many spares, and what else."""
        self.node.policy(policy(CAP_W, spares={"count": count, **more}))

    def order(self, do: str, **words: Any) -> dict[str, Any]:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.worker.stdin.flush()
        answer: dict[str, Any] = json.loads(self.worker.stdout.readline())
        assert "bug" not in answer, answer["bug"]
        return answer

    def run(self, kill: int | None = None) -> dict[str, Any]:
        """One pass, killed at a step or not."""
        return self.order("apply", kill=kill)

    def log(self, gpu: int, code: int, text: str = "error", uid: str = "0") -> None:
        """The kernel writes an Xid line."""
        slot = self.node.get(f"gpu.{gpu}.bus_id").rsplit(".", 1)[0]
        row = {
            "MESSAGE": f"NVRM: Xid (PCI:{slot}): {code}, {text}", "_UID": uid, "SYSLOG_IDENTIFIER": "kernel",
            "__CURSOR": str(len(self.journal.read_text().splitlines()) + 1),
        }  # fmt: skip
        with self.journal.open("a") as handle:
            handle.write(json.dumps(row) + "\n")

    # --- what one sees ---

    def value(self, gpu: int, key: str, default: str) -> str:
        """A value of the emulated driver, which has no line for what is at its default."""
        for name in ("run/nvml-emulator/volatile", "var/lib/nvml-emulator/identity"):
            path = self.node.root / name
            found = re.search(rf"^gpu\.{gpu}\.{key}=(.*)$", path.read_text() if path.exists() else "", re.MULTILINE)
            if found and found[1]:
                return found[1]
        return default

    def caps_w(self) -> list[float]:
        return [int(self.value(gpu, "power_limit_mw", "300000")) / 1000 for gpu in range(TOTAL)]

    def closed(self) -> list[bool]:
        return [self.value(gpu, "compute_mode", "0") == "2" for gpu in range(TOTAL)]

    def present(self) -> list[str]:
        """UUIDs by place: a card may have been changed for another."""
        return [self.node.uuid(gpu) for gpu in range(TOTAL)]

    def listed(self) -> list[str]:
        """What a job is told, in each of the places; they agree after a pass."""
        path = self.node.root / "var/lib/steadyrack/gpus.env"
        found = re.search(r"^CUDA_VISIBLE_DEVICES=(.*)$", path.read_text(), re.MULTILINE) if path.exists() else None
        return [uuid for uuid in found[1].split(",") if uuid] if found else []

    def active(self) -> set[str]:
        """In the list and open."""
        shut = dict(zip(self.present(), self.closed(), strict=True))
        return {uuid for uuid in self.listed() if not shut.get(uuid, False)}

    def roles(self) -> dict[str, str]:
        path = self.node.root / "var/lib/steadyrack/gpu_roles.json"
        if not path.exists():
            return {}
        return {uuid: gpu["role"] for uuid, gpu in json.loads(path.read_text())["gpus"].items()}

    def role(self, gpu: int) -> str:
        return self.roles()[self.uuids[gpu]]
