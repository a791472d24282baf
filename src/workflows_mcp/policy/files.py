"""Reads, writes, copies and removes files safely: whole, within limits, without following links.

    write_file(Path("/work/report.md"), b"...")      # True: the file is new

The caller has already checked that the path is allowed (`handles.py`). Only ordinary files up to a size limit
are read; a named pipe would block the server. A file is written beside its place and then moved there:
readers see the old content or the new, and a crash leaves no partial file.

A directory may be copied while someone works in it. Links are copied as links; a link to a place inside the
directory leads to the same place inside the copy. Pipes, sockets, devices and files that disappear are
skipped.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workflows_mcp.errors import StepError

LOCK_SECONDS = 10.0

_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Traversing a directory does not need permission to list it."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CHUNK = 1024 * 1024

_part_numbers = itertools.count()


# Files


def read_file(path: Path, limit: int, limit_hint: str) -> bytes | None:
    """The content of an ordinary file of at most `limit` bytes; None if there is no file.

    The check of the path resolved its links; a link created since is not followed.
    """
    try:
        descriptor = _open_without_links(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StepError(f"cannot read {path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not an ordinary file"
            raise StepError(f"cannot read {path}: it is {kind}")
        # The reported size may be wrong: the file may be growing, or be in /proc.
        parts: list[bytes] = []
        size = status.st_size
        while size <= limit and (part := os.read(descriptor, 1024 * 1024)):
            parts.append(part)
            size = max(size, sum(map(len, parts)))
        if size > limit:
            raise StepError(
                f"{path} is too large: {size} bytes, and at most {limit} are allowed", hint=limit_hint
            )
        return b"".join(parts)
    except OSError as error:
        raise StepError(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _open_without_links(path: Path) -> int:
    directory = os.open(path.anchor or ".", _PASSED)
    try:
        *above, name = path.parts[1:] if path.anchor else path.parts
        for part in above:
            inner = os.open(part, _PASSED, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    finally:
        os.close(directory)


def write_file(path: Path, data: bytes, *, permissions: int | None = None, overwrite: bool = True) -> bool:
    """Write `data` to `path`, whole or not at all; return whether the file is new.

    Without `permissions`, a new file gets the default ones and an existing file keeps its own.
    """
    before = _existing_mode(path)
    if before is not None:
        if not overwrite:
            raise _exists(path)
        if not stat.S_ISREG(before):
            kind = "a directory" if stat.S_ISDIR(before) else "a special file"
            raise StepError(f"cannot write {path}: {kind} has that name")
        if permissions is None:
            permissions = stat.S_IMODE(before)
    part = path.parent / f".{path.name[:80]}.{os.getpid()}-{next(_part_numbers)}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                remaining = memoryview(data)
                while remaining:
                    remaining = remaining[file.write(remaining) :]
                if permissions is not None:
                    os.fchmod(descriptor, permissions)
            if overwrite:
                os.replace(part, path)
            else:
                os.link(part, path)  # unlike a move, this fails if the file exists by now
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except FileExistsError:
        raise _exists(path) from None
    except FileNotFoundError:
        raise StepError(
            f"cannot write {path}: the directory {path.parent} does not exist",
            hint="set create_parents: true to create it",
        ) from None
    except OSError as error:
        raise StepError(f"cannot write {path}: {error.strerror}") from None
    return before is None


def _existing_mode(path: Path) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StepError(f"cannot write {path}: {error.strerror}") from None


def _exists(path: Path) -> StepError:
    return StepError(f"{path} already exists", hint="set overwrite: true to replace it")


@contextmanager
def only_writer_in(directory: Path) -> Iterator[None]:
    """Lock `directory` against other steps that read, change and write a file in it, in any process.

    The lock is on the directory itself, so no lock file remains.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StepError(f"cannot use the directory {directory}: {error.strerror}") from None
    try:
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise StepError(
                        f"another process has locked {directory} for {LOCK_SECONDS:g} seconds",
                        hint="look for a stopped workflows-mcp process, and run it again",
                    ) from None
                time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


# Directories


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StepError(f"cannot create the directory {path}: {error.strerror}") from None


