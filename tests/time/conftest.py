"""Scenarios of time that need minutes: `./rack test --all` only. The same rack and fixtures as tests/demo."""

from rack_fixtures import built, fault, play, rack, sh

__all__ = ["built", "fault", "play", "rack", "sh"]
