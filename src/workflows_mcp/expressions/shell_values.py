"""The values of one command: the variables or files that they travel in, and what must not be let through.

A value is handed to a shell in a variable, or in a file if it is large. Where something other than a shell
would read it as code, or bash would compute it, only plain words or numbers pass; everything else is refused
with an error that says how to write it instead. Must not know how scripts are read or written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable

from workflows_mcp.errors import StepError
from workflows_mcp.expressions.base import Code
from workflows_mcp.values import shown, to_text

VARIABLE_BYTES = 32 * 1024
"""A larger value goes into a file: the system allows 128 KiB for one variable, and 2 MiB for all."""
VARIABLES_BYTES = 256 * 1024
RAW_HINT = "`unsafe: raw` puts values into the command as they are, if you trust them"

_NUMBERS = re.compile(r"(?:\s|[-+*/%()<>=!&|^~?:,]|[0-9][0-9A-Za-z#@_]*+|\.[0-9]++)*+")
_PLAIN_WORD = re.compile(
    r"(?:(?:-(?=[0-9]))?(?:/|(?:\.{1,2}/)+)?[A-Za-z0-9_]++(?:[./:@+,%-][A-Za-z0-9_]++)*+/?)?"
)
_SED_COMMAND = re.compile(r"(?<![A-Za-z])[sy]([^\w\s\\])")

KeepInFile = Callable[[int, str], str]
"""Puts the value of a number into a file and gives the path of it."""


class Values:
    def __init__(self, code: Code, names: Iterable[str], keep_in_file: KeepInFile) -> None:
        self.texts = [to_text(value) for value in code.values]
        self.prefix = "_wf_"
        taken = "\n".join((*code.texts, *names))
        while self.prefix in taken:
            self.prefix = f"_{self.prefix}"
        self._files: dict[int, str] = {}
        self._used: set[int] = set()
        room = VARIABLES_BYTES
        for number, text in enumerate(self.texts):
            size = self._size(number)
            if size > VARIABLE_BYTES or size > room:
                self._files[number] = keep_in_file(number, text)
            else:
                room -= size

    def _size(self, number: int) -> int:
        text = self.texts[number]
        if "\0" in text:
            raise StepError(
                f"the value {self.shown(number)} holds a NUL character, which no command can take",
                hint="write it to a file and give the command the path",
            )
        try:
            return len(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise StepError(f"the value {self.shown(number)} is not valid text") from None

    def reference(self, number: int, *, inherited: bool) -> str:
        """A reference, in braces and without quotes; an inherited one fails if it did not get through."""
        self._used.add(number)
        check = "?" if inherited and number not in self._files else ""
        return f"${{{self.prefix}{number}{check}}}"

    def variables(self) -> dict[str, str]:
        """What has to be in the environment for the references that were made."""
        numbers = sorted(self._used.difference(self._files))
        return {f"{self.prefix}{number}": self.texts[number] for number in numbers}

    def preamble(self, numbers: Iterable[int]) -> str:
        """Commands that read those of the values that are in files. The x keeps newlines at their ends."""
        parts: list[str] = []
        for number in numbers:
            if number in self._files and number in self._used:
                name = f"{self.prefix}{number}"
                path = shlex.quote(self._files[number])
                parts.append(
                    f"{name}=$(command -p cat {path} && printf x) && {name}=${{{name}%x}} || exit 1; "
                )
        return "".join(parts)

    def shown(self, number: int) -> str:
        try:
            return shown(self.texts[number])
        except ValueError:  # characters that cannot be encoded
            return ascii(self.texts[number])[:60]

    # What is refused

    def check_number(self, number: int) -> None:
        """For where the shell computes: bash would run $( ) in the subscript of an array there."""
        if not _NUMBERS.fullmatch(self.texts[number]):
            raise StepError(
                f"the value {self.shown(number)} stands where the shell computes: only numbers and operators "
                "can stand there",
                hint=f"check it in a condition first, or use it as text; {RAW_HINT}",
            )

    def check_name(self, number: int, command: str) -> None:
        """For where bash looks for the name of a variable, and computes what stands in brackets after it."""
        if "[" in self.texts[number]:
            raise StepError(
                f"the value {self.shown(number)} would be read as an item of an array by `{command}`",
                hint=f"put it in double quotes, or compare it with `case`; {RAW_HINT}",
            )

    def check_no_option(self, number: int, command: str) -> None:
        if re.search(r"(?:^|\s)-", self.texts[number]):
            raise StepError(
                f"the value {self.shown(number)} begins with a dash and would be an option of `{command}`",
                hint=f"put ./ before the name of a file; {RAW_HINT}",
            )

    def check_plain(self, numbers: Iterable[int], reader: str, hint: str) -> None:
        """For code that is not a shell's: what cannot be more than a word or a number in any language."""
        for number in numbers:
            if not _PLAIN_WORD.fullmatch(self.texts[number]):
                raise StepError(
                    f"the value {self.shown(number)} would become part of the code that `{reader}` gets",
                    hint=f"{hint}; {RAW_HINT}",
                )

    def check_sed(self, number: int, before: str, hint: str) -> None:
        """For a sed script: what cannot end the pattern or the replacement that it stands in."""
        text = self.texts[number]
        delimiter = _sed_delimiter(before)
        if delimiter is None or delimiter in text or "\n" in text or "\\" in text:
            self.check_plain([number], "sed", hint)


def _sed_delimiter(before: str) -> str | None:
    """What ends the pattern or replacement that a value after `before` is in; None if it is in neither."""
    commands = list(_SED_COMMAND.finditer(before))
    if commands:
        delimiter = commands[-1][1]
        since = re.sub(r"\\.", "", before[commands[-1].start() + 1 :])
        return delimiter if since.count(delimiter) in (1, 2) else None
    return "/" if re.sub(r"\\.", "", before).count("/") % 2 == 1 else None
