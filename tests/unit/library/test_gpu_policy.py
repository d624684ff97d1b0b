"""The module gpu_policy on an emulated node: absent, present, check mode, malformed, refused, broken."""

import json

import pytest
from gpu_node import SLOTS, policy

PERSISTENCED = """#!/bin/sh
# A node whose nvidia-persistenced was skipped at boot: enabled, not active, and startable now.
state='{root}/persistenced.pid'
case "$1" in
show) echo LoadState=loaded; if [ -f "$state" ]; then echo ActiveState=active; else echo ActiveState=inactive; fi ;;
start) '{python}' '{emulator}' persistenced >/dev/null 2>&1 & echo $! > "$state" ;;
restart)
    touch '{root}/restarted'; kill $(cat "$state")
    '{python}' '{emulator}' persistenced >/dev/null 2>&1 & echo $! > "$state" ;;
is-active) [ -f "$state" ] ;;
esac
"""


def caps(node):
    return [gpu["power"]["requested_w"] for gpu in node.read()["gpus"]]


def states(result, check="gpu.power_cap"):
    return [row["state"] for row in result["checks"] if row["id"] == check]


def test_the_first_run_writes_the_file_sets_every_gpu_and_reads_back(gpu_node):
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["changed"] is True
    assert caps(gpu_node) == [250.0] * 4
    assert json.loads((gpu_node.root / "etc/steadyrack/gpu_policy.json").read_text()) == policy(250)
    assert states(result) == ["ok"] * 4
    assert states(result, "gpu.persistence") == ["on"] * 4
    for gpu in result["gpus"]:
        assert gpu["uuid"].startswith("GPU-")
        assert gpu["before"] == {"power_cap_w": 300.0, "persistence": False, "compute_mode": "default"}
        assert gpu["after"] == {"power_cap_w": 250.0, "persistence": True, "compute_mode": "default"}


def test_the_second_run_changes_nothing(gpu_node):
    gpu_node.module("gpu_policy", policy=policy(250))
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert (result["changed"], result["changes"]) == (False, [])
    assert [entry["before"] == entry["after"] for entry in result["diff"]] == [True, True]


def test_check_mode_tells_the_same_change_and_makes_none(gpu_node):
    told = gpu_node.module("gpu_policy", policy=policy(250), _ansible_check_mode=True, _ansible_diff=True)
    assert told["changed"] is True
    assert caps(gpu_node) == [300.0] * 4
    assert not (gpu_node.root / "etc/steadyrack").exists()
    made = gpu_node.module("gpu_policy", policy=policy(250), _ansible_diff=True)
    assert told["changes"] == made["changes"]
    assert told["diff"] == made["diff"]
    assert [gpu["after"] for gpu in told["gpus"]] == [gpu["after"] for gpu in made["gpus"]]


def test_the_diff_names_exactly_the_gpu_that_was_changed_behind_our_back(gpu_node):
    gpu_node.module("gpu_policy", policy=policy(250))
    gpu_node.set("gpu.2.power_limit_mw=180000")
    told = gpu_node.module("gpu_policy", policy=policy(250), _ansible_check_mode=True)
    assert told["changed"] is True
    assert [(one["uuid"], one["before"], one["after"], one["cause"]) for one in told["changes"]] == [
        (gpu_node.uuid(2), 180.0, 250.0, "drift")
    ]
    settings = told["diff"][1]
    assert set(settings["before"].splitlines()) ^ set(settings["after"].splitlines()) == {
        f"{gpu_node.uuid(2)} {SLOTS[2]}: power cap 180 W, persistence on, compute mode default",
        f"{gpu_node.uuid(2)} {SLOTS[2]}: power cap 250 W, persistence on, compute mode default",
    }
    gpu_node.module("gpu_policy", policy=policy(250))
    assert caps(gpu_node) == [250.0] * 4


def test_caps_lost_at_a_reboot_are_told_from_another_writers(gpu_node):
    gpu_node.module("gpu_policy", policy=policy(250))
    gpu_node.reboot()
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert {change["cause"] for change in result["changes"]} == {"lost_state"}
    assert caps(gpu_node) == [250.0] * 4


