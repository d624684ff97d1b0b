"""MIG layouts: what is refused, how a card is arranged, how it stands, and which steps bring it there."""

from types import SimpleNamespace

import pytest
import statefiles
from ansible.module_utils.steadyrack import errors, gpu_mig, gpu_policy, nvml, nvml_mig
from gpu_node import REPOSITORY
from hypothesis import assume, given
from hypothesis import strategies as st

UUID = "GPU-657227da-611f-5a74-89fc-c3e616de4e02"
OTHER = "GPU-11111111-2222-3333-4444-555555555555"


def card(prefix="gpu.*", profile="a100x4"):
    """What a card can be cut into, from the emulator's own profile."""
    values = statefiles.parse((REPOSITORY / f"tests/rack/nvml/profiles/{profile}.profile").read_text())
    found = {}
    for key, value in values.items():
        if key.startswith(f"{prefix}.mig_profile_") and value:
            name, number, slices, most, *_engines, mib, size, starts = value.split(":")
            found[name] = {
                "id": int(number), "slices": int(slices), "instances": int(most), "memory_mib": int(mib),
                "size": int(size), "starts": [int(start) for start in starts.split(",")],
            }  # fmt: skip
    return found


A100 = card()
A30 = card("gpu.3", "a100-a30")


def instance(profile, start, processes=(), compute="whole", profiles=A100):
    whole = [profiles[profile]["slices"]]
    size = profiles[profile]["size"]
    return {
        "id": 8 // size - 1 + start // size, "profile": profile, "start": start, "size": size,
        "compute": whole if compute == "whole" else list(compute), "devices": [], "processes": list(processes),
    }  # fmt: skip


def gpu(*instances, on=True, pending=None, profiles=A100, **more):
    """A card's record as nvml gives it."""
    record = nvml.empty_gpu()
    record.update(uuid=UUID, bus_id="0000:31:00.0", name="NVIDIA A100 80GB PCIe", processes=0)
    record["mig"] = {"current": on, "pending": on if pending is None else pending}
    record["mig_layout"] = {"profiles": profiles, "instances": list(instances)} if profiles else None
    record.update(more)
    return record


def wish(devices):
    return gpu_policy.Wish(mig=devices)


def refused(name, code):
    return {"code": code, "name": nvml.ERROR_NAMES[code], "call": name}


# --- the policy --------------------------------------------------------------------------------


def parsed(mig):
    return gpu_policy.parse({"version": 1, "mig": mig})


def test_layouts_are_read_and_the_most_specific_one_wins():
    policy = parsed(
        [{"match": {"model": "A100 80GB PCIe"}, "devices": {"1g.10gb": 7}}, {"match": {"uuid": UUID}, "devices": {}}]
    )
    assert gpu_policy.resolve(policy, gpu()).mig == {}
    assert gpu_policy.resolve(policy, gpu(uuid=OTHER)).mig == {"1g.10gb": 7}
    assert gpu_policy.resolve(policy, gpu(uuid=OTHER, name="NVIDIA A30")).mig is None


def test_false_is_mig_off_on_every_gpu_and_nothing_is_not_declared():
    assert gpu_policy.resolve(parsed(False), gpu()).mig == {}
    assert gpu_policy.resolve(parsed(None), gpu()).mig is None


@pytest.mark.parametrize(
    ("mig", "place"),
    [
        (True, "mig"),
        ({}, "mig"),
        ([{"match": {"all": True}}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": ["1g.10gb"]}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": {"small": 7}}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": {"1c.3g.40gb": 1}}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": {"1g.10GB": 1}}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": {9: 2}}], "mig[0]: devices"),
        ([{"match": {"all": True}, "devices": {"1g.10gb": 0}}], "mig[0]: devices: 1g.10gb"),
        ([{"match": {"all": True}, "devices": {"1g.10gb": True}}], "mig[0]: devices: 1g.10gb"),
        ([{"match": {"all": True}, "devices": {"1g.10gb": "7"}}], "mig[0]: devices: 1g.10gb"),
        ([{"match": {"index": 0}, "devices": {}}], "mig[0]: match: index"),
        ([{"match": {"all": True}, "devices": {}, "mode": 1}], "mig[0]: mode"),
        ([{"match": {"all": True}, "devices": {}}] * 2, "mig[1]"),
    ],
)
def test_a_malformed_layout_is_refused_with_its_place(mig, place):
    with pytest.raises(errors.InputError) as caught:
        parsed(mig)
    assert caught.value.thing == f"policy: {place}"


