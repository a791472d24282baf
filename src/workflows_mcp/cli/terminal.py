"""How things look on a terminal: colours, marks, values, problems. Knows nothing of runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from workflows_mcp.errors import DefinitionError, Problem, WorkflowsError
from workflows_mcp.values import Value, to_json

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}

MARKS = {
    "completed": ("✓", "green"),
    "failure": ("✗", "red"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "red"),
    "skipped": ("–", "dim"),
    "running": ("▸", "blue"),
    "paused": ("?", "yellow"),
    "pending_action": ("?", "yellow"),
    "pending": ("·", "dim"),
    "waiting": ("…", "dim"),
}

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_PLAIN_MARKS = str.maketrans({"✓": "+", "✗": "x", "–": "-", "▸": ">", "·": ".", "…": "~"})


_LEAST_ROOM = 20


class Terminal:
    """A stream; it gets colours if it is a terminal, and only marks that it can show."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._coloured = stream.isatty() and "NO_COLOR" not in os.environ
        self._plain_marks = "utf" not in (stream.encoding or "").lower()

    def paint(self, text: str, colour: str) -> str:
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._coloured and text else text

    def mark(self, status: str, outcome: str = "") -> str:
        mark, colour = MARKS.get("failure" if outcome == "failure" else status, ("·", "dim"))
        return self.paint(mark.translate(_PLAIN_MARKS) if self._plain_marks else mark, colour)

    def clean(self, text: str) -> str:
        """Replace control characters in a text, so that it cannot control the terminal."""
        return _CONTROLS.sub("�", text) if self.stream.isatty() else text

    def cut(self, text: str, used: int) -> str:
        """Cut a text to the rest of a line with `used` columns; do not cut it if this is not a terminal."""
        room = shutil.get_terminal_size().columns - used
        if not self.stream.isatty() or len(text) <= room or room < _LEAST_ROOM:
            return text
        return text[: room - 1].rstrip() + "…"

    def line(self, text: str = "") -> None:
        encoding = self.stream.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), file=self.stream, flush=True)


def out() -> Terminal:
    return Terminal(sys.stdout)


def err() -> Terminal:
    return Terminal(sys.stderr)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object: indented on a terminal, on one line elsewhere."""
    text = to_json(value, indent=2 if sys.stdout.isatty() else 0)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    sys.stdout.flush()


def print_values(terminal: Terminal, values: Mapping[str, Value], indent: str = "") -> None:
    """Values by name, as a person reads them: long texts as blocks, the rest on one line."""
    for name, value in values.items():
        if isinstance(value, str) and "\n" in value.strip():
            terminal.line(f"{indent}{terminal.paint(name, 'bold')}:")
            for line in value.rstrip().split("\n"):
                terminal.line(f"{indent}  {terminal.clean(line)}")
        else:
            shown = value.strip() if isinstance(value, str) else to_json(value)
            terminal.line(f"{indent}{terminal.paint(name, 'bold')}: {terminal.clean(shown)}")


def print_table(terminal: Terminal, rows: Iterable[Sequence[str]], colours: Sequence[str] = ()) -> None:
    """Rows in columns. On a terminal the last column is cut at its edge; elsewhere nothing is."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))] if lines else []
    for row in lines:
        cells = []
        for column, cell in enumerate(row):
            if column == len(row) - 1:
                padded = terminal.cut(cell, sum(widths[:-1]) + 2 * column)
            else:
                padded = cell.ljust(widths[column])
            cells.append(
                terminal.paint(padded, colours[column])
                if column < len(colours) and colours[column]
                else padded
            )
        terminal.line("  ".join(cells).rstrip())


def print_error(error: WorkflowsError, *, as_json: bool) -> None:
    if as_json:
        print_json({"error": error_as_json(error)})
    terminal = err()
    terminal.line(f"{terminal.paint('error', 'red')}: {error}")


def error_as_json(error: WorkflowsError) -> dict[str, Value]:
    data: dict[str, Value] = {"code": error.code, "message": error.message}
    if error.hint:
        data["hint"] = error.hint
    if isinstance(error, DefinitionError):
        data["problems"] = [problem_as_json(problem) for problem in error.problems]
    return data


def problem_as_json(problem: Problem) -> dict[str, Value]:
    data: dict[str, Value] = {"code": problem.code, "message": problem.message}
    if problem.hint:
        data["hint"] = problem.hint
    if problem.place is not None:
        data["file"] = problem.place.file
        data["line"] = problem.place.line
        data["column"] = problem.place.column
        data["text"] = problem.place.text
    if problem.warning:
        data["warning"] = True
    return data


def size_text(count: int) -> str:
    """Bytes as a person says it."""
    size, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def duration_text(seconds: float | None) -> str:
    """A duration as a person says it."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


# What the exit code of a command means.


COMPLETED = 0

FAILED = 1

WRONG_USE = 2

WAITING = 3

INTERRUPTED = 130


_BY_STATUS = {"completed": COMPLETED, "failed": FAILED, "cancelled": FAILED}


def exit_code(status: str) -> int:
    """Of a run that this command does not wait for any longer."""
    return _BY_STATUS.get(status, WAITING)


# What is read from a file that is named on the command line, or from stdin for `-`.


class UnreadableFile(Exception):
    """Why a file cannot be read, in the words of the system."""


def read_text_file(name: str) -> str:
    """Raises UnreadableFile."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise UnreadableFile("it is not UTF-8") from None


async def read_answer(terminal: Terminal, question: str = "") -> str | None:
    """Read the line that a person types; None for Ctrl-D."""
    import asyncio

    terminal.stream.write(f"{question}> ")
    terminal.stream.flush()
    # Ctrl-C could not stop a thread that reads; the terminal delivers whole lines anyway.
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def on_input() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, 65536))

    loop.add_reader(descriptor, on_input)
    try:
        typed = await line
    finally:
        loop.remove_reader(descriptor)
    if not typed:
        terminal.line()
        return None
    return typed.decode(sys.stdin.encoding or "utf-8", "replace").rstrip("\r\n")
