"""MIG layouts brought about by the module gpu_policy on an emulated node: each state, kills, reboots, refusals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_node import MODULE_RUNNER, REPOSITORY, policy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="MIG needs root")

TWO = {"3g.40gb": 2}
MIXED = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}


def layout(devices, place=0, **others):
    """A policy that cuts one GPU so."""
    slots = ("0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0")
    return policy(250, mig=[{"match": {"bus_id": slots[place]}, "devices": devices}], **others)


def row(result, node, place=0):
    (found,) = [one for one in result["checks"] if one["id"] == "gpu.mig" and one["subject"] == node.uuid(place)]
    return found


def there(node, place=0):
    """Profiles that stand on a GPU, biggest place first; None where MIG is off."""
    found = node.read()["gpus"][place]["mig_layout"]
    return None if found is None else sorted(one["profile"] for one in found["instances"])


def names(devices):
    return sorted(name for name, count in devices.items() for _ in range(count))


def run(node, code, *words):
    """A process on the node that runs this Python text."""
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=node.environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def cut(gpu_node):
    """A node whose first GPU has MIG on, as after the reset that the change of mode needs."""
    gpu_node.set("gpu.0.mig_mode=1")
    return gpu_node


# --- bringing it there -------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [TWO, MIXED, {"1g.10gb": 7}, {"7g.80gb": 1}, {"1g.10gb+me": 1, "1g.20gb": 3}])
def test_a_declared_layout_is_made_and_the_second_run_changes_nothing(cut, devices):
    result = cut.module("gpu_policy", policy=layout(devices))
    assert result["changed"] is True
    assert "failed" not in result
    assert there(cut) == names(devices)
    assert (row(result, cut)["state"], row(result, cut)["verdict"]) == ("ok", "pass")
    again = cut.module("gpu_policy", policy=layout(devices))
    assert (again["changed"], again["changes"]) == (False, [])


def test_every_instance_is_whole_and_has_the_id_a_job_is_given(cut):
    cut.module("gpu_policy", policy=layout(MIXED))
    found = cut.read()["gpus"][0]["mig_layout"]["instances"]
    assert [one["compute"] for one in found] == [[2], [1], [1], [3]]
    devices = [device for one in found for device in one["devices"]]
    assert len(set(devices)) == 4
    assert all(device.startswith("MIG-") for device in devices)


def test_c49_the_cap_of_a_gpu_with_mig_on_is_that_of_the_whole_gpu_and_it_counts_as_one(cut):
    result = cut.module("gpu_policy", policy=layout({"1g.10gb": 7}))
    assert [gpu["power"]["requested_w"] for gpu in cut.read()["gpus"]] == [250.0] * 4
    (count,) = [one for one in result["checks"] if one["id"] == "gpu.count"]
    assert (count["state"], count["measured"]) == ("ok", 4)


def test_c49_the_older_style_of_mig_id_is_read_as_well(make_gpu_node):
    node = make_gpu_node()
    node.set("driver_version=460.106.00", "gpu.0.mig_mode=1")
    node.module("gpu_policy", policy=layout({"3g.40gb": 1}))
    (one,) = node.read()["gpus"][0]["mig_layout"]["instances"]
    assert one["devices"] == [f"MIG-{node.uuid(0)}/1/0"]


def test_instances_that_are_right_stay_what_they_are(cut):
    cut.module("gpu_policy", policy=layout({"3g.40gb": 1, "1g.10gb": 3}))
    before = cut.read()["gpus"][0]["mig_layout"]["instances"]
    cut.module("gpu_policy", policy=layout(TWO))
    after = cut.read()["gpus"][0]["mig_layout"]["instances"]
    assert next(one for one in before if one["profile"] == "3g.40gb") in after
    assert names(TWO) == there(cut)


def test_after_a_reboot_the_mode_is_there_and_the_agent_makes_the_instances_again(cut):
    cut.module("gpu_policy", policy=layout(MIXED))
    cut.reboot()
    assert there(cut) == []
    done = cut.steadyrack("gpu", "apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mig on, no instances -> 2 x 1g.10gb, 1 x 2g.20gb, 1 x 3g.40gb" in done.stdout + done.stderr
    assert there(cut) == names(MIXED)
    assert cut.steadyrack("gpu", "apply", "--check").returncode == 0


def test_two_models_each_have_profiles_of_their_own(make_gpu_node):
    node = make_gpu_node("a100-a30")
    node.set("gpu.0.mig_mode=1", "gpu.3.mig_mode=1")
    rules = [{"match": {"bus_id": "0000:31:00.0"}, "devices": TWO},
             {"match": {"model": "A30"}, "devices": {"2g.12gb": 1, "1g.6gb": 2}}]  # fmt: skip
    wanted = policy(165, mig=rules)
    result = node.module("gpu_policy", policy=wanted)
    assert "failed" not in result
    assert (there(node, 0), there(node, 3)) == (["3g.40gb"] * 2, ["1g.6gb", "1g.6gb", "2g.12gb"])


# --- the mode ----------------------------------------------------------------------------------


def test_the_mode_of_a_gpu_that_persistence_holds_waits_for_a_reset_which_is_not_made(gpu_node):
    result = gpu_node.module("gpu_policy", policy=layout(TWO))
    found = row(result, gpu_node)
    assert (found["state"], found["verdict"]) == ("mode_pending", "fail")
    assert "nvidia-smi -i 0000:31:00.0 --gpu-reset" in found["hint"]
    assert "failed" not in result  # nothing the run could have done
    assert "mode_pending" in str(result["warnings"])
    assert gpu_node.get("gpu.0.power_limit_mw") == "250000"
    again = gpu_node.module("gpu_policy", policy=layout(TWO))
    assert (again["changed"], row(again, gpu_node)["state"]) == (False, "mode_pending")
    gpu_node.reboot()
    done = gpu_node.steadyrack("gpu", "apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert there(gpu_node) == names(TWO)


IN_ONE_SESSION = """
import json, sys
sys.path[:0] = [{module_utils!r}]
from steadyrack import gpu_apply, gpu_mig, gpu_policy, nvml, pcie
policy = gpu_policy.parse(json.loads(sys.argv[1]))
with nvml.Session({root!r}) as session:
    pci = pcie.read_gpus({root!r})
    outcome = gpu_apply.Outcome(session.read(), pci)
    gpu_mig.look(session, outcome.before["gpus"], policy)
    pairs = [(gpu, gpu_policy.resolve(policy, gpu)) for gpu in outcome.before["gpus"]]
    outcome.changes = gpu_apply.wanted_changes(pairs) + gpu_mig.wanted_changes(pairs)
    gpu_apply._set_all(session, outcome, outcome.changes, policy, gpu_apply.run)
    gpu_apply._apply_mig(session, outcome, policy, gpu_apply.run)
    gpu = session.read()["gpus"][0]
