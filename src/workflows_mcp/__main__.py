"""The entry point of `workflows-mcp` and `python -m workflows_mcp`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    if sys.argv[1:] == ["hook"]:
        from workflows_mcp.hook import main as relay

        sys.exit(relay())
    from workflows_mcp.cli.main import main as run

    code = run()
    if "temporalio" in sys.modules:
        # Its threads still call into Python, and a call while Python exits would abort the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
