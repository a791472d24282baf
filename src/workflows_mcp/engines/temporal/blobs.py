"""Large values, in a directory that all workers share; each is one file, named by its hash.

    store.put(digest, body)
    store.unpacked(store.packed(body)) == body      # `packed` is what goes through the server

A file never changes, so the code of a workflow may read it although a replay must give the same result.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from workflows_mcp.engines.values import Blob
from workflows_mcp.errors import Damaged

PACKED_BYTES = 256 * 1024
"""Larger payloads are stored here; only the hash goes through the server, which takes at most 2 MiB."""
_HERE, _THERE = b"h", b"t"
_HASH_BYTES = 20
_NOTES = "stopped"


class BlobStore:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, digest: bytes) -> bytes | None:
        try:
            return self._path(digest).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, digest: bytes, body: bytes) -> None:
        """Write a blob atomically; writing it twice is harmless."""
        path = self._path(digest)
        if not path.exists():
            self._write(path, body)

    def _write(self, path: Path, body: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
            _sync_directory(path.parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name)
            raise

    def keep(self, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            self.put(blob.hash, blob.body)

    def note(self, name: str, body: bytes) -> None:
        """Store a note under a unique name; an existing note is not replaced."""
        path = self._directory / _NOTES / name
        if not path.exists():
            self._write(path, body)

    def noted(self, name: str) -> bytes | None:
        try:
            return (self._directory / _NOTES / name).read_bytes()
        except FileNotFoundError:
            return None

    def packed(self, body: bytes, most: int = PACKED_BYTES) -> bytes:
        """The payload for `body`: itself, or its hash."""
        if len(body) <= most:
            return _HERE + body
        digest = hashlib.blake2b(body, digest_size=_HASH_BYTES).digest()
        self.put(digest, body)
        return _THERE + digest

    def unpacked(self, packed: bytes) -> bytes:
        if packed[:1] == _HERE:
            return packed[1:]
        body = self.get(packed[1:])
        if body is None:
            raise Damaged(
                f"a large value is missing (blob {packed[1:].hex()}) in {self._directory}",
                hint="all workers and servers must share the directory of the setting temporal.blobs",
            )
        return body

    def is_intact(self, packed: bytes) -> bool:
        """Whether the payload has the bytes that its hash was made of."""
        if packed[:1] == _HERE:
            return True
        body = self.get(packed[1:])
        return body is not None and hashlib.blake2b(body, digest_size=_HASH_BYTES).digest() == packed[1:]

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._directory / name[:2] / name


def _sync_directory(path: Path) -> None:
    """Sync a directory, so that the name of a new file survives a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place_of_stop(run_id: str, position: int, event: bytes) -> str:
    """The name of the note about the expressions that were stopped after an event of a run."""
    key = b"%s/%d/%s" % (run_id.encode(), position, event)
    return hashlib.blake2b(key, digest_size=_HASH_BYTES).hexdigest()


_in_use: list[BlobStore] = []


def use(store: BlobStore) -> None:
    """Set the store of this process: the worker calls workflows without arguments of ours."""
    _in_use[:] = [store]


def in_use() -> BlobStore:
    return _in_use[0]