def test_one_gpu_by_uuid_gets_its_own_cap(gpu_node):
    rule = {"match": {"uuid": gpu_node.uuid(1)}, "power_cap_percent": 83}
    gpu_node.module("gpu_policy", policy=policy(200, rule))
    assert caps(gpu_node) == [200.0, 249.0, 200.0, 200.0]


def test_c38_one_cap_outside_its_cards_range_and_nothing_is_set_anywhere(make_gpu_node):
    node = make_gpu_node("a100-a30")
    result = node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    assert node.uuid(3) in result["msg"]
    assert "165 W" in result["msg"]
    assert node.uuid(0) not in result["msg"]
    assert caps(node) == [300.0, 300.0, 300.0, 165.0]
    assert not (node.root / "etc/steadyrack/gpu_policy.json").exists()
    result = node.module("gpu_policy", policy=policy(250), _ansible_check_mode=True)
    assert result["failed"] is True  # check mode does not promise what a run would refuse


def test_two_models_in_one_host_each_get_their_cap(make_gpu_node):
    node = make_gpu_node("a100-a30")
    node.module("gpu_policy", policy=policy(250, {"match": {"model": "NVIDIA A30"}, "power_cap_w": 150}))
    assert caps(node) == [250.0, 250.0, 250.0, 150.0]


def test_c38_what_was_before_can_be_looked_up(gpu_node):
    result = gpu_node.module("gpu_policy", policy=policy(250))
    kept = json.loads((gpu_node.root / result["previous_path"].lstrip("/")).read_text())
    assert kept["gpus"][gpu_node.uuid(0)]["first"]["power_cap_w"] == 300.0


def test_a_set_that_is_accepted_and_not_applied_fails_the_task_with_its_rows(gpu_node):
    gpu_node.set("gpu.1.set_power_noop=1")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    assert gpu_node.uuid(1) in result["msg"]
    assert states(result) == ["ok", "lost_state", "ok", "ok"]
    assert caps(gpu_node) == [250.0, 300.0, 250.0, 250.0]


def test_c39_a_refused_set_fails_with_the_reason_and_check_mode_only_tells_the_difference(gpu_node):
    gpu_node.set("fault.nvmlDeviceSetPowerManagementLimit=4")
    told = gpu_node.module("gpu_policy", policy=policy(250), _ansible_check_mode=True)
    assert "failed" not in told
    assert told["changed"] is True
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    assert "not in a container" in result["msg"]
    assert states(result) == ["not_settable"] * 4


def test_a_cap_that_holds_only_while_its_setter_lives_is_seen(gpu_node):
    # Persistence cannot be switched on, so the cap goes when the setter ends: the same process would read it back well.
    gpu_node.set("noop.nvmlDeviceSetPersistenceMode=1")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    assert states(result) == ["lost_state"] * 4
    assert states(result, "gpu.persistence") == ["off"] * 4


def test_a_lost_gpu_is_warned_of_and_the_others_are_set(gpu_node):
    gpu_node.set("gpu.0.lost=1")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert "failed" not in result
    assert states(result) == ["lost", "ok", "ok", "ok"]
    assert "fallen off the bus" in json.dumps(result["warnings"])


def test_c56_a_gpu_that_hangs_is_warned_of_and_the_others_are_set(gpu_node):
    gpu_node.set("gpu.0.delay_ms.nvmlDeviceGetPowerUsage=-1")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert "failed" not in result
    assert states(result) == ["timeout", "ok", "ok", "ok"]


def test_a_missing_gpu_that_has_a_rule_of_its_own_is_reported(gpu_node):
    uuid = gpu_node.uuid(3)
    gpu_node.set("gpu.3.removed=1")
    result = gpu_node.module("gpu_policy", policy=policy(250, {"match": {"uuid": uuid}, "power_cap_w": 200}))
    assert "failed" not in result
    (row,) = [row for row in result["checks"] if row["state"] == "missing"]
    assert (row["subject"], row["verdict"]) == (uuid.lower(), "fail")
    assert "missing" in json.dumps(result["warnings"])


def test_a_lower_limit_of_the_board_controller_is_a_warning_and_stays_unchanged(gpu_node):
    gpu_node.set("gpu.0.bmc_cap_mw=200000")
    gpu_node.module("gpu_policy", policy=policy(250))
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert (result["changed"], "failed" in result) == (False, False)
    assert states(result)[0] == "capped_elsewhere"
    assert "capped_elsewhere" in json.dumps(result["warnings"])