print(json.dumps([gpu["mig"], len(gpu["mig_layout"]["instances"]), gpu["power"]["requested_w"]]))
"""


@pytest.mark.parametrize(("code", "made"), [("", 2), ("23", 0)], ids=["all well", "creating fails"])
def test_a_mode_that_changes_at_once_resets_the_gpu_and_its_cap_is_set_again(gpu_node, code, made):
    """With persistence off nobody else holds the GPU; looked at before we let go, which would lose the cap as well."""
    gpu_node.set(f"gpu.0.fault.nvmlDeviceCreateGpuInstanceWithPlacement={code}")
    text = IN_ONE_SESSION.format(module_utils=str(REPOSITORY / "module_utils"), root=str(gpu_node.root))
    done = run(gpu_node, text, json.dumps(layout(TWO, persistence_mode=False)))
    assert json.loads(done.stdout) == [{"current": True, "pending": True}, made, 250.0], done.stderr


def test_a_card_that_needs_no_reset_changes_under_persistence(make_gpu_node):
    node = make_gpu_node("h100x8")
    wanted = {"version": 1, "persistence_mode": True, "mig": [{"match": {"uuid": node.uuid(0)}, "devices": TWO}]}
    result = node.module("gpu_policy", policy=wanted)
    assert "failed" not in result
    assert row(result, node)["state"] == "ok"


@pytest.mark.parametrize("mig", [False, [{"match": {"all": True}, "devices": {}}]])
def test_mig_declared_off_is_switched_off_where_it_can_be(cut, mig):
    cut.set("gpu.0.mig_gpu_instances=1:9:0", "gpu.0.mig_compute_instances=1/0:2:0")
    result = cut.module("gpu_policy", policy=policy(250, mig=mig))
    assert there(cut) == []  # the instances went
    assert row(result, cut)["state"] == "mode_pending"
    assert row(result, cut, 1)["state"] == "off"
    cut.reboot()
    assert there(cut) is None
    assert row(cut.module("gpu_policy", policy=policy(250, mig=mig)), cut)["state"] == "off"


def test_mig_on_that_nobody_declared_is_found_and_left_alone(cut):
    cut.set("gpu.0.mig_gpu_instances=1:9:0", "gpu.0.mig_compute_instances=1/0:2:0")
    result = cut.module("gpu_policy", policy=policy(250))
    found = row(result, cut)
    assert (found["state"], found["verdict"]) == ("unexpected_on", "fail")
    assert "compute mode" in found["reason"]
    assert "remapped rows" in found["reason"]
    assert there(cut) == ["3g.40gb"]
    assert "unexpected_on" in str(result["warnings"])
    assert "failed" not in result
    info = cut.module("gpu_info")["gpu_info"]
    assert row(info, cut)["state"] == "unexpected_on"
    assert info["gpus"][0]["remapped_rows"] is None
    assert cut.steadyrack("check").returncode == 1


# --- jobs --------------------------------------------------------------------------------------


def test_an_instance_with_a_process_is_not_touched_and_neither_are_its_neighbours(cut):
    cut.module("gpu_policy", policy=layout({"1g.10gb": 3}))
    cut.set("gpu.0.processes_compute=4711:100:8:0")
    result = cut.module("gpu_policy", policy=layout(TWO))
    found = row(result, cut)
    assert (found["state"], found["verdict"]) == ("busy", "fail")
    assert "1g.10gb (instance 8): pid 4711" in found["reason"]
    assert there(cut) == ["1g.10gb"] * 3
    assert "failed" not in result
    cut.set("gpu.0.processes_compute=")
    assert row(cut.module("gpu_policy", policy=layout(TWO)), cut)["state"] == "ok"


def test_a_running_job_that_fits_the_layout_keeps_its_instance(cut):
    cut.module("gpu_policy", policy=layout({"1g.10gb": 7}))
    cut.set("gpu.0.processes_compute=4711:100:11:0")  # at place 4
    result = cut.module("gpu_policy", policy=layout({"3g.40gb": 1, "1g.10gb": 1}))
    assert row(result, cut)["state"] == "ok"
    (kept,) = [one for one in cut.read()["gpus"][0]["mig_layout"]["instances"] if one["processes"]]
    assert (kept["id"], kept["processes"]) == (11, [4711])


def test_a_job_on_a_whole_gpu_keeps_its_mode(gpu_node):
    gpu_node.set("gpu.0.processes_compute=4711:100")
    result = gpu_node.module("gpu_policy", policy=layout(TWO))
    assert row(result, gpu_node)["state"] == "busy"
    assert gpu_node.read()["gpus"][0]["mig"] == {"current": False, "pending": False}


def test_a_job_that_came_after_the_look_is_safe(cut):
    """The driver is asked once more right before an instance goes."""
    cut.module("gpu_policy", policy=layout({"1g.10gb": 3}))
    cut.set("gpu.0.processes_compute=4711:100:8:0")
    code = (
        "import sys; sys.path[:0] = [{!r}]\nfrom steadyrack import nvml\nwith nvml.Session({!r}) as session:\n".format(
            str(REPOSITORY / "module_utils"), str(cut.root)
        )
    )
    code += f"    session.destroy_mig_instance({cut.uuid(0)!r}, 8)\n"
    done = run(cut, code)
    assert "IN_USE (19)" in done.stderr
    assert there(cut) == ["1g.10gb"] * 3


# --- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "place", "says"),
    [({"1g.5gb": 7}, 0, "no profile 1g.5gb"), ({"3g.40gb": 3}, 0, "does not fit"), (TWO, 3, "no profile 3g.40gb")],
)
def test_a_layout_that_a_card_cannot_have_is_refused_and_nothing_is_set(make_gpu_node, devices, place, says):
    node = make_gpu_node("a100-a30")
    wanted = layout(devices, place)
    wanted["power_cap"] = [{"match": {"all": True}, "power_cap_w": 165}]
    for check in (True, False):
        result = node.module("gpu_policy", policy=wanted, _ansible_check_mode=check)
        assert result["failed"] is True
        assert says in result["msg"]
    assert node.read()["gpus"][0]["power"]["requested_w"] == 300.0
    assert not (node.root / "etc/steadyrack/gpu_policy.json").exists()


def test_a_card_without_mig_is_refused_a_layout_and_well_without(gpu_node):
    gpu_node.set("gpu.0.mig_max_devices=0")
    result = gpu_node.module("gpu_policy", policy=layout(TWO))
    assert "this card has no MIG" in result["msg"]
    result = gpu_node.module("gpu_policy", policy=layout({}))
    assert (row(result, gpu_node)["state"], row(result, gpu_node)["verdict"]) == ("off", "pass")


def test_the_agent_leaves_a_swapped_card_alone_and_does_the_others(make_gpu_node):
    node = make_gpu_node("a100-a30")
    node.set("gpu.0.mig_mode=1")
    wanted = policy(165, mig=[{"match": {"bus_id": "0000:31:00.0"}, "devices": TWO},
                              {"match": {"bus_id": "0000:ca:00.0"}, "devices": TWO}])  # fmt: skip
    node.policy(wanted)
    done = node.steadyrack("gpu", "apply")
    assert done.returncode == 1
    assert "no profile 3g.40gb" in done.stdout + done.stderr
    assert there(node, 0) == names(TWO)


def test_a_layout_for_a_gpu_that_is_not_there_is_said_and_the_others_are_cut(cut):
    rules = [{"match": {"serial": "1"}, "devices": TWO}, {"match": {"serial": "2"}, "devices": {}},
             {"match": {"bus_id": "0000:31:00.0"}, "devices": TWO}]  # fmt: skip
    result = cut.module("gpu_policy", policy=policy(250, mig=rules))
    missing = [one for one in result["checks"] if one["state"] == "missing"]
    assert [(one["id"], one["subject"], one["verdict"]) for one in missing] == [("gpu.mig", "1", "fail")]
    assert "missing" in str(result["warnings"])
    assert there(cut) == names(TWO)


def test_where_nvml_cannot_be_asked_declared_layouts_are_unknown(gpu_node):
    gpu_node.policy(layout(TWO))
    gpu_node.set("fault.nvmlInit=9")
    rows = [one for one in gpu_node.module("gpu_info")["gpu_info"]["checks"] if one["id"] == "gpu.mig"]
    assert [(one["verdict"], one["state"]) for one in rows] == [("unknown", "no_driver")] * 4


def test_without_root_the_layout_is_unknown_with_the_drivers_word_for_it(cut):
    for folder in [cut.root, *cut.root.parents]:
        if folder == Path("/tmp"):
            break
        folder.chmod(0o755)
    code = "import json, os, sys\nsys.path[:0] = [{!r}]\nfrom steadyrack import gpu_apply, gpu_policy, nvml\n".format(
        str(REPOSITORY / "module_utils")
    )
    code += "policy = gpu_policy.parse(json.loads(sys.argv[1]))\nnvml.load_binding()\nos.seteuid(65534)\n"
    code += f"outcome = gpu_apply.apply(policy, {str(cut.root)!r}, check=True)\n"
    code += "print(json.dumps([outcome.rows, gpu_apply.warnings(outcome), outcome.changes]))"
    rows, warnings, changes = json.loads(run(cut, code, json.dumps(layout(TWO))).stdout)
    found = row({"checks": rows}, cut)
    assert (found["state"], found["verdict"]) == ("unknown", "unknown")
    assert "NO_PERMISSION" in found["reason"]
    assert any("gpu.mig" in line for line in warnings)
    assert "mig" not in [change["setting"] for change in changes]


def test_a_driver_that_refuses_to_create_leaves_what_stands_and_says_it(cut):
    cut.module("gpu_policy", policy=layout({"3g.40gb": 1}))
    cut.set("gpu.0.fault.nvmlDeviceCreateGpuInstanceWithPlacement=23")
    result = cut.module("gpu_policy", policy=layout(TWO))
    assert result["failed"] is True
    assert "declared 2 x 3g.40gb, there is 1 x 3g.40gb" in result["msg"]
    assert "INSUFFICIENT_RESOURCES (23)" in result["msg"]
    assert there(cut) == ["3g.40gb"]
    cut.set("gpu.0.fault.nvmlDeviceCreateGpuInstanceWithPlacement=")
    assert row(cut.module("gpu_policy", policy=layout(TWO)), cut)["state"] == "ok"


@pytest.mark.parametrize("dropped", ["nvmlDeviceSetMigMode"])
def test_a_mode_that_is_accepted_and_dropped_fails_the_task(gpu_node, dropped):
    gpu_node.set(f"gpu.0.noop.{dropped}=1")
    result = gpu_node.module("gpu_policy", policy=layout(TWO))
    assert result["failed"] is True
    assert "wrong_layout" in result["msg"]


@pytest.mark.parametrize(
    ("call", "state"),
    [("nvmlDeviceGetGpuInstances", "timeout"), ("nvmlDeviceCreateGpuInstanceWithPlacement", "wrong_layout")],
)
def test_c56_a_card_that_hangs_in_a_mig_call_is_named_and_the_others_are_cut(gpu_node, call, state):
    gpu_node.set("gpu.0.mig_mode=1", "gpu.1.mig_mode=1", f"gpu.0.delay_ms.{call}=-1")
    code = """
