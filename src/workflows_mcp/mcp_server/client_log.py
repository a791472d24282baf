"""What the server logs, for clients that want to see it: those of the handshake era can ask for a level and
are sent what is logged from that level on. Later clients have no such call; for them the log goes to stderr
alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mcp.types import LoggingLevel

Send = Callable[[LoggingLevel, str, str], None]
"""Takes the level, what was logged, and who logged it; never waits."""

_LOGGER = "workflows_mcp"
_NUMBERS: dict[LoggingLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO + 5,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 5,
    "emergency": logging.CRITICAL + 10,
}


class ClientLog(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._wanted: dict[Send, tuple[int, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        logger = logging.getLogger(_LOGGER)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)

    def want(self, send: Send, level: LoggingLevel) -> None:
        """From now on, this level and above are sent so."""
        self._wanted[send] = (_NUMBERS[level], asyncio.get_running_loop())

    def leave(self, send: Send) -> None:
        self._wanted.pop(send, None)

    def emit(self, record: logging.LogRecord) -> None:
        for send, (least, loop) in list(self._wanted.items()):
            if record.levelno >= least and not loop.is_closed():
                # Whatever logs may do so in any thread.
                loop.call_soon_threadsafe(send, _level_of(record), record.getMessage(), record.name)


def _level_of(record: logging.LogRecord) -> LoggingLevel:
    return max(
        (level for level, number in _NUMBERS.items() if number <= record.levelno),
        key=_NUMBERS.__getitem__,
        default="debug",
    )
