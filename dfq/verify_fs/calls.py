"""The calls that are put to the test: those that a queue makes, and a few that only the test needs."""

from __future__ import annotations

import os

from dfq.ports import OsDisk
from dfq.providers.filesystem.wake import Events


class Calls(OsDisk):
    """A folder as the queue sees it. A test of the test gives one that lies."""

    def rename(self, source: str, path: str) -> None:
        """Move a name over another."""
        os.rename(self._prefix + source, self._prefix + path)

    def events(self) -> Events:
        """Return what tells of changes to folders."""
        return Events()
