"""Random events, passes that are killed anywhere, people at the keyboard: what holds whatever comes.

Never more GPUs active than the policy allows, never more watts than the plan counts on, no job taken from a GPU that
is well, nothing lost, and a card that failed stays out until a person returns it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from spare_node import CAP_W, MIN_W, TOTAL, SpareNode

GPU = st.integers(0, TOTAL - 1)
NEVER = (13, 31, 43, 45, 63, 94)
ALWAYS = (48, 64, 79, 95, 119)


class Rack(RuleBasedStateMachine):
    """One node through weeks of bad luck."""

    def __init__(self) -> None:
        super().__init__()
        self.there: SpareNode | None = None
        self.allowed = TOTAL
        """What may be active: until a pass has come to its end, what might be before or after it."""
        self.wanted = TOTAL
        self.foreign = False
        """Somebody else has set a card since the last whole pass: its watts are not ours."""
        self.failed: set[str] = set()
        self.swaps = 0

    def teardown(self) -> None:
        if self.there is not None:
            self.there.close()
            shutil.rmtree(self.there.node.root)

    @initialize(spares=st.integers(0, 2))
    def begin(self, spares: int) -> None:
        self.there = SpareNode(Path(tempfile.mkdtemp(prefix="steadyrack-spare-")), spares)
        self.allowed = self.wanted = TOTAL - spares
        self.foreign = True  # no pass has been
        self.whole()

    # --- what happens to cards ---

    @rule(gpu=GPU, fault=st.sampled_from(["lost=1", "remapped_failure=1", "removed=1"]))
    def breaks(self, gpu: int, fault: str) -> None:
        self.there.node.set(f"gpu.{gpu}.{fault}")

    @rule(gpu=GPU)
    def heals(self, gpu: int) -> None:
        self.there.node.set(f"gpu.{gpu}.lost=", f"gpu.{gpu}.remapped_failure=", f"gpu.{gpu}.removed=")

    @rule(gpu=GPU, code=st.sampled_from((*NEVER, *ALWAYS)))
    def xid(self, gpu: int, code: int) -> None:
        self.there.log(gpu, code)

    @rule(gpu=GPU)
    def a_user_forges_an_xid(self, gpu: int) -> None:
        self.there.log(gpu, 79, uid="1000")

    @rule(gpu=GPU, number=st.integers(0, 2))
    def jobs(self, gpu: int, number: int) -> None:
        self.there.node.set(f"gpu.{gpu}.processes_compute=" + ";".join(f"{4000 + n}:100" for n in range(number)))

    @rule()
    def every_gpu_has_a_job(self) -> None:
        self.there.node.set(*(f"gpu.{gpu}.processes_compute=4000:100" for gpu in range(TOTAL)))

    @rule(gpu=GPU, watts=st.sampled_from([300, 150]), mode=st.sampled_from([0, 2]))
    def another_writer(self, gpu: int, watts: int, mode: int) -> None:
        self.there.node.set(f"gpu.{gpu}.power_limit_mw={watts * 1000}", f"gpu.{gpu}.compute_mode={mode}")
        self.foreign = True

    @rule()
    def boots(self) -> None:
        self.there.node.reboot()
        self.foreign = True

    @precondition(lambda self: self.swaps < 3)
    @rule(gpu=GPU)
    def is_replaced(self, gpu: int) -> None:
        self.swaps += 1
        uuid = f"GPU-{self.swaps:08x}-0000-4000-8000-00000000000{gpu}"
        self.there.node.set(f"gpu.{gpu}.uuid={uuid}", f"gpu.{gpu}.lost=", f"gpu.{gpu}.remapped_failure=")

    # --- what people do ---

    @rule(spares=st.integers(0, 2))
    def policy_changes(self, spares: int) -> None:
        self.there.wish(spares)
        self.wanted = TOTAL - spares
        self.allowed = max(self.allowed, self.wanted)

    @rule(gpu=GPU, busy=st.booleans())
    def promote(self, gpu: int, busy: bool) -> None:
        uuid = self.there.present()[gpu]
        if self.there.order("promote", spare="", instead_of=uuid, even_if_busy=busy)["ok"]:
            self.failed.add(uuid)

    @rule(gpu=GPU)
    def take_back(self, gpu: int) -> None:
        uuid = self.there.present()[gpu]
        if self.there.order("return", gpu=uuid)["ok"]:
            self.failed.discard(uuid)

    @rule()
    def the_list_is_deleted(self) -> None:
        for path in ("var/lib/steadyrack/gpus.env", "etc/environment"):
            (self.there.node.root / path).unlink(missing_ok=True)

    # --- passes ---

    @rule()
    def whole(self) -> None:
        busy = self._well_and_busy()
        answer = self.there.run()
        assert answer["ok"], answer
        if all(row["state"] != "no_devices" for row in answer["rows"]):
            self.allowed, self.foreign = self.wanted, False
        self._kept(busy)
        self._rest(answer)

    @rule(step=st.integers(1, 16))
    def killed(self, step: int) -> None:
        busy = self._well_and_busy()
        self.there.run(kill=step)
        self._kept(busy)

    # --- what holds ---

    @invariant()
    def never_more_active_than_allowed(self) -> None:
        if self.there is not None:
            assert len(self.there.active()) <= self.allowed, (self.there.active(), self.there.roles())

    @invariant()
    def never_above_the_plan(self) -> None:
        """Active ones at their cap, the others at their lowest, and who failed or drains at the last cap they had."""
        if self.there is None or self.foreign:
            return
        out = sum(role in ("failed", "draining", "unaccepted") for role in self.there.roles().values())
        high = sum(watts > MIN_W for watts in self.there.caps_w())
        assert high <= self.allowed + out, (self.there.caps_w(), self.there.roles())
        assert max(self.there.caps_w()) <= CAP_W or out, (self.there.caps_w(), self.there.roles())

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.there is None:
            return
        path = self.there.node.root / "var/lib/steadyrack/gpu_roles.json"
        if path.exists():
            roles = json.loads(path.read_text())["gpus"]
            for uuid, gpu in roles.items():
                if gpu["role"] == "failed":
                    self.failed.add(uuid)
            for uuid in self.failed & set(roles):
                assert roles[uuid]["role"] == "failed", (uuid, roles[uuid])

    def _well_and_busy(self) -> dict[str, int]:
        """Active GPUs that are well and have a job, by UUID; nobody may close them."""
        roles, state = self.there.roles(), {}
        for gpu, uuid in enumerate(self.there.present()):
            broken = any(self.there.value(gpu, key, "0") == "1" for key in ("lost", "remapped_failure", "removed"))
            jobs = self.there.value(gpu, "processes_compute", "")
            if jobs and not broken and roles.get(uuid) == "active" and not self._logged(gpu):
                state[uuid] = gpu
        return state

    def _logged(self, gpu: int) -> bool:
        """Whether the log ever spoke badly of this slot: then a pass may close it."""
        slot = self.there.node.get(f"gpu.{gpu}.bus_id").rsplit(".", 1)[0]
        rows = [json.loads(line) for line in self.there.journal.read_text().splitlines()]
        return any(f"{slot}): {code}," in row["MESSAGE"] for row in rows for code in ALWAYS if row["_UID"] == "0")

    def _kept(self, busy: dict[str, int]) -> None:
        shut = self.there.closed()
        for uuid, gpu in busy.items():
            assert self.there.roles()[uuid] in ("active", "draining"), (uuid, self.there.roles())
            if not self.foreign:
                assert not shut[gpu], (uuid, self.there.roles())

    def _rest(self, answer: dict) -> None:
        """After a whole pass every card that answers stands as its role says."""
        broken = {u for g, u in enumerate(self.there.present()) if self.there.value(g, "lost", "0") == "1"
                  or self.there.value(g, "removed", "0") == "1"}  # fmt: skip
        roles = self.there.roles()
        for gpu, uuid in enumerate(self.there.present()):
            if uuid in broken or uuid not in roles:
                continue
            closed, watts = self.there.closed()[gpu], self.there.caps_w()[gpu]
            if roles[uuid] in ("active",):
                assert (closed, watts) == (False, CAP_W), (uuid, roles, answer["failures"])
                assert uuid in self.there.listed()
            elif roles[uuid] != "draining":
                assert (closed, watts) == (True, MIN_W), (uuid, roles, answer["failures"])
                assert uuid not in self.there.listed()
        assert set(self.there.listed()) <= {uuid for uuid, role in roles.items() if role == "active"}
        held = sum(role in ("active", "draining") for role in roles.values())
        assert held <= max(self.wanted, self._open_before(roles))

    @staticmethod
    def _open_before(roles: dict[str, str]) -> int:
        """Draining ones are above the number until their jobs end; nothing is opened meanwhile."""
        return sum(role in ("active", "draining") for role in roles.values()) if "draining" in roles.values() else 0


@pytest.mark.parametrize("examples", [25])
def test_whatever_comes(examples):
    run_state_machine_as_test(Rack, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))
