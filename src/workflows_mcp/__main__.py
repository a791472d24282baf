"""`workflows-mcp`, and `python -m workflows_mcp`."""

from __future__ import annotations

import sys

from workflows_mcp.cli.main import main as run


def main() -> None:
    sys.exit(run())


if __name__ == "__main__":
    main()
