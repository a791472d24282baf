"""Copying a directory with all that is in it, while somebody may still be working in the original.

Links are copied as links, never followed; one that leads to a place inside of the original leads to the same
place inside of the copy, so that nobody who works in the copy touches the original. Pipes, sockets and
devices are left out. What disappears meanwhile is not copied. It must not know whose directory it is.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CHUNK = 1024 * 1024


def copy_directory(source: Path, target: Path) -> None:
    """Copies `source` to `target`, where nothing may be yet. Raises OSError; the part that was copied by then
    stays."""
    os.makedirs(target.parent, exist_ok=True)
    made: list[tuple[Path, int]] = []
    pending = [Path()]
    while pending:
        inside = pending.pop()
        try:
            mode = os.lstat(source / inside).st_mode
            if not stat.S_ISDIR(mode):
                continue
            entries = list(os.scandir(source / inside))
        except (FileNotFoundError, NotADirectoryError):
            continue
        os.mkdir(target / inside, 0o700)
        made.append((target / inside, stat.S_IMODE(mode)))
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_symlink():
                    os.symlink(_same_place(source, Path(entry.path)), target / inside / entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(inside / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(entry.path, target / inside / entry.name)
    for directory, mode in reversed(made):  # last of all: one may be read-only
        os.chmod(directory, mode)


def _same_place(source: Path, link: Path) -> str:
    """Where the copy of a link leads: as it is, or, inside of the directory, by a way that stays inside."""
    leads_to = os.readlink(link)
    place = Path(os.path.normpath(link.parent / leads_to))
    if place == source or source in place.parents:
        return os.path.relpath(place, link.parent)
    return leads_to


def _copy_file(source: str, target: Path) -> None:
    with open(os.open(source, _OPEN), "rb") as original:
        status = os.fstat(original.fileno())
        if not stat.S_ISREG(status.st_mode):
            return  # it has become something else meanwhile
        with open(os.open(target, _CREATE, 0o600), "wb") as copy:
            shutil.copyfileobj(original, copy, _CHUNK)
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