import json, sys
sys.path[:0] = [{!r}]
from steadyrack import gpu_apply, gpu_policy
policy = gpu_policy.parse(json.loads(sys.argv[1]))
outcome = gpu_apply.apply(policy, {!r}, "here", strict=False, call_s=0.5, first_contact_s=1)
print(json.dumps(outcome.rows))
""".format(str(REPOSITORY / "module_utils"), str(gpu_node.root))
    wanted = policy(250, mig=[{"match": {"all": True}, "devices": TWO}])
    done = run(gpu_node, code, json.dumps(wanted))
    rows = {"checks": json.loads(done.stdout)}
    assert row(rows, gpu_node)["state"] == state
    assert "no answer within" in row(rows, gpu_node)["reason"] or state == "timeout"
    assert row(rows, gpu_node, 1)["state"] == "ok"


# --- check mode and diff -----------------------------------------------------------------------


def test_check_mode_tells_the_change_and_makes_none(cut):
    cut.module("gpu_policy", policy=layout({"1g.10gb": 7}))
    told = cut.module("gpu_policy", policy=layout(TWO), _ansible_check_mode=True, _ansible_diff=True)
    assert there(cut) == ["1g.10gb"] * 7
    assert [(one["setting"], one["before"], one["after"], one["cause"]) for one in told["changes"]] == [
        ("mig", "7 x 1g.10gb", "2 x 3g.40gb", "drift")
    ]
    made = cut.module("gpu_policy", policy=layout(TWO), _ansible_diff=True)
    assert told["changes"] == made["changes"]
    assert told["diff"] == made["diff"]
    assert [gpu["after"] for gpu in told["gpus"]] == [gpu["after"] for gpu in made["gpus"]]
    settings = told["diff"][1]
    assert "MIG 7 x 1g.10gb" in settings["before"]
    assert "MIG 2 x 3g.40gb" in settings["after"]
    assert settings["before"].count("MIG") == 1  # only where a layout is declared


def test_what_was_before_can_be_looked_up(cut):
    cut.module("gpu_policy", policy=layout({"1g.10gb": 7}))
    result = cut.module("gpu_policy", policy=layout(TWO))
    kept = json.loads((cut.root / result["previous_path"].lstrip("/")).read_text())["gpus"][cut.uuid(0)]
    assert (kept["first"]["mig"], kept["last"]["mig"]) == ("on, no instances", "7 x 1g.10gb")


# --- killed ------------------------------------------------------------------------------------


def killed_when(node, wanted, arrived):
    """Run the module and kill it, and its child, with SIGKILL as soon as the emulator's state is so far."""
    code = MODULE_RUNNER.format(
        library=str(REPOSITORY / "library"), module_utils=str(REPOSITORY / "module_utils"), name="gpu_policy",
        root=str(node.root),
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps({"policy": wanted})], env=node.environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    give_up = time.monotonic() + 30
    while not arrived(*instances(node)):
        assert time.monotonic() < give_up, instances(node)
        assert process.poll() is None
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def instances(node):
    """GPU instances and compute instances in the emulator's state."""
    state = (node.root / "run/nvml-emulator/volatile").read_text().splitlines()
    values = dict(line.split("=", 1) for line in state)
    return [
        [one for one in values.get(f"gpu.0.mig_{kind}_instances", "").split(";") if one] for kind in ("gpu", "compute")
    ]


