"""One shape for findings, in which unknown is never a pass."""

import re

import pytest
from ansible.module_utils.steadyrack import verdict


def row(judged, **more):
    reason = "why" if judged in ("unknown", "not_judged") else None
    return verdict.check_row("gpu.count", "host", judged, **{"reason": reason, **more})


def test_a_row_has_exactly_the_agreed_keys_and_a_utc_time():
    made = row("pass")
    assert tuple(made) == verdict.KEYS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["at"])


@pytest.mark.parametrize(
    ("judged", "severity"), [("pass", "info"), ("fail", "critical"), ("unknown", "warning"), ("not_judged", "info")]
)
def test_severity_follows_the_verdict_unless_given(judged, severity):
    assert row(judged)["severity"] == severity
    assert row(judged, severity="warning")["severity"] == "warning"


@pytest.mark.parametrize("judged", ["unknown", "not_judged"])
def test_not_judging_needs_a_reason(judged):
    with pytest.raises(ValueError, match="without a reason"):
        verdict.check_row("gpu.count", "host", judged)


@pytest.mark.parametrize(
    "wrong", [{"verdict": "ok"}, {"verdict": "warning"}, {"severity": "bad"}, {"id": "gpu"}, {"id": "GPU.count"}]
)
def test_a_wrong_word_is_refused(wrong):
    with pytest.raises(ValueError, match=r"none of|form"):
        verdict.check_row(**{"id": "gpu.count", "subject": "host", "verdict": "pass", **wrong})


@pytest.mark.parametrize(
    ("judged", "status"),
    [
        (["pass"], 0),
        (["pass", "not_judged"], 0),
        (["pass", "unknown"], 2),
        (["fail", "unknown", "pass"], 1),
        ([], 2),
    ],
)
def test_the_exit_status_never_takes_unknown_or_nothing_for_a_pass(judged, status):
    assert verdict.exit_code([row(word) for word in judged]) == status