def remove_directory(path: Path) -> None:
    """Remove a directory and its content, including read-only directories; it need not exist.

    Links are removed, never followed, even in place of the directory itself. Directories are moved up to the
    first level before they are emptied, so any depth needs two descriptors.
    """
    top = _open_to_empty(path)
    if top is None:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        return
    with _descriptor(top):
        with suppress(OSError):
            os.fchmod(top, stat.S_IRWXU)
        pending = _unlink_files(top, os.listdir(top))
        numbers = itertools.count()
        while pending:
            name = pending.pop()
            with suppress(OSError), _descriptor(os.open(name, _LISTED, dir_fd=top)) as directory:
                for inner in _unlink_files(directory, os.listdir(directory)):
                    moved = f".removed-{os.getpid()}-{next(numbers)}"
                    with suppress(OSError):
                        os.rename(inner, moved, src_dir_fd=directory, dst_dir_fd=top)
                        pending.append(moved)
            with suppress(OSError):
                os.rmdir(name, dir_fd=top)
    with suppress(OSError):
        os.rmdir(path)


def _open_to_empty(path: Path) -> int | None:
    """A descriptor; None if there is no directory, or it belongs to someone else."""
    with suppress(OSError):
        with suppress(PermissionError):
            return os.open(path, _LISTED)
        with _descriptor(os.open(path.parent, _LISTED)) as parent:
            _make_writable(path.name, parent)
        return os.open(path, _LISTED)
    return None


def _unlink_files(directory: int, names: list[str]) -> list[str]:
    """Remove everything but directories; return the directories, made writable."""
    directories = []
    for name in names:
        try:
            os.unlink(name, dir_fd=directory)
        except (IsADirectoryError, PermissionError):  # the latter where the system is not Linux
            with suppress(OSError):
                _make_writable(name, directory)
                directories.append(name)
        except OSError:
            continue
    return directories


def _make_writable(name: str, parent: int) -> None:
    """Let the owner list and change a directory. Raises OSError if it is a link."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, stat.S_IRWXU, dir_fd=parent, follow_symlinks=False)
        return
    with _descriptor(os.open(name, _PASSED, dir_fd=parent)) as directory:
        os.chmod(f"/proc/self/fd/{directory}", stat.S_IRWXU)


@contextmanager
def _descriptor(number: int) -> Iterator[int]:
    try:
        yield number
    finally:
        os.close(number)


def copy_directory(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which must not exist. After an OSError, a partial copy remains."""
    os.makedirs(target.parent, exist_ok=True)
    created: list[tuple[Path, int]] = []
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
        created.append((target / inside, stat.S_IMODE(mode)))
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_symlink():
                    os.symlink(_same_place(source, Path(entry.path)), target / inside / entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(inside / entry.name)
                elif entry.is_file(follow_symlinks=False):
                    _copy_file(entry.path, target / inside / entry.name)
    for directory, mode in reversed(created):  # last, because a directory may be read-only
        os.chmod(directory, mode)


def _same_place(source: Path, link: Path) -> str:
    """The target of a copied link; a target inside the directory becomes relative."""
    leads_to = os.readlink(link)
    place = Path(os.path.normpath(link.parent / leads_to))
    if place == source or source in place.parents:
        return os.path.relpath(place, link.parent)
    return leads_to


def _copy_file(source: str, target: Path) -> None:
    with open(os.open(source, _OPEN), "rb") as original:
        status = os.fstat(original.fileno())
        if not stat.S_ISREG(status.st_mode):
            return  # replaced meanwhile
        with open(os.open(target, _CREATE, 0o600), "wb") as copy:
            shutil.copyfileobj(original, copy, _CHUNK)
            os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


# ----------------------------------------------------------------------------------------------------
# Which files a command has changed


_PASSED_OVER = frozenset(
    [
        ".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".pytest_cache", ".mypy_cache",
        ".ruff_cache", ".hypothesis", ".tox", ".nox", ".gradle", "target", ".coverage",
    ]
)  # fmt: skip
"""Directories and files of tools, which commands change all the time."""
_MOST_WATCHED = 20_000

Fingerprints = dict[str, tuple[int, int]]


def fingerprints(root: Path) -> Fingerprints | None:
    """The times and sizes of the files below a directory, by relative path; None if there are too many."""
    found: Fingerprints = {}
    waiting = [str(root)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name in _PASSED_OVER:
                continue
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if len(found) >= _MOST_WATCHED:
                return None
            found[os.path.relpath(entry.path, root)] = about.st_mtime_ns, about.st_size
    return found


def changed_files(before: Fingerprints | None, after: Fingerprints | None) -> list[str]:
    """The files that were created, changed or deleted; none if there were too many to watch."""
    if before is None or after is None:
        return []
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
