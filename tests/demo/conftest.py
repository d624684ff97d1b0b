"""The demo rack end to end. Runs go through ansible-runner: events are asserted, not text."""

from rack_fixtures import built, fault, play, rack, sh

__all__ = ["built", "fault", "play", "rack", "sh"]
