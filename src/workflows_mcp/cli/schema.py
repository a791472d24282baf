"""`schema` and `plugin`: what editors and Claude Code take from this installation."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import workflows_mcp
from workflows_mcp.cli.codes import COMPLETED
from workflows_mcp.cli.printing import err, print_json
from workflows_mcp.cli.running import terminal_settings
from workflows_mcp.errors import RequestError
from workflows_mcp.service import Service
from workflows_mcp.values import to_json


def schema_command(options: argparse.Namespace) -> int:
    schema = Service.open(terminal_settings(runs=False)).workflow_schema()
    if options.output is None:
        print_json(schema)
        return COMPLETED
    path = Path(options.output)
    _write_whole(path, to_json(schema, indent=2) + "\n")
    err().line(f"{path} is written. The first line of a workflow, for an editor to find it:")
    err().line(f"# yaml-language-server: $schema={path.resolve()}")
    return COMPLETED


def _write_whole(path: Path, text: str) -> None:
    """An editor that watches the file never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RequestError(f"cannot write {path}: {error.strerror}", hint="give another --output") from None


def plugin_command(_: argparse.Namespace) -> int:
    """Print where the plugin for Claude Code is: beside the package, or in the checkout it is run from."""
    package = Path(workflows_mcp.__file__).parent
    found = [it for it in (package / "plugin", package.parents[1] / "plugin") if it.is_dir()]
    if not found:
        raise RequestError("this installation has no plugin", hint="install workflows-mcp from a wheel")
    print(found[0])
    return 0
