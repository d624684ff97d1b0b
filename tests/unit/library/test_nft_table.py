"""nft_table's main() on a fake node: compare, try, confirm, go back; what is written when."""

from __future__ import annotations

from typing import Any

import nft_table
import pytest
from ansible.module_utils.steadyrack import nft_trial
from ansible.module_utils.steadyrack.errors import DeadlineError
from fake_nft import FakeNft, read
from fake_node import FakeNode, run_module

OLD = "table inet t {\ncounter leak { }\nchain input {\nold\n}\n}\n"
NEW = "# a comment\ntable inet t {\ncounter leak { }\nchain input {\nnew\n}\n}\n"
LISTED = NEW.split("\n", 1)[1]
UNIT = "steadyrack-firewall.service"


@pytest.fixture
def nft(node: FakeNode) -> FakeNft:
    node.installed(nftables="install ok installed")
    node.set_units({UNIT: {"type": "oneshot", "remain": "yes"}, "firewalld.service": {"missing": True}})
    return FakeNft(node)


@pytest.fixture
def call(node: FakeNode, nft: FakeNft, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    connection: list[str | None] = [None]
    monkeypatch.setattr(nft_table, "ssh_connection", lambda: connection[0])

    def run(
        step: str = "apply", rules: str = NEW, check: bool = False, by: str | None = None, **more: Any
    ) -> dict[str, Any]:
        connection[0] = by
        params = {
            "step": step,
            "table": "t",
            "rules": rules,
            "path": str(node.root / "ntp.nft"),
            "packages": ["nftables"],
            "units": [
                {"name": UNIT, "state": "started", "enabled": True, "reload_command": ["systemctl", "reload", UNIT]}
            ],
            "trial_directory": str(node.root / "run"),
            "pending_directory": str(node.root / "pending"),
            **more,
        }
        return run_module(nft_table, params, capsys, check)

    return run


def kept(node: FakeNode) -> str | None:
    return read(node.root / "ntp.nft")


def confirmed(call: Any, rules: str = NEW) -> None:
    assert call(rules=rules)["trial_needed"]
    assert call("trial", rules, by="c1")["changed"]
    assert call("confirm", rules, by="c2")["changed"]


def test_new_rules_are_not_loaded_by_apply(node: FakeNode, nft: FakeNft, call: Any) -> None:
    answer = call()
    assert answer["trial_needed"] is True
    assert answer["changed"] is False
    assert nft.table is None
    assert kept(node) is None


def test_trial_then_confirmation_then_nothing(node: FakeNode, nft: FakeNft, call: Any) -> None:
    assert call()["trial_needed"]
    trial = call("trial", by="10.0.0.1 4000 10.0.0.2 22")
    assert (nft.table or {})["text"] == LISTED
    assert kept(node) is None, "a power cycle before the confirmation must be a way back"
    assert trial["diff"][0]["after"] == LISTED
    calls = node.calls()
    assert calls.index("systemd-run") < calls.index("nft -f -"), "the way back comes first"
    assert "--on-active=60s" in nft.timer.read_text()
    answer = call("confirm", by="10.0.0.1 4001 10.0.0.2 22")
    assert answer["changed"]
    assert kept(node) == NEW
    assert node.unit(UNIT)["active"] == "active"
    assert "systemctl stop -- steadyrack-firewall-rollback.timer" in node.calls()
    again = call()
    assert (again["changed"], again["trial_needed"], again["actions"], again["diff"]) == (False, False, [], [])
    assert [one for one in node.deeds() if not one.startswith(("nft --stateless list", "nft -j list"))] == []


def test_a_trial_is_known_while_it_runs_and_no_longer(node: FakeNode, nft: FakeNft, call: Any) -> None:
    """The node's checks do not take new rules on trial for somebody's edit."""
    assert nft_trial.running(str(node.root / "run")) is None
    call("trial", by="c1", confirm_timeout_s=90)
    trial = nft_trial.running(str(node.root / "run")) or {}
    assert (trial["target"], trial["timeout_s"]) == (LISTED, 90)
    call("confirm", by="c2")
    assert nft_trial.running(str(node.root / "run")) is None


def test_without_a_confirmation_the_old_rules_are_back(node: FakeNode, nft: FakeNft, call: Any) -> None:
    confirmed(call, OLD)
    nft.counted(leak=7)
    call("trial", by="c3")
    assert "new" in (nft.table or {})["text"]
    assert (nft.table or {})["counters"] == {"leak": 7}, "counters survive a change of the rules"
    nft.fire()
    assert "old" in (nft.table or {})["text"]
    assert (nft.table or {})["counters"] == {"leak": 7}
    assert kept(node) == OLD
    answer = call("confirm", by="c4")
    assert answer["failed"]
    assert "new rules were loaded and not confirmed within 60 s" in answer["msg"]
    assert f"the old rules are back (read back: those of {node.root}/ntp.nft)" in answer["msg"]
    assert kept(node) == OLD
    assert list((node.root / "run").iterdir()) == [], "nothing is left behind"


def test_where_there_was_no_table_there_is_none_again(node: FakeNode, nft: FakeNft, call: Any) -> None:
    call("trial", confirm_timeout_s=7)
    nft.fire()
    assert nft.table is None
    assert list((node.root / "run").iterdir()) == []
    answer = call("confirm", by="c2", confirm_timeout_s=7)
    assert "not confirmed within 7 s; no table is loaded, as before" in answer["msg"]


def test_a_rollback_that_begins_while_the_confirmation_comes_is_told_as_one(
    node: FakeNode, nft: FakeNft, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    monkeypatch.setattr(nft_trial, "disarm", lambda _runner: nft.fire())
    assert "the old rules are back" in call("confirm", by="c4")["msg"]


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (None, "are not back: no table is loaded"),
        (NEW.split("\n", 1)[1], "the new rules are live all the same"),
        (OLD.replace("old", "other"), "other rules than the new ones"),
    ],
)
def test_old_rules_that_are_not_back_are_not_called_so(nft: FakeNft, call: Any, live: str | None, told: str) -> None:
    """Read back, not concluded from a timer that fired."""
    confirmed(call, OLD)
    call("trial", by="c3")
    nft.fire()
    nft.edit(live)
    answer = call("confirm", by="c4")
    assert answer["failed"]
    assert told in answer["msg"]
    assert "journalctl -u steadyrack-firewall-rollback" in answer["msg"]


def test_rules_of_before_that_cannot_be_loaded_are_kept_to_be_looked_at(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    (node.root / "run/previous.nft").write_text("BAD")
    nft.fire()
    assert nft.table is None, "no rules of ours lock nobody out"
    assert [path.name for path in (node.root / "run").iterdir()] == ["previous.nft"]


def test_a_late_confirmation_does_not_keep_the_rules_of_another_run(node: FakeNode, nft: FakeNft, call: Any) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    call("trial", OLD.replace("old", "other"), by="c5")
    answer = call("confirm", by="c4")
    assert answer["failed"]
    assert "a trial of other rules, begun by another run" in answer["msg"]
    assert kept(node) == OLD
    assert nft.timer.exists(), "the other run's way back is still there"


def test_a_confirmation_over_the_same_connection_proves_nothing(node: FakeNode, nft: FakeNft, call: Any) -> None:
    call("trial", by="c1")
    answer = call("confirm", by="c1")
    assert answer["failed"]
    assert "a new connection" in answer["msg"]
    assert kept(node) is None
    nft.fire()
    assert nft.table is None


def test_a_run_after_an_interrupted_one_tries_again_and_goes_back_to_the_first_state(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")  # and Ansible is killed here
    assert call()["trial_needed"], "live rules that nobody confirmed are not taken for right"
    call("trial", by="c4")
    nft.fire()
    assert "old" in (nft.table or {})["text"]


def test_without_a_timer_for_the_new_trial_the_rules_of_an_older_one_do_not_stay(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")  # and Ansible is killed here
    node.answers("systemd-run", err="Failed to connect to bus", rc=1)
    answer = call("trial", by="c4")
    assert answer["failed"]
    assert (
        "nothing was loaded, and the rules of an older trial, which nobody had confirmed, were taken back"
        in (answer["msg"])
    )
    assert "old" in (nft.table or {})["text"]
    assert list((node.root / "run").iterdir()) == []
    assert call(rules=OLD)["changed"] is False


def test_the_timer_of_an_older_trial_runs_until_its_rules_are_taken_back(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    node.calls()
    call("trial", by="c4")
    calls = node.calls()
    back = next(place for place, one in enumerate(calls) if one.startswith("nft -f") and "previous.nft" in one)
    assert back < next(place for place, one in enumerate(calls) if one.startswith("systemctl stop"))


def test_an_older_trial_that_cannot_be_taken_back_keeps_a_timer_and_is_said(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    (node.root / "run/previous.nft").write_text("BAD")
    nft.timer.unlink()
    answer = call("trial", by="c4")
    assert answer["failed"]
    assert "an older trial is unconfirmed" in answer["msg"]
    assert "--on-active=10s" in nft.timer.read_text()
    nft.fire()
    assert call("trial", by="c4")["changed"]


def test_a_timer_that_fires_after_all_is_over_deletes_no_table(node: FakeNode, nft: FakeNft, call: Any) -> None:
    confirmed(call)
    nft.fire()
    assert (nft.table or {})["text"] == LISTED


def test_rules_that_are_not_those_on_trial_are_not_confirmed_and_the_timer_runs_on(
    node: FakeNode, nft: FakeNft, call: Any
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    nft.edit(OLD.replace("old", "other"))
    node.calls()
    answer = call("confirm", by="c4")
    assert answer["failed"]
    assert "other rules than those on trial; the timer takes the rules back" in answer["msg"]
    assert not [one for one in node.calls() if one.startswith("systemctl stop")]
    nft.fire()
    assert "old" in (nft.table or {})["text"]


@pytest.mark.parametrize("works", [True, False])
def test_a_confirmation_that_breaks_off_after_the_timer_takes_the_rules_back(
    node: FakeNode, nft: FakeNft, call: Any, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    confirmed(call, OLD)
    call("trial", by="c3")
    if not works:
        (node.root / "run/previous.nft").write_text("BAD")
    nft.timer.unlink()
    real = nft_trial.disarm

    def hangs(runner: Any) -> None:
        monkeypatch.setattr(nft_trial, "disarm", real)
        raise DeadlineError("systemctl show", "no answer within 30 s", "an answer", "see where it waits")

    monkeypatch.setattr(nft_trial, "disarm", hangs)
    answer = call("confirm", by="c4")
    assert answer["failed"]
    assert "no answer within 30 s" in answer["msg"]
    if works:
        assert "The rules of before are loaded again." in answer["msg"]
        assert "old" in (nft.table or {})["text"]
    else:
        assert "A timer takes the rules back in 10 s." in answer["msg"]
        assert "--on-active=10s" in nft.timer.read_text()
    assert kept(node) == OLD


def test_a_connection_that_is_not_known_is_not_a_new_one(node: FakeNode, nft: FakeNft, call: Any) -> None:
    call("trial", by="c1")
    answer = call("confirm", by=None)
    assert answer["failed"]
    assert "a confirmation by no known connection of rules that came over c1" in answer["msg"]
    assert kept(node) is None
    nft.fire()
    assert nft.table is None


def test_a_trial_begun_on_the_host_itself_is_confirmed_from_there(node: FakeNode, nft: FakeNft, call: Any) -> None:
    call("trial", by=None)
    assert call("confirm", by=None)["changed"]
    assert kept(node) == NEW


@pytest.mark.parametrize("live", [None, "table inet t {\ncounter leak { }\nchain input {\nnew\nmore\n}\n}\n"])
def test_a_flushed_or_edited_table_is_put_right_at_once(nft: FakeNft, call: Any, live: str | None) -> None:
    confirmed(call)
    nft.edit(live, **({} if live is None else {"leak": 3}))
    look = call(check=True)
    assert look["changed"]
    assert (look["diff"][0]["before"], look["diff"][0]["after"]) == (live or "", LISTED)
    assert nft.table is None if live is None else "more" in (nft.table or {})["text"]
    answer = call()
    assert (answer["changed"], answer["trial_needed"]) == (True, False)
    assert (nft.table or {})["text"] == LISTED
    assert answer["counters"] == {"leak": 0 if live is None else 3}
    assert call()["changed"] is False


def test_counting_is_no_difference(nft: FakeNft, call: Any) -> None:
    confirmed(call)
    nft.counted(leak=99)
    answer = call()
    assert (answer["changed"], answer["counters"]) == (False, {"leak": 99})


def test_check_mode_tells_and_does_nothing(node: FakeNode, nft: FakeNft, call: Any) -> None:
    answer = call(check=True)
    assert answer["changed"]
    assert "load table inet t" in answer["actions"]
    assert nft.table is None
    assert kept(node) is None
    assert not (node.root / "run").exists()


def test_a_bare_host_in_check_mode_and_out_of_it(node: FakeNode, nft: FakeNft, call: Any) -> None:
    node.installed()
    (node.bin / "nft").unlink()
    look = call(check=True)
    assert look["changed"]
    assert look["packages_missing"] == ["nftables"]
    answer = call()
    assert (answer["changed"], answer["packages_missing"]) == (False, ["nftables"])


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Error: cache initialization failed: Operation not permitted", "CAP_NET_ADMIN"),
        ("Operation not permitted (you must be root)", "CAP_NET_ADMIN"),
        ("netlink.c:73: Unable to initialize Netlink socket: Protocol not supported", "nf_tables"),
    ],
)
def test_no_nf_tables_here_is_one_clear_error(nft: FakeNft, call: Any, said: str, text: str) -> None:
    nft.broken.write_text(said)
    answer = call()
    assert answer["failed"]
    assert text in answer["msg"]
    assert "\n" not in answer["msg"].strip()


def test_no_leave_for_a_namespace_is_said(node: FakeNode, nft: FakeNft, call: Any) -> None:
    node.answers("unshare", err="unshare: unshare failed: Operation not permitted", rc=1)
    answer = call()
    assert answer["failed"]
    assert "CAP_SYS_ADMIN" in answer["msg"]


def test_rules_that_nft_refuses_change_nothing(node: FakeNode, nft: FakeNft, call: Any) -> None:
    confirmed(call, OLD)
    answer = call(rules=NEW.replace("new", "BAD"))
    assert answer["failed"]
    assert "unexpected BAD" in answer["msg"]
    assert "old" in (nft.table or {})["text"]
    assert kept(node) == OLD
    assert not nft.timer.read_text().startswith("BAD")


def test_without_a_timer_nothing_is_loaded(node: FakeNode, nft: FakeNft, call: Any) -> None:
    node.answers("systemd-run", err="Failed to connect to bus", rc=1)
    answer = call("trial")
    assert answer["failed"]
    assert "nothing was loaded" in answer["msg"]
    assert nft.table is None


def test_a_time_to_confirm_of_nothing_is_refused(nft: FakeNft, call: Any) -> None:
    for step in ("apply", "trial"):
        answer = call(step, confirm_timeout_s=0)
        assert answer["failed"]
        assert "more than 0 s" in answer["msg"]
    assert nft.table is None
