"""`trust`: let the settings and MCP servers of a directory count, list those that do, or take it back."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workflows_mcp.cli.terminal import COMPLETED, FAILED, out, print_json
from workflows_mcp.settings import TRUSTED, VARIABLE, Trust, settings_needing_trust, trust_of


def trust_command(options: argparse.Namespace) -> int:
    trust = trust_of(os.environ)
    if options.list:
        return _list(trust, as_json=options.json)
    directory = Path(os.path.realpath(Path(options.directory or ".").expanduser()))
    if options.remove:
        removed = trust.remove(directory)
        if options.json:
            print_json({"directory": str(directory), "removed": removed})
        elif removed:
            out().line(f"{directory} is not trusted any more")
        else:
            out().line(f"{directory} was not trusted")
        return COMPLETED if removed else FAILED
    settings = settings_needing_trust(directory)
    files = list(trust.add(directory))
    if options.json:
        print_json({"directory": str(directory), "files": files, "settings": settings})
        return COMPLETED
    out().line(f"{directory} is trusted, with {', '.join(files)} as they are now; a change asks again")
    if settings:
        out().line(f"these settings count from now on: {', '.join(settings)}")
    return COMPLETED


def _list(trust: Trust, *, as_json: bool) -> int:
    states = {directory: trust.state(Path(directory)) for directory in trust.listed()}
    if as_json:
        entries = [{"directory": directory, "state": state} for directory, state in states.items()]
        print_json({"trusted": entries, "always": [str(path) for path in trust.always]})
        return COMPLETED
    for directory, state in states.items():
        out().line(directory if state == TRUSTED else f"{directory} (changed since: trust it again)")
    for path in trust.always:
        out().line(f"{path} (with all below it, by {VARIABLE})")
    return COMPLETED
