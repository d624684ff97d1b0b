"""The policy: what is refused, which rule a GPU gets, and how a card stands against it."""

import contextlib
import json
from datetime import date

import pytest
from ansible.module_utils.steadyrack import errors, gpu_apply, gpu_checks, gpu_policy, nvml
from gpu_node import policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GONE = {"bus_id": "31:00.0", "until": "2026-12-31", "reason": "RMA 4711"}
UUID = "GPU-657227da-611f-5a74-89fc-c3e616de4e02"


def gpu(requested=300.0, enforced="same", **more):
    """An A100's record as nvml gives it."""
    record = nvml.empty_gpu()
    record.update(
        bus_id="0000:31:00.0", uuid=UUID, serial="1320246419636", name="NVIDIA A100 80GB PCIe", persistence=True
    )
    record["power"] = {
        "requested_w": requested, "enforced_w": requested if enforced == "same" else enforced,
        "default_w": 300.0, "min_w": 150.0, "max_w": 300.0, "draw_w": 46.0,
    }  # fmt: skip
    for key, value in more.items():
        if key in record["power"]:
            record["power"][key] = value
        else:
            record[key] = value
    return record


def rule(match, **wish):
    return {"match": match, **wish}


def parsed(*rules, **others):
    return gpu_policy.parse({"version": 1, "power_cap": list(rules), **others})


# --- reading -----------------------------------------------------------------------------------


def test_a_whole_policy_is_read():
    found = gpu_policy.parse(policy(250))
    assert (found.persistence_mode, found.gpu_count) == (True, 4)
    assert found.power_cap == (gpu_policy.Rule(gpu_policy.Match("all", "true"), cap_w=250.0),)


def test_what_is_not_said_is_none():
    assert gpu_policy.parse({"version": 1}) == gpu_policy.Policy()


def test_a_slot_known_to_be_empty_is_so_until_the_end_of_its_day():
    (entry,) = gpu_policy.parse({"version": 1, "known_missing": [GONE]}).known_missing
    assert (entry.bus_id, entry.reason) == ("0000:31:00.0", "RMA 4711")
    assert [entry.holds(date(2026, 12, day)) for day in (30, 31)] == [True, True]
    assert not entry.holds(date(2027, 1, 1))


def test_no_file_is_no_policy(tmp_path):
    assert gpu_policy.load(str(tmp_path / "gpu_policy.json")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        (json.dumps(policy(250))[:60], "not JSON"),
        ("[]", "list"),
        (json.dumps(policy(250, version=2)), "version"),
        (json.dumps({"power_cap": []}), "version"),
    ],
)
def test_a_file_that_is_half_written_or_newer_is_never_used(tmp_path, text, says):
    path = tmp_path / "gpu_policy.json"
    path.write_text(text)
    with pytest.raises(errors.StateFileError, match=says) as caught:
        gpu_policy.load(str(path))
    assert str(path) in str(caught.value)


