"""How many files and connections this process may have open at once."""

from __future__ import annotations

import resource
from contextlib import suppress

ENOUGH = 65_536
"""More is not asked for: commands inherit the limit, and some programs close every number below it."""


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard one: the usual 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft
