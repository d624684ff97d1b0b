"""Whether each card is well: every row passing, failing and unknown, on records and on the emulated library."""

import pytest
from ansible.module_utils.steadyrack import gpu_baseline, gpu_checks, gpu_health, gpu_policy
from gpu_cards import UUID, card, failing
from gpu_node import SLOTS, policy

BEGUN = "2026-01-01T00:00:00Z"


def baseline(**counters):
    """What is kept of the card: each counter's base, of the first of January."""
    bases = {name.replace("__", "."): value for name, value in counters.items()}
    kept = {name: {"base": 0, "at": BEGUN, "last": 0} for name in gpu_baseline.LIFE + gpu_baseline.SINCE_LOAD}
    kept.update({name: {"base": value, "at": BEGUN, "last": value} for name, value in bases.items()})
    return gpu_baseline.Baseline({UUID: {"counters": kept}})


DAMAGED = gpu_baseline.Baseline(trouble="/var/lib/steadyrack/gpu_baseline.json: seen not JSON")


def found(row):
    return row["verdict"], row["state"], row["severity"]


def test_a_well_card_passes_and_what_it_does_not_have_is_not_judged():
    rows = gpu_health.card_rows(card(), baseline())
    assert {row["verdict"] for row in rows} == {"pass", "not_judged"}
    assert {row["id"] for row in rows if row["verdict"] == "not_judged"} == {"gpu.retired_pages", "gpu.recovery"}
    assert all(row["subject"] == UUID for row in rows)


# --- a card that does not answer ---------------------------------------------------------------


@pytest.mark.parametrize("state", ["lost", "reset_required", "timeout", "unreachable"])
def test_a_sick_card_has_one_root_cause_and_no_follow_ups(state):
    gpu = card(state=state, error={"name": "GPU_IS_LOST", "call": "x"})
    rows = gpu_health.rows(gpu_policy.Policy(), {"gpus": [gpu]}, [], baseline())
    assert [(row["id"], *found(row)) for row in rows] == [("gpu.health", "unknown", state, "critical")]
    assert rows[0]["hint"]


def test_a_lost_gpu_gives_no_unknown_health_rows_beside_its_own(gpu_node):
    gpu_node.policy(policy(300))
    gpu_node.set("gpu.1.lost=1")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    mine = [row["id"] for row in rows if row["subject"] in (gpu_node.uuid(1), SLOTS[1])]
    assert sorted(mine) == ["gpu.health", "gpu.persistence", "gpu.power_cap", "pcie.width"]


def test_a_node_without_a_driver_says_so_once(gpu_node):
    gpu_node.set("driver_loaded=0")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    assert {row["id"] for row in rows} == {"gpu.count", "pcie.width"}


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "verdict", "state", "severity"),
    [
        ({}, "pass", "ok", "info"),
        ({"pending": True, "uncorrected": 1}, "pass", "pending", "warning"),
        ({"failure": True}, "fail", "failure", "critical"),
        ({"failure": True, "pending": True}, "fail", "failure", "critical"),
        ({"uncorrected": 2}, "pass", "rising", "warning"),
        ({"corrected": 2}, "pass", "ok", "info"),
    ],
)
def test_remapped_rows(rows, verdict, state, severity):
    gpu = card(remapped_rows={"corrected": 0, "uncorrected": 0, "pending": False, "failure": False, **rows})
    assert found(gpu_health.remapped_row(gpu, baseline())) == (verdict, state, severity)


def test_c63_a_failed_remapping_takes_the_card_out_without_any_xid(gpu_node):
    gpu_node.set("gpu.2.remapped_failure=1")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    (failed,) = [row for row in rows if row["verdict"] == "fail"]
    assert (failed["id"], failed["subject"], failed["state"]) == ("gpu.remapped_rows", gpu_node.uuid(2), "failure")
    assert "replace" in failed["hint"]


def test_remapped_rows_that_mig_hides_are_not_judged_and_an_odd_failure_is_unknown():
    hidden = failing(card(), "remapped_rows", code=3, word="NOT_SUPPORTED")
    assert found(gpu_health.remapped_row(hidden, None))[:2] == ("not_judged", "not_supported")
    odd = gpu_health.remapped_row(failing(card(), "remapped_rows"), None)
    assert found(odd)[:2] == ("unknown", "unknown")
    assert odd["reason"] == "not read: remapped_rows: UNKNOWN"


@pytest.mark.parametrize(
    ("pages", "verdict", "state", "severity"),
    [
        ({"single": 2, "double": 0, "pending": False}, "pass", "ok", "info"),
        ({"single": 2, "double": 1, "pending": True}, "pass", "pending", "warning"),
        ({"single": 10, "double": 5, "pending": False}, "pass", "high", "warning"),
        ({"single": 50, "double": 10, "pending": False}, "fail", "exhausted", "critical"),
    ],
)
def test_retired_pages_of_older_cards(pages, verdict, state, severity):
    assert found(gpu_health.retired_row(card(retired_pages=pages))) == (verdict, state, severity)


def test_retired_pages_are_read_where_a_card_has_them(gpu_node):
    gpu_node.set(
        "gpu.0.retired_pages_single=0x1,0x2", "gpu.0.retired_pages_double=0x3", "gpu.0.retired_pages_pending=1"
    )
    assert gpu_node.read()["gpus"][0]["retired_pages"] == {"single": 2, "double": 1, "pending": True}
    assert found(gpu_health.retired_row(failing(card(), "retired_pages")))[0] == "unknown"


@pytest.mark.parametrize(
    ("count", "kept", "verdict", "state"),
    [
        (0, baseline(), "pass", "ok"),
        (3, baseline(), "fail", "rising"),
        (3, baseline(ecc__uncorrected_aggregate=3), "pass", "earlier"),
        (4, baseline(ecc__uncorrected_aggregate=3), "fail", "rising"),
        (3, gpu_baseline.Baseline(), "not_judged", "no_baseline"),
        (3, None, "not_judged", "no_baseline"),
        (3, DAMAGED, "unknown", "baseline_damaged"),
    ],
)
def test_uncorrectable_errors_fail_by_their_rise_and_earlier_ones_are_told(count, kept, verdict, state):
    row = gpu_health.uncorrected_row(card(ecc__uncorrected_aggregate=count), kept)
    assert found(row)[:2] == (verdict, state)
    assert row["measured"] == count
    assert state != "earlier" or "3 of earlier" in row["reason"]
    assert state != "rising" or f"accept-baseline {UUID}" in row["hint"]


def test_a_rise_is_told_with_its_rate():
    row = gpu_health.uncorrected_row(card(ecc__uncorrected_aggregate=2), baseline())
    assert f"2 more than the 0 of {BEGUN} (" in row["reason"]
    assert " a day)" in row["reason"]


@pytest.mark.parametrize("name", ["uncorrected_aggregate", "corrected_aggregate"])
def test_counts_that_cannot_be_read_are_unknown_and_without_ecc_not_judged(name):
    judge = gpu_health.uncorrected_row if name.startswith("un") else gpu_health.corrected_row
    odd = failing(card(), f"ecc.{name}")
    assert found(judge(odd, baseline()))[:2] == ("unknown", "unknown")
    off = failing(card(ecc__mode={"current": False, "pending": False}), f"ecc.{name}", code=3, word="NOT_SUPPORTED")
    assert found(judge(off, baseline()))[:2] == ("not_judged", "ecc_off")


@pytest.mark.parametrize(
    ("count", "sram", "state", "severity"),
    [
        (5000, 0, "ok", "info"),
        (19_999_999, 9_999, "ok", "info"),
        (20_000_000, 0, "high", "warning"),
        (10_000, 10_000, "high", "warning"),
    ],
)
def test_corrected_errors_warn_only_when_they_are_very_many(count, sram, state, severity):
    gpu = card(ecc__corrected_aggregate=count, sram={"corrected": sram, "uncorrected": 0, "threshold_exceeded": False})
    assert found(gpu_health.corrected_row(gpu, baseline())) == ("pass", state, severity)


