"""Secrets: where their values come from, and the one door through which they go in and out.

A run only ever holds marks (`values.secret_mark`). Just before a step runs, `put_in` replaces the marks in
its inputs by values; `take_out` replaces values by marks in whatever comes from outside: what a step gives,
what an agent answers, the inputs of a run. `hide` does the same for a log. It must not know steps or runs.

The value of NAME is looked for in the variable WORKFLOWS_SECRET_NAME (which commands do not get), in the file
of secrets, and in the variable NAME, whenever it is needed: one that was changed is used from the next step
on. Every value that was ever seen stays known, so that it goes on being taken out.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from workflows_mcp.errors import MissingSecret, RequestError
from workflows_mcp.policy.redact import Redactor, filled, redacted, split_at_marks
from workflows_mcp.policy.secret_file import NAME, SecretFile
from workflows_mcp.policy.secret_forms import LEAST_CHARS, form_of
from workflows_mcp.settings import Settings
from workflows_mcp.values import SECRET_OPEN, Value, with_texts

logger = logging.getLogger(__name__)

VARIABLE = "WORKFLOWS_SECRET_"
"""Begins the names of variables that hold secrets and nothing else."""


class Secrets:
    def __init__(
        self,
        *,
        file: Path | None = None,
        allowed: Iterable[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`allowed`: the only names that may be used; None for all."""
        self._file = SecretFile(file) if file is not None else None
        self._allowed = frozenset(allowed) if allowed is not None else None
        self._environ = os.environ if environ is None else environ
        self._known: dict[str, str] = {}
        """Every value that was ever seen, with its name."""
        self._used: set[str] = set()
        self._redactor = Redactor({})
        self._stale = False
        self._complained = ""
        self._seen_in_file: dict[str, str] | None = None
        for variable, value in self._environ.items():
            if variable.startswith(VARIABLE) and not _unusable(value):
                self._remember(variable[len(VARIABLE) :], value)

    @property
    def knows_any(self) -> bool:
        return bool(self._known)

    # Whether they are there

    def check(self, names: Iterable[str]) -> None:
        """Raise MissingSecret, naming all that cannot be used and how to give them."""
        wrong = [(name, problem) for name in sorted(set(names)) if (problem := self._found(name)[1])]
        if wrong:
            raise _missing(wrong)

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that cannot be used. To ask makes nothing known."""
        return [name for name in sorted(set(names)) if self._looked_up(name)[1]]

    def learn(self, names: Iterable[str]) -> None:
        """From now on the values of these are taken out, if they exist, wherever they turn up."""
        for name in names:
            self._found(name)

    # In and out

    def put_in(self, value: Value) -> Value:
        """The value with secrets in place of marks. Raises MissingSecret."""
        if not value:
            return value
        try:
            return with_texts(value, lambda text: filled(text, self._form))
        except RecursionError:
            raise _too_deep() from None

    def split(self, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The text around its marks, and the secrets that they stand for: one text more than secrets."""
        return split_at_marks(text, self._form)

    def take_out(self, value: Value) -> Value:
        """A value from outside, in which nothing is a mark but what stands for a known secret."""
        try:
            return redacted(value, self._current())
        except RecursionError:
            raise _too_deep() from None

    def hide(self, text: str) -> str:
        """A text for people, with marks in place of known secrets."""
        return self._current().text(text)

    def end_of_cut(self, text: str, least: int = 1) -> str:
        """A text that was cut off at its end, without a part of a secret, of so many characters, there."""
        return self._current().end_of_cut(text, least)

    # Inside

    def _form(self, name: str, label: str) -> str:
        value, problem = self._found(name)
        if problem:
            raise _missing([(name, problem)])
        text = form_of(value, label)
        if text is None:
            raise MissingSecret(
                f"the secret '{name}' has changed: it has no {label} any more, which an earlier step gave",
                hint="run the workflow again, so that all of its steps use the same value",
            )
        return text

    def _found(self, name: str) -> tuple[str, str]:
        """The value, or why it cannot be used. One that can be is known from now on."""
        value, problem = self._looked_up(name)
        if not problem:
            self._used.add(name)
            self._remember(name, value)
        return value, problem

    def _looked_up(self, name: str) -> tuple[str, str]:
        """The value, or why it cannot be used."""
        if not NAME.fullmatch(name):
            return "", "is not a name of letters, digits and _"
        if self._allowed is not None and name not in self._allowed:
            return "", "may not be used: it is not in WORKFLOWS_SECRETS (secrets in workflows.toml)"
        try:
            value = self._environ.get(VARIABLE + name)
            if not value:
                value = self._in_file().get(name)
            value = value or self._environ.get(name)
        except RequestError as error:
            return "", f"cannot be looked for: {error.message}" + (f" ({error.hint})" if error.hint else "")
        problem = _unusable(value) if value else "is missing"
        return ("", problem) if problem else (value or "", "")

    def _in_file(self) -> dict[str, str]:
        """The secrets of the file; all of them are known from now on. Raises RequestError."""
        values = self._file.values() if self._file is not None else {}
        if values is not self._seen_in_file:
            self._seen_in_file = values
            for name, value in values.items():
                if not _unusable(value):
                    self._remember(name, value)
        return values

    def _remember(self, name: str, value: str) -> None:
        """Of several names of one value, the mark has one that somebody uses."""
        other = self._known.get(value)
        if other is None or (other not in self._used and name in self._used):
            self._known[value] = name
            self._stale = True

    def _current(self) -> Redactor:
        """The redactor for all that is known, of the file too."""
        if self._file is not None and self._file.changed():
            try:
                self._in_file()
                self._complained = ""
            except RequestError as error:
                if self._complained != error.message:
                    self._complained = error.message
                    logger.warning("%s; %s", error.message, error.hint)
        if self._stale:
            self._stale = False
            self._redactor = Redactor(dict(self._known))
        return self._redactor