@given(st.integers(0, len(json.dumps(policy(250)))))
def test_a_policy_cut_off_anywhere_is_whole_or_refused(length):
    text = json.dumps(policy(250))
    try:
        value = json.loads(text[:length])
    except ValueError:
        return
    assert length == len(text)
    assert gpu_policy.parse(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


# A loaded machine is slow at making nested values; that says nothing about the parser.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(gpu_policy._KEYS), JSON, max_size=5))
def test_any_nonsense_is_a_typed_error_or_a_policy(value):
    with contextlib.suppress(errors.InputError):
        assert isinstance(gpu_policy.parse({**value, "version": 1}), gpu_policy.Policy)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"persistence_mode": "yes"}, "persistence_mode"),
        ({"gpu_count": -1}, "gpu_count"),
        ({"gpu_count": True}, "gpu_count"),
        ({"gpu_cuont": 4}, "gpu_cuont"),
        ({"power_cap": {}}, "power_cap"),
        ({"power_cap": [rule({"all": True})]}, "power_cap[0]"),
        ({"power_cap": [rule({"all": True}, power_cap_w=1, power_cap_percent=1)]}, "power_cap[0]"),
        ({"power_cap": [rule({"all": True}, power_cap_w=0)]}, "power_cap[0]: power_cap_w"),
        ({"power_cap": [rule({"all": True}, power_cap_w="250")]}, "power_cap[0]: power_cap_w"),
        ({"power_cap": [rule({"all": True}, power_cap_w=True)]}, "power_cap[0]: power_cap_w"),
        ({"power_cap": [rule({"all": True}, power_cap_percent=101)]}, "power_cap[0]: power_cap_percent"),
        ({"power_cap": [rule({"all": False}, power_cap_w=1)]}, "power_cap[0]: match: all"),
        ({"power_cap": [rule({}, power_cap_w=1)]}, "power_cap[0]: match"),
        ({"power_cap": [rule({"slot": "1"}, power_cap_w=1)]}, "power_cap[0]: match: slot"),
        ({"power_cap": [rule({"all": True}, power_cap_w=1, power_cap_mw=1)]}, "power_cap[0]: power_cap_mw"),
        ({"power_cap": [rule({"uuid": "GPU-1234"}, power_cap_w=1)]}, "power_cap[0]: match: uuid"),
        ({"power_cap": [rule({"bus_id": "31"}, power_cap_w=1)]}, "power_cap[0]: match: bus_id"),
        ({"power_cap": [rule({"model": " "}, power_cap_w=1)]}, "power_cap[0]: match: model"),
        ({"power_cap": [rule({"all": True}, power_cap_w=1)] * 2}, "power_cap[1]"),
        ({"link_width": [rule({"all": True}, link_width=3)]}, "link_width[0]: link_width"),
        ({"link_width": [rule({"all": True}, link_width=None)]}, "link_width[0]: link_width"),
        ({"link_gen": [rule({"all": True}, link_gen=0)]}, "link_gen[0]: link_gen"),
        ({"link_gen": [rule({"all": True}, link_gen=7)]}, "link_gen[0]: link_gen"),
        ({"link_gen": [rule({"all": True}, link_gen=True)]}, "link_gen[0]: link_gen"),
        ({"link_gen": 4}, "link_gen"),
        ({"nvlink_links": [rule({"all": True}, nvlink_links=-1)]}, "nvlink_links[0]: nvlink_links"),
        ({"nvlink_links": [rule({"all": True}, links=1)]}, "nvlink_links[0]: links"),
        ({"nvme_link_width": 3}, "nvme_link_width"),
        ({"peer_to_peer": 1}, "peer_to_peer"),
        ({"known_missing": {}}, "known_missing"),
        ({"known_missing": [{**GONE, "serial": "1"}]}, "known_missing[0]"),
        ({"known_missing": [{"bus_id": "31:00.0"}]}, "known_missing[0]"),
        ({"known_missing": [{**GONE, "bus_id": "slot 4"}]}, "known_missing[0]: bus_id"),
        ({"known_missing": [{**GONE, "until": "soon"}]}, "known_missing[0]: until"),
        ({"known_missing": [{**GONE, "until": 20261231}]}, "known_missing[0]: until"),
        ({"known_missing": [{**GONE, "reason": " "}]}, "known_missing[0]: reason"),
        ({"known_missing": [GONE, {**GONE, "bus_id": "0000:31:00.0"}]}, "known_missing[1]"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(value, place):
    with pytest.raises(errors.InputError) as caught:
        gpu_policy.parse({"version": 1, **value})
    assert caught.value.thing == f"policy: {place}"


@pytest.mark.parametrize("match", [{"index": 0}, {"uuid": "0"}, {"uuid": 0}])
def test_c45_an_index_where_a_uuid_is_wanted_is_refused(match):
    with pytest.raises(errors.InputError, match="changes between boots"):
        parsed(rule(match, power_cap_w=250))


def test_c49_the_uuid_of_a_mig_slice_is_refused_because_caps_are_of_the_whole_gpu():
    with pytest.raises(errors.InputError, match="MIG slice"):
        parsed(rule({"uuid": "MIG-11111111-2222-3333-4444-555555555555"}, power_cap_w=250))


# --- which rule --------------------------------------------------------------------------------

RULES = {
    "uuid": rule({"uuid": UUID.upper()}, power_cap_w=160),
    "serial": rule({"serial": 1320246419636}, power_cap_w=170),  # YAML without quotes
    "bus_id": rule({"bus_id": "00000000:31:00.0"}, power_cap_w=180),
    "model": rule({"model": "a100 80gb pcie"}, power_cap_w=190),
    "all": rule({"all": True}, power_cap_w=200),
}


@given(st.permutations(list(RULES)), st.integers(1, 5))
def test_the_most_specific_rule_wins_in_any_order_and_any_spelling(order, count):
    chosen = order[:count]
    wish = gpu_policy.resolve(parsed(*(RULES[kind] for kind in chosen)), gpu())
    best = min(chosen, key=gpu_policy.MATCH_KINDS.index)
    assert wish.cap_mw == RULES[best]["power_cap_w"] * 1000


def test_a_rule_for_another_gpu_does_not_fit():
    others = [rule({"uuid": UUID[:-1] + "3"}, power_cap_w=160), rule({"model": "NVIDIA A30"}, power_cap_w=165)]
    assert gpu_policy.resolve(parsed(*others), gpu()).cap_mw is None


def test_a_name_that_was_not_read_never_fits():
    nameless = gpu(uuid=None, serial=None, name=None, bus_id=None)
    assert gpu_policy.resolve(parsed(*[RULES[kind] for kind in RULES if kind != "all"]), nameless).rule is None


def test_a_rule_for_a_gpu_that_is_not_there_is_reported():
    missing = parsed(RULES["uuid"], rule({"bus_id": "0000:99:00.0"}, power_cap_w=160), RULES["all"])
    assert [str(one.match) for one in gpu_policy.unmatched(missing, [gpu()])] == ["bus_id 0000:99:00.0"]


# --- watts -------------------------------------------------------------------------------------


def wish_of(card, **cap):
    return gpu_policy.resolve(parsed(rule({"all": True}, **cap)), card)


def test_c41_a_percentage_below_the_minimum_by_rounding_alone_is_raised_with_a_note():
    card = gpu(default_w=180.0, min_w=150.0, max_w=200.0)
    wish = wish_of(card, power_cap_percent=83)  # 149.4 W
    assert wish.cap_mw == 150_000
    assert "raised to the card's minimum of 150 W" in wish.note


def test_c41_a_percentage_clearly_below_the_minimum_is_refused():
    card = gpu(default_w=180.0, min_w=150.0, max_w=200.0)
    gpu_policy.refuse([(card, wish_of(card, power_cap_percent=82.8))])  # 149.04 W: within a watt, raised
    with pytest.raises(errors.InputError, match=r"82\.5 % of 180 W = 148\.5 W is outside 150 to 200 W"):
        gpu_policy.refuse([(card, wish_of(card, power_cap_percent=82.5))])


def test_a_cap_in_watts_below_the_minimum_is_refused_by_however_little():
    card = gpu()
    with pytest.raises(errors.InputError, match=r"149\.9 W is outside 150 to 300 W"):
        gpu_policy.refuse([(card, wish_of(card, power_cap_w=149.9))])


@pytest.mark.parametrize(("watts", "milliwatts"), [(150, 150_000), (300, 300_000), (250.7, 250_000)])
def test_caps_are_whole_watts_rounded_down_so_that_a_budget_holds(watts, milliwatts):
    assert wish_of(gpu(), power_cap_w=watts).cap_mw == milliwatts


@given(st.floats(1, 100), st.integers(50, 400), st.integers(0, 300), st.integers(0, 300))
def test_a_percentage_never_gives_more_than_asked_but_for_the_minimum_and_never_leaves_the_range(
    percent, low, span, above
):
    default = low + span
    card = gpu(default_w=float(default), min_w=float(low), max_w=float(default + above))
    wish = wish_of(card, power_cap_percent=percent)
    exact = default * 1000 * percent / 100
    if wish.problem:
        assert exact <= (low - 1) * 1000 + 1
    else:
        assert low * 1000 <= wish.cap_mw <= (default + above) * 1000
        assert wish.cap_mw <= max(exact, low * 1000) + 1e-6


def test_c38_every_gpu_outside_its_range_is_listed_in_one_error():
    cards = [gpu(), gpu(uuid=UUID[:-1] + "3", max_w=165.0, min_w=100.0, default_w=165.0), gpu(uuid=UUID[:-1] + "4")]
    wanted = parsed(rule({"all": True}, power_cap_w=50))
    with pytest.raises(errors.InputError) as caught:
        gpu_policy.refuse((card, gpu_policy.resolve(wanted, card)) for card in cards)
    for text in (UUID, UUID[:-1] + "3", UUID[:-1] + "4", "150 to 300 W", "100 to 165 W", "nothing was changed"):
        assert text in str(caught.value)


def test_c42_a_percentage_of_a_default_that_cannot_be_read_is_an_obstacle_not_a_guess():
    wish = wish_of(gpu(default_w=None), power_cap_percent=83)
    assert wish.cap_mw is None
    assert "default" in wish.obstacle
    assert wish_of(gpu(default_w=None), power_cap_w=250).cap_mw == 250_000


def test_limits_that_cannot_be_read_leave_the_card_alone():
    card = gpu(min_w=None, max_w=None)
    wish = wish_of(card, power_cap_w=250)
    assert wish.cap_mw is None
    assert gpu_policy.cap_state(card, wish) == "not_settable"
    assert gpu_apply.wanted_changes([(card, wish)]) == []


# --- how it stands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "wanted", "state", "judged"),
    [
        (gpu(250.0), 250, "ok", "pass"),
        (gpu(250.4), 250, "ok", "pass"),  # within the grain
        (gpu(300.0), 300, "ok", "pass"),  # the default is wanted
        (gpu(300.0), 250, "lost_state", "fail"),
        (gpu(200.0), 250, "drift", "fail"),
        (gpu(251.0), 250, "drift", "fail"),
        (gpu(250.0, 200.0), 250, "capped_elsewhere", "pass"),
        (gpu(250.0, 300.0), 250, "not_applied", "fail"),
        (gpu(250.0, None), 250, "unknown", "unknown"),
        (gpu(None), 250, "unknown", "unknown"),
        (gpu(200.0, default_w=None), 250, "drift", "fail"),
        (gpu(250.0, state="lost", error={"name": "GPU_IS_LOST", "call": "x"}), 250, "lost", "unknown"),
        (gpu(250.0, state="timeout", error={"name": "no answer", "call": "x"}), 250, "timeout", "unknown"),
    ],
)
def test_how_a_card_stands_has_one_word_and_unknown_is_never_a_pass(card, wanted, state, judged):
    wish = wish_of(card, power_cap_w=wanted)
    assert gpu_policy.cap_state(card, wish) == state
    row = gpu_checks.cap_row(card, wish)
    assert (row["state"], row["verdict"]) == (state, judged)
    assert row["expected"] == wanted
    assert row["measured"] == card["power"]["enforced_w"]


