"""May a job start on these hosts: each clock, every pair, and who is guilty."""

from __future__ import annotations

from typing import Any

import pytest
import time_gate
from ansible.errors import AnsibleFilterError

MS = 1e-3
FACTS = {
    "relay-a1": {"rack_site": "a", "ansible_host": "10.1.0.21", "rack_outside_address": "10.0.0.21"},
    "relay-a2": {"rack_site": "a", "ansible_host": "10.1.0.22", "rack_outside_address": "10.0.0.22"},
    "relay-b1": {"rack_site": "b", "ansible_host": "10.2.0.21", "rack_outside_address": "10.0.0.41"},
    **{f"a{n}": {"rack_site": "a"} for n in range(1, 6)},
    **{f"b{n}": {"rack_site": "b"} for n in range(1, 6)},
}


def node(offset_ms: float, doubt_ms: float = 0.1, relay: str = "10.1.0.21") -> dict[str, Any]:
    tracking = {"source": relay, "root_dispersion_s": doubt_ms * MS / 2, "root_delay_s": doubt_ms * MS}
    policy = {"mode": "client", "alarm_ms": 30.0, "site_skew_alarm_ms": 100.0}
    return {"may_start": True, "offset_s": offset_ms * MS, "tracking": tracking, "policy": policy, "gate_line": "yes",
            "sources": []}  # fmt: skip


def relay(
    doubt_ms: float = 5.0, other: str | None = None, skew_ms: float = 0.0, margin_ms: float = 10.0
) -> dict[str, Any]:
    answer = node(0.0, doubt_ms, "ntp1")
    answer["policy"] = {**answer["policy"], "mode": "relay", "other_sites": {other: "b"} if other else {}}
    if other:
        answer["sources"] = [
            {
                "name": other,
                "reachable": True,
                "offset_s": skew_ms * MS,
                "margin_s": margin_ms * MS,
                "state": "unusable",
            }
        ]
    return answer


def bad(reason: str) -> dict[str, Any]:
    return {
        "may_start": False,
        "gate_line": f"no: {reason}",
        "policy": {"mode": "client"},
        "offset_s": None,
        "tracking": None,
    }