@pytest.mark.parametrize("style", [f"MIG-{UUID}/1/0", "MIG-43885e91-46f5-57f5-950b-8a877e0fb957"])
def test_c49_a_layout_is_of_the_whole_gpu_whichever_style_of_mig_id_is_given(style):
    with pytest.raises(errors.InputError, match="MIG slice"):
        parsed([{"match": {"uuid": style}, "devices": {}}])


@pytest.mark.parametrize(
    ("spares", "mig", "count", "refused"),
    [
        (None, {"all": True}, 4, False),
        ({"count": 0}, {"all": True}, 4, False),
        ({"count": 1}, {"all": True}, 4, True),
        ({"count": 1}, {"model": "A100 80GB PCIe"}, 4, True),
        ({"count": 1}, {"uuid": UUID}, 4, False),
        ({"count": 1}, {"uuid": UUID}, None, False),
        ({"count": 1, "gpus": [{"uuid": UUID}]}, {"uuid": UUID}, 4, True),
        ({"count": 1, "gpus": [{"uuid": OTHER}]}, {"uuid": UUID}, 4, False),
    ],
)
def test_c49_spare_and_mig_on_one_card_is_refused(spares, mig, count, refused):
    value = {
        "version": 1, "gpu_count": count, "spares": spares, "mig": [{"match": mig, "devices": {"1g.10gb": 7}}],
    }  # fmt: skip
    if refused:
        with pytest.raises(errors.InputError, match="MIG is declared for"):
            gpu_policy.parse(value)
    else:
        gpu_policy.parse(value)
    gpu_policy.parse({**value, "mig": False})


# --- arranging ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "places"),
    [
        ({"1g.10gb": 7}, [("1g.10gb", start) for start in range(7)]),
        ({"3g.40gb": 2}, [("3g.40gb", 0), ("3g.40gb", 4)]),
        ({"3g.40gb": 1, "4g.40gb": 1}, [("4g.40gb", 0), ("3g.40gb", 4)]),
        # No small one can lie on memory slice 7, so the 3g has to give way to the end.
        ({"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
         [("3g.40gb", 4), ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3)]),
        ({"1g.20gb": 4}, [("1g.20gb", start) for start in (0, 2, 4, 6)]),
        ({"7g.80gb": 1}, [("7g.80gb", 0)]),
    ],
)  # fmt: skip
def test_a_layout_that_fits_is_arranged_biggest_first(devices, places):
    assert gpu_mig.arrange(devices, A100) == places