def secrets_of(settings: Settings) -> Secrets:
    return Secrets(file=settings.secrets_file, allowed=settings.secrets)


class HidesSecrets(logging.Filter):
    """Takes secrets out of what a handler writes, out of the texts of exceptions too."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # its arguments do not fit; the handler would say so, with all of them
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


@contextmanager
def hidden_in_logs(secrets: Secrets) -> Iterator[None]:
    """Before every handler that writes the log of this process; also before the one of last resort. Who has
    known a secret goes on hiding it: a process may have something to say when all is over."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for it in loggers if isinstance(it, logging.Logger) for handler in it.handlers}
    if logging.lastResort is not None:
        handlers.add(logging.lastResort)
    hides = HidesSecrets(secrets)
    for handler in handlers:
        handler.addFilter(hides)
    try:
        yield
    finally:
        for handler in handlers if not secrets.knows_any else ():
            handler.removeFilter(hides)


def _too_deep() -> RequestError:
    return RequestError(
        "a value cannot be kept: it is nested too deep",
        hint="values are JSON: numbers of at most 64 bits, valid text, no endless nesting",
        code="unencodable",
    )


def _unusable(value: str) -> str:
    """Why the value cannot be a secret; nothing where it can."""
    if len(value.strip()) < LEAST_CHARS:
        return f"has fewer than {LEAST_CHARS} characters, so that it cannot be kept out of texts"
    if SECRET_OPEN[0] in value:
        return f"holds the character {SECRET_OPEN[0]}, with which the marks of secrets begin"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is not valid text"
    return ""


def _missing(wrong: list[tuple[str, str]]) -> MissingSecret:
    names = [name for name, _ in wrong]
    problems = "; ".join(f"the secret '{name}' {problem}" for name, problem in wrong)
    return MissingSecret(
        problems,
        hint=f"give {' and '.join(names)} in one of three ways: as the environment variable "
        f"{VARIABLE}{names[0]} of the server, as a line {names[0]}=… in the file that WORKFLOWS_SECRETS_FILE "
        f"names, or as the environment variable {names[0]}",
    )
