"""The command line: its commands, their options, and the module that runs each.

    workflows-mcp run greet --input who=Ada      # cli/run.py: run_command(options)

`workflows-mcp` without a command serves MCP over stdio. The module of a command is imported when the command
runs, so that help and usage errors are fast, and only `serve` imports `mcp`.

    exit codes: 0 completed · 1 failed or cancelled · 2 usage error · 3 waiting for an answer ·
    130 interrupted
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from workflows_mcp import __version__
from workflows_mcp.cli.terminal import FAILED, INTERRUPTED, WRONG_USE

_EPILOG = """\
Run `workflows-mcp COMMAND --help` for the options of a command, with examples.

exit codes: 0 completed, 1 failed or cancelled, 2 usage error, 3 waiting for an answer, 130 interrupted
Without a command, workflows-mcp serves MCP over stdin and stdout, for an MCP client."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors as JSON with `--json`, and accepts only whole option names.

    An abbreviation that is unique today could be ambiguous after the next release.
    """

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **named})
        self.commands: Mapping[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        if "--json" in sys.argv[1:]:
            from workflows_mcp.cli.terminal import print_json

            print_json({"error": {"code": "usage", "message": message, "hint": self.format_usage().strip()}})
        self.print_usage(sys.stderr)
        self.exit(WRONG_USE, f"{self.prog}: {message}\n")


def _count(text: str) -> int:
    try:
        if (number := int(text)) >= 1:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, not {text!r}")


def _days(text: str) -> float:
    try:
        if 0 <= (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number of days, not {text!r}")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB or 2GB, not {text!r}")
    return int(float(match[1]) * 1000 ** " kmg".index(match[2] or " "))


def _seconds(text: str) -> float:
    try:
        if 0 < (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected seconds, more than 0, not {text!r}")


def argument(*names: str, **options: Any) -> Argument:
    """An argument of a command, as `argparse` takes it."""
    return names, options


Argument = tuple[tuple[str, ...], dict[str, Any]]


class Command(NamedTuple):
    """A command: `module` of this package has the function that runs it, `NAME_command(options)`."""

    name: str
    module: str
    help: str
    examples: Sequence[str]
    arguments: Sequence[Argument] = ()
    exclusive: Sequence[Argument] = ()
    """Options that exclude each other."""
    defaults: Mapping[str, Any] = {}
    """Options that the function reads, and this command does not have."""


JSON = argument("--json", action="store_true", help="print exactly one JSON object on stdout")
QUIET = argument(
    "--quiet", "-q", action="store_true", help="print questions, failures and outputs, but no progress"
)
AGENT = (
    argument(
        "--answers",
        metavar="FILE",
        help="answers by step id, in YAML or JSON; a list answers repeated questions",
    ),
    argument("--yes", "-y", action="store_true", help="run requested commands without asking"),
    QUIET,
    JSON,
)
RUN_ID = argument("run", metavar="RUN_ID")
DEFINITION = argument(
    "--definition",
    metavar="NAME|FILE",
    help="continue with this changed definition; steps that keep their results must be unchanged",
)
LIMIT = argument("--limit", type=_count, default=20, metavar="N", help="list at most N")

COMMANDS = (
    Command(
        "serve",
        "serve",
        "serve MCP over stdin and stdout (the default), or over HTTP",
        ("serve --toolsets core,graph", "serve --http 127.0.0.1:8000"),
        (
            argument(
                "--toolsets",
                metavar="A,B",
                help="toolsets to serve: core (the default), graph, stateful, reactive, memory, debug, "
                "or all",
            ),
            argument(
                "--workflow-tools",
                metavar="A,B",
                help="workflows to serve as tools: names, patterns such as release-*, tag:NAME, or all "
                "(without built-in ones)",
            ),
            argument(
                "--engine",
                metavar="NAME",
                help="where runs are stored: embedded (a local file, the default) or temporal",
            ),
            argument(
                "--read-only", action="store_true", help="serve only tools that read runs, and run no steps"
            ),
            argument(
                "--http",
                metavar="HOST:PORT",
                nargs="?",
                const="",
                help="serve streamable HTTP, by default on 127.0.0.1:8000; port 0 picks a free port",
            ),
        ),
    ),
    Command(
        "run",
        "run",
        "run a workflow and print its outputs",
        (
            "run greet --input who=Ada --input times:=2",
            "run release.yaml --answers answers.yaml --yes --json",
        ),
        (
            argument("workflow", metavar="NAME|FILE", help="a workflow name, a YAML file, or - for stdin"),
            argument(
                "--input",
                "-i",
                metavar="KEY=VALUE",
                action="append",
                default=[],
                help="set an input; use KEY:=JSON for a value that is not text",
            ),
            argument("--inputs-file", metavar="FILE", help="read inputs from a JSON file, or - for stdin"),
            argument(
                "--timeout",
                metavar="SECONDS",
                type=_seconds,
                help="cancel the run if it takes longer than this",
            ),
            *AGENT,
        ),
    ),
    Command(
        "answer",
        "run",
        "answer a question of a run, and continue the run",
        ("answer wf_1f2e yes", "answer wf_1f2e --step deploy --fail 'no access to the cluster'"),
        (
            RUN_ID,
            argument("value", metavar="VALUE", nargs="?", help="text or JSON; prompted for if left out"),
            argument("--step", metavar="ID", help="the step to answer, if several steps ask"),
            argument("--fail", metavar="MESSAGE", help="report that the step could not be done, and why"),
            *AGENT,
        ),
    ),
    Command(
        "cancel",
        "run",
        "cancel a run and stop its running steps",
        ("cancel wf_1f2e --reason 'wrong branch'",),
        (RUN_ID, argument("--reason", default="", help="a reason to store with the run"), JSON),
    ),
    Command(
        "retry",
        "run",
        "re-run only the failed or cancelled steps, in a new run",
        ("retry wf_1f2e", "retry wf_1f2e --definition .workflows/release.yaml"),
        (
            argument(
                "run",
                metavar="RUN_ID",
                help="a run, or a task whose sub-agent is gone: the task starts again",
            ),
            DEFINITION,
            *AGENT,
        ),
    ),
    Command(
        "fork",
        "run",
        "re-run one step and the steps after it, in a new run",
        ("fork wf_1f2e build",),
        (
            RUN_ID,
            argument("step", metavar="STEP_ID"),
            argument(
                "--keep", action="store_true", help="keep the old run if it is waiting; do not cancel it"
            ),
            DEFINITION,
            *AGENT,
        ),
    ),
    Command(
        "checkpoints",
        "inspect",
        "list checkpoints",
        ("checkpoints --workflow release", "checkpoints chk_wf_1f2e_7 --delete"),
        (
            argument(
                "id",
                metavar="RUN_ID",
                nargs="?",
                help="list only this run; with a checkpoint id, show its details",
            ),
            argument("--workflow", metavar="NAME", help="list only runs of this workflow"),
            LIMIT,
            argument("--delete", action="store_true", help="delete this checkpoint; its run is unchanged"),
            JSON,
        ),
    ),
    Command(
        "resume",
        "run",
        "continue a parked run, or continue from a checkpoint",
        ("resume wf_1f2e",),
        (
            argument("checkpoint", metavar="RUN_ID|CHECKPOINT"),
            argument("value", metavar="RESPONSE", nargs="?", help="the answer, if it waits for one"),
            QUIET,
            JSON,
        ),
        defaults={"answers": None, "yes": False},
    ),
    Command("runs", "inspect", "list recent runs", ("runs --limit 5",), (LIMIT, JSON)),
    Command(
        "show",
        "inspect",
        "show a run, block by block",
        ("show wf_1f2e --follow",),
        (
            RUN_ID,
            argument("--follow", action="store_true", help="show progress until the run ends or waits"),
            JSON,
        ),
    ),
    Command(
        "prune",
        "inspect",
        "delete old runs that have ended",
        ("prune --dry-run", "prune --days 7 --size 500MB"),
        (
            argument("--dry-run", action="store_true", help="list the runs to delete, and delete nothing"),
            argument("--days", type=_days, metavar="N", help="delete runs that ended more than N days ago"),
            argument("--keep", type=_count, metavar="N", help="keep only the newest N ended runs"),
            argument("--size", type=_bytes, metavar="SIZE", help="shrink the store to SIZE, e.g. 500MB"),
            JSON,
        ),
    ),
    Command(
        "list",
        "definitions",
        "list the available workflows",
        ("list git --tags release",),
        (
            argument("query", nargs="*", metavar="WORD", help="list only workflows that contain every word"),
            argument("--tags", metavar="A,B", default="", help="list only workflows with all these tags"),
            JSON,
        ),
    ),
    Command(
        "info",
        "definitions",
        "show the inputs, steps and outputs of a workflow",
        ("info greet",),
        (argument("workflow", metavar="NAME|FILE"), JSON),
    ),
    Command(
        "validate",
        "definitions",
        "check workflow files and report all problems",
        ("validate .workflows/*.yaml",),
        (argument("files", metavar="FILE", nargs="+", help="a YAML file, or - for stdin"), JSON),
    ),
    Command(
        "schema",
        "definitions",
        "print the JSON Schema of workflow files, for editors",
        ("schema --output .workflows/schema.json",),
        (argument("--output", "-o", metavar="FILE", help="write to a file instead of stdout"),),
    ),
    Command("plugin", "definitions", "print the directory of the Claude Code plugin", ()),
    Command(
        "trust",
        "trust",
        "trust the settings and MCP servers of a directory",
        ("trust", "trust --list", "trust --remove ~/src/project"),
        (
            argument("directory", metavar="DIR", nargs="?", help="default: the working directory"),
            JSON,
        ),
        exclusive=(
            argument("--list", action="store_true", help="list the trusted directories"),
            argument("--remove", action="store_true", help="stop trusting the directory"),
        ),
    ),
    Command("worker", "temporal", "run a Temporal worker until it is stopped", ("worker",)),
    Command(
        "temporal-dev",
        "temporal",
        "run a Temporal development server on this machine",
        ("temporal-dev --ui",),
        (
            argument("--port", type=int, default=7233, metavar="N", help="the port (default: 7233)"),
            argument("--db", metavar="FILE", help="the database file; default: next to the store of runs"),
            argument("--ui", action="store_true", help="serve the web UI too, at the port + 1000"),
        ),
    ),
)


def build_parser() -> Parser:
    parser = Parser(
        prog="workflows-mcp",
        description="Run workflows for LLM agents, and from the terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"workflows-mcp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for it in COMMANDS:
        examples = "\n".join(f"  workflows-mcp {example}" for example in it.examples)
        command = commands.add_parser(
            it.name,
            help=it.help,
            description=f"{it.help[0].upper()}{it.help[1:]}.",
            epilog=f"example{'s' if len(it.examples) > 1 else ''}:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(module=it.module, **it.defaults)
        group = command.add_mutually_exclusive_group() if it.exclusive else command
        for names, options in it.exclusive:
            group.add_argument(*names, **options)
        for names, options in it.arguments:
            command.add_argument(*names, **options)
    parser.commands = commands.choices
    return parser


def _refuse(parser: Parser, left: Sequence[str]) -> NoReturn:
    """Reject unknown arguments, with a suggestion."""
    from workflows_mcp.values import nearest

    message = f"unrecognized arguments: {' '.join(left)}"
    options = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_help())))
    suggestion = nearest(left[0].partition("=")[0], options)
    if suggestion is not None:
        message += f"; did you mean {suggestion}?"
    if "--input" in options and not re.match(r"-[^-]", left[0]):
        name, value = left[0].removeprefix("--"), left[1] if len(left) > 1 else "VALUE"
        message += f"; write inputs as --input {name if '=' in name else f'{name}={value}'}"
    parser.error(message)


def _open_closed_streams() -> None:
    """Open /dev/null for a standard stream that the parent process closed (`>&-`).

    Otherwise the next file that is opened would get its descriptor, and our output would go into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    parser = build_parser()
    options, left = parser.parse_known_args(arguments)
    if len(left) == 1 and getattr(options, "value", "") is None and not left[0].startswith("-"):
        options.value = left.pop()  # argparse cannot parse `answer ID --step X VALUE`
    if left:
        _refuse(parser.commands.get(options.command, parser), left)
    if options.command is None:
        options = parser.parse_args(["serve"])
    from importlib import import_module

    from workflows_mcp.cli.terminal import print_error
    from workflows_mcp.errors import WorkflowsError
    from workflows_mcp.runs import raise_descriptor_limit

    raise_descriptor_limit()
    try:
        name = f"{options.command.replace('-', '_')}_command"
        command = getattr(import_module(f"workflows_mcp.cli.{options.module}"), name)
        return int(command(options))
    except WorkflowsError as error:
        print_error(error, as_json=getattr(options, "json", False))
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone: exit silently, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG_USE
    except OSError as error:
        print(f"workflows-mcp: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
