"""The command steadyrack on an emulated node: what it shows, what it does, how it ends."""

import json
import time

import pytest
from gpu_node import REPOSITORY, SLOTS, policy

SYSTEMD = """#!/bin/sh
# systemctl show of our units; the boot unit's state is the test's.
case "$*" in
*UserspaceTimestampMonotonic*) echo UserspaceTimestampMonotonic={booted} ;;
*steadyrack-gpu.timer*)
cat <<'END'
Id=steadyrack-gpu.service
LoadState=loaded
ActiveState={boot}
UnitFileState={enabled}
Result={result}

Id=steadyrack-gpu.timer
LoadState=loaded
ActiveState=active
UnitFileState=enabled
Result=success

Id=steadyrack-gpu-verify.service
LoadState=loaded
ActiveState=inactive
UnitFileState=static
Result=success

Id=steadyrack-gpu-watch.service
LoadState=loaded
ActiveState={watch}
UnitFileState=enabled
Result=success

Id=steadyrack-time-watch.service
LoadState=loaded
ActiveState={watch}
UnitFileState=enabled
Result=success
END
;;
*steadyrack-time-watch.service*)
cat <<'END'
Id=steadyrack-time-watch.service
LoadState=loaded
ActiveState={watch}
UnitFileState=enabled
Result=success
END
;;
*) echo LoadState=not-found ;;
esac
"""


def systemd(node, boot="active", enabled="enabled", booted=None, watch="active"):
    """The units in these states."""
    values = {
        "boot": boot, "enabled": enabled, "watch": watch,
        "result": "exit-code" if boot == "failed" else "success",
        "booted": int(time.monotonic() * 1e6) if booted is None else booted,
    }  # fmt: skip
    node.program("systemctl", SYSTEMD.format(**values))


def boot_unit(node):
    """The row of the boot unit."""
    rows = json.loads(node.steadyrack("check", "--json").stdout)["checks"]
    (row,) = [row for row in rows if row["id"] == "agent.units" and row["subject"] == "steadyrack-gpu.service"]
    return row


def applied(node, watts=250):
    """A node on which everything is as declared."""
    systemd(node)
    node.policy(policy(watts))
    done = node.steadyrack("gpu", "apply")
    assert done.returncode == 0, done.stdout + done.stderr
    return node


def caps(node):
    return [gpu["power"]["requested_w"] for gpu in node.read()["gpus"]]


# --- check -------------------------------------------------------------------------------------


def test_check_passes_on_a_node_where_all_is_as_declared(gpu_node):
    done = applied(gpu_node).steadyrack("check", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert {row["id"] for row in found["checks"]} >= {
        "gpu.count", "gpu.power_cap", "gpu.persistence", "pcie.width", "agent.units", "time.synchronised",
    }  # fmt: skip
    assert {row["verdict"] for row in found["checks"]} <= {"pass", "not_judged"}
    assert set(found) == {"host", "at", "checks"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("gpu.0.power_limit_mw=180000", "gpu.power_cap"),
        ("gpu.0.persistence_mode=0", "gpu.persistence"),
        ("gpu.0.pcie_width=8", "pcie.width"),
        ("gpu.0.lost=1", "gpu.count"),
        ("gpu.0.removed=1", "gpu.count"),
    ],
)
def test_each_check_is_made_to_fail_by_its_fault(gpu_node, fault, check):
    applied(gpu_node).set(fault)
    done = gpu_node.steadyrack("check", "--json")
    assert done.returncode == 1
    assert check in {row["id"] for row in json.loads(done.stdout)["checks"] if row["verdict"] == "fail"}


def test_what_cannot_be_read_is_unknown_and_ends_with_2(gpu_node):
    applied(gpu_node).set("gpu.0.fault.nvmlDeviceGetPowerManagementLimit=3")
    done = gpu_node.steadyrack("check", "--json")
    assert done.returncode == 2
    (row,) = [row for row in json.loads(done.stdout)["checks"] if row["verdict"] == "unknown"]
    assert "NOT_SUPPORTED" in row["reason"]


def test_the_table_for_people_shows_failures_in_capitals_with_what_to_do(gpu_node):
    applied(gpu_node).set("gpu.0.power_limit_mw=180000")
    told = gpu_node.steadyrack("check").stdout
    assert "FAIL" in told
    assert "nvidia-smi -pl in units, cron and job scripts" in told


def test_a_policy_that_is_cut_off_is_unknown_never_a_pass(gpu_node):
    applied(gpu_node).policy('{"version": 1,')
    done = gpu_node.steadyrack("check", "--json")
    assert done.returncode == 2
    assert "not JSON" in done.stdout


