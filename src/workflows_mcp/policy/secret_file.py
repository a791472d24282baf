r"""A file of secrets: lines of NAME=value, as in a .env file. It must not know what they are used for.

    # the key of the test account
    API_KEY=sk-1234            # the rest of an unquoted line is a comment after a blank and a #
    export TOKEN='as it stands, $ and \ too'
    PRIVATE_KEY="-----BEGIN KEY-----
    a quoted value may go over several lines; \n \t \" \$ \\ are understood in double quotes
    -----END KEY-----"

Others must not be able to read it. An error names the line and never shows what stands there.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from workflows_mcp.errors import RequestError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_BYTES = 1024 * 1024

_BEGINNING = re.compile(r"[ \t]*(?:export[ \t]+)?([^\s=#]+)[ \t]*=[ \t]*")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_PLAIN = re.compile(r"[^\n]*")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


class SecretFile:
    """The secrets of a file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._values: dict[str, str] = {}

    def changed(self) -> bool:
        """Whether reading could give something else than the last time."""
        try:
            return _signature(os.stat(self.path)) != self._seen
        except OSError:
            return True

    def values(self) -> dict[str, str]:
        """All of them, by name. Raises RequestError where the file cannot be used."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RequestError(
                f"the file of secrets {self.path} cannot be read: {error.strerror}",
                hint="make it, or change WORKFLOWS_SECRETS_FILE (secrets_file in workflows.toml)",
            ) from None
        try:
            status = os.fstat(descriptor)
            self._refuse(status)
            if _signature(status) != self._seen:
                with open(descriptor, "rb", closefd=False) as file:
                    self._values = parsed(file.read(MOST_BYTES + 1), str(self.path))
                self._seen = _signature(status)
        finally:
            os.close(descriptor)
        return self._values

    def _refuse(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"the file of secrets {self.path} is not an ordinary file")
        if status.st_mode & 0o077:
            raise RequestError(
                f"others than its owner can reach the file of secrets {self.path}",
                hint=f"chmod 600 {self.path}",
            )
        if status.st_size > MOST_BYTES:
            raise RequestError(f"the file of secrets {self.path} has more than {MOST_BYTES} bytes")


def parsed(content: bytes, file: str) -> dict[str, str]:
    """The secrets by name; of a name that stands twice, the last value. Raises RequestError."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise RequestError(f"the file of secrets {file} is not UTF-8") from None
    values: dict[str, str] = {}
    position = 0
    while position < len(text):
        blank = _REST.match(text, position)
        if blank is not None:
            position = blank.end()
            continue
        beginning = _BEGINNING.match(text, position)
        if beginning is None or not NAME.fullmatch(beginning[1]):
            raise _unreadable(text, position, file, "a line is NAME=value; names are letters, digits and _")
        value, position = _value(text, beginning.end(), file)
        values[beginning[1]] = value
    return values


def _value(text: str, start: int, file: str) -> tuple[str, int]:
    """The value that starts there, and where the next line does."""
    quote = text[start : start + 1]
    if quote not in ("'", '"'):
        line = _PLAIN.match(text, start)
        assert line is not None
        return _COMMENT.sub("", line[0]).strip(), line.end() + 1
    found = (_SINGLE if quote == "'" else _DOUBLE).match(text, start)
    if found is None:
        raise _unreadable(text, start, file, f"the {quote} that begins here never ends")
    rest = _REST.match(text, found.end())
    if rest is None:
        raise _unreadable(text, found.end(), file, "nothing but a comment may follow the closing quote")
    value = found[1]
    if quote == '"':
        value = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
    return value, rest.end()


def _unreadable(text: str, position: int, file: str, hint: str) -> RequestError:
    line = text.count("\n", 0, position) + 1
    return RequestError(f"line {line} of the file of secrets {file} cannot be read", hint=hint)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
