"""The agent's row firewall.ntp: every state, and that it can fail."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import firewall_checks, nft, nft_trial
from fake_nft import FakeNft
from fake_node import FakeNode

RULES = "table inet t {\ncounter ntp_egress { }\nrule\n}\n"
NOTE = {
    "version": 1, "mode": "node", "family": "inet", "table": "t", "rules": "/etc/steadyrack/firewall/ntp.nft",
    "counters": ["ntp_egress"],
}  # fmt: skip


@pytest.fixture
def host(node: FakeNode) -> FakeNft:
    folder = node.root / "etc/steadyrack/firewall"
    folder.mkdir(parents=True)
    (folder / "ntp.nft").write_text(RULES)
    (node.root / firewall_checks.POLICY_PATH).write_text(json.dumps(NOTE))
    fake = FakeNft(node)
    fake.edit(RULES, ntp_egress=0)
    return fake


def row(host: FakeNft) -> dict[str, Any]:
    (found,) = firewall_checks.checks(str(host.node.root))
    return found


def told(host: FakeNft) -> tuple[str, str | None, str]:
    found = row(host)
    return found["verdict"], found["state"], found["severity"]


def test_as_the_role_left_it(host: FakeNft) -> None:
    assert told(host) == ("pass", "ok", "info")
    assert row(host)["measured"] == "ntp_egress 0"


def test_flushed(host: FakeNft) -> None:
    host.edit(None)
    assert told(host) == ("fail", "missing", "critical")


def test_edited(host: FakeNft) -> None:
    host.edit(RULES.replace("rule\n", ""), ntp_egress=0)
    assert told(host) == ("fail", "edited", "critical")


def on_trial(host: FakeNft, target: str, timeout_s: float = 60, ago_s: float = 45.0) -> None:
    """New rules are live, and so long ago they were loaded."""
    host.edit(target, ntp_egress=0)
    folder = host.node.root / nft_trial.TRIAL_DIRECTORY[1:]
    folder.mkdir(parents=True, exist_ok=True)
    marker = {"version": 1, "target": target, "timeout_s": timeout_s, "armed_at": time.monotonic() - ago_s}
    (folder / "trial.json").write_text(json.dumps(marker))


NEW_RULES = RULES.replace("rule\n", "other rule\n")


def test_new_rules_on_trial_are_not_judged_until_its_time_is_over(host: FakeNft) -> None:
    on_trial(host, NEW_RULES)
    assert told(host) == ("not_judged", "on_trial", "info")
    assert row(host)["reason"].startswith("a trial of new rules runs")
    on_trial(host, NEW_RULES, 600, ago_s=600)
    assert told(host)[1] == "on_trial", "the rollback is under way"


@pytest.mark.parametrize("ago_s", [60 + nft_trial.OVERDUE_S + 1, -100.0])
def test_what_a_trial_left_behind_blinds_nobody(host: FakeNft, ago_s: float) -> None:
    on_trial(host, NEW_RULES, 60, ago_s)
    assert told(host) == ("fail", "edited", "critical")


@pytest.mark.parametrize("text", ["{", "{}", '{"version": 1, "target": "x", "armed_at": "now", "timeout_s": null}'])
def test_a_marker_that_says_nothing_blinds_nobody(host: FakeNft, text: str) -> None:
    on_trial(host, NEW_RULES)
    (host.node.root / nft_trial.TRIAL_DIRECTORY[1:] / "trial.json").write_text(text)
    assert told(host) == ("fail", "edited", "critical")


def test_what_somebody_else_does_during_a_trial_is_seen(host: FakeNft) -> None:
    on_trial(host, NEW_RULES)
    host.edit(NEW_RULES.replace("rule", "accept"), ntp_egress=0)
    assert told(host) == ("fail", "edited", "critical")
    host.edit(None)
    assert told(host) == ("fail", "missing", "critical")


def test_gone_at_the_next_boot(host: FakeNft) -> None:
    (host.node.root / "etc/steadyrack/firewall/ntp.nft").unlink()
    assert told(host) == ("fail", "not_kept", "critical")


def test_a_leak_that_was_stopped_is_a_warning(host: FakeNft) -> None:
    host.counted(ntp_egress=38)
    assert told(host) == ("pass", "leak", "warning")
    assert "38 packets" in row(host)["reason"]


def test_on_a_relay_nothing_is_called_a_leak(host: FakeNft) -> None:
    (host.node.root / firewall_checks.POLICY_PATH).write_text(json.dumps({**NOTE, "mode": "relay"}))
    host.counted(ntp_egress=38)
    assert told(host) == ("pass", "ok", "info")


def test_a_counter_that_is_not_there_is_unknown(host: FakeNft) -> None:
    host.edit(RULES)
    assert told(host)[:2] == ("unknown", "unreadable")


def test_nft_that_does_not_answer_is_unknown(host: FakeNft) -> None:
    host.broken.write_text("Operation not permitted (you must be root)")
    assert told(host)[0] == "unknown"


def test_without_the_note_nothing_is_judged(host: FakeNft) -> None:
    (host.node.root / firewall_checks.POLICY_PATH).unlink()
    assert told(host)[0] == "not_judged"


@pytest.mark.parametrize("wrong", [{"version": 2}, {"mode": "x"}, {"table": ""}, {"counters": "ntp_egress"}, None])
def test_a_note_that_cannot_be_used_is_unknown(host: FakeNft, wrong: dict[str, Any] | None) -> None:
    text = "{" if wrong is None else json.dumps({**NOTE, **wrong})
    (host.node.root / firewall_checks.POLICY_PATH).write_text(text)
    assert told(host)[0] == "unknown"


# --- beside it: what the table's other users stand on ---------------------------------------------


def test_counters_of_other_tables_and_families_are_not_ours() -> None:
    entry = {"family": "inet", "name": "n", "table": "t", "handle": 2, "packets": 7, "bytes": 8}
    text = json.dumps(
        {"nftables": [{"metainfo": {}}, {"counter": entry}, {"counter": {**entry, "table": "u", "name": "m"}}]}
    )
    assert nft.parse_counters(text, nft.Table("inet", "t")) == {"n": nft.Counter(7, 8)}
    assert nft.parse_counters(text, nft.Table("ip", "t")) is None


def test_only_the_definition_of_a_counter_is_seeded() -> None:
    text = "counter leak { }\nudp dport 123 counter name leak drop\ncounter leaks { }\n"
    assert nft.seeded(text, {"leak": nft.Counter(3, 4)}) == text.replace("leak { }", "leak { packets 3 bytes 4 }", 1)


def test_the_connection_is_that_of_an_ancestor(tmp_path: Path) -> None:
    for pid, parent, environ in (
        (30, 20, b"A=1\0"),
        (20, 10, b"SUDO=1\0"),
        (10, 1, b"X=\0SSH_CONNECTION=10.0.0.1 5 10.0.0.2 22\0"),
    ):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "environ").write_bytes(environ)
        (folder / "stat").write_text(f"{pid} (sh (x) y) S {parent} 1 1")
    assert nft_trial.ssh_connection(30, str(tmp_path)) == "10.0.0.1 5 10.0.0.2 22"
    assert nft_trial.ssh_connection(99, str(tmp_path)) is None