def test_c81_check_mode_on_a_fresh_node_tells_the_intent_and_calls_the_gpus_unknown(gpu_node):
    del gpu_node.environment["LD_LIBRARY_PATH"]
    result = gpu_node.module("gpu_policy", policy=policy(250), _ansible_check_mode=True)
    assert "failed" not in result
    assert (result["changed"], result["policy_changed"], result["state"]) == (True, True, "no_library")
    assert "unknown" in json.dumps(result["warnings"])
    assert {row["verdict"] for row in result["checks"] if row["id"] == "gpu.power_cap"} == {"unknown"}


@pytest.mark.parametrize("fault", ["driver_loaded=0", "fault.nvmlInit=18"])
def test_a_node_whose_nvml_does_not_work_is_refused_before_anything_is_written(gpu_node, fault):
    gpu_node.set(fault)
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    assert result["error"]["next_step"]
    assert not (gpu_node.root / "etc/steadyrack").exists()


def test_apply_false_writes_the_file_and_asks_no_gpu(gpu_node):
    gpu_node.set("delay_ms.nvmlInit=-1")
    result = gpu_node.module("gpu_policy", policy=policy(250), apply=False)
    assert (result["changed"], result["state"], result["gpus"]) == (True, "not_read", [])
    assert gpu_node.module("gpu_policy", policy=policy(250), apply=False)["changed"] is False


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"version": 2}, "version"),
        ({"version": 1, "power_cap": [{"match": {"index": 0}, "power_cap_w": 250}]}, "changes between boots"),  # C45
        ({"version": 1, "power_caps": []}, "power_caps"),
        ({}, "version"),
    ],
)
def test_a_malformed_policy_is_refused_with_its_place(gpu_node, wrong, says):
    result = gpu_node.module("gpu_policy", policy=wrong)
    assert result["failed"] is True
    assert says in result["msg"]
    assert caps(gpu_node) == [300.0] * 4


def test_c43_a_persistence_daemon_that_lost_the_race_at_boot_is_started_and_owns_persistence(gpu_node):
    import sys

    from gpu_node import EMULATOR

    gpu_node.set("fault.nvmlDeviceSetPersistenceMode=0")
    gpu_node.program("systemctl", PERSISTENCED.format(root=gpu_node.root, python=sys.executable, emulator=EMULATOR))
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert "failed" not in result
    assert states(result, "gpu.persistence") == ["on"] * 4
    assert (gpu_node.root / "persistenced.pid").exists()
    assert caps(gpu_node) == [250.0] * 4


def test_a_running_daemon_that_was_told_to_let_go_of_one_gpu_is_restarted(gpu_node):
    import sys

    from gpu_node import EMULATOR

    gpu_node.program("systemctl", PERSISTENCED.format(root=gpu_node.root, python=sys.executable, emulator=EMULATOR))
    gpu_node.module("gpu_policy", policy=policy(250))
    gpu_node.set("gpu.2.persistence_mode=0")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert "failed" not in result
    assert (gpu_node.root / "restarted").exists()
    assert states(result, "gpu.persistence") == ["on"] * 4
    assert caps(gpu_node) == [250.0] * 4
    assert [(c["setting"], c["before"], c["after"]) for c in result["changes"]] == [("persistence", False, True)]


def test_a_daemon_that_runs_without_persistence_mode_is_named_and_not_fought(gpu_node):
    start = "ExecStart={ argv[]=/usr/bin/nvidia-persistenced --no-persistence-mode }"
    gpu_node.program("systemctl", f"#!/bin/sh\necho LoadState=loaded\necho ActiveState=active\necho '{start}'\n")
    result = gpu_node.module("gpu_policy", policy=policy(250))
    assert result["failed"] is True
    rows = [row for row in result["checks"] if row["id"] == "gpu.persistence"]
    assert {row["state"] for row in rows} == {"off"}
    assert "--no-persistence-mode" in rows[0]["hint"]