@pytest.mark.parametrize(
    "devices",
    [{"1g.10gb": 8}, {"3g.40gb": 3}, {"4g.40gb": 2}, {"7g.80gb": 1, "1g.10gb": 1}, {"1g.10gb+me": 2},
     {"3g.40gb": 2, "1g.10gb": 1}, {"2g.20gb": 4}, {"1g.5gb": 1}],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_none(devices):
    assert gpu_mig.arrange(devices, A100) is None


def test_an_a30_is_arranged_by_its_own_places():
    assert gpu_mig.arrange({"2g.12gb": 1, "1g.6gb": 2}, A30) == [("2g.12gb", 0), ("1g.6gb", 2), ("1g.6gb", 3)]
    assert gpu_mig.arrange({"2g.12gb": 3}, A30) is None


# --- how it stands -----------------------------------------------------------------------------

TWO = {"3g.40gb": 2}
BOTH = (instance("3g.40gb", 0), instance("3g.40gb", 4))
NO_MIG = {"mig": None, "mig_layout": None, "errors": {"mig": refused("mig", 3)}}


@pytest.mark.parametrize(
    ("record", "devices", "state", "judged"),
    [
        (gpu(*BOTH), TWO, "ok", "pass"),
        (gpu(*BOTH, processes=2), TWO, "ok", "pass"),
        (gpu(on=False), {}, "off", "pass"),
        (gpu(**NO_MIG), {}, "off", "pass"),
        (gpu(), TWO, "wrong_layout", "fail"),
        (gpu(BOTH[0]), TWO, "wrong_layout", "fail"),
        (gpu(instance("3g.40gb", 0, compute=()), BOTH[1]), TWO, "wrong_layout", "fail"),
        (gpu(instance("3g.40gb", 0, compute=(1, 1)), BOTH[1]), TWO, "wrong_layout", "fail"),
        (gpu(instance("7g.80gb", 0)), TWO, "wrong_layout", "fail"),
        (gpu(on=False), TWO, "wrong_layout", "fail"),
        (gpu(on=False, profiles=None), TWO, "wrong_layout", "fail"),
        (gpu(*BOTH, pending=False), TWO, "wrong_layout", "fail"),
        (gpu(on=False, pending=True), {}, "wrong_layout", "fail"),
        (gpu(on=False, pending=True), TWO, "mode_pending", "fail"),
        (gpu(on=False, pending=True, profiles=None), TWO, "mode_pending", "fail"),
        (gpu(pending=False), {}, "mode_pending", "fail"),
        (gpu(on=False, pending=True), None, "mode_pending", "fail"),
        (gpu(*BOTH), None, "unexpected_on", "fail"),
        (gpu(*BOTH, profiles=None), None, "unexpected_on", "fail"),
        (gpu(*BOTH), {}, "unexpected_on", "fail"),
        (gpu(on=False, processes=1), TWO, "busy", "fail"),
        (gpu(instance("7g.80gb", 0, [4711])), TWO, "busy", "fail"),
        (gpu(instance("7g.80gb", 0, [4711])), {}, "busy", "fail"),
        (gpu(instance("3g.40gb", 0, [4711], compute=(1,)), BOTH[1]), TWO, "busy", "fail"),
        (gpu(**NO_MIG), TWO, "unsupported", "fail"),
        (gpu(), {"1g.5gb": 7}, "unsupported", "fail"),
        (gpu(), {"1g.10gb": 8}, "unsupported", "fail"),
        (gpu(on=False), {"1g.10gb": 8}, "unsupported", "fail"),
        (gpu(profiles=None, errors={"mig_layout": refused("mig_layout", 4)}), TWO, "unknown", "unknown"),
        (gpu(mig=None, mig_layout=None, errors={"mig": refused("mig", 999)}), TWO, "unknown", "unknown"),
        (gpu(mig=None, mig_layout=None, errors={"mig": refused("mig", 999)}), None, "unknown", "unknown"),
        (gpu(on=False, processes=None, errors={"processes": refused("processes", 4)}), TWO, "unknown", "unknown"),
        (gpu(state="lost", mig=None, mig_layout=None), TWO, "lost", "unknown"),
        (gpu(on=False), None, "not_declared", "not_judged"),
        (gpu(**NO_MIG), None, "not_declared", "not_judged"),
    ],
)
def test_each_state_has_its_verdict_and_its_reason(record, devices, state, judged):
    row = gpu_mig.row(record, wish(devices))
    assert (row["id"], row["state"], row["verdict"]) == ("gpu.mig", state, judged)
    assert bool(row["reason"]) is (judged != "pass")
    assert row["expected"] == (None if devices is None else gpu_mig.in_words(devices))


def test_unexpected_mig_says_what_it_takes_away():
    reason = gpu_mig.row(gpu(*BOTH), wish(None))["reason"]
    assert "not declared" in reason
    for loss in ("compute mode", "spare", "remapped rows", "load"):
        assert loss in reason


def test_a_pending_mode_names_the_commands_and_the_slot():
    row = gpu_mig.row(gpu(on=False, pending=True), wish(TWO))
    assert "reset" in row["reason"]
    assert "nvidia-smi -i 0000:31:00.0 --gpu-reset" in row["hint"]


def test_a_busy_instance_is_named_with_its_processes():
    assert "7g.80gb (instance 0): pid 4711" in gpu_mig.row(gpu(instance("7g.80gb", 0, [4711])), wish(TWO))["reason"]


def test_a_step_that_failed_is_in_the_reason_of_its_row():
    record = gpu(BOTH[0], mig_failure="INSUFFICIENT_RESOURCES (23)")
    row = gpu_mig.row(record, wish(TWO))
    assert row["reason"] == "declared 2 x 3g.40gb, there is 1 x 3g.40gb; INSUFFICIENT_RESOURCES (23)"


@pytest.mark.parametrize(
    ("devices", "says"),
    [({"1g.5gb": 7}, "has no profile 1g.5gb"), ({"1g.10gb": 8}, "8 x 1g.10gb does not fit")],
)
def test_a_layout_its_card_cannot_have_is_refused_before_anything_is_set(devices, says):
    with pytest.raises(errors.InputError, match=says) as caught:
        gpu_mig.refuse([(gpu(), wish(devices)), (gpu(uuid=OTHER), wish({"7g.80gb": 1}))])
    assert UUID in str(caught.value)
    assert OTHER not in str(caught.value)
    gpu_mig.refuse([(gpu(profiles=None), wish(devices)), (gpu(), wish(None)), (gpu(state="lost"), wish(devices))])


# --- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "devices", "steps"),
    [
        (gpu(*BOTH), TWO, []),
        (gpu(*BOTH), None, []),
        (gpu(on=False, pending=True), TWO, []),
        (gpu(instance("7g.80gb", 0, [4711])), TWO, []),
        (gpu(on=False, profiles=None), TWO, []),
        (gpu(on=False), {"3g.40gb": 1}, ["mode", "create 3g.40gb 0"]),
        (gpu(BOTH[1]), TWO, ["create 3g.40gb 0"]),
        (gpu(BOTH[1], pending=False), TWO, ["mode", "create 3g.40gb 0"]),
        (gpu(instance("3g.40gb", 0, compute=()), BOTH[1]), TWO, ["finish 1"]),
        (gpu(instance("3g.40gb", 0, compute=(1, 2)), BOTH[1]), TWO, ["destroy 1", "create 3g.40gb 0"]),
        (gpu(instance("1g.10gb", 1), instance("3g.40gb", 4)), TWO, ["destroy 8", "create 3g.40gb 0"]),
        (gpu(*BOTH), {}, ["destroy 1", "destroy 2", "mode"]),
        (gpu(on=False, pending=True), {}, ["mode"]),
    ],
)
def test_the_steps_change_no_more_than_they_must(record, devices, steps):
    found = gpu_mig.steps(record, wish(devices))
    assert [" ".join(str(step[key]) for key in ("do", "instance", "profile", "start") if key in step)
            for step in found] == steps  # fmt: skip


