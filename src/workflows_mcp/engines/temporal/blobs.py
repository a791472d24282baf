"""Large values, in a directory that all workers share: written once under their hash, never changed.

What is read by its hash is the same whenever it is read, so that also the code of a workflow, which must come
to the same result whenever it is repeated, may read it.
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
"""What is larger is kept here, and only its hash goes through the server, which takes at most 2 MiB."""
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
        """Whole or not at all; writing the same twice is harmless."""
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
        """Keep what is called by a name that nothing else can have; what was kept first stays."""
        path = self._directory / _NOTES / name
        if not path.exists():
            self._write(path, body)

    def noted(self, name: str) -> bytes | None:
        try:
            return (self._directory / _NOTES / name).read_bytes()
        except FileNotFoundError:
            return None

    def packed(self, body: bytes, most: int = PACKED_BYTES) -> bytes:
        """What goes through the server in place of `body`: itself, or where it is."""
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

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self._directory / name[:2] / name


def _sync_directory(path: Path) -> None:
    """The name of a new file is safe on disk only when its directory is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place_of_stop(run_id: str, position: int, event: bytes) -> str:
    """The name of the note on the expressions that an event of a run led to and that had to be stopped."""
    said = b"%s/%d/%s" % (run_id.encode(), position, event)
    return hashlib.blake2b(said, digest_size=_HASH_BYTES).hexdigest()


_in_use: list[BlobStore] = []


def use(store: BlobStore) -> None:
    """The code of workflows is called by the worker, without anything of ours: this is where it looks."""
    _in_use[:] = [store]


def in_use() -> BlobStore:
    return _in_use[0]