def test_c38_a_limit_that_the_board_controller_holds_lower_is_a_warning_that_names_all_limits():
    card = gpu(700.0, 500.0, default_w=700.0, min_w=200.0, max_w=700.0)
    row = gpu_checks.cap_row(card, wish_of(card, power_cap_w=700))
    assert (row["verdict"], row["severity"], row["measured"]) == ("pass", "warning", 500.0)
    assert "requested 700 W, enforced 500 W, default 700 W" in row["reason"]
    assert "BMC" in row["hint"]


def test_a_gpu_without_a_rule_is_not_judged():
    card = gpu()
    row = gpu_checks.cap_row(card, gpu_policy.resolve(parsed(), card))
    assert (row["verdict"], row["state"]) == ("not_judged", "not_declared")


def test_an_unread_value_says_which_and_why():
    card = gpu(None, errors={"power.requested_w": {"code": 3, "name": "NOT_SUPPORTED", "call": "x"}})
    row = gpu_checks.cap_row(card, wish_of(card, power_cap_w=250))
    assert row["reason"] == "not read: power.requested_w: NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("is_on", "wanted", "judged"),
    [
        (True, True, "pass"), (False, False, "pass"), (False, True, "fail"), (True, False, "fail"),
        (None, True, "unknown"), (False, None, "not_judged"),
    ],
)  # fmt: skip
def test_persistence_is_judged_by_what_the_driver_says(is_on, wanted, judged):
    card = gpu(persistence=is_on)
    wish = gpu_policy.resolve(gpu_policy.Policy(persistence_mode=wanted), card)
    assert gpu_checks.persistence_row(card, wish)["verdict"] == judged


