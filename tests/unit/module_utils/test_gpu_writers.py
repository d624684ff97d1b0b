"""Who else sets power limits: files that do are named with their line, others are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import gpu_writers


def put(root: Path, path: str, text: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("etc/cron.d/power", "@reboot root /usr/bin/nvidia-smi -pl 300"),
        ("etc/slurm/prolog.d/20-gpu", "nvidia-smi -i $CUDA_VISIBLE_DEVICES --power-limit=400 >/dev/null"),
        ("etc/systemd/system/cap.service", "ExecStart=/usr/bin/nvidia-smi -i 0 -pl 250"),
        ("usr/local/bin/reset-modes", "nvidia-smi -c 0"),
        ("usr/local/sbin/quiet.py", "pynvml.nvmlDeviceSetPowerManagementLimit(handle, 200000)"),
        ("etc/rc.local", "dcgmi config -g 1 --set -P 250"),
    ],
)
def test_a_line_that_sets_a_limit_or_a_mode_is_named(tmp_path: Path, path: str, line: str) -> None:
    put(tmp_path, path, f"#!/bin/sh\n# nvidia-smi -pl 100 was here\n{line}\n")
    row = gpu_writers.row(str(tmp_path), "gpu-a1")
    assert (row["verdict"], row["severity"], row["measured"]) == ("pass", "warning", 1)
    assert f"/{path}:3: " in row["reason"]
    assert " ".join(line.split())[:40] in row["reason"]


def test_what_only_reads_is_no_writer(tmp_path: Path) -> None:
    put(tmp_path, "etc/cron.d/log", "* * * * * root nvidia-smi --query-gpu=power.draw --format=csv -l 5\n")
    put(tmp_path, "usr/local/bin/tool", b"\x7fELF\0\0nvidia-smi -pl 300")
    put(tmp_path, "usr/local/bin/big", b"nvidia-smi -pl 300\n" * 20000)
    os.symlink("/no/such/file", tmp_path / "usr/local/bin/broken")
    row = gpu_writers.row(str(tmp_path), "gpu-a1")
    assert (row["state"], row["severity"], row["reason"]) == ("none", "info", None)


def test_a_file_with_two_names_counts_once_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    put(tmp_path, "usr/local/bin/cap", "nvidia-smi -pl 300\n")
    (tmp_path / "etc/cron.daily").mkdir(parents=True)
    os.symlink(tmp_path / "usr/local/bin/cap", tmp_path / "etc/cron.daily/cap")
    os.mkfifo(tmp_path / "etc/cron.daily/pipe")
    assert len(gpu_writers.find(str(tmp_path))) == 1


def test_of_many_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    put(tmp_path, "usr/local/bin/cap", "nvidia-smi -pl 300\n" * 7)
    assert gpu_writers.row(str(tmp_path), "gpu-a1")["reason"].endswith("; and 2 more")
