"""Runs that are killed: `./rack test --all` only. The same rack and fixtures as tests/demo."""

from rack_fixtures import built, play, rack

__all__ = ["built", "play", "rack"]
