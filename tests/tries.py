"""How often a property is tried: few times by default, for the examples are the same at every run."""

from __future__ import annotations

import hypothesis

RANDOM_PROFILE = "default"  # the profile whose examples are random at every run
FEW = "few"  # the profile of the usual run
FEW_EXAMPLES = 17  # a sixth of 100, which is the number of the profile `default`


def tries(count: int) -> int:
    """Return a sixth of a number of examples, and all of them with `--hypothesis-profile default`."""
    return count if hypothesis.settings.get_current_profile_name() == RANDOM_PROFILE else (count + 5) // 6
