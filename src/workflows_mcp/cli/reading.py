"""What is read from a file that is named on the command line, or from stdin for `-`."""

from __future__ import annotations

import sys
from pathlib import Path


class Unreadable(Exception):
    """Why a file cannot be read, in the words of the system."""


def text_of(name: str) -> str:
    """Raises Unreadable."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise Unreadable("it is not UTF-8") from None