def judge(answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    nodes = [host for host in FACTS if not host.startswith("relay")]
    return time_gate.time_gate(answers, FACTS, nodes, **more)


def test_clocks_that_agree_are_a_yes_with_the_worst_pair_and_both_figures() -> None:
    found = judge({"relay-a1": relay(), "a1": node(0.1, 5.2), "a2": node(-0.3, 5.1)})
    assert found["ok"]
    assert found["lines"] == [
        "YES: a job may start on 2 nodes",
        "site a: worst pair a1 and a2, 0.400 ± 0.300 ms apart, within 30 ms",
    ]


@pytest.mark.parametrize(("apart", "doubt", "ok", "word"), [
    (29.0, 0.4, True, "within"), (29.5, 0.4, False, "too uncertain for"), (31.0, 0.4, False, "above"),
    (30.5, 0.4, False, "too uncertain for"),
])  # fmt: skip
def test_a_pair_counts_beyond_its_uncertainty(apart: float, doubt: float, ok: bool, word: str) -> None:
    found = judge({"a1": node(0, doubt), "a2": node(apart, doubt)})
    assert found["ok"] is ok
    assert word in found["lines"][-1]
    assert found["guilty"] == ([] if ok else ["a1", "a2"])


def test_the_relays_own_distance_is_shared_and_does_not_part_its_nodes() -> None:
    """Upstreams 20 ms away: each node is within its bound, and both are wrong by the same."""
    pair = {"a1": node(0, 20.1), "a2": node(0.2, 20.1)}
    assert judge({"relay-a1": relay(20.0), **pair})["ok"]
    assert not judge(pair)["ok"]  # the relay was not asked: nobody knows what they share
    apart = {"a1": node(0, 20.1, "10.1.0.21"), "a2": node(0.2, 20.1, "10.1.0.22")}
    assert not judge({"relay-a1": relay(20.0), "relay-a2": relay(20.0), **apart})["ok"]


def test_of_several_the_one_furthest_from_the_middle_is_guilty() -> None:
    found = judge({"a1": node(1), "a2": node(-1), "a3": node(60), "a4": node(0)})
    assert (found["ok"], found["guilty"]) == (False, ["a3"])
    assert found["lines"][0] == "NO: a3"
    assert found["hosts"]["a1"]["ok"]
    assert not found["hosts"]["a3"]["ok"]


def test_a_clock_that_follows_nobody_reads_zero_and_is_named() -> None:
    found = judge({"a1": node(0), "a2": node(0), "a3": bad("a3: time.synchronised a3: no source answers")})
    assert (found["ok"], found["guilty"]) == (False, ["a3"])
    assert found["lines"][1] == "no: a3: time.synchronised a3: no source answers"


@pytest.mark.parametrize(
    "answer", [{"unreachable": True, "msg": "ssh: timed out"}, {"msg": "Traceback"}, {"module_stderr": "killed"}, {}]
)
def test_no_answer_is_a_no(answer: dict[str, Any]) -> None:
    found = judge({"a1": node(0), "a2": answer})
    assert (found["ok"], found["guilty"]) == (False, ["a2"])


def test_nobody_asked_is_a_no() -> None:
    assert not judge({})["ok"]
    assert not judge({"relay-a1": relay()})["ok"]


def test_what_limit_leaves_out_is_named_and_one_node_alone_is_judged() -> None:
    found = judge({"a1": node(0)}, skipped=["a3", "a2"])
    assert found["ok"]
    assert "not judged, left out by --limit: a2, a3" in found["lines"]


# --- between sites -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew", "ok", "word"),
    [(0, True, "within"), (80, True, "within"), (95, False, "too uncertain"), (130, False, "above")],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_between_sites_the_relays_measure_counts_with_its_own_threshold(
    skew: float, ok: bool, word: str, sign: int
) -> None:
    answers = {
        "relay-a1": relay(5.0, "10.0.0.41", sign * skew), "relay-b1": relay(5.0),
        "a1": node(0, 5.1), "b1": node(0, 5.1, "10.2.0.21"),
    }  # fmt: skip
    found = judge(answers)
    assert found["ok"] is ok
    line = found["lines"][-1]
    assert line.startswith("between a and b (measured by relay-a1 of 10.0.0.41): worst pair a1 and b1, ")
    assert f"{float(skew):.3f} ± 10.200 ms" in line
    assert word in line


def test_the_offsets_of_the_nodes_count_with_their_sign() -> None:
    """a is 60 ms ahead of b, a1 another 25 ahead, b1 25 behind: 110."""
    answers = {
        "relay-a1": relay(5.0, "10.0.0.41", 60, 1), "relay-b1": relay(5.0),
        "a1": node(25, 5.0), "b1": node(-25, 5.0, "10.2.0.21"),
    }  # fmt: skip
    assert "110.000 ± 1.000" in judge(answers)["lines"][-1]
    answers["a1"], answers["b1"] = node(-25, 5.0), node(25, 5.0, "10.2.0.21")
    assert "10.000 ± 1.000" in judge(answers)["lines"][-1]


def test_two_sites_that_nobody_measures_are_not_known_which_is_no_yes() -> None:
    answers = {"a1": node(0), "b1": node(0, relay="10.2.0.21")}
    found = judge(answers)
    assert not found["ok"]
    assert "not known" in found["lines"][-1]
    silent = relay(5.0, "10.0.0.41")
    silent["sources"][0].update(reachable=False, offset_s=None)
    assert not judge({"relay-a1": silent, **answers})["ok"]


def test_thresholds_are_the_hosts_own_unless_the_caller_says_otherwise() -> None:
    pair = {"a1": node(0), "a2": node(20)}
    assert judge(pair)["ok"]
    assert not judge(pair, skew_ms=10)["ok"]
    pair["a1"]["policy"]["alarm_ms"] = 15.0
    assert not judge(pair)["ok"]


def test_a_relay_that_is_ill_is_told_and_does_not_decide() -> None:
    ill = {**relay(), "may_start": False, "gate_line": "no: relay-a1: time.sources relay-a1: 1 of 4 upstreams answer"}
    found = judge({"relay-a1": ill, "a1": node(0), "a2": node(0.1)})
    assert found["ok"]
    assert ill["gate_line"] in found["lines"]
    gone = judge({"relay-a1": {"unreachable": True, "msg": "no route"}, "a1": node(0), "a2": node(0.1)})
    assert gone["ok"]
    assert any("relay-a1" in line and "no route" in line for line in gone["lines"])


def test_hundreds_of_nodes_are_judged_in_a_moment() -> None:
    import time

    facts = {f"n{n}": {"rack_site": "a"} for n in range(400)}
    began = time.process_time()
    found = time_gate.time_gate({host: node(n % 7) for n, host in enumerate(facts)}, facts, list(facts))
    assert found["ok"]
    assert time.process_time() - began < 3


@pytest.mark.parametrize("value", ["abc", "nan", "inf", 0, -1, True])
def test_a_threshold_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="wanted milliseconds above 0"):
        judge({"relay-a1": relay(), "a1": node(0.1), "a2": node(0.2)}, skew_ms=value)


def test_a_root_delay_below_0_leaves_the_dispersion_as_it_is() -> None:
    assert time_gate._doubt({"root_dispersion_s": 0.001, "root_delay_s": -0.0004}) == 0.001
