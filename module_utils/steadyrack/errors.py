# SPDX-License-Identifier: BSD-2-Clause
"""Errors that say what to do: the thing, what was seen, what was wanted, the next step.

Helpers raise these; only a module's ``main()`` or the command's ``main()`` turns one into an exit.
"""

from __future__ import annotations

from typing import Any


class SteadyrackError(Exception):
    """The root of every error this project raises on purpose.

    ``thing`` names what the error is about (a path, a GPU's UUID, a unit); the other three may be
    left out when there is nothing true to say.
    """

    def __init__(
        self,
        thing: str,
        seen: object | None = None,
        wanted: object | None = None,
        next_step: str | None = None,
    ) -> None:
        self.thing = thing
        self.seen = seen
        self.wanted = wanted
        self.next_step = next_step
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """One line for a person, in the order in which they ask."""
        text = self.thing
        if self.seen is not None:
            text += f": seen {self.seen}"
        if self.wanted is not None:
            text += "{} wanted {}".format("," if self.seen is not None else ":", self.wanted)
        if self.next_step:
            text += f". Next: {self.next_step}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The same for a machine, as a module returns it beside ``msg``."""
        return {
            "kind": type(self).__name__,
            "thing": self.thing,
            "seen": self.seen,
            "wanted": self.wanted,
            "next_step": self.next_step,
        }


class InputError(SteadyrackError):
    """A value somebody gave is malformed or impossible; nothing was changed."""


class StateFileError(SteadyrackError):
    """A file of ours is unreadable, truncated, malformed or of a newer version; never used as it is."""


class AccessError(SteadyrackError):
    """The caller may not do this: not root, a container without the capability, a cgroup."""


class BusyError(SteadyrackError):
    """Another writer holds the lock for longer than we wait."""


class DeadlineError(SteadyrackError):
    """Something did not answer in time. A hang is a finding, never an empty reading."""


class ToolError(SteadyrackError):
    """A program is missing, ended with an error, or printed what we cannot read."""


class NotAppliedError(SteadyrackError):
    """A setting was accepted, yet reading it back shows something else."""
