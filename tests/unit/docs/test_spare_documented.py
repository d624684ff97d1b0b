"""docs/spare.md says of Xids what the code does, and its hook runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import gpu_spare, gpu_tell, gpu_xid

REPOSITORY = Path(__file__).resolve().parents[3]
DOCUMENT = (REPOSITORY / "docs" / "spare.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([^|]*\d[^|]*) \|", re.MULTILINE)


def numbers(text: str) -> set[int]:
    """`39–41, 60` and what else stands between is passed over."""
    found: set[int] = set()
    for first, last in re.findall(r"\b(\d+)(?:–(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_the_table_of_xids_is_the_codes_for_an_a100() -> None:
    told = {code: word for word, codes in ROW.findall(DOCUMENT) for code in numbers(codes)}
    assert told == gpu_xid.table(gpu_xid.AMPERE)


@pytest.mark.parametrize(
    ("begin", "end", "architecture"),
    [("Hopper adds", "; Blackwell", gpu_xid.HOPPER), ("; Blackwell", "Before", gpu_xid.BLACKWELL)],
)
def test_codes_of_newer_cards_are_told(begin: str, end: str, architecture: int) -> None:
    text = DOCUMENT.partition(begin)[2].partition(end)[0]
    told = {code: word for codes, word in re.findall(r"([\d–,\s]+)\s\(`(\w+)`\)", text) for code in numbers(codes)}
    common = gpu_xid.table(gpu_xid.AMPERE)
    assert told == {code: word for code, word in gpu_xid.table(architecture).items() if code not in common}


def test_codes_before_ampere_are_told() -> None:
    text = DOCUMENT.partition("Before Ampere:")[2].partition("Yours go first")[0]
    told = {code: word for codes, word in re.findall(r"([\d–,\s]+)\s\(`(\w+)`\)", text) for code in numbers(codes)}
    assert told == gpu_xid.table(gpu_xid.AMPERE - 1)


def test_every_role_is_told() -> None:
    assert set(gpu_spare.ROLES) <= set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE))


def test_the_hook_in_the_document_runs(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```sh\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    (tmp_path / "gpus.env").write_text("CUDA_VISIBLE_DEVICES=GPU-b,GPU-c,GPU-d\n")
    hook = tmp_path / "20-slurm"
    hook.write_text(text.replace("/var/lib/steadyrack/gpus.env", str(tmp_path / "gpus.env")))
    for name in ("logger", "scontrol"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n')
        (tmp_path / name).chmod(0o755)
    entry = {"at": "2026-01-01T00:00:00Z", "event": "takeover", "uuid": "GPU-d", "bus_id": None, "text": "x"}
    event = gpu_tell.event_of({**entry, "instead_of": "GPU-a"})
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "STEADYRACK_CHECK": event["id"],
        "STEADYRACK_EVENT": event["event"],
        "STEADYRACK_SUBJECT": event["subject"],
    }
    subprocess.run(["sh", str(hook)], input=json.dumps(event), text=True, check=True, env=environment)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "logger -t gpu-spare GPU-d: takeover (instead of GPU-a)",
        "scontrol reconfigure",
    ]
