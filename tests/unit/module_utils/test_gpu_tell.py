"""What happened to GPUs, told to hooks: at least once each, as JSON, and never in the way of a pass."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import alarm_hooks, files, gpu_spare, gpu_tell

A = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
D = "GPU-dddddddd-1111-2222-3333-444444444444"


class Place:
    """A root with the file of roles, a directory of hooks, and what was said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / alarm_hooks.DIRECTORY
        self.state = root / gpu_spare.STATE_PATH.lstrip("/")
        self.state.parent.mkdir(parents=True)
        (root / "run/steadyrack").mkdir(parents=True)
        self.said: list[str] = []

    def hook(self, name: str, body: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def happens(self, event: str, uuid: str, **more: Any) -> None:
        """An event as a pass writes it down."""
        state, _trouble = gpu_spare.load(str(self.state))
        state = state or gpu_spare.empty()
        entry = {"at": "2026-01-01T00:00:00Z", "event": event, "uuid": uuid, "bus_id": "0000:31:00.0", "text": "a text"}
        gpu_spare.remember(state, {**entry, **more})
        self.state.write_bytes(files.dump_json(state))

    def deliver(self) -> int:
        return gpu_tell.deliver(str(self.root), lambda level, text: self.said.append(f"{level}: {text}"), os.geteuid())

    def kept(self, key: str) -> list[Any]:
        found: list[Any] = json.loads(self.state.read_text())[key]
        return found

    def told(self, name: str = "told") -> list[dict[str, Any]]:
        path = self.root / name
        return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def writes(place: Place, name: str = "told") -> str:
    return f"cat >> {place.root}/{name}; echo >> {place.root}/{name}"


def test_a_hook_gets_a_take_over_as_json_with_the_card_whose_place_it_is(place: Place) -> None:
    place.hook("10-scheduler", writes(place))
    place.happens("takeover", D, instead_of=A)
    assert place.deliver() == 0
    (event,) = place.told()
    assert [event[key] for key in ("event", "id", "subject", "instead_of", "severity")] == [
        "takeover", "gpu.spare", D, A, "critical",
    ]  # fmt: skip
    assert "0000:31:00.0: a text" in event["text"]
    assert place.kept("untold") == place.kept("waiting") == []
    assert [one["event"] for one in place.kept("history")] == ["takeover"]


def test_what_was_told_is_not_told_again(place: Place) -> None:
    place.hook("10-a", writes(place))
    place.happens("failed", A)
    place.deliver()
    place.deliver()
    assert len(place.told()) == 1


@pytest.mark.parametrize(
    ("event", "severity"),
    [("failed", "critical"), ("takeover", "critical"), ("no_spare", "critical"), ("returned", "warning"),
     ("unaccepted", "warning"), ("draining", "warning"), ("moved", "warning")],
)  # fmt: skip
def test_what_ends_a_cards_service_is_critical_and_the_rest_a_warning(event: str, severity: str) -> None:
    entry = {"at": "2026-01-01T00:00:00Z", "event": event, "uuid": A, "bus_id": None, "text": "a text"}
    assert gpu_tell.event_of(entry)["severity"] == severity


def test_a_failing_hook_gets_the_event_again_at_the_next_pass_and_others_got_it_once(place: Place) -> None:
    place.hook("10-down", "echo no route >&2; exit 1")
    place.hook("20-up", writes(place, "up"))
    place.happens("takeover", D, instead_of=A)
    assert place.deliver() == 1
    assert any("no route" in line for line in place.said)
    assert [one["hook"] for one in place.kept("waiting")] == ["10-down"]
    place.hook("10-down", writes(place, "down"))
    assert place.deliver() == 0
    assert [event["instead_of"] for event in place.told("down")] == [A]
    assert len(place.told("up")) == 1
    assert place.kept("waiting") == []


def test_a_failing_hook_does_not_keep_the_next_take_over_waiting(place: Place) -> None:
    place.hook("10-down", "exit 1")
    place.happens("failed", A)
    began = time.monotonic()
    place.deliver()
    assert time.monotonic() - began < alarm_hooks.BACKOFF_S[0] / 2


def test_of_several_events_of_one_card_none_is_lost(place: Place) -> None:
    place.hook("10-a", writes(place))
    for event in ("takeover", "failed", "no_spare", "returned"):
        place.happens(event, D)
    place.deliver()
    assert [event["event"] for event in place.told()] == ["takeover", "failed", "no_spare", "returned"]
    assert len({event["occurrence"] for event in place.told()}) == 4


def test_events_of_a_pass_that_was_killed_before_its_hooks_are_told_by_the_next(place: Place) -> None:
    place.happens("failed", A)
    place.happens("takeover", D, instead_of=A)
    place.hook("10-a", writes(place))
    place.deliver()
    assert [event["event"] for event in place.told()] == ["failed", "takeover"]


def test_what_happens_while_a_hook_is_slow_is_told_by_who_tells_already(place: Place) -> None:
    place.hook(
        "10-slow", f"touch {place.root}/began; while [ ! -e {place.root}/go ]; do sleep 0.05; done; {writes(place)}"
    )
    place.happens("failed", A)
    left: list[int] = []
    teller = threading.Thread(target=lambda: left.append(place.deliver()))
    teller.start()
    give_up = time.monotonic() + 10
    while not (place.root / "began").exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    place.happens("takeover", D, instead_of=A)
    began = time.monotonic()
    assert place.deliver() == 2, "one that a hook has, and one that waits for it"
    assert time.monotonic() - began < 2, "the other pass does not wait for the hook"
    (place.root / "go").touch()
    teller.join(20)
    assert left == [0]
    assert [event["event"] for event in place.told()] == ["failed", "takeover"]
    assert place.kept("untold") == place.kept("waiting") == []


def test_without_a_directory_of_hooks_nothing_is_kept(place: Place) -> None:
    place.happens("takeover", D, instead_of=A)
    assert place.deliver() == 0
    assert place.kept("untold") == place.kept("waiting") == []


def test_without_roles_there_is_nothing_to_tell(place: Place) -> None:
    place.hook("10-a", writes(place))
    assert place.deliver() == 0
    place.state.write_text("{")
    assert place.deliver() == 0
    assert place.told() == []