@pytest.mark.parametrize(
    ("call", "arrived"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", lambda gpu, compute: not gpu),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", lambda gpu, compute: len(gpu) == len(compute) == 1),
        ("nvmlGpuInstanceCreateComputeInstance", lambda gpu, compute: len(gpu) == 1 and not compute),
        ("nvmlGpuInstanceDestroy", lambda gpu, compute: len(gpu) > len(compute)),
        ("nvmlComputeInstanceDestroy", lambda gpu, compute: len(gpu) == len(compute) == 4),
    ],
    ids=["all gone", "one of three made", "made and not finished", "emptied and not gone", "one of five gone"],
)
def test_killed_between_two_steps_the_next_run_completes(cut, call, arrived):
    cut.module("gpu_policy", policy=layout({"1g.10gb": 5}))
    cut.set(f"gpu.0.delay_ms.{call}=300")
    killed_when(cut, layout({"2g.20gb": 3}), arrived)
    cut.set(f"gpu.0.delay_ms.{call}=")
    result = cut.module("gpu_policy", policy=layout({"2g.20gb": 3}))
    assert row(result, cut)["state"] == "ok"
    assert there(cut) == ["2g.20gb"] * 3
    assert cut.module("gpu_policy", policy=layout({"2g.20gb": 3}))["changed"] is False


