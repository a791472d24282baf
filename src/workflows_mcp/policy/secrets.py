r"""Looks up secrets, puts them into the inputs of steps, and redacts them in everything from outside.

    secrets = Secrets(file=Path("secrets.env"))
    secrets.put_in({"header": "Bearer ⟦secret:API_KEY⟧"})       # {"header": "Bearer sk-1234"}
    secrets.redact("401 for sk-1234")                           # "401 for ⟦secret:API_KEY⟧"

A run only ever holds marks (`values.secret_mark`). Just before a step runs, `put_in` replaces the marks in
its inputs with values. `redact` replaces values with marks in the results of steps, the answers of agents and
the inputs of runs. `hide` does the same for the log.

A secret NAME is looked up when it is needed: first in the variable WORKFLOWS_SECRET_NAME (commands do not get
it), then in the file of secrets, then in the variable NAME. A changed value applies from the next step on.
Every value ever seen stays known, so it is still redacted.

The file of secrets has lines of NAME=value, as a .env file:

    # the key of the test account
    API_KEY=sk-1234            # the rest of an unquoted line is a comment after a blank and a #
    export TOKEN='as it stands, $ and \ too'
    PRIVATE_KEY="-----BEGIN KEY-----
    a quoted value may have several lines; \n \t \" \$ \\ are understood in double quotes
    -----END KEY-----"

Only its owner may have access. Errors name the line and never show its content.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from workflows_mcp.errors import MissingSecret, RequestError
from workflows_mcp.policy.redact import MIN_CHARS, Redactor, filled, form_of, split_at_marks
from workflows_mcp.settings import Settings
from workflows_mcp.values import SECRET_OPEN, Value, may_hold_mark, with_texts

logger = logging.getLogger(__name__)

VARIABLE = "WORKFLOWS_SECRET_"
"""The prefix of variables that are only secrets."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_BYTES = 1024 * 1024


