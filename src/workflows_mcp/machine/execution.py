"""The identity of one execution of a step: its address, its attempt, and the event that opened it.

Whatever belongs to an execution is derived from it: the directory of its files, its live output, the messages
and traces that it leaves. Two executions of one run never share it; after a restart an execution that is
repeated has the same one.

    Execution("build/2", "1", 14).key          # 'build/2#1': what commands and reports carry
    Execution("build/2", "1", 14).file_name    # 'build.2-1-14-9f86d081'
"""

from __future__ import annotations

import hashlib
import re

import msgspec

_NAME_CHARS = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Execution(msgspec.Struct, frozen=True, order=True):
    address: str
    """The path of block or step ids from the root of the run, with the items of loops."""
    attempt: str = "1"
    event: int = 0
    """The number of the event that opened it; 0 where an earlier version did not write it down."""

    @property
    def key(self) -> str:
        return key_of(self.address, self.attempt)

    @property
    def file_name(self) -> str:
        """A readable name for a file or directory; no two executions of a run have the same one."""
        digest = hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        readable = _UNSAFE.sub(".", self.address)[-_NAME_CHARS:].strip(".")
        return f"{readable}-{_UNSAFE.sub('.', self.attempt)[-_NAME_CHARS:]}-{self.event}-{digest}"


def key_of(address: str, attempt: str) -> str:
    return f"{address}#{attempt}"


def address_of(key: str) -> tuple[str, str]:
    address, _, attempt = key.rpartition("#")
    return address, attempt