# --- units -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boot", "enabled", "verdict", "state"),
    [
        ("active", "enabled", "pass", "active"),
        ("failed", "enabled", "fail", "failed"),
        ("inactive", "enabled", "fail", "not_run"),  # C43: enabled is not active
        ("active", "disabled", "fail", "disabled"),
        ("inactive", "masked", "fail", "masked"),
        ("activating", "enabled", "unknown", "activating"),
    ],
)
def test_c43_the_boot_unit_must_be_enabled_and_must_have_run(gpu_node, boot, enabled, verdict, state):
    applied(gpu_node)
    systemd(gpu_node, boot, enabled)
    row = boot_unit(gpu_node)
    assert (row["verdict"], row["state"]) == (verdict, state)


def test_a_boot_unit_installed_after_this_boot_is_not_blamed(gpu_node):
    applied(gpu_node)
    unit = gpu_node.root / "usr/lib/systemd/system/steadyrack-gpu.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("")
    systemd(gpu_node, boot="inactive", booted=int((time.monotonic() - 60) * 1e6))
    row = boot_unit(gpu_node)
    assert (row["verdict"], row["state"]) == ("not_judged", "not_due")


@pytest.mark.parametrize(
    ("watch", "verdict"), [("active", "pass"), ("inactive", "fail"), ("failed", "fail"), ("activating", "unknown")]
)
def test_the_watch_over_the_clock_must_run(gpu_node, watch, verdict):
    applied(gpu_node)
    systemd(gpu_node, watch=watch)
    rows = json.loads(gpu_node.steadyrack("check", "--json").stdout)["checks"]
    assert [row["verdict"] for row in rows if row["subject"] == "steadyrack-time-watch.service"] == [verdict]


def test_on_a_host_without_gpus_to_keep_nothing_is_said_of_gpus(gpu_node):
    systemd(gpu_node)
    note = gpu_node.root / "etc/steadyrack/node_agent.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text('{"version": 1, "gpus": false}')
    rows = json.loads(gpu_node.steadyrack("check", "--json").stdout)["checks"]
    assert {(row["id"], row["verdict"]) for row in rows} == {
        ("agent.units", "pass"),
        ("firewall.ntp", "not_judged"),
        ("time.synchronised", "not_judged"),
    }
    assert [row["subject"] for row in rows if row["id"] == "agent.units"] == ["steadyrack-time-watch.service"]


# --- time --------------------------------------------------------------------------------------


def time_note(node, **changes):
    path = node.root / "etc/steadyrack/time_sync.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    note = {"version": 2, "mode": "client", "sources": ["10.0.0.1"], "alarm_ms": 30, "unit": "chrony", "rivals": []}
    path.write_text(json.dumps({**note, **changes}))


def test_the_gate_is_no_yes_where_nobody_vouches_for_the_clock(gpu_node):
    done = gpu_node.steadyrack("time", "gate")
    assert done.returncode == 2
    assert done.stdout.startswith("not known: ")


def test_the_gate_says_no_in_one_line_and_as_json(gpu_node):
    time_note(gpu_node)
    gpu_node.program("chronyc", "#!/bin/sh\necho 506 Cannot talk to daemon\nexit 1\n")
    done = gpu_node.steadyrack("time", "gate")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert "506 Cannot talk to daemon" in done.stdout
    found = json.loads(gpu_node.steadyrack("time", "gate", "--json").stdout)
    assert found["may_start"] is False
    assert found["line"] == done.stdout.strip()
    assert found["checks"]


def test_a_malformed_note_ends_the_gate_with_3(gpu_node):
    time_note(gpu_node, version=9)
    done = gpu_node.steadyrack("time", "gate")
    assert done.returncode == 3
    assert "version 9" in done.stderr


def test_the_watch_runs_until_it_is_ended_and_ends_well(gpu_node):
    import os
    import signal
    import subprocess
    import sys

    from gpu_node import AGENT

    systemd(gpu_node)
    command = [sys.executable, str(AGENT), "--root", str(gpu_node.root), "time", "watch", "--interval", "1"]
    env = {**gpu_node.environment, "PYTHONPATH": str(REPOSITORY / "module_utils")}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        metrics = gpu_node.root / "var/lib/steadyrack/metrics/steadyrack_time.prom"
        give_up = time.monotonic() + 20
        while not metrics.exists():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stdout.read() == ""


# --- status ------------------------------------------------------------------------------------


