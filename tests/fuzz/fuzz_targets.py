"""All targets, by name."""

from __future__ import annotations

import fuzz_files
import fuzz_words
from fuzz_oracle import Target

TARGETS: dict[str, Target] = {target.name: target for target in [*fuzz_files.TARGETS, *fuzz_words.TARGETS]}


def folder_of(name: str) -> str:
    """Return the name of a target's folder in the corpus."""
    return name.replace(" ", "-").replace(".", "-")
