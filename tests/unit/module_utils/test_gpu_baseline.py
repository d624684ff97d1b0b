"""What is kept of each card's counters, and what it means when they rise, fall, or the file is damaged."""

import json

import pytest
from ansible.module_utils.steadyrack import errors, gpu_baseline
from gpu_cards import UUID, card
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"
UNCORRECTED, REPLAY = "ecc.uncorrected_aggregate", "pcie_errors.replay"


def seen(*cards, kept=None, boot="b1", at=NOW):
    return gpu_baseline.updated(kept or {}, cards, at, boot)


def base(entries, name):
    return entries[UUID]["counters"][name]["base"]


def test_the_first_sight_of_a_card_is_its_base():
    now, notes = seen(card(ecc__uncorrected_aggregate=3))
    assert (base(now, UNCORRECTED), notes) == (3, {})
    assert now[UUID]["first_seen"] == NOW


def test_a_rise_leaves_the_base_where_it_was():
    before, _notes = seen(card())
    now, notes = seen(card(ecc__uncorrected_aggregate=2), kept=before, at=LATER)
    assert now[UUID]["counters"][UNCORRECTED] == {"base": 0, "at": NOW, "last": 2}
    assert notes == {}


def test_a_counter_that_fell_has_begun_anew():
    before, _notes = seen(card(pcie_errors__replay=7))
    now, notes = seen(card(pcie_errors__replay=2), kept=before, at=LATER)
    assert now[UUID]["counters"][REPLAY] == {"base": 2, "at": LATER, "last": 2}
    assert "pcie_errors.replay (7 before, 2 now)" in notes[UUID]


@pytest.mark.parametrize("changed", [{"boot": "b2"}, {"energy_mj": 10}])
def test_a_driver_loaded_anew_counts_replays_anew_and_keeps_the_boards_own_counts(changed):
    before, _notes = seen(card(pcie_errors__replay=1))
    gpu = card(pcie_errors__replay=9, ecc__uncorrected_aggregate=1, energy_mj=changed.get("energy_mj", 2000))
    now, _notes = seen(gpu, kept=before, boot=changed.get("boot", "b1"))
    assert (base(now, REPLAY), base(now, UNCORRECTED)) == (9, 0)


def test_a_card_that_does_not_answer_and_a_value_that_was_not_read_leave_the_past_alone():
    before, _notes = seen(card())
    assert seen(card(state="lost", pcie_errors__replay=9), kept=before)[0] == before
    now, _notes = seen(card(pcie_errors__replay=None, energy_mj=None), kept=before)
    assert now == before


def test_accepting_takes_what_was_last_seen_as_the_base():
    now, _notes = seen(card(ecc__uncorrected_aggregate=2), kept=seen(card())[0])
    accepted, changes = gpu_baseline.accepted(now, UUID, LATER)
    assert changes == [{"uuid": UUID, "counter": UNCORRECTED, "from": 0, "to": 2}]
    assert accepted[UUID]["counters"][UNCORRECTED] == {"base": 2, "at": LATER, "last": 2}
    assert gpu_baseline.accepted(now, None, LATER) == (accepted, changes)
    with pytest.raises(errors.InputError, match="no card of the baseline"):
        gpu_baseline.accepted(now, "GPU-other", LATER)


# --- the file ----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("b1\n")
    return tmp_path


def path(root):
    return root / "var/lib/steadyrack/gpu_baseline.json"


def test_what_is_kept_is_there_for_the_next_pass_and_written_only_when_something_changed(root):
    gpu_baseline.keep(str(root), [card()])
    written = path(root).stat().st_mtime_ns
    again = gpu_baseline.keep(str(root), [card(energy_mj=5000, ecc__uncorrected_aggregate=0)])
    assert path(root).stat().st_mtime_ns == written
    assert again.counter(UUID, UNCORRECTED)["base"] == 0
    gpu_baseline.keep(str(root), [card(ecc__uncorrected_aggregate=1)])
    assert json.loads(path(root).read_text())["gpus"][UUID]["counters"][UNCORRECTED]["last"] == 1
    assert gpu_baseline.accept(str(root)) == [{"uuid": UUID, "counter": UNCORRECTED, "from": 0, "to": 1}]
    assert gpu_baseline.load(str(root))[UUID]["counters"][UNCORRECTED]["base"] == 1
    assert gpu_baseline.accept(str(root)) == []


def test_looking_writes_nothing_and_knows_no_new_card(root):
    assert gpu_baseline.look(str(root), [card()]).counter(UUID, UNCORRECTED) is None
    assert not path(root).exists()