def test_instances_lost_at_a_boot_are_told_from_another_writers():
    assert gpu_mig.change(gpu(), wish(TWO))["cause"] == "lost_state"
    assert gpu_mig.change(gpu(BOTH[0]), wish(TWO))["cause"] == "drift"
    assert gpu_mig.change(gpu(on=False), wish(TWO)) == {
        "uuid": UUID, "bus_id": "0000:31:00.0", "setting": "mig", "before": "off", "after": "2 x 3g.40gb",
        "cause": "drift",
    }  # fmt: skip


def every_layout(devices, profiles, taken=frozenset(), least=("", -1)):
    """All ways to lay the declared instances out, without any thought for time."""
    if not devices:
        yield frozenset()
        return
    name = min(devices)
    rest = {key: count for key, count in {**devices, name: devices[name] - 1}.items() if count}
    for start in profiles[name]["starts"]:
        slices = frozenset(range(start, start + profiles[name]["size"]))
        if not slices & taken and (name, start) > least:
            for more in every_layout(rest, profiles, taken | slices, (name, start) if name in rest else ("", -1)):
                yield more | {(name, start)}


def layouts(profiles):
    """Any set of instances that can stand on the card together."""
    places = [(name, start) for name, profile in profiles.items() for start in profile["starts"]]

    def sane(chosen):
        kept, taken = [], set()
        for name, start in chosen:
            slices = set(range(start, start + profiles[name]["size"]))
            names = [one for one, _start in kept]
            if not slices & taken and names.count(name) < profiles[name]["instances"]:
                kept.append((name, start))
                taken |= slices
        return kept

    return st.lists(st.sampled_from(places), max_size=8).map(sane)


