"""The page: whole, from nowhere else, safe against hostile names, the same for the same data."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from ansible.module_utils.steadyrack_report import model, page
from conftest_report import UNTIL, Answer


def draw(*answers: dict[str, Any]) -> str:
    return page.page(model.build("demo", answers, UNTIL, 24))


class Tags(HTMLParser):
    """Which tags and attributes a page has, and what is left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "rect"):
            return
        assert self.open.pop() == tag


HOSTILE = '</title><script>alert(1)</script>"><img src=x onerror=y> $x_1$ \u202e'


def test_a_hostile_name_stays_text(answer: Answer) -> None:
    source = {
        "name": HOSTILE, "address": "192.0.2.1", "kind": "upstream", "points": [[5, 1.0], [900, 2.0]], "median_us": 1.0,
        "last_us": 1.0, "worst_us": 1.0, "last_at": 5, "beyond_alarm": 0,
    }  # fmt: skip
    evil = answer(HOSTILE, site=HOSTILE, upstreams=[source], problems=[HOSTILE], gaps=[[0, 90000, HOSTILE]])
    dead = {"host": "a", "site": HOSTILE, "reason": HOSTILE}
    text = page.page(model.build(HOSTILE, [evil, dead, answer("b", site="y")], UNTIL, 24))
    tags = Tags(text)
    assert not [tag for tag, _attrs in tags.seen if tag in ("script", "img")]
    assert not [attrs for _tag, attrs in tags.seen if any(name.startswith("on") for name in attrs)]
    assert tags.open == []


def test_nothing_comes_from_elsewhere(answer: Answer) -> None:
    text = draw(answer("gpu-a1"), answer("relay-a1"))
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#gap)|src=|href=", text)
    tags = Tags(text)
    assert tags.open == []
    assert ("meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"}) in tags.seen
    assert "prefers-color-scheme:dark" in text


def test_the_same_data_give_the_same_bytes(answer: Answer, unreachable: dict[str, Any]) -> None:
    one, other = (draw(answer("gpu-a1"), answer("gpu-a2", 40000.0), unreachable) for _ in range(2))
    assert one == other


def test_a_host_without_data_is_in_table_and_cards(answer: Answer, unreachable: dict[str, Any]) -> None:
    text = draw(answer("gpu-a1"), unreachable)
    assert text.count("no data: unreachable (no route)") == 2
    assert "gpu-a9" in text


def test_a_gap_lifts_the_pen(answer: Answer) -> None:
    whole = draw(answer("gpu-a1"))
    torn = draw(
        answer(
            "gpu-a1", lambda second: None if 30000 < second < 50000 else 20.0, gaps=[[30000, 50000, "nothing logged"]]
        )
    )

    def pens(text: str) -> int:
        curve = re.findall(r'stroke="var\(--c0\)"[^>]* d="([^"]*)"', text)[-1]
        return curve.count("M")

    assert (pens(whole), pens(torn)) == (1, 2)
    assert "nothing logged, 5.6 h" in torn
    assert 'fill="url(#gap)"' in torn
    assert 'fill="url(#gap)"' not in whole


def test_ahead_is_drawn_above_and_the_alarm_line_between(answer: Answer) -> None:
    text = draw(answer("gpu-a1", 50000.0))
    card = text[text.index("Host by host") :]
    curve = [
        float(y)
        for y in re.findall(r"[ML][\d.]+ ([\d.]+)", re.findall(r'stroke="var\(--c0\)"[^>]* d="([^"]*)"', card)[0])
    ]
    alarm = [float(y) for y in re.findall(r'd="M\d+ ([\d.]+)H\d+" stroke="var\(--alarm\)"', card)]
    assert max(curve) < alarm[0] < alarm[1]


def test_64_hosts_are_one_page_below_1_5_mb(answer: Answer) -> None:
    text = draw(*(answer(f"gpu-a{number:02d}", float(number)) for number in range(64)))
    assert len(text) < 1_500_000
    assert text.count('class="card') == 66
    assert "grey: 58 more" in text


def test_no_data_at_all_is_still_a_page(unreachable: dict[str, Any]) -> None:
    assert Tags(draw(unreachable)).open == []
    assert Tags(draw()).open == []


def test_a_night_on_local_fallback_is_hatched_its_own_way_and_said_in_words(answer: Answer) -> None:
    islanded = answer("relay-a1", lambda s: None if 36000 <= s < 57600 else 20.0, gaps=[[36000, 57600, model.FALLBACK]])
    islanded["log"]["summary"].update(gap_s=21600, fallback_s=21600, bound_unknown_s=180)
    text = draw(islanded)
    assert "on local fallback, following nobody outside: relay-a1 (6.0 h)" in text
    assert "unknown for a while" not in text
    assert 'fill="url(#alone)"><title>local fallback, 6.0 h' in text
    assert 'id="alone"' in text
    assert ", unknown for 3 min</td>" in text
    Tags(text)