WORDS = (UUID, "counters", "energy_mj", "boot", "seen", UNCORRECTED, "base", "at", "last")
DAMAGED = [
    '{"version": 1, "gpus"',
    '{"version": 9, "gpus": {}}',
    '{"version": 1, "gpus": {"a": {"counters": []}}}',
    "[]",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_set_aside_told_in_this_pass_and_begun_anew(root, text):
    path(root).parent.mkdir(parents=True)
    path(root).write_text(text)
    assert str(path(root)) in gpu_baseline.look(str(root), [card()]).trouble
    assert gpu_baseline.keep(str(root), [card()], repair=False).trouble
    assert path(root).read_text() == text
    assert gpu_baseline.keep(str(root), [card()]).trouble
    assert (path(root).parent / "gpu_baseline.json.unreadable").read_text() == text
    after = gpu_baseline.keep(str(root), [card()])
    assert (after.trouble, after.counter(UUID, UNCORRECTED)["base"]) == (None, 0)
    assert gpu_baseline.accept(str(root)) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None)
@given(JSON)
def test_any_nonsense_in_the_file_is_told_or_usable(root, value):
    path(root).parent.mkdir(parents=True, exist_ok=True)
    path(root).write_text(json.dumps({"version": 1, "gpus": value}))
    found = gpu_baseline.look(str(root), [card()])
    assert found.trouble or isinstance(found.gpus, dict)
    gpu_baseline.keep(str(root), [card()])
    assert gpu_baseline.keep(str(root), [card()]).counter(UUID, UNCORRECTED)["base"] is not None


def test_a_reading_that_cannot_be_kept_says_why(root):
    (root / "var/lib").mkdir(parents=True)
    (root / "var/lib/steadyrack").write_text("in the way")
    kept = gpu_baseline.keep(str(root), [card()])
    assert kept.counter(UUID, UNCORRECTED) is None
    assert "var/lib/steadyrack" in kept.unkept


# --- on a node ---------------------------------------------------------------------------------


def rows(node, name):
    told = json.loads(node.steadyrack("check", "--json").stdout)["checks"]
    return {row["subject"]: (row["verdict"], row["state"]) for row in told if row["id"] == name}


def test_a_rise_stays_reported_until_it_is_accepted(gpu_node):
    uuid = gpu_node.uuid(1)
    gpu_node.set("gpu.1.ecc_aggregate_uncorrected=2")
    assert rows(gpu_node, "gpu.ecc_uncorrected")[uuid] == ("pass", "earlier")
    gpu_node.set("gpu.1.ecc_aggregate_uncorrected=3")
    assert rows(gpu_node, "gpu.ecc_uncorrected")[uuid] == ("fail", "rising")
    assert rows(gpu_node, "gpu.ecc_uncorrected")[uuid] == ("fail", "rising")
    (change,) = gpu_node.call("steadyrack.gpu_baseline:accept", str(gpu_node.root), uuid)
    assert (change["from"], change["to"]) == (2, 3)
    assert rows(gpu_node, "gpu.ecc_uncorrected")[uuid] == ("pass", "earlier")


def test_replays_are_warned_of_and_forgotten_with_the_driver(gpu_node):
    assert rows(gpu_node, "pcie.replay") == dict.fromkeys(
        ("0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0"), ("pass", "ok")
    )
    gpu_node.set("gpu.1.pcie_replay=5")
    assert rows(gpu_node, "pcie.replay")["0000:4b:00.0"] == ("pass", "rising")
    gpu_node.reboot()
    assert rows(gpu_node, "pcie.replay")["0000:4b:00.0"] == ("pass", "ok")


def test_a_damaged_file_is_unknown_for_one_pass_of_the_check(gpu_node):
    assert set(rows(gpu_node, "gpu.ecc_uncorrected").values()) == {("pass", "ok")}
    path(gpu_node.root).write_text("{")
    assert set(rows(gpu_node, "gpu.ecc_uncorrected").values()) == {("unknown", "baseline_damaged")}
    assert set(rows(gpu_node, "gpu.ecc_uncorrected").values()) == {("pass", "ok")}


def test_bringing_the_policy_begins_the_baseline(gpu_node):
    gpu_node.policy({"version": 1})
    gpu_node.steadyrack("gpu", "apply", "--check")
    assert not path(gpu_node.root).exists()
    gpu_node.steadyrack("gpu", "apply")
    assert len(json.loads(path(gpu_node.root).read_text())["gpus"]) == 4
