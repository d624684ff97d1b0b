"""The PNG: there, bounded, deterministic, whatever the names are."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from ansible.module_utils.steadyrack_report import model, picture
from conftest_report import SINCE, UNTIL, Answer

pytest.importorskip("matplotlib", reason="the controller's environment is not installed")


def draw(*answers: dict[str, Any]) -> bytes:
    return picture.png(model.build("demo", answers, UNTIL, 24))


def size(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_the_same_data_give_the_same_picture_and_others_another(answer: Answer, unreachable: dict[str, Any]) -> None:
    one, again = (draw(answer("gpu-a1"), unreachable) for _ in range(2))
    assert one == again
    assert draw(answer("gpu-a1", 50000.0), unreachable) != one


def test_64_hosts_fit_a_screen_and_a_mail(answer: Answer) -> None:
    data = draw(*(answer(f"gpu-a{number:02d}", float(number)) for number in range(64)))
    width, height = size(data)
    assert width == 900
    assert height < 2000
    assert len(data) < 400_000


def test_hostile_and_endless_names_are_drawn_as_text(answer: Answer) -> None:
    size(draw(answer("$\\frac{$ \n\x1b[31m" + "x" * 5000), {"host": "钟", "site": "s", "reason": "$_{"}))


def test_no_data_at_all_is_still_a_picture(unreachable: dict[str, Any]) -> None:
    size(draw(unreachable))
    size(draw())


def test_strips_are_red_only_above_the_alarm_and_never_in_a_gap(answer: Answer) -> None:
    offsets = answer("gpu-a1", lambda second: None if second > 80000 else 50000.0 if second > 43200 else 100.0)
    report = model.build("demo", [offsets], UNTIL, 24)
    low, between, high = picture._spans(report, report.hosts[0])
    assert (len(low), between, len(high)) == (1, [], 1)
    assert high[0][0] - SINCE == pytest.approx(43216, abs=320)
    assert sum(high[0]) - SINCE == pytest.approx(80000, abs=400)


def test_a_thin_line_keeps_its_colour_in_the_palette(answer: Answer) -> None:
    from PIL import Image

    data = draw(answer("gpu-a1", 50000.0), answer("gpu-a2", 20000.0), answer("gpu-a3", 3000.0))
    seen = {colour for _number, colour in Image.open(io.BytesIO(data)).convert("RGB").getcolors()}
    for wanted in picture.COLOURS[:3]:
        parts = [int(wanted[place : place + 2], 16) for place in (1, 3, 5)]
        assert min(max(abs(a - b) for a, b in zip(parts, one, strict=True)) for one in seen) < 24, wanted
