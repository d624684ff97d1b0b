"""The reader on a node: a tree of files, emulated tools and the emulated NVML library stand for the node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acceptance import nodes, packages, reader, systemd

CHECKS = Path(reader.__file__).resolve().parents[1]
RUN = (
    "import json, sys; from acceptance import reader;"
    "print(json.dumps(reader.read(json.loads(sys.argv[1]), sys.argv[2])))"
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A program that stands before the machine's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return put


# --- tools ---------------------------------------------------------------------------------------


def test_a_command_is_asked_in_the_c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert reader.run(["sh", "-c", "echo $LC_ALL"])["out"] == "C\n"


@pytest.mark.parametrize(
    ("argv", "error"),
    [(["no-such-program"], "not installed"), (["sleep", "9"], "no answer within 0.2 s"), (["/"], "Permission denied")],
)
def test_a_command_without_an_answer_says_why(argv: list[str], error: str) -> None:
    record = reader.run(argv, 0.2)
    assert record["rc"] is None
    assert error in record["error"]


def test_c78_a_held_package_is_installed(tool: Callable[[str, str], None]) -> None:
    tool("dpkg-query", r"printf 'jetty9\thold\tok\tinstalled\t9.3.3-1\n'; echo 'no packages found' >&2; exit 1")
    found = reader.packages(["jetty9", "squid"])
    assert found == {
        "jetty9": {"want": "hold", "flag": "ok", "status": "installed", "version": "9.3.3-1"},
        "squid": None,
    }
    assert packages.installed(found["jetty9"])
    assert not packages.installed(found["squid"])


def test_dpkg_that_fails_is_an_error_and_not_absence(tool: Callable[[str, str], None]) -> None:
    tool("dpkg-query", "echo 'dpkg-query: error: failed to open package info file' >&2; exit 2")
    assert "failed to open" in reader.packages(["chrony"])["chrony"]["error"]


def test_c79_units_that_do_not_exist_are_missing_on_every_release(tool: Callable[[str, str], None]) -> None:
    tool("systemctl", r"printf 'LoadState=not-found\nActiveState=inactive\n\nLoadState=loaded\nActiveState=active\n'")
    found = reader.units(["foo.service", "chrony.service"])
    assert [systemd.state(found[name]) for name in ("foo.service", "chrony.service")] == ["missing", "running"]


def test_systemctl_that_fails_is_an_error_for_every_unit(tool: Callable[[str, str], None]) -> None:
    tool("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")
    assert "Failed to connect" in reader.units(["foo.service"])["foo.service"]["error"]


@pytest.mark.parametrize(
    ("unit", "state"),
    [
        ({}, "missing"),
        ({"LoadState": "not-found", "ActiveState": "inactive"}, "missing"),
        ({"LoadState": "loaded", "ActiveState": "inactive"}, "stopped"),
        ({"LoadState": "masked", "ActiveState": "inactive"}, "stopped"),
        ({"LoadState": "loaded", "ActiveState": "failed"}, "stopped"),
        ({"LoadState": "loaded", "ActiveState": "active"}, "running"),
    ],
)
def test_c79_three_words_for_a_unit(unit: dict[str, str], state: str) -> None:
    assert systemd.state(unit) == state


@pytest.mark.parametrize("put", ["link to nothing", "empty file", "another file", "alias", "nothing"])
def test_a_unit_file_that_systemd_has_not_read_yet_is_told(
    tool: Callable[[str, str], None], tmp_path: Path, put: str
) -> None:
    """A link made by hand leaves LoadState, UnitFileState and NeedDaemonReload as they were."""
    ours, over = tmp_path / "usr/lib/systemd/system/a.service", tmp_path / "etc/systemd/system/a.service"
    link = over.parent / "multi-user.target.wants/a.service"
    for path in (ours, over, link):
        path.parent.mkdir(parents=True, exist_ok=True)
    ours.write_text("[Service]\n")
    link.symlink_to(ours)
    if put in ("link to nothing", "alias"):
        over.symlink_to("/dev/null" if put == "link to nothing" else ours)
    elif put != "nothing":
        over.write_text("" if put == "empty file" else "[Service]\nUser=x\n")
    says = ["Id=a.service", "LoadState=loaded", "UnitFileState=enabled", "ActiveState=active", "NeedDaemonReload=no"]
    tool("systemctl", "printf '" + "\\n".join([*says, "FragmentPath=/usr/lib/systemd/system/a.service"]) + "\\n'")
    unit = reader.units(["a.service"], str(tmp_path))["a.service"]
    same = put in ("alias", "nothing")
    assert unit.get("Shadow") == (None if same else "/etc/systemd/system/a.service")
    assert systemd.read_anew(unit) is same
    assert systemd.masked(unit) is (put in ("link to nothing", "empty file"))
    assert systemd.enabled(unit) is (put in ("another file", "alias", "nothing"))
    link.unlink()
    assert not systemd.enabled(reader.units(["a.service"], str(tmp_path))["a.service"])


# --- files, processes, sockets -------------------------------------------------------------------


def test_files_have_digest_mode_and_content_and_unreadable_ones_an_error(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "one.conf").write_text("a\n")
    (tmp_path / "etc" / "one.conf").chmod(0o640)
    (tmp_path / "etc" / "sub.conf").mkdir()
    (tmp_path / "etc" / "gone.conf").symlink_to("nowhere")
    found = reader.files(str(tmp_path), "/etc/*.conf", True)
    assert set(found) == {"/etc/one.conf"} | ({"/etc/gone.conf"} & set(found))
    assert found["/etc/one.conf"]["mode"] == "0640"
    assert found["/etc/one.conf"]["content"] == "a\n"
    assert found["/etc/one.conf"]["sha256"] == "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7"


def test_links_are_told_and_a_directory_only_where_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.sources").write_text("a\n")
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there/b.sources").symlink_to("a.sources")
    (tmp_path / "there/c.sources").symlink_to("gone")
    assert reader.files(str(tmp_path), "/there", False) == {}
    assert reader.files(str(tmp_path), "/here", False) == {"/here": {"link": "there"}}
    found = reader.files(str(tmp_path), "/here/*.sources", False)
    assert {name: one.get("link") for name, one in found.items()} == {
        "/here/a.sources": None, "/here/b.sources": "a.sources", "/here/c.sources": "gone",
    }  # fmt: skip
    assert found["/here/b.sources"]["sha256"] == found["/here/a.sources"]["sha256"]
    assert found["/here/c.sources"]["error"]


def test_a_process_is_found_by_name_with_its_command_line_and_start() -> None:
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        found = [one for one in reader.processes("/", "sleep") if one["pid"] == sleeper.pid]
        assert found[0]["argv"] == ["sleep", "30"]
        assert abs(found[0]["started"] - Path(f"/proc/{sleeper.pid}").stat().st_mtime) < 2
    finally:
        sleeper.kill()
        sleeper.wait()


def test_listening_sockets_of_both_families_are_told(tmp_path: Path) -> None:
    net = tmp_path / "proc" / "net"
    net.mkdir(parents=True)
    head = "  sl  local_address rem_address   st\n"
    (net / "tcp").write_text(
        head
        + "   0: 1501D50A:0C38 00000000:0000 0A 00000000:00000000\n"
        + "   1: 0100007F:0277 00000000:0000 01 00000000:00000000\n"
    )
    (net / "udp6").write_text(
        head + "   0: 00000000000000000000000000000000:007B 00000000000000000000000000000000:0000 07\n"
    )
    assert reader.sockets(str(tmp_path)) == [
        {"protocol": "tcp", "address": "10.213.1.21", "port": 3128},
        {"protocol": "udp", "address": "::", "port": 123},
    ]


# --- GPUs ----------------------------------------------------------------------------------------


def read(node: Any, **request: Any) -> dict[str, Any]:
    """Run the reader in a process whose loader finds the emulated library."""
    command = [sys.executable, "-c", RUN, json.dumps({"gpus": True, **request}), str(node.root)]
    environment = {**node.environment, "PYTHONPATH": str(CHECKS)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_nvml_and_the_bus_name_the_same_gpus(gpu_node: Any) -> None:
    evidence = read(gpu_node)
    assert [device["bus_id"] for device in evidence["pci"]] == [
        "0000:31:00.0",
        "0000:4b:00.0",
        "0000:b1:00.0",
        "0000:ca:00.0",
    ]
    assert [len(device["path_up"]) > 1 for device in evidence["pci"]] == [True] * 4
    assert evidence["pci"][0]["path_up"][0]["current_link_width"] == "16"
    assert evidence["nvml"]["state"] == "done"
    first = evidence["nvml"]["gpus"][0]
    assert (first["uuid"], first["bus_id"].lower()) == (gpu_node.uuid(0), "00000000:31:00.0")
    assert (first["requested_mw"], first["enforced_mw"], first["default_mw"]) == (300000, 300000, 300000)
    assert (first["link_width"], first["errors"]) == (16, {})
    assert (first["remap_pending"], first["remap_failure"], first["event_reasons"]) == (0, 0, 1)
    assert (first["compute_mode"], first["min_mw"]) == (0, 150000)


def process(root: Path, pid: int, parent: int, name: str, environ: bytes | None = None) -> None:
    """What /proc tells of a process."""
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name} (x) y) S {parent} {pid} {pid} 0 -1")
    (folder / "comm").write_text(f"{name}\n")
    if environ is not None:
        (folder / "environ").write_bytes(environ)


@pytest.mark.parametrize("name", ["sshd", "sshd-session"])
def test_the_environment_that_a_job_over_ssh_is_given_is_read_past_sudos_own(tmp_path: Path, name: str) -> None:
    process(tmp_path, os.getpid(), 40, "python3", b"CUDA_VISIBLE_DEVICES=all\0")
    process(tmp_path, 40, 30, "sudo", b"")
    process(tmp_path, 30, 20, "sh", b"LANG=C\0CUDA_VISIBLE_DEVICES=GPU-a,GPU-b\0\0")
    process(tmp_path, 20, 1, name, b"CUDA_VISIBLE_DEVICES=no\0")
    asked = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
    assert reader.session(str(tmp_path), asked) == {
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "NVIDIA_VISIBLE_DEVICES": None,
    }


def test_where_there_is_no_ssh_session_its_environment_is_not_known(tmp_path: Path) -> None:
    process(tmp_path, os.getpid(), 40, "python3")
    assert "no SSH session" in reader.session(str(tmp_path), ["A"])["error"]
    process(tmp_path, 40, 1, "sh")
    process(tmp_path, 1, 0, "systemd")
    assert "no SSH session" in reader.session(str(tmp_path), ["A"])["error"]


def test_an_environment_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    process(tmp_path, os.getpid(), 20, "python3")
    process(tmp_path, 20, 1, "sshd")
    assert "No such file" in reader.session(str(tmp_path), ["A"])["error"]


def test_memory_and_clocks_are_read_as_they_are_and_by_their_older_name(gpu_node: Any) -> None:
    gpu_node.set(
        "gpu.1.remapped_failure=1", "gpu.2.clocks_event_reasons=136", "gpu.3.fault.nvmlDeviceGetRemappedRows=3"
    )
    gpu_node.set("fault.nvmlDeviceGetCurrentClocksEventReasons=13")
    gpus = read(gpu_node)["nvml"]["gpus"]
    assert [gpu["remap_failure"] for gpu in gpus] == [0, 1, 0, None]
    assert [gpu["event_reasons"] for gpu in gpus] == [1, 1, 0x88, 1]
    assert [gpu["errors"] for gpu in gpus] == [{}, {}, {}, {"remapped": 3}]


def test_a_lost_gpu_keeps_its_code_and_the_others_are_read(gpu_node: Any) -> None:
    gpu_node.set("gpu.1.lost=1")
    gpus = read(gpu_node)["nvml"]["gpus"]
    assert [bool(gpu.get("uuid")) for gpu in gpus].count(True) == 3
    assert [gpu["errors"] for gpu in gpus if not gpu.get("uuid")] == [{"handle": 15}]


def test_a_driver_of_another_version_is_told_by_its_code(gpu_node: Any) -> None:
    gpu_node.set("fault.nvmlInit=18")
    assert read(gpu_node)["nvml"] == {
        "state": "done",
        "asking": None,
        "init": 18,
        "error": "nvmlInit_v2 answered 18",
        "count": None,
        "gpus": [],
    }


def test_a_library_that_is_not_there_is_told(gpu_node: Any) -> None:
    assert "cannot open shared object" in read(gpu_node, nvml_library="libnot-there.so.1")["nvml"]["error"]


def test_a_call_that_hangs_ends_the_reading_of_gpus_and_is_named(
    gpu_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_node.set("gpu.2.delay_ms.nvmlDeviceGetSerial=60000")
    monkeypatch.setitem(gpu_node.environment, "PYTHONPATH", str(CHECKS))
    program = RUN.replace("print(", "reader.NVML_SILENCE_S = 1.0;print(")
    command = [sys.executable, "-c", program, '{"gpus": true}', str(gpu_node.root)]
    done = subprocess.run(command, env=gpu_node.environment, check=False, capture_output=True, text=True, timeout=30)
    nvml = json.loads(done.stdout)["nvml"]
    assert (nvml["state"], len(nvml["gpus"])) == ("silent", 2)
    assert nvml["asking"] == f"nvmlDeviceGetSerial of GPU {gpu_node.uuid(2)}"


# --- on the way ----------------------------------------------------------------------------------


def test_the_command_line_survives_a_shell_and_sudo_and_carries_the_request() -> None:
    request = {"commands": {"it's": {"argv": ["echo", 'a "quoted" $HOME {{ word }}']}}}
    line = f"{shlex.quote(sys.executable)} -I -c {nodes.reader_argument(request)}"
    done = subprocess.run(["sh", "-c", line], check=False, capture_output=True, text=True, timeout=30)
    assert json.loads(done.stdout)["commands"]["it's"]["out"] == 'a "quoted" $HOME {{ word }}\n'
    assert len(line) < 32768, "a command line of 128 KiB is refused by the kernel"


def test_the_reader_uses_no_newer_python_than_a_node_has() -> None:
    import ast

    ast.parse(Path(reader.__file__).read_text(), feature_version=(3, 8))