def test_a_card_that_no_rule_is_for_is_refused_and_nothing_is_set(gpu_node):
    """The plan names models; one that is written otherwise than the driver's would leave every card uncapped."""
    wrong = {**policy(250), "power_cap": [{"match": {"model": "NVIDIA A100-PCIE-80GB"}, "power_cap_w": 250}]}
    result = gpu_node.module("gpu_policy", policy=wrong)
    assert result["failed"] is True
    assert "no cap is declared for a NVIDIA A100 80GB PCIe" in result["msg"]
    assert "a100-pcie-80gb" in result["msg"].lower()
    assert caps(gpu_node) == [300.0] * 4
    assert not (gpu_node.root / "etc/steadyrack/gpu_policy.json").exists()


def test_a_file_in_the_way_of_the_policy_is_one_clear_error(gpu_node):
    (gpu_node.root / "etc").mkdir(exist_ok=True)
    (gpu_node.root / "etc/afile").write_text("")
    result = gpu_node.module("gpu_policy", policy=policy(250), policy_path="/etc/afile/p.json")
    assert result["failed"] is True
    assert "a directory" in result["msg"]
    assert caps(gpu_node) == [300.0] * 4


# --- found by people who tried to break it -------------------------------------------------------


def spare_policy(**more):
    return policy(250, spares={"count": 1, "environment": False}, **more)


@pytest.fixture
def spared(gpu_node):
    """A node with one spare after its first pass."""
    gpu_node.program("journalctl", "#!/bin/sh\n")
    gpu_node.policy(spare_policy())
    assert gpu_node.steadyrack("gpu", "apply").returncode == 0
    return gpu_node


def roles(node):
    text = (node.root / "var/lib/steadyrack/gpu_roles.json").read_text()
    return {uuid: gpu["role"] for uuid, gpu in json.loads(text)["gpus"].items()}


def test_a_card_that_failed_for_memory_errors_can_be_returned(spared):
    spared.set("gpu.1.ecc_aggregate_uncorrected=1")
    spared.steadyrack("gpu", "apply")
    assert roles(spared)[spared.uuid(1)] == "failed"
    done = spared.steadyrack("spare", "return", spared.uuid(1))
    assert "is back" in done.stdout, done.stderr
    spared.steadyrack("gpu", "apply")
    assert roles(spared)[spared.uuid(1)] == "spare"


def test_c51_a_card_for_which_the_driver_asks_a_reset_is_out_of_service(spared):
    spared.set("gpu.0.recovery_action=1")
    spared.steadyrack("gpu", "apply")
    assert roles(spared)[spared.uuid(0)] == "failed"


def test_a_disk_that_takes_nothing_still_lets_caps_fall_and_cards_close(spared):
    spared.reboot()
    (spared.root / "var/lib/steadyrack").rename(spared.root / "var/lib/kept")
    (spared.root / "var/lib/steadyrack").write_text("no directory can be here\n")
    done = spared.steadyrack("gpu", "apply")
    assert done.returncode == 3
    assert max(caps(spared)) <= 250.0


def test_a_policy_that_was_cut_off_leaves_the_last_whole_one_in_force(spared):
    spared.reboot()
    path = spared.root / "etc/steadyrack/gpu_policy.json"
    path.write_text(path.read_text()[:40])
    done = spared.steadyrack("gpu", "apply")
    assert done.returncode == 3
    assert "the last policy that was whole is kept" in done.stdout
    assert caps(spared) == [250.0, 250.0, 250.0, 150.0]


def test_where_a_cap_cannot_be_lowered_no_other_one_rises(spared):
    spared.set("gpu.1.remapped_failure=1", "gpu.1.fault.nvmlDeviceSetPowerManagementLimit=999")
    done = spared.steadyrack("gpu", "apply")
    assert "not raised" in done.stdout
    assert caps(spared) == [250.0, 250.0, 250.0, 150.0]


def test_a_draining_card_is_capped_as_the_plan_counts_it(gpu_node):
    gpu_node.program("journalctl", "#!/bin/sh\n")
    gpu_node.set(*(f"gpu.{number}.processes_compute=4000:100" for number in range(4)))
    gpu_node.policy(spare_policy())
    gpu_node.steadyrack("gpu", "apply")
    assert roles(gpu_node)[gpu_node.uuid(3)] == "draining"
    assert caps(gpu_node) == [250.0, 250.0, 250.0, 150.0]