@pytest.mark.parametrize("profiles", [A100, A30], ids=["A100", "A30"])
@given(data=st.data())
def test_from_any_layout_the_declared_one_is_reached_and_what_is_right_stays_if_it_can(profiles, data):
    present, goal = data.draw(layouts(profiles)), data.draw(layouts(profiles))
    assume(goal)
    devices = {name: [one for one, _ in goal].count(name) for name, _ in goal}
    there = {
        name + str(start): dict(instance(name, start, profiles=profiles), id=name + str(start))
        for name, start in present
    }
    record = gpu(*there.values(), profiles=profiles)
    standing = {(name, start) for name, start in present}
    for step in gpu_mig.steps(record, wish(devices)):
        if step["do"] == "destroy":
            one = there.pop(step["instance"])
            standing.remove((one["profile"], one["start"]))
        else:
            profile = profiles[step["profile"]]
            assert step["start"] in profile["starts"]
            taken = {at for name, start in standing for at in range(start, start + profiles[name]["size"])}
            assert not taken & set(range(step["start"], step["start"] + profile["size"]))
            standing.add((step["profile"], step["start"]))
    assert {name: [one for one, _ in standing].count(name) for name, _ in standing} == devices
    most = max(len(way & set(present)) for way in every_layout(devices, profiles))
    assert len(there) == most


def test_of_two_ways_the_one_that_keeps_the_running_job_is_taken():
    running = instance("1g.10gb", 0, [4711])
    kept = gpu_mig.best_kept({"1g.10gb": 1}, {"profiles": A100, "instances": [instance("1g.10gb", 3), running]})
    assert kept == [running]
    record = gpu(instance("1g.10gb", 4, [4711]), instance("1g.10gb", 5), instance("1g.10gb", 6))
    found = gpu_mig.steps(record, wish({"3g.40gb": 1, "1g.10gb": 1}))
    assert found == [
        {"do": "destroy", "instance": 12}, {"do": "destroy", "instance": 13},
        {"do": "create", "profile": "3g.40gb", "start": 0},
    ]  # fmt: skip


def test_a_full_card_is_arranged_in_no_time():
    """An exhaustive search over equal instances would take minutes at every look."""
    seven = [instance("1g.10gb", start) for start in range(7)]
    assert gpu_mig.best_kept({"1g.10gb": 6, "1g.10gb+me": 1}, {"profiles": A100, "instances": seven}) == seven[:6]


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profiles", "total_mib"), [(A100, 81920), (A30, 24576)], ids=["A100", "A30"])
def test_the_name_of_a_profile_is_known_where_the_driver_does_not_tell_it(profiles, total_mib):
    for name, profile in profiles.items():
        info = SimpleNamespace(sliceCount=profile["slices"], memorySizeMB=profile["memory_mib"])
        number = 7 if "+me" in name else 0
        assert nvml_mig._computed_name(info, number, total_mib) == name