def test_status_has_a_line_for_every_gpu_and_nothing_to_attend_to(gpu_node):
    done = applied(gpu_node).steadyrack("status")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "550.163.01" in lines[1]
    assert "cap every GPU 250 W" in lines[2]
    table = lines[4:]
    assert [line.split()[0] for line in table[1:]] == list(SLOTS)
    assert all(line.endswith("ok") for line in table[1:])
    assert max(map(len, lines)) <= 120


def test_status_of_a_lost_gpu_names_the_cause_once(gpu_node):
    applied(gpu_node).set("gpu.1.lost=1")
    told = gpu_node.steadyrack("status").stdout
    assert f"{SLOTS[1]}  {gpu_node.uuid(1)[:12]}" in told
    assert "LOST" in told
    assert told.count("fell off the bus") == 1  # one hint, not one for each check that cannot be made


def test_status_without_a_driver_shows_the_bus_and_the_next_step(gpu_node):
    gpu_node.set("driver_loaded=0")
    done = gpu_node.steadyrack("status")
    assert "not loaded" in done.stdout
    assert "modprobe nvidia" in done.stdout
    for slot in SLOTS:
        assert slot in done.stdout


def test_status_without_a_policy_says_so(gpu_node):
    assert "none: /etc/steadyrack/gpu_policy.json is not there" in gpu_node.steadyrack("status").stdout


def test_status_as_json_has_everything_that_was_read(gpu_node):
    found = json.loads(applied(gpu_node).steadyrack("status", "--json").stdout)
    assert len(found["node"]["gpus"]) == len(found["pci"]) == 4
    assert found["checks"]


# --- gpu apply ---------------------------------------------------------------------------------


def test_apply_brings_back_what_a_reboot_took_and_does_nothing_the_second_time(gpu_node):
    applied(gpu_node).reboot()
    assert caps(gpu_node) == [300.0] * 4
    done = gpu_node.steadyrack("gpu", "apply", "--wait", "5")
    assert done.returncode == 0
    assert done.stdout.count("power_cap_w 300 -> 250 (back at the default") == 4
    assert caps(gpu_node) == [250.0] * 4
    assert gpu_node.steadyrack("gpu", "apply").stdout == ""


def test_apply_names_what_another_writer_set_before_and_after(gpu_node):
    applied(gpu_node).set("gpu.3.power_limit_mw=200000")
    done = gpu_node.steadyrack("gpu", "apply", JOURNAL_STREAM="8:1")
    assert f"<4>{gpu_node.uuid(3)} {SLOTS[3]}: power_cap_w 200 -> 250 (another writer had set it)" in done.stdout
    assert caps(gpu_node) == [250.0] * 4


def test_apply_check_only_tells_and_ends_with_1_where_something_differs(gpu_node):
    applied(gpu_node).set("gpu.3.power_limit_mw=200000")
    done = gpu_node.steadyrack("gpu", "apply", "--check")
    assert done.returncode == 1
    assert "not set, only looked" in done.stdout
    assert caps(gpu_node)[3] == 200.0


def test_apply_without_a_policy_has_nothing_to_do(gpu_node):
    done = gpu_node.steadyrack("gpu", "apply", "--wait", "60")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to apply" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"version": 1', "not JSON"),
        ('{"version": 99}', "node_agent"),
        (json.dumps(policy(50)).replace("50}", "NaN}", 1), "power_cap_w"),
        (json.dumps(policy(50)).replace("50}", "Infinity}", 1), "power_cap_w"),
    ],
)
def test_apply_with_a_policy_that_cannot_be_used_ends_with_3_and_touches_nothing(gpu_node, text, says):
    gpu_node.policy(text)
    done = gpu_node.steadyrack("gpu", "apply")
    assert done.returncode == 3
    assert says in done.stderr
    assert caps(gpu_node) == [300.0] * 4


def test_apply_leaves_every_card_alone_that_cannot_do_what_is_declared(gpu_node):
    gpu_node.policy(policy(50))
    done = gpu_node.steadyrack("gpu", "apply")
    assert done.returncode == 1
    assert done.stdout.count("50 W is outside 150 to 300 W") == 4
    assert caps(gpu_node) == [300.0] * 4


def test_one_swapped_card_does_not_keep_the_others_from_their_caps(make_gpu_node):
    """Three A100 and the forgotten A30 (at most 165 W) under one rule of 250 W, after a reboot."""
    node = make_gpu_node("a100-a30")
    node.policy(policy(250))
    done = node.steadyrack("gpu", "apply")
    assert done.returncode == 1
    assert "250 W is outside 100 to 165 W" in done.stdout
    assert sorted(caps(node)) == [165.0, 250.0, 250.0, 250.0]