def test_the_drivers_own_limit_of_sram_errors_fails(gpu_node):
    gpu_node.set("gpu.0.ecc_sram_threshold_exceeded=1", "gpu.0.ecc_aggregate_uncorrected_sram=4")
    row = gpu_health.sram_row(gpu_node.read()["gpus"][0])
    assert (*found(row)[:2], row["measured"]) == ("fail", "exceeded", 4)
    assert found(gpu_health.sram_row(failing(card(), "sram")))[0] == "unknown"
    assert found(gpu_health.sram_row(card()))[:2] == ("pass", "ok")


# --- what holds it back ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "verdict", "state", "severity"),
    [
        (0x0, "pass", "ok", "info"),
        (0x1, "pass", "idle", "info"),
        (0x4, "pass", "sw_power_cap", "info"),  # the cap that we set
        (0x20, "pass", "sw_thermal", "warning"),
        (0x24, "pass", "sw_thermal", "warning"),  # bits, not equality
        (0x48, "fail", "hw_thermal", "critical"),
        (0x88, "fail", "hw_power_brake", "critical"),
        (0xEC, "fail", "hw_power_brake", "critical"),
        (0x8, "pass", "hw_slowdown", "warning"),
        (0x200, "pass", "other", "info"),
    ],
)
def test_each_throttle_bit_has_its_meaning(gpu_node, mask, verdict, state, severity):
    gpu_node.set(f"gpu.0.clocks_event_reasons={mask}")
    row = gpu_health.throttle_row(gpu_node.read()["gpus"][0])
    assert found(row) == (verdict, state, severity)
    assert state != "hw_power_brake" or "power supplies" in row["hint"]


def test_throttle_bits_that_cannot_be_read_are_unknown():
    assert found(gpu_health.throttle_row(failing(card(), "event_reasons")))[0] == "unknown"


@pytest.mark.parametrize(
    ("core", "memory", "verdict", "state", "severity"),
    [
        (84, 94, "pass", "ok", "info"),
        (85, 45, "pass", "hot", "warning"),
        (40, 95, "pass", "memory_hot", "warning"),
        (89, 45, "fail", "slowdown", "critical"),
        (92, 96, "fail", "shutdown", "critical"),
        (40, None, "pass", "ok", "info"),
    ],
)
def test_temperatures_are_held_against_the_cards_own_limits(core, memory, verdict, state, severity):
    row = gpu_health.temperature_row(card(temperature_c=core, memory_temperature_c=memory))
    assert found(row) == (verdict, state, severity)
    assert state == "ok" or ("lower cap" in row["hint"] and "fewer active cards" in row["hint"])


LIMITS = ("thresholds.shutdown_c", "thresholds.slowdown_c", "thresholds.gpu_max_c", "thresholds.memory_max_c")


@pytest.mark.parametrize(
    ("margin", "verdict", "state"),
    [(20, "pass", "ok"), (0, "pass", "hot"), (-2, "fail", "slowdown"), (-8, "fail", "shutdown")],
)
def test_cards_that_tell_only_a_margin_are_held_against_it(margin, verdict, state):
    gpu = failing(card(), *LIMITS, code=3, word="NOT_SUPPORTED")
    gpu.update(margin_c=margin, tlimits={"shutdown_c": -8, "slowdown_c": -2, "gpu_max_c": 0, "memory_max_c": 0})
    assert found(gpu_health.temperature_row(gpu))[:2] == (verdict, state)
    gpu["tlimits"] = dict.fromkeys(gpu["tlimits"])
    assert found(gpu_health.temperature_row(gpu))[0] == ("pass" if margin > 0 else "fail")


def test_without_limits_and_margin_the_temperature_is_not_judged_and_without_a_temperature_unknown():
    gpu = failing(card(), *LIMITS, code=3, word="NOT_SUPPORTED")
    assert found(gpu_health.temperature_row(gpu))[:2] == ("not_judged", "not_supported")
    assert found(gpu_health.temperature_row(failing(card(), *LIMITS)))[0] == "unknown"
    assert found(gpu_health.temperature_row(failing(card(), "temperature_c")))[0] == "unknown"


# --- what card and driver say of themselves ----------------------------------------------------


def test_an_inforom_with_a_wrong_checksum_fails(gpu_node):
    gpu_node.set("gpu.1.inforom_valid=0", "gpu.2.fault.nvmlDeviceValidateInforom=999")
    gpus = gpu_node.read()["gpus"]
    states = [found(gpu_health.inforom_row(gpu))[:2] for gpu in gpus[:3]]
    assert states == [("pass", "ok"), ("fail", "corrupted"), ("unknown", "unknown")]