# --- how many ----------------------------------------------------------------------------------


def device(slot, on_bus=True):
    return {"bus_id": slot, "on_bus": on_bus, "link": {"width": 16, "hops": [], "complete": True}}


def node(state="ok", *gpus):
    return {"state": state, "reason": f"NVML is {state}", "next_step": "do it", "gpus": list(gpus)}


SICK = gpu(state="lost", error={"name": "GPU_IS_LOST", "call": "x"})


@pytest.mark.parametrize(
    ("declared", "bus", "seen", "state", "judged"),
    [
        (2, [True, True], node("ok", gpu(), gpu()), "ok", "pass"),
        (None, [True, True], node("ok", gpu(), gpu()), "ok", "pass"),
        (2, [True], node("ok", gpu()), "short", "fail"),  # C48
        (2, [True, False], node("ok", gpu(), SICK), "short", "fail"),  # C47
        (None, [True, False], node("ok", gpu(), SICK), "short", "fail"),
        (2, [True, True], node("ok", gpu(), SICK), "short", "fail"),
        (2, [True, True], node("ok", gpu()), "short", "fail"),
        (1, [True, True], node("ok", gpu(), gpu()), "surplus", "fail"),
        (1, [True, True], node("ok", gpu()), "disagree", "fail"),
        (2, [True, True], node("no_driver"), "no_driver", "fail"),
        (2, [True, True], node("driver_mismatch"), "driver_mismatch", "fail"),
        (2, [True, True], node("no_devices"), "no_devices", "fail"),  # C53
        (2, [True, True], node("timeout"), "timeout", "fail"),  # C56
        (2, [True, True], node("no_permission"), "no_permission", "unknown"),
        (2, [True, True], node("no_binding"), "no_binding", "unknown"),
        (2, [], node("no_binding"), "short", "fail"),
        (None, [], node("no_library"), "none", "not_judged"),
        (0, [], node("no_library"), "none", "not_judged"),
    ],
)
def test_declared_bus_and_driver_must_all_agree(declared, bus, seen, state, judged):
    pci = [device(f"0000:3{place}:00.0", on_bus) for place, on_bus in enumerate(bus)]
    row = gpu_checks.count_row(gpu_policy.Policy(gpu_count=declared), seen, pci, "gpu-a1")
    assert (row["state"], row["verdict"]) == (state, judged)
    for place, on_bus in enumerate(bus):
        assert on_bus or f"0000:3{place}:00.0 fallen off the bus" in row["reason"]


