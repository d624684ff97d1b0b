"""Answers as time_log_info gives them; see conftest_report.py."""

from conftest_report import answer, unreachable

__all__ = ["answer", "unreachable"]