@pytest.mark.parametrize(
    ("action", "verdict", "state", "severity"),
    [
        ("", "not_judged", "not_supported", "info"),
        ("0", "pass", "none", "info"),
        ("1", "fail", "gpu_reset", "critical"),
        ("4", "fail", "drain_and_reset", "critical"),
        ("99", "pass", "unknown_action", "warning"),
    ],
)
def test_c51_the_recovery_field_decides_where_the_driver_has_it(gpu_node, action, verdict, state, severity):
    gpu_node.set(f"gpu.0.recovery_action={action}", "gpu.1.fault.field.230=999")
    gpus = gpu_node.read()["gpus"]
    assert found(gpu_health.recovery_row(gpus[0])) == (verdict, state, severity)
    assert found(gpu_health.recovery_row(gpus[1]))[0] == "unknown"


# --- known to be missing -----------------------------------------------------------------------

OUT = [{"bus_id": SLOTS[1], "until": "9999-12-31", "reason": "RMA 4711"}]
PAST = [{**OUT[0], "until": "2020-01-01"}]
ELSEWHERE = [{**OUT[0], "bus_id": SLOTS[2]}]


@pytest.mark.parametrize("fault", ["gpu.1.lost=1", "gpu.1.removed=1"])
@pytest.mark.parametrize(
    ("known", "verdict", "state"),
    [(OUT, "pass", "known_missing"), (PAST, "fail", "short"), (ELSEWHERE, "fail", "short"), ([], "fail", "short")],
)
def test_c48_a_declared_shortage_warns_until_its_day_and_any_other_fails(gpu_node, fault, known, verdict, state):
    gpu_node.policy(policy(300, persistence_mode=False, known_missing=known))
    gpu_node.set(fault)
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    (count,) = [row for row in rows if row["id"] == "gpu.count"]
    assert (count["verdict"], count["state"], count["measured"]) == (verdict, state, 3)
    assert count["severity"] == ("warning" if verdict == "pass" else "critical")
    if known == OUT:
        assert "RMA 4711" in count["reason"]
        assert {row["verdict"] for row in rows} == {"pass", "not_judged"}
    if known == PAST:
        assert "expired" in count["reason"]


def test_c48_an_entry_for_a_slot_that_never_had_a_card_excuses_none_that_was_seen(gpu_node):
    wrong = [{**OUT[0], "bus_id": "0000:99:00.0"}]
    gpu_node.policy(policy(300, known_missing=wrong))
    gpu_node.steadyrack("check")
    gpu_node.set("gpu.1.removed=1")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    assert [row["state"] for row in rows if row["id"] == "gpu.count"] == ["short"]
    gpu_node.policy(policy(300, known_missing=OUT))
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    assert [row["state"] for row in rows if row["id"] == "gpu.count"] == ["known_missing"]


def test_c48_a_second_card_that_goes_missing_still_fails(gpu_node):
    gpu_node.policy(policy(300, known_missing=OUT))
    gpu_node.set("gpu.1.lost=1", "gpu.3.lost=1")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    assert [row["state"] for row in rows if row["id"] == "gpu.count"] == ["short"]
    assert [row["subject"] for row in rows if row["id"] == "gpu.health" and row["verdict"] == "unknown"] == [
        gpu_node.uuid(3)
    ]


def test_c48_a_card_that_is_back_is_told(gpu_node):
    gpu_node.policy(policy(300, known_missing=OUT))
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    (count,) = [row for row in rows if row["id"] == "gpu.count"]
    assert (count["verdict"], count["state"]) == ("pass", "ok")
    assert "remove the entry" in count["reason"]


def test_the_rows_of_settings_alone_are_those_that_a_setter_is_judged_by(gpu_node):
    assert {row["id"] for row in gpu_checks.setting_rows(None, {"state": "ok", "gpus": [card()]}, [], "h")} == {
        "gpu.count", "gpu.power_cap", "gpu.persistence", "gpu.mig",
    }  # fmt: skip
