"""A pass that is killed at any of its steps: what is open and drawn meanwhile, and where the next pass ends."""

from __future__ import annotations

import json
import shutil

import pytest
from spare_node import CAP_W, MIN_W, SpareNode

TAKEN = ("var/lib/steadyrack", "etc/environment", "run/nvml-emulator/volatile", "var/lib/nvml-emulator/identity")


class Kept:
    """What makes the node's state, so that each kill begins at the same one."""

    def __init__(self, there: SpareNode, place) -> None:
        self.root, self.place = there.node.root, place
        for path in TAKEN:
            self._copy(self.root / path, place / path)

    def back(self) -> None:
        for path in TAKEN:
            self._copy(self.place / path, self.root / path)

    @staticmethod
    def _copy(source, target) -> None:
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


@pytest.fixture
def there(tmp_path):
    found = SpareNode(tmp_path / "node")
    yield found
    found.close()


def ends(there: SpareNode) -> tuple:
    environment = (there.node.root / "etc/environment").read_text()
    return (there.roles(), there.caps_w(), there.closed(), there.listed(), environment)


def every_kill(there: SpareNode, place, may_draw: float) -> int:
    """Kill the pass that is due at each of its steps in turn; how many there were."""
    kept = Kept(there, place)
    whole = there.run()
    wanted, steps = ends(there), whole["steps"]
    for step in range(1, steps + 1):
        kept.back()
        before = set(there.listed())
        assert there.run(kill=step) == {"killed": True}
        where = f"killed at step {step} of {steps}"
        assert len(there.active()) <= 3, where
        assert set(there.listed()) <= before | set(wanted[3]), where
        assert sum(there.caps_w()) <= may_draw, where
        roles = there.node.root / "var/lib/steadyrack/gpu_roles.json"
        assert json.loads(roles.read_text())["version"] == 1, where
        there.run()
        assert ends(there) == wanted, where
    again = there.run()
    assert (again["changes"], again["files"], again["events"]) == ([], [], [])
    return steps


def test_a_take_over_from_a_card_that_still_answers(there, tmp_path):
    """The failed card is capped low before the spare's cap rises: the sum never rises at all."""
    there.run()
    there.log(1, 95, "Uncontained ECC error")
    assert every_kill(there, tmp_path / "kept", 3 * CAP_W + MIN_W) > 10


def test_a_take_over_from_a_card_that_fell_off_the_bus(there, tmp_path):
    """It cannot be capped any more and counts at its last cap, as in the rack's plan."""
    there.run()
    there.node.set("gpu.0.lost=1")
    assert every_kill(there, tmp_path / "kept", 4 * CAP_W) > 8


def test_a_return_into_a_place_that_was_free(there, tmp_path):
    """Two have failed, and one spare there was: the card that comes back is needed at once."""
    there.run()
    there.node.set("gpu.1.remapped_failure=1", "gpu.2.remapped_failure=1")
    there.run()
    assert len(there.active()) == 2
    there.node.set("gpu.2.remapped_failure=")
    assert there.order("return", gpu=there.uuids[2]) == {"ok": True}
    assert every_kill(there, tmp_path / "kept", 3 * CAP_W + MIN_W) > 5
    assert [there.role(gpu) for gpu in range(4)] == ["active", "failed", "active", "active"]


def test_caps_and_modes_after_a_boot(there, tmp_path):
    """After a boot all cards are open and at 300 W; the list is as before, so no job is given the spare."""
    there.run()
    there.node.reboot()
    assert there.closed() == [False] * 4
    assert len(there.listed()) == 3
    every_kill(there, tmp_path / "kept", 4 * 300)
    assert there.caps_w() == [CAP_W, CAP_W, CAP_W, MIN_W]
