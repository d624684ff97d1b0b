"""nvml-emulator, the command: cards, boot, keys, reset, the stand-in for nvidia-persistenced, installation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nvml.host import HERE, LIBRARY, EmulatedHost

built = pytest.mark.skipif(not LIBRARY.exists(), reason="NVML emulator not built: run ./rack images")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NVML setters need root")


def run(*words: object, host: EmulatedHost | None = None) -> subprocess.CompletedProcess[str]:
    environment = host.environment if host else None
    return subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def host(tmp_path: Path) -> EmulatedHost:
    made = EmulatedHost(tmp_path / "host")
    assert made.command("init", "--profile", "a100x4", "--host", "gpu-a1") == 0
    return made


def other(tmp_path: Path, name: str) -> EmulatedHost:
    made = EmulatedHost(tmp_path / f"other-{name}")
    assert made.command("init", "--profile", "a100x4", "--host", name) == 0
    return made


def cards(host: EmulatedHost) -> dict[str, str]:
    return {key: value for key, value in host.identity.items() if key.endswith((".uuid", ".serial"))}


def test_a_host_name_makes_the_same_cards_everywhere_and_another_name_makes_others(
    host: EmulatedHost, tmp_path: Path
) -> None:
    same, different = other(tmp_path, "gpu-a1"), other(tmp_path, "gpu-a2")
    assert cards(host) == cards(same)
    assert len(cards(host)) == 8
    assert not set(cards(host).values()) & set(cards(different).values())


def test_init_again_keeps_cards_that_changed_meanwhile(host: EmulatedHost) -> None:
    host.set("gpu.0.ecc_aggregate_uncorrected=7", "gpu.0.vbios=92.00.45.00.01")
    before = host.identity
    assert host.command("init", "--profile", "a100x4", "--host", "gpu-a1") == 0
    assert host.identity == before


def test_init_with_another_profile_needs_to_be_told_to_replace(
    host: EmulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.command("init", "--profile", "h100x8", "--host", "gpu-a1") == 2
    assert "--replace" in capsys.readouterr().err
    assert host.identity["gpu_count"] == "4"
    assert host.command("init", "--profile", "h100x8", "--host", "gpu-a1", "--replace") == 0
    assert host.identity["gpu_count"] == "8"


def test_an_unknown_profile_is_refused_with_the_known_ones(
    host: EmulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host.command("init", "--profile", "b200", "--host", "x") == 2
    assert "a100-a30, a100x4, h100x8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("gpu.0.los=1", "near: lost"),
        ("lost=1", "gpu.N.lost"),
        ("gpu.4.lost=1", "GPUs 0 to 3"),
        ("gpu.0.fault.powerLimit=3", "no key"),
        ("gpu.0.lost", "not key=value"),
        ("gpu.x.lost=1", "no key"),
    ],
)
def test_a_misspelt_key_is_refused_and_nothing_is_set(
    host: EmulatedHost, capsys: pytest.CaptureFixture[str], assignment: str, said: str
) -> None:
    before = host.identity, host.volatile
    assert host.command("set", "gpu.1.lost=1", assignment) == 2
    assert said in capsys.readouterr().err
    assert (host.identity, host.volatile) == before


def test_an_xid_that_cannot_be_written_to_the_journal_says_so(
    host: EmulatedHost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert host.command("xid", "0", "79", "--journal") == 2
    assert "systemd-cat" in capsys.readouterr().err


def test_every_key_of_every_profile_is_described() -> None:
    import keys
    import statefiles

    for path in sorted((HERE / "profiles").glob("*.profile")):
        for key in statefiles.parse(path.read_text()):
            assert keys.find(key).meaning


def test_get_gives_the_value_in_force(host: EmulatedHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.set("gpu.*.vbios=1", "gpu.2.vbios=2", "gpu.1.pcie_replay=3")
    capsys.readouterr()
    codes = [
        host.command("get", key)
        for key in ("gpu.0.vbios", "gpu.2.vbios", "gpu.1.pcie_replay", "gpu.0.lost", "driver_version")
    ]
    assert codes == [0, 0, 0, 1, 0]
    assert capsys.readouterr().out.split() == ["1", "2", "3", "550.163.01"]


@built
@needs_root
def test_clear_faults_repairs_the_cards_and_leaves_what_was_set_through_nvml(host: EmulatedHost) -> None:
    host.ask("for i in range(4):\n    put('PersistenceMode', i, 1); put('PowerManagementLimit', i, 200000)\n"
             "p.nvmlDeviceSetComputeMode(gpu(3), 2); show(0)")  # fmt: skip
    fresh = host.identity
    host.set(
        "gpu.0.lost=1", "gpu.1.uuid=GPU-x", "gpu.*.fault.*=999", "fault.nvmlInit=18", "gpu.2.bmc_cap_mw=170000",
        "gpu.1.pcie_replay=9", "gpu.3.remapped_failure=1", "gpu.0.noop.*=1", "driver_loaded=0", "gpu.2.removed=1",
        "gpu.1.ecc_volatile_uncorrected=3",
    )  # fmt: skip
    assert host.command("clear-faults") == 0
    assert host.identity == fresh
    found = host.ask(
        "show([[get('PowerManagementLimit', i), get('EnforcedPowerLimit', i), get('ComputeMode', i),"
        " get('TotalEccErrors', i, 1, 0), get('PcieReplayCounter', i)] for i in range(4)])"
    )
    assert found == [[200000, 200000, 0, 0, 0]] * 3 + [[200000, 200000, 2, 0, 0]]


@built
@needs_root
def test_a_reset_forgets_settings_and_applies_pending_modes(
    host: EmulatedHost, capsys: pytest.CaptureFixture[str]
) -> None:
    host.ask("p.nvmlDeviceSetPersistenceMode(gpu(0), 1); p.nvmlDeviceSetPowerManagementLimit(gpu(0), 200000)\n"
             "p.nvmlDeviceSetEccMode(gpu(0), 0); show(0)")  # fmt: skip
    assert host.command("reset", "0") == 2
    assert "persistence mode holds it" in capsys.readouterr().err
    host.set("gpu.0.persistence_mode=0", "gpu.0.lost=1", "gpu.0.remapped_pending=1")
    assert host.command("reset", "0") == 0
    found = host.ask("show([get('PowerManagementLimit', 0), get('EccMode', 0), get('RemappedRows', 0)])")
    assert found == [300000, [0, 0], [0, 0, 0, 0]]


# ---- boot ----


def config(host: EmulatedHost, text: str) -> None:
    (host.root / "etc").mkdir(exist_ok=True, parents=True)
    (host.root / "etc/nvml-emulator.conf").write_text(text)


def test_boot_makes_the_cards_that_the_hosts_configuration_names(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path)
    config(host, "# the rack's builder writes this\nPROFILE=a100-a30\nHOST=gpu-b1\nSET=driver_version=535.261.03\n")
    assert host.command("boot") == 0
    assert (host.identity["gpu.3.name"], host.identity["driver_version"], host.identity["host"]) == (
        "NVIDIA A30",
        "535.261.03",
        "gpu-b1",
    )
    assert (host.tree("pci") / "devices/0000:ca:00.0/device").read_text() == "0x20b7\n"
    assert oct((host.root / "run/nvml-emulator/clients").stat().st_mode & 0o777) == "0o666"


def test_boot_again_keeps_firmware_and_aggregate_counts(tmp_path: Path) -> None:
    host = EmulatedHost(tmp_path)
    config(host, "PROFILE=a100x4\nHOST=gpu-a1\n")
    assert host.command("boot") == 0
    host.set("gpu.0.vbios=92.00.45.00.01", "gpu.0.ecc_aggregate_corrected=5")
    before = host.identity
    assert host.command("boot") == 0
    assert host.identity == before


def test_boot_without_configuration_or_cards_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert EmulatedHost(tmp_path).command("boot") == 2
    assert "init first" in capsys.readouterr().err


def test_status_names_what_differs_from_the_profile(host: EmulatedHost, capsys: pytest.CaptureFixture[str]) -> None:
    host.set("gpu.0.lost=1", "gpu.1.vbios=x")
    capsys.readouterr()
    assert host.command("status") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differs_from_profile"] == {"gpu.0.lost": "1", "gpu.1.vbios": "x"}
    assert found["clients_connected"] is False


# ---- nvidia-persistenced ----


@built
@needs_root
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_the_stand_in_holds_persistence_mode_while_it_runs(host: EmulatedHost, end: str) -> None:
    host.set("gpu.2.lost=1")  # one sick GPU does not keep the others from it
    command = [sys.executable, str(HERE / "emulator.py"), "persistenced"]
    process = subprocess.Popen(command, env=host.environment, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(100):
            if host.volatile.get("gpu.3.persistence_mode") == "1":
                break
            time.sleep(0.05)
        host.ask("p.nvmlDeviceSetPowerManagementLimit(gpu(0), 200000); show(0)")
        assert host.ask(
            "show([p.nvmlDeviceGetPersistenceMode(gpu(0)), p.nvmlDeviceGetPowerManagementLimit(gpu(0))])"
        ) == [1, 200000]
    finally:
        process.send_signal(signal.SIGTERM if end == "stopped" else signal.SIGKILL)
        complaints = process.communicate(timeout=10)[1]
    assert "GPU 2" in complaints
    if end == "killed":
        assert host.ask("show(p.nvmlDeviceGetPersistenceMode(gpu(0)))") == 1  # what ExecStopPost is for
        assert run(*command, "--off", host=host).returncode == 0
    assert host.ask("show([p.nvmlDeviceGetPersistenceMode(gpu(0)), p.nvmlDeviceGetPowerManagementLimit(gpu(0))])") == [
        0,
        300000,
    ]


@built
def test_the_stand_in_fails_plainly_without_a_driver(host: EmulatedHost) -> None:
    host.set("fault.nvmlInit=18")
    done = subprocess.run(
        [sys.executable, HERE / "emulator.py", "persistenced"],
        env=host.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "nvml-emulator: nvmlInit_v2 answered 18\n")


# ---- installation ----


@built
def test_what_is_installed_runs_from_there(tmp_path: Path) -> None:
    subprocess.run(["sh", HERE / "install.sh", tmp_path, LIBRARY.parent], check=True)
    assert (tmp_path / "etc/ld.so.conf.d/000-nvml-emulator.conf").read_text() == "/usr/local/lib/nvml-emulator\n"
    for name, unit in (("sysinit.target.wants", "nvml-emulator"), ("multi-user.target.wants", "nvidia-persistenced")):
        link = tmp_path / f"etc/systemd/system/{name}/{unit}.service"
        assert (tmp_path / os.readlink(link).lstrip("/")).is_file()
    environment = {**os.environ, "NVML_EMULATOR_ROOT": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "usr/sbin/nvml-emulator"), "init", "--profile", "a100x4", "--host", "x"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout == "made\n"


def test_installing_without_a_build_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", HERE / "install.sh", tmp_path, tmp_path / "none"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "build.sh" in done.stderr
    assert list(tmp_path.iterdir()) == []
