"""How long what travels along with a form holds: for a week, and for every server of the same home.

A call that is answered with a form is made again with what the user has filled in, and says by a sealed text
what it is about. People answer tomorrow, and servers come and go with the sessions of their clients. So the
key of the seal is kept, in a file that is made when something is sealed for the first time.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateCodec,
    RequestStateSecurity,
)

logger = logging.getLogger(__name__)

HOLDS_SECONDS = 7 * 24 * 3600.0
KEY_FILE = "elicitation.key"
_KEY_BYTES = 32


def sealing_of(home: Path) -> RequestStateSecurity:
    return RequestStateSecurity(codec=KeptSeal(home / KEY_FILE), ttl=HOLDS_SECONDS)


class KeptSeal:
    """Seals with the key of a file. Where that cannot be kept, with one that lasts as long as the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._codec: RequestStateCodec | None = None

    def seal(self, payload: bytes) -> str:
        return self._with_key().seal(payload)

    def unseal(self, token: str) -> bytes:
        if self._codec is None and not self._path.exists():
            raise InvalidRequestState("there is no key yet, so nothing was sealed")
        return self._with_key().unseal(token)

    def _with_key(self) -> RequestStateCodec:
        if self._codec is not None:
            return self._codec
        try:
            key = _kept(self._path)
        except OSError as error:
            logger.warning(
                "%s: %s; forms that are open when this server ends cannot be answered afterwards",
                self._path,
                error.strerror or error,
            )
            key = secrets.token_bytes(_KEY_BYTES)
        self._codec = AESGCMRequestStateCodec([key])
        return self._codec


def _kept(path: Path) -> bytes:
    """The key of the file, which is made if there is none: of several processes at once, one makes it."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # nobody else reads it
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(part, path)  # unlike a move this fails if somebody was quicker
        finally:
            os.unlink(part)
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise OSError(f"it has {len(key)} bytes, and a key has {_KEY_BYTES}; delete it to have another made")
    return key
