"""A second run of site.yml: nothing changed, everything true, and what it cost each host."""

from __future__ import annotations

import pytest
from demo_rack import HOSTS, NODES, REPORT, not_passed, report_rows

COMMANDS_A_NODE = 20
RESULTS_A_NODE = 40
ACCEPTANCE_COMMANDS_A_NODE = 5
"""Design §6. Acceptance is counted apart, at sshd."""


@pytest.fixture(scope="module")
def second(built, play, sh):
    before = {host: sessions(sh, host) for host in HOSTS}
    REPORT.unlink(missing_ok=True)
    run = play("site.yml", verbosity=3)
    run.sessions = {host: sessions(sh, host) - before[host] for host in HOSTS}
    return run


def sessions(sh, host) -> int:
    """Commands that sshd has started on `host` since it booted, as it logged them."""
    return int(sh(host, "journalctl -u ssh --no-pager -o cat | grep -c '^Starting session: ' || true"))


def test_nothing_changes_and_nobody_fails(second):
    assert second.rc == 0, second.failures()
    assert {h: second.recap[h] for h in HOSTS} == dict.fromkeys(HOSTS, (0, 0))


def test_every_check_passed_on_every_host(second):
    rows = report_rows()
    assert {r["host"] for r in rows} >= set(HOSTS)
    assert not_passed(rows) == set()


def test_budget_of_ssh_commands(second, rack):
    address = {rack.hosts[host].ssh_address: host for host in HOSTS}
    counts = {address.get(a, a): n for a, n in second.commands().items()}
    print("SSH commands a host:", counts)
    assert counts, "no SSH command was seen: the count itself is broken"
    assert {h: n for h, n in counts.items() if n > COMMANDS_A_NODE} == {}


def test_budget_of_results(second):
    counts = {host: second.results(host) for host in HOSTS}
    print("results a host:", counts)
    assert all(0 < n <= RESULTS_A_NODE for n in counts.values()), counts


def test_acceptance_costs_five_commands_a_node_at_most(second, rack):
    by_ansible = second.commands()
    acceptance = {h: second.sessions[h] - by_ansible[rack.hosts[h].ssh_address] for h in NODES}
    print("acceptance, SSH sessions a node:", acceptance)
    assert all(0 < n <= ACCEPTANCE_COMMANDS_A_NODE for n in acceptance.values()), acceptance
