"""Programs that workflows call, such as pytest or ./deploy.sh: small stand-ins that keep a record of their calls."""

from __future__ import annotations

from pathlib import Path


class Programs:
    """Executables in a directory; how each was called is in `calls`, in order."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._record = directory / "calls.txt"
        directory.mkdir()

    def add(self, name: str, script: str = "", *, at: Path | None = None) -> None:
        """A program that does what `script`, in the language of sh, says; `at` is where it lies."""
        path = (at or self.directory) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        record = f"""printf '%s\\n' "{name}${{1:+ $*}}" >> '{self._record}'"""
        path.write_text(f"#!/bin/sh\n{record}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return self._record.read_text(encoding="utf-8").splitlines() if self._record.exists() else []
