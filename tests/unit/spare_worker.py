"""Runs passes of the agent on an emulated node, many a second, each of them killed at a given step if so wished.

One line of JSON on standard input is one order, one line on standard output the answer. A pass runs in a fork, as the
agent is a process of its own; what it does is the product's code and nothing else. Killed means SIGKILL, by the
profiler, before one of the calls that change something (a file put in its place, a GPU set): that is after the last.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

STEPS = {"atomic_write", "_set"}


def main(module_utils: str, root: str) -> None:
    sys.path.insert(0, module_utils)
    from steadyrack import gpu_sight

    gpu_sight.CONFIRM_S = 0.01  # nothing here passes by waiting
    for line in sys.stdin:
        order = json.loads(line)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            answer = carry_out(root, order)
            os.write(write_end, json.dumps(answer).encode())
            os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as handle:
            said = handle.read()
        _pid, status = os.waitpid(pid, 0)
        answer = json.loads(said) if said else {"killed": os.WIFSIGNALED(status)}
        print(json.dumps(answer), flush=True)


def carry_out(root: str, order: dict[str, Any]) -> dict[str, Any]:
    from steadyrack import errors, gpu_apply, gpu_people, gpu_policy

    counter = Counter(order.get("kill"))
    try:
        if order["do"] == "promote":
            gpu_people.promote(root, order["spare"], order["instead_of"], order["even_if_busy"])
            return {"ok": True}
        if order["do"] == "return":
            gpu_people.take_back(root, order["gpu"])
            return {"ok": True}
        policy = gpu_policy.load(os.path.join(root, gpu_policy.POLICY_PATH.lstrip("/")))
        assert policy is not None
        sys.setprofile(counter)
        outcome = gpu_apply.apply(policy, root, socket.gethostname(), strict=False)
        sys.setprofile(None)
        return {"ok": True, "steps": counter.number, "events": outcome.events, "changes": outcome.changes,
                "files": sorted(outcome.files), "rows": outcome.rows, "failures": outcome.failures}  # fmt: skip
    except errors.SteadyrackError as error:
        return {"ok": False, "error": error.sentence()}
    except BaseException:
        return {"ok": False, "bug": traceback.format_exc()}


class Counter:
    """Ends this process at the n-th step."""

    def __init__(self, ends_at: int | None) -> None:
        self.ends_at = ends_at
        self.number = 0

    def __call__(self, frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in STEPS and "steadyrack" in frame.f_code.co_filename:
            self.number += 1
            if self.number == self.ends_at:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