def test_a_gpu_that_nvml_cannot_show_still_has_a_row():
    rows = gpu_checks.rows(parsed(RULES["all"]), node("no_driver"), [device("0000:31:00.0")], "gpu-a1")
    (cap,) = [row for row in rows if row["id"] == "gpu.power_cap"]
    assert (cap["subject"], cap["verdict"], cap["state"]) == ("0000:31:00.0", "unknown", "no_driver")


def test_two_witnesses_of_a_width_that_differ_fail_in_the_open():
    dev = device("0000:31:00.0")
    dev["link"]["hops"] = [{"width": 16}]
    wide = parsed(link_width=[rule({"all": True}, link_width=16)])
    assert gpu_checks.width_row(wide, [gpu(pcie={"width": 16})], dev)["verdict"] == "pass"
    row = gpu_checks.width_row(wide, [gpu(pcie={"width": 8})], dev)
    assert (row["verdict"], row["state"]) == ("fail", "disagree")


# --- order and memory --------------------------------------------------------------------------


def test_persistence_is_set_before_any_cap():
    pairs = [(card, gpu_policy.resolve(gpu_policy.parse(policy(250)), card)) for card in
             (gpu(persistence=False), gpu(persistence=False, uuid=UUID[:-1] + "3"))]  # fmt: skip
    assert [change["setting"] for change in gpu_apply.wanted_changes(pairs)] == ["persistence"] * 2 + [
        "power_cap_w"
    ] * 2


def test_a_cap_that_something_else_holds_lower_is_not_fought():
    card = gpu(250.0, 200.0)
    assert gpu_apply.wanted_changes([(card, wish_of(card, power_cap_w=250))]) == []


def test_what_was_before_is_kept_first_and_last(tmp_path):
    path = tmp_path / "previous.json"
    for watts in (300.0, 200.0):
        gpu_apply.remember(str(path), [gpu(watts), gpu(uuid="GPU-other")], [{"uuid": UUID}])
    kept = json.loads(path.read_text())["gpus"]
    assert list(kept) == [UUID]
    assert (kept[UUID]["first"]["power_cap_w"], kept[UUID]["last"]["power_cap_w"]) == (300.0, 200.0)


@pytest.mark.parametrize("text", ['{"version": 1, "gpus"', '{"version": 9, "gpus": {}}', '{"version": 1, "gpus": []}'])
def test_a_memory_that_cannot_be_read_is_set_aside_not_trusted(tmp_path, text):
    path = tmp_path / "previous.json"
    path.write_text(text)
    gpu_apply.remember(str(path), [gpu(300.0)], [{"uuid": UUID}])
    assert (tmp_path / "previous.json.unreadable").read_text() == text
    assert UUID in json.loads(path.read_text())["gpus"]