def test_a_card_that_no_rule_is_for_fails_the_agent_and_its_check(make_gpu_node):
    node = make_gpu_node("a100-a30")
    node.policy({**policy(150), "power_cap": [{"match": {"model": "NVIDIA A30"}, "power_cap_w": 150}]})
    done = node.steadyrack("gpu", "apply")
    assert done.returncode == 1
    assert done.stdout.count("no cap is declared for a NVIDIA A100 80GB PCIe") == 3
    found = json.loads(node.steadyrack("check", "--json").stdout)
    rows = found["checks"] if isinstance(found, dict) else found
    assert [row["verdict"] for row in rows if row["state"] == "refused"] == ["fail"] * 3


def test_apply_caps_the_others_when_one_gpu_is_lost_and_ends_with_1(gpu_node):
    gpu_node.policy(policy(250))
    gpu_node.set("gpu.0.lost=1")
    done = gpu_node.steadyrack("gpu", "apply", "--wait", "1")
    assert done.returncode == 1
    assert "fallen off the bus" in done.stdout
    assert caps(gpu_node)[1:] == [250.0] * 3


def test_c43_apply_waits_for_a_driver_that_comes_late(gpu_node):
    import threading

    gpu_node.policy(policy(250))
    gpu_node.set("driver_loaded=0")
    late = threading.Timer(1.5, gpu_node.set, ["driver_loaded=1"])
    late.start()
    try:
        done = gpu_node.steadyrack("gpu", "apply", "--wait", "20")
    finally:
        late.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for the GPUs: NVML no_driver" in done.stdout
    assert caps(gpu_node) == [250.0] * 4


def test_a_lost_gpu_is_not_waited_for_since_waiting_does_not_bring_it_back(gpu_node):
    gpu_node.policy(policy(250))
    gpu_node.set("gpu.0.lost=1", "gpu.1.fault.nvmlDeviceGetUUID=16")
    done = gpu_node.steadyrack("gpu", "apply", "--wait", "60")  # ends long before, or the helper's deadline fails it
    assert "waiting" not in done.stdout
    assert caps(gpu_node)[2:] == [250.0] * 2


def test_c43_the_wait_has_an_end(gpu_node):
    gpu_node.policy(policy(250))
    gpu_node.set("driver_loaded=0")
    began = time.monotonic()
    done = gpu_node.steadyrack("gpu", "apply", "--wait", "3")
    assert time.monotonic() - began < 15
    assert done.returncode == 1
    assert "no_driver" in done.stdout


def test_c43_missing_device_files_are_made(gpu_node):
    gpu_node.policy(policy(250))
    gpu_node.program("nvidia-modprobe", f'#!/bin/sh\necho "$@" >> {gpu_node.root}/asked\n')
    device = gpu_node.root / "dev/nvidia0"
    device.parent.mkdir()
    device.write_text("")
    gpu_node.steadyrack("gpu", "apply")
    assert (gpu_node.root / "asked").read_text() == "-u -c=1 -c=2 -c=3\n"


def test_two_applies_at_once_wait_for_each_other(gpu_node):
    import threading

    gpu_node.policy(policy(250))
    results = []
    threads = [threading.Thread(target=lambda: results.append(gpu_node.steadyrack("gpu", "apply"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in results] == [0, 0, 0]
    assert sum(done.stdout.count("300 -> 250") for done in results) == 4  # one of them set, the others found it done


# --- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["status", "--help"],
        ["check", "--help"],
        ["gpu", "--help"],
        ["gpu", "apply", "--help"],
        ["time", "gate", "--help"],
        ["time", "watch", "--help"],
    ],
)
def test_every_subcommand_explains_itself(gpu_node, words):
    done = gpu_node.steadyrack(*words)
    assert done.returncode == 0
    assert "usage: steadyrack" in done.stdout
    if words == ["--help"]:
        assert "64  wrong use" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["gpu"],
        ["gpu", "apply", "--wait", "long"],
        ["gpu", "apply", "--wait", "-1"],
        ["status", "--fast"],
        ["time"],
        ["time", "watch", "--interval", "0"],
    ],
)
def test_wrong_use_ends_with_64_which_no_finding_does(gpu_node, words):
    done = gpu_node.steadyrack(*words)
    assert done.returncode == 64
    assert "usage: steadyrack" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(gpu_node):
    import shlex
    import subprocess
    import sys

    from gpu_node import AGENT

    command = shlex.join([sys.executable, str(AGENT), "--root", str(gpu_node.root), "status"]) + " | head -n 1"
    env = {**gpu_node.environment, "PYTHONPATH": str(REPOSITORY / "module_utils")}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