class Secrets:
    def __init__(
        self,
        *,
        file: Path | None = None,
        allowed: Iterable[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`allowed`: the names that may be used; None for all."""
        self._file = SecretFile(file) if file is not None else None
        self._allowed = frozenset(allowed) if allowed is not None else None
        self._environ = os.environ if environ is None else environ
        self._known: dict[str, str] = {}
        """The name of each value ever seen."""
        self._used: set[str] = set()
        self._redactor = Redactor({})
        self._stale = False
        self._last_warning = ""
        self._seen_in_file: dict[str, str] | None = None
        for variable, value in self._environ.items():
            if variable.startswith(VARIABLE) and not _unusable(value):
                self._remember(variable[len(VARIABLE) :], value)

    @property
    def knows_any(self) -> bool:
        return bool(self._known)

    # Whether they are there

    def check(self, names: Iterable[str]) -> None:
        """Raise MissingSecret if any cannot be used, with all of them and how to set them."""
        found = [(name, self._look_up_and_learn(name)[1]) for name in sorted(set(names))]
        unusable = [(name, problem) for name, problem in found if problem]
        if unusable:
            raise _missing(unusable)

    def missing(self, names: Iterable[str]) -> list[str]:
        """The names that cannot be used. Does not learn any value."""
        return [name for name in sorted(set(names)) if self._look_up(name)[1]]

    def learn(self, names: Iterable[str]) -> None:
        """Redact the values of these names from now on, if they exist."""
        for name in names:
            self._look_up_and_learn(name)

    # In and out

    def put_in(self, value: Value) -> Value:
        """Replace the marks in a value with secrets. Raises MissingSecret."""
        if not value:
            return value
        try:
            return with_texts(value, lambda text: filled(text, self._form))
        except RecursionError:
            raise _too_deep() from None

    def split(self, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts around the marks, and the secrets for the marks; one more text than secrets."""
        return split_at_marks(text, self._form)

    def redact(self, value: Value) -> Value:
        """Disarm a value from outside, and replace known secrets in it with marks."""
        redactor = self._current()
        if not redactor.knows_any and not may_hold_mark(value):
            return value
        try:
            return redactor.value(value)
        except RecursionError:
            raise _too_deep() from None

    def hide(self, text: str) -> str:
        """Replace known secrets in a text for people with marks."""
        return self._current().text(text)

    def end_of_cut(self, text: str, min_chars: int = 1) -> str:
        """A truncated text without a partial secret of at least `min_chars` characters at its end."""
        return self._current().end_of_cut(text, min_chars)

    # Inside

    def _form(self, name: str, label: str) -> str:
        value, problem = self._look_up_and_learn(name)
        if problem:
            raise _missing([(name, problem)])
        text = form_of(value, label)
        if text is None:
            raise MissingSecret(
                f"the secret '{name}' has changed: an earlier step used its {label} form, which is gone",
                hint="start the workflow again, so that all steps use the same value",
            )
        return text

    def _look_up_and_learn(self, name: str) -> tuple[str, str]:
        """The value, or why it cannot be used. A usable value is redacted from now on."""
        value, problem = self._look_up(name)
        if not problem:
            self._used.add(name)
            self._remember(name, value)
        return value, problem

    def _look_up(self, name: str) -> tuple[str, str]:
        """The value, or why it cannot be used."""
        if not NAME.fullmatch(name):
            return "", "has a name with characters other than letters, digits and _"
        if self._allowed is not None and name not in self._allowed:
            return "", "may not be used: it is not in WORKFLOWS_SECRETS (secrets in workflows.toml)"
        try:
            value = self._environ.get(VARIABLE + name)
            if not value:
                value = self._in_file().get(name)
            value = value or self._environ.get(name)
        except RequestError as error:
            return "", f"cannot be looked up: {error.message}" + (f" ({error.hint})" if error.hint else "")
        problem = _unusable(value) if value else "is missing"
        return ("", problem) if problem else (value or "", "")

    def _in_file(self) -> dict[str, str]:
        """The secrets of the file, all redacted from now on. Raises RequestError."""
        values = self._file.values() if self._file is not None else {}
        if values is not self._seen_in_file:
            self._seen_in_file = values
            for name, value in values.items():
                if not _unusable(value):
                    self._remember(name, value)
        return values

    def _remember(self, name: str, value: str) -> None:
        """Remember a value. If it has several names, its mark has one that is used."""
        other = self._known.get(value)
        if other is None or (other not in self._used and name in self._used):
            self._known[value] = name
            self._stale = True

    def _current(self) -> Redactor:
        """The redactor for all known values, including those of the file."""
        if self._file is not None and self._file.changed():
            try:
                self._in_file()
                self._last_warning = ""
            except RequestError as error:
                if self._last_warning != error.message:
                    self._last_warning = error.message
                    logger.warning("%s; %s", error.message, error.hint)
        if self._stale:
            self._stale = False
            self._redactor = Redactor(dict(self._known))
        return self._redactor


def secrets_of(settings: Settings) -> Secrets:
    return Secrets(file=settings.secrets_file, allowed=settings.secrets)


def _missing(unusable: list[tuple[str, str]]) -> MissingSecret:
    names = [name for name, _ in unusable]
    problems = "; ".join(f"the secret '{name}' {problem}" for name, problem in unusable)
    return MissingSecret(
        problems,
        hint=f"set {' and '.join(names)} in one of three ways: as the environment variable "
        f"{VARIABLE}{names[0]} of the server, as a line {names[0]}=… in the file that WORKFLOWS_SECRETS_FILE "
        f"names, or as the environment variable {names[0]}",
    )


def _unusable(value: str) -> str:
    """Why the value cannot be a secret; empty if it can."""
    if len(value.strip()) < MIN_CHARS:
        return f"has fewer than {MIN_CHARS} characters, which is too short to be redacted"
    if SECRET_OPEN[0] in value:
        return f"contains the character {SECRET_OPEN[0]}, which is reserved for the marks of secrets"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is not valid text"
    return ""


def _too_deep() -> RequestError:
    return RequestError(
        "a value cannot be stored: it is nested too deeply",
        hint="values are JSON: numbers of at most 64 bits, valid text, limited nesting",
        code="unencodable",
    )


# The log


@contextmanager
def hidden_in_logs(secrets: Secrets) -> Iterator[None]:
    """Redact everything that the log handlers of this process write, including the last resort.

    If a secret became known, the filters stay: a process may log something when it exits.
    """
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for it in loggers if isinstance(it, logging.Logger) for handler in it.handlers}
    if logging.lastResort is not None:
        handlers.add(logging.lastResort)
    redacting = RedactingFilter(secrets)
    for handler in handlers:
        handler.addFilter(redacting)
    try:
        yield
    finally:
        for handler in handlers if not secrets.knows_any else ():
            handler.removeFilter(redacting)


class RedactingFilter(logging.Filter):
    """Redacts secrets in log records, including the texts of exceptions."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # its arguments do not fit; the handler would print them all
            message = str(record.msg)
        record.msg, record.args = self._secrets.hide(message), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        record.exc_info = None
        if record.exc_text:
            record.exc_text = self._secrets.hide(record.exc_text)
        if record.stack_info:
            record.stack_info = self._secrets.hide(record.stack_info)
        return True


# The file of secrets


_BEGINNING = re.compile(r"[ \t]*(?:export[ \t]+)?([^\s=#]+)[ \t]*=[ \t]*")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_PLAIN = re.compile(r"[^\n]*")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_COMMENT = re.compile(r"(?:^|[ \t])#.*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


class SecretFile:
    """The secrets of a file, re-read when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._values: dict[str, str] = {}

    def changed(self) -> bool:
        """Whether the file may have changed since it was read."""
        try:
            return _file_stamp(os.stat(self.path)) != self._seen
        except OSError:
            return True

    def values(self) -> dict[str, str]:
        """The secrets by name. Raises RequestError if the file cannot be used."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RequestError(
                f"the file of secrets {self.path} cannot be read: {error.strerror}",
                hint="create it, or change WORKFLOWS_SECRETS_FILE (secrets_file in workflows.toml)",
            ) from None
        try:
            status = os.fstat(descriptor)
            self._refuse(status)
            if _file_stamp(status) != self._seen:
                with open(descriptor, "rb", closefd=False) as file:
                    self._values = parse(file.read(MAX_BYTES + 1), str(self.path))
                self._seen = _file_stamp(status)
        finally:
            os.close(descriptor)
        return self._values

    def _refuse(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise RequestError(f"the file of secrets {self.path} is not an ordinary file")
        if status.st_mode & 0o077:
            raise RequestError(
                f"users other than the owner have access to the file of secrets {self.path}",
                hint=f"run: chmod 600 {self.path}",
            )
        if status.st_size > MAX_BYTES:
            raise RequestError(f"the file of secrets {self.path} has more than {MAX_BYTES} bytes")


def parse(content: bytes, file: str) -> dict[str, str]:
    """The secrets by name; the last value of a duplicate name. Raises RequestError."""
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
            raise _unreadable(text, position, file, "write NAME=value; a name has letters, digits and _")
        value, position = _value(text, beginning.end(), file)
        values[beginning[1]] = value
    return values


def _value(text: str, start: int, file: str) -> tuple[str, int]:
    """The value at an offset, and the offset of the next line."""
    quote = text[start : start + 1]
    if quote not in ("'", '"'):
        line = _PLAIN.match(text, start)
        assert line is not None
        return _COMMENT.sub("", line[0]).strip(), line.end() + 1
    found = (_SINGLE if quote == "'" else _DOUBLE).match(text, start)
    if found is None:
        raise _unreadable(text, start, file, f"add the closing {quote}")
    rest = _REST.match(text, found.end())
    if rest is None:
        raise _unreadable(text, found.end(), file, "only a comment may follow the closing quote")
    value = found[1]
    if quote == '"':
        value = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
    return value, rest.end()


def _unreadable(text: str, position: int, file: str, hint: str) -> RequestError:
    line = text.count("\n", 0, position) + 1
    return RequestError(f"line {line} of the file of secrets {file} cannot be read", hint=hint)


def _file_stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_mode)