# --- any layout to any other, on the emulated card ---------------------------------------------

WALK = """
import itertools, json, random, sys
sys.path[:0] = [{module_utils!r}]
from steadyrack import gpu_mig, gpu_policy, nvml
random.seed(20261130)
with nvml.Session({root!r}) as session:
    gpu = session.read()["gpus"][0]
    profiles = gpu["mig_layout"]["profiles"]
    every = []
    while len(every) < 40:
        devices = {{name: random.randint(1, 3) for name in random.sample(sorted(profiles), random.randint(1, 3))}}
        if gpu_mig.arrange(devices, profiles) is not None:
            every.append(devices)
    wrong = []
    for devices in every:
        wish = gpu_policy.Wish(mig=devices)
        before = {{one["id"] for one in gpu["mig_layout"]["instances"]}}
        kept = {{one["id"] for one in gpu_mig.best_kept(devices, gpu["mig_layout"])}}
        gpu_mig.bring(session, gpu, wish)
        gpu = session.read()["gpus"][0]
        if gpu_mig.state(gpu, wish) != "ok" or not kept <= {{one["id"] for one in gpu["mig_layout"]["instances"]}}:
            wrong.append(devices)
print(json.dumps([len(every), wrong]))
"""


def test_forty_layouts_one_after_the_other_are_each_reached(cut):
    code = WALK.format(module_utils=str(REPOSITORY / "module_utils"), root=str(cut.root))
    done = run(cut, code)
    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == [40, []]
