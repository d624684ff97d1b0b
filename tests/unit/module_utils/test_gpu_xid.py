"""Xid errors: what each asks for by architecture, whose word counts; a log that cannot be read is no silence."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import gpu_xid
from ansible.module_utils.steadyrack.gpu_xid import Event, action, parse, table
from ansible.module_utils.steadyrack.run import Completed, run
from fake_node import FakeNode

# nvmlDeviceArchitecture_t of nvml.h.
VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL = 5, 6, 7, 8, 9, 10
SLOT = "0000:31:00.0"


def asks(code: int | None, architecture: int | None = AMPERE, text: str = "", **overrides: Any) -> str:
    return action(Event(SLOT, code, text), architecture, **overrides)


# --- what each asks for --------------------------------------------------------------------------


@pytest.mark.parametrize("code", [48, 64, 79, 95, 119])
def test_the_spare_takes_over_on_an_a100(code: int) -> None:
    assert asks(code) in gpu_xid.TAKES_OVER


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 94])
@pytest.mark.parametrize("architecture", [None, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL])
def test_what_an_application_did_to_itself_never_costs_a_card(code: int, architecture: int | None) -> None:
    assert asks(code, architecture) not in gpu_xid.TAKES_OVER


def test_a_fall_without_a_code_takes_over_everywhere() -> None:
    assert {asks(None, one) for one in (None, VOLTA, AMPERE, HOPPER, BLACKWELL)} == {gpu_xid.REBOOT}


@pytest.mark.parametrize("code", [0, 1, 999, 65535])
@pytest.mark.parametrize("architecture", [None, TURING, AMPERE, HOPPER, BLACKWELL])
def test_a_code_that_is_in_no_table_is_unknown(code: int, architecture: int | None) -> None:
    assert asks(code, architecture) == gpu_xid.UNKNOWN


@pytest.mark.parametrize(
    ("code", "word", "has"),
    [
        (96, gpu_xid.APP, (HOPPER,)),
        (136, gpu_xid.RESET, (HOPPER,)),
        (141, gpu_xid.IGNORE, (HOPPER,)),
        (110, gpu_xid.RESET, (HOPPER, BLACKWELL)),
        (156, gpu_xid.RESET, (HOPPER, BLACKWELL)),
        (126, gpu_xid.APP, (BLACKWELL,)),
        (145, gpu_xid.CHECK, (BLACKWELL,)),
        (160, gpu_xid.IGNORE, (BLACKWELL,)),
    ],
)
def test_codes_of_newer_cards_mean_nothing_on_older_ones(code: int, word: str, has: tuple[int, ...]) -> None:
    for architecture in (VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL):
        assert asks(code, architecture) == (word if architecture in has else gpu_xid.UNKNOWN), architecture
    # A card whose kind is not known is judged by every table: better a card too many than a job on a broken one.
    assert asks(code, None) == word


@pytest.mark.parametrize(
    ("code", "older", "ampere"),
    [
        (64, gpu_xid.CHECK, gpu_xid.RESET),  # pages are retired there, not rows remapped
        (48, gpu_xid.RESET, gpu_xid.RESET),
        (79, gpu_xid.REBOOT, gpu_xid.REBOOT),
        (95, gpu_xid.UNKNOWN, gpu_xid.RESET),
        (94, gpu_xid.UNKNOWN, gpu_xid.APP),
        (119, gpu_xid.UNKNOWN, gpu_xid.RESET),
    ],
)
def test_cards_before_ampere_have_their_own_table(code: int, older: str, ampere: str) -> None:
    assert (asks(code, VOLTA), asks(code, TURING), asks(code, AMPERE)) == (older, older, ampere)


@pytest.mark.parametrize("architecture", [None, VOLTA, AMPERE, ADA, HOPPER, BLACKWELL, 11, 0xFFFFFFFF])
def test_every_word_of_a_table_is_one_that_a_site_may_use(architecture: int | None) -> None:
    assert set(table(architecture).values()) <= set(gpu_xid.ACTIONS)


@pytest.mark.parametrize(
    ("last", "word"),
    [
        ("0x0 (None)", gpu_xid.IGNORE),
        ("0x1 (GPU Reset)", gpu_xid.RESET),
        ("0x2 (Node Reboot Required)", gpu_xid.REBOOT),
        ("0x3 (Drain P2P)", gpu_xid.CHECK),
        ("0x4 (Drain and Reset)", gpu_xid.RESET),
        ("0x9 (Something New)", gpu_xid.UNKNOWN),
    ],
)
def test_xid_154_names_what_it_asks_for_by_its_last_state(last: str, word: str) -> None:
    text = f"GPU recovery action changed from 0x1 (GPU Reset) to {last}"
    assert asks(154, text=text) == word
    assert asks(154, BLACKWELL, text=text) == word


def test_what_the_site_says_goes_before_the_table() -> None:
    site = {74: gpu_xid.RESET, 79: gpu_xid.CHECK, 12345: gpu_xid.REBOOT, 154: gpu_xid.IGNORE}
    assert [asks(code, overrides=site) for code in (74, 79, 12345, 48)] == ["reset", "check", "reboot", "reset"]
    assert asks(154, text="changed from 0x0 (None) to 0x2 (Node Reboot Required)", overrides=site) == "ignore"


def test_the_site_cannot_say_that_a_fall_from_the_bus_is_nothing() -> None:
    assert asks(None, overrides={0: gpu_xid.IGNORE}) == gpu_xid.REBOOT


# --- lines ---------------------------------------------------------------------------------------


def test_a_line_of_an_application_that_was_ended_c56() -> None:
    line = "[..] NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=distprovers-gpu, Ch 0000000a"
    assert parse([line]) == [Event("0000:61:00.0", 45, "pid=1496200, name=distprovers-gpu, Ch 0000000a")]


FALLEN_AT_PROBE = """\
[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
               NVRM: (PCI ID: 10de:26b5) installed in this system has
               NVRM: fallen off the bus and is not responding to commands.
[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).
"""


def test_a_card_lost_at_probe_without_any_xid_c64() -> None:
    assert parse(FALLEN_AT_PROBE.splitlines()) == [Event("0000:b3:00.0", None, "has fallen off the bus")]


def test_a_sentence_of_the_driver_that_lost_its_beginning_names_no_card() -> None:
    assert parse(FALLEN_AT_PROBE.splitlines()[1:]) == []


def test_an_address_is_not_kept_for_a_sentence_about_another_card() -> None:
    named = "NVRM: GPU at PCI:0000:41:00: GPU-7ac2c5b3-0000-0000-0000-000000000000"
    other = [f"NVRM: row {number}" for number in range(6)]
    assert parse([named, *other, "NVRM: fallen off the bus and is not responding to commands."]) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("NVRM: GPU at PCI:0000:41:00: has fallen off the bus", Event("0000:41:00.0", None, "has fallen off the bus")),
        (
            "NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.",
            Event("0000:41:00.0", None, "has fallen off the bus"),
        ),
        ("NVRM: Xid (PCI:0000:31:00): 79, GPU has fallen off the bus.", Event(SLOT, 79, "GPU has fallen off the bus.")),
        ("kernel: NVRM: Xid (0000:31:00): 13, Graphics Exception", Event(SLOT, 13, "Graphics Exception")),
        ("NVRM: Xid (PCI:00000001:31:00): 48", Event("0001:31:00.0", 48, "")),
        ("NVRM: xid (pci:0000:B1:00): 63, Row Remapper", Event("0000:b1:00.0", 63, "Row Remapper")),
    ],
)
def test_the_spellings_of_the_driver(line: str, found: Event) -> None:
    assert parse([line]) == [found]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "usb 1-1: device not responding",
        "pcieport 0000:30:01.0: fallen off the bus",  # not the driver's word
        "NVRM: Xid (): 79",
        "NVRM: Xid (PCI:zz:31:00): 79, x",
        "NVRM: Xid (PCI:0000:31:00): many",
        "NVRM: Xid (PCI:::::): 79, x",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01",
        "NVRM: GPU at PCI:0000:41:00: GPU-7ac2c5b3-0000-0000-0000-000000000000",
    ],
)
def test_lines_that_say_nothing_of_a_fault(line: str) -> None:
    assert parse([line]) == []


def test_one_fault_that_is_told_twice_is_one_event_in_its_place() -> None:
    one, other = "NVRM: Xid (PCI:0000:31:00): 48, x", "NVRM: Xid (PCI:0000:4b:00): 31, y"
    assert [event.code for event in parse([one, other, one])] == [48, 31]


# --- whose word counts ---------------------------------------------------------------------------

XID_79 = "NVRM: Xid (PCI:0000:31:00): 79, GPU has fallen off the bus."
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}
ROOT = {"_TRANSPORT": "syslog", "_UID": "0", "SYSLOG_IDENTIFIER": "kernel"}
USER = {"_TRANSPORT": "syslog", "_UID": "1000", "SYSLOG_IDENTIFIER": "kernel"}


@pytest.mark.parametrize("writer", [KERNEL, ROOT])
def test_the_kernel_and_root_are_believed(writer: dict[str, str]) -> None:
    assert gpu_xid.message({**writer, "MESSAGE": XID_79}) == XID_79


@pytest.mark.parametrize("writer", [USER, {}, {"SYSLOG_IDENTIFIER": "kernel"}, {**USER, "_TRANSPORT": "journal"}])
def test_any_user_may_write_to_the_journal_and_is_not_believed(writer: dict[str, str]) -> None:
    assert gpu_xid.message({**writer, "MESSAGE": XID_79}) == ""


def test_a_user_cannot_choose_the_fields_by_which_writers_are_told_apart() -> None:
    # journald sets fields with a leading underscore itself; one that is told twice comes as a list.
    assert gpu_xid.message({**USER, "_UID": ["1000", "0"], "MESSAGE": XID_79}) == ""


def test_an_identifier_that_journald_cut_from_the_line_is_put_back() -> None:
    row = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "NVRM", "MESSAGE": XID_79.removeprefix("NVRM: ")}
    assert parse([gpu_xid.message(row)]) == parse([XID_79])
    assert gpu_xid.message({**row, "MESSAGE": XID_79}) == XID_79


def test_a_line_that_is_no_text_comes_as_a_list_of_bytes() -> None:
    row = {**KERNEL, "MESSAGE": [*XID_79.encode(), 0xFF]}
    assert gpu_xid.message(row) == XID_79 + "\ufffd"


@pytest.mark.parametrize("message", [None, 7, {}, ["a line", "another"], [300], [[1]], [None], True])
def test_a_message_of_another_shape_is_no_line(message: Any) -> None:
    assert gpu_xid.message({**KERNEL, "MESSAGE": message}) == ""
    assert gpu_xid.message(KERNEL) == ""


@pytest.mark.parametrize("row", ["", "{", '{"MESSAGE": "NVRM: Xid (PCI:0000', "[1]", "null", '"text"', "-- cursor"])
def test_half_a_row_is_no_row(row: str) -> None:
    assert gpu_xid.entry(row) == {}


# --- reading -------------------------------------------------------------------------------------

JOURNAL = """\
import json, os, sys
folder = {folder!r}
with open(os.path.join(folder, "asked"), "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
refused = os.path.join(folder, "refused")
if os.path.exists(refused) and any(word.startswith("--after-cursor") for word in sys.argv):
    sys.exit("Failed to seek to cursor: Invalid argument")
sys.stdout.write(open(os.path.join(folder, "rows")).read())
"""


class Journal:
    """A `journalctl` that prints rows and keeps what it was asked."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.rows()
        node.python_program("journalctl", JOURNAL.format(folder=str(folder)), "-IS")

    def rows(self, *rows: dict[str, Any] | str) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (self.folder / "rows").write_text("".join(f"{line}\n" for line in lines))

    def asked(self) -> list[list[str]]:
        path = self.folder / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def lost_cursor(self) -> None:
        (self.folder / "refused").touch()


@pytest.fixture
def journal(node: FakeNode, tmp_path: Path) -> Journal:
    return Journal(node, tmp_path)


def row(cursor: str, text: str = XID_79, **fields: str) -> dict[str, Any]:
    return {**KERNEL, "__CURSOR": cursor, "MESSAGE": text, **fields}


def test_events_and_the_last_place_come_back(journal: Journal) -> None:
    journal.rows(row("s=1", "NVRM: Xid (PCI:0000:31:00): 48, DBE"), row("s=2", "usb 1-1: new device"))
    assert gpu_xid.read("s=0", 1000.0) == gpu_xid.Log([Event(SLOT, 48, "DBE")], "s=2")
    (asked,) = journal.asked()
    assert "--after-cursor=s=0" in asked
    assert asked[-len(gpu_xid.MATCHES) :] == list(gpu_xid.MATCHES)
    assert not any(word.startswith("--since") for word in asked)


def test_a_log_that_did_not_grow_keeps_the_place(journal: Journal) -> None:
    assert gpu_xid.read("s=7", 1000.0) == gpu_xid.Log([], "s=7")


def test_the_first_reading_gives_a_place_and_no_events(journal: Journal) -> None:
    journal.rows(row("s=9"))
    assert gpu_xid.read(None, None) == gpu_xid.Log([], "s=9")
    (asked,) = journal.asked()
    assert "--lines=1" in asked


def test_a_log_that_has_nothing_yet_is_read_by_time_afterwards(journal: Journal) -> None:
    assert gpu_xid.read(None, None) == gpu_xid.Log([], None)
    journal.rows(row("s=1"))
    assert [event.code for event in gpu_xid.read(None, 1000.0).events] == [79]


def test_a_place_that_is_no_more_is_made_up_for_by_time(journal: Journal) -> None:
    journal.lost_cursor()
    journal.rows(row("s=100"))
    log = gpu_xid.read("s=1", 1000.0)
    assert (log.cursor, log.trouble, [event.code for event in log.events]) == ("s=100", None, [79])
    first, second = journal.asked()
    assert "--after-cursor=s=1" in first
    assert not any(word.startswith("--after-cursor") for word in second)


@pytest.mark.parametrize("looked", [1000.0, 1000.4, 1000.6, 1000.999999])
def test_reading_by_time_begins_no_later_than_the_last_look(journal: Journal, looked: float) -> None:
    gpu_xid.read(None, looked)
    since = next(word for word in journal.asked()[0] if word.startswith("--since=@"))
    assert looked - 1 < float(since.partition("@")[2]) <= looked


def test_a_row_that_a_crash_cut_off_costs_no_other_row(journal: Journal) -> None:
    journal.rows(
        row("s=1"), '{"__CURSOR": "s=2", "MESSAGE": "NVRM: Xid (PCI:00', row("s=3", XID_79.replace("31", "4b"))
    )
    log = gpu_xid.read("s=0", 1000.0)
    assert ([event.bus_id for event in log.events], log.cursor) == (["0000:31:00.0", "0000:4b:00.0"], "s=3")


def test_what_a_user_wrote_is_passed_over_and_what_the_kernel_wrote_is_not(journal: Journal) -> None:
    journal.rows(
        {**USER, "__CURSOR": "s=1", "MESSAGE": XID_79.replace("31", "4b")},
        {**ROOT, "__CURSOR": "s=2", "MESSAGE": XID_79.replace("31", "b1")},
        row("s=3"),
    )
    assert [event.bus_id for event in gpu_xid.read("s=0", 1000.0).events] == ["0000:b1:00.0", "0000:31:00.0"]


def test_a_fall_told_over_several_rows_of_the_journal_c64(journal: Journal) -> None:
    said = [line.partition("] ")[2] or line.strip() for line in FALLEN_AT_PROBE.splitlines()]
    journal.rows(*(row(f"s={place}", text) for place, text in enumerate(said)))
    assert gpu_xid.read("s=x", 1000.0).events == [Event("0000:b3:00.0", None, "has fallen off the bus")]
    journal.rows(row("s=9", "\n".join(said)))
    assert gpu_xid.read("s=x", 1000.0).events == [Event("0000:b3:00.0", None, "has fallen off the bus")]


# --- a log that cannot be read is not a log without events ---------------------------------------


def test_a_failing_journalctl_is_trouble_and_the_place_is_kept(node: FakeNode) -> None:
    node.answers("journalctl", rc=1, err="No journal files were opened due to insufficient permissions.\n")
    log = gpu_xid.read("s=5", None)
    assert (log.events, log.cursor) == ([], "s=5")
    assert log.trouble is not None
    assert "insufficient permissions" in log.trouble
    assert gpu_xid.read("s=5", 1000.0).trouble is not None
    assert gpu_xid.read(None, None).trouble is not None


def test_a_missing_journalctl_is_trouble(node: FakeNode, tmp_path: Path) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()

    def without_it(argv: list[str], timeout_s: float) -> Completed:
        # The machine that tests has one: the same runner, asked for a name that nobody has.
        return run(["journalctl-is-not-here", *argv[1:]], timeout_s)

    trouble = gpu_xid.read("s=5", 1000.0, without_it).trouble
    assert trouble is not None
    assert "not found" in trouble


def test_a_journalctl_that_hangs_is_trouble_within_the_deadline(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.program("journalctl", f"#!/bin/sh\nexec {shlex.join([sys.executable, '-c', 'import time; time.sleep(60)'])}\n")
    monkeypatch.setattr(gpu_xid, "READ_S", 0.3)
    log = gpu_xid.read("s=5", None)
    assert (log.events, log.cursor) == ([], "s=5")
    assert log.trouble is not None
    assert "0.3 s" in log.trouble
