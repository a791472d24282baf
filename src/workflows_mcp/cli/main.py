"""The command line: which words there are, and which module carries each out.

`workflows-mcp` alone serves MCP over stdio. Modules are imported when their command is used: help and
mistakes cost nothing, and `mcp` is loaded only to serve.

    0 completed · 1 failed or cancelled · 2 wrong use · 3 waiting for an answer · 130 interrupted
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from workflows_mcp import __version__
from workflows_mcp.cli.terminal import FAILED, INTERRUPTED, WRONG_USE

_EPILOG = """\
exit codes: 0 completed, 1 failed or cancelled, 2 wrong use, 3 waiting for an answer
Without a command, MCP is served over stdin and stdout: that is what an MCP client starts."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are JSON too, where JSON was asked for, and that takes whole words
    only: what is short for one option today is short for two tomorrow."""

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **{"allow_abbrev": False, **named})
        self.commands: Mapping[str, Parser] = {}

    def error(self, message: str) -> NoReturn:
        if "--json" in sys.argv[1:]:
            from workflows_mcp.cli.terminal import print_json

            print_json({"error": {"code": "usage", "message": message, "hint": self.format_usage().strip()}})
        self.print_usage(sys.stderr)
        self.exit(WRONG_USE, f"{self.prog}: {message}\n")


def build_parser() -> Parser:
    parser = Parser(
        prog="workflows-mcp",
        description="Runs workflows for LLM agents, and for you.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"workflows-mcp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    serve = commands.add_parser("serve", help="serve MCP over stdin and stdout (the default), or over HTTP")
    serve.add_argument(
        "--toolsets",
        metavar="A,B",
        help="which tools: core, graph, stateful, reactive, memory, debug; all, or default, which is core",
    )
    serve.add_argument(
        "--workflow-tools",
        metavar="A,B",
        help="workflows that are tools of their own: names, patterns such as release-*, tag:NAME, or all "
        "that are not built in",
    )
    serve.add_argument(
        "--engine", metavar="NAME", help="what keeps runs: embedded (a file, the default) or temporal"
    )
    serve.add_argument(
        "--read-only", action="store_true", help="only tools that look at runs; this process carries out none"
    )
    serve.add_argument(
        "--http",
        metavar="HOST:PORT",
        nargs="?",
        const="",
        help="serve streamable HTTP, on 127.0.0.1:8000 if nothing else is said; port 0: any that is free",
    )
    serve.set_defaults(module="serve")

    run = commands.add_parser("run", help="run a workflow and print its outputs")
    run.add_argument("workflow", metavar="NAME|FILE", help="a workflow by name, a YAML file, or - for stdin")
    run.add_argument(
        "--input",
        "-i",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="an input; KEY:=JSON for a value that is not text",
    )
    run.add_argument("--inputs-file", metavar="FILE", help="inputs from a JSON file, or - for stdin")
    run.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, help="cancel the run if it has not ended by then"
    )
    _playing(run)
    _json(run)
    run.set_defaults(module="run")

    answer = commands.add_parser("answer", help="answer what a run asks, and go on with it")
    answer.add_argument("run", metavar="RUN_ID")
    answer.add_argument("value", metavar="VALUE", nargs="?", help="text or JSON; without it, it is asked for")
    answer.add_argument("--step", metavar="ID", help="which question, where several are asked")
    answer.add_argument("--fail", metavar="MESSAGE", help="say that it could not be done, and why")
    _playing(answer)
    _json(answer)
    answer.set_defaults(module="run")

    cancel = commands.add_parser("cancel", help="end a run and all that is under way in it")
    cancel.add_argument("run", metavar="RUN_ID")
    cancel.add_argument("--reason", default="", help="kept with the run")
    _json(cancel)
    cancel.set_defaults(module="run")

    retry = commands.add_parser(
        "retry", help="try again what a run failed by, or go on where it was cancelled"
    )
    retry.add_argument(
        "run", metavar="RUN_ID", help="or the id of a task whose sub-agent is gone: it is handed out again"
    )
    _playing(retry)
    _json(retry)
    retry.set_defaults(module="retry")

    fork = commands.add_parser("fork", help="do one step of a run again, and what follows, in a new run")
    fork.add_argument("run", metavar="RUN_ID")
    fork.add_argument("step", metavar="STEP_ID")
    fork.add_argument("--keep", action="store_true", help="do not end a run that waits: leave both")
    _playing(fork)
    _json(fork)
    fork.set_defaults(module="retry")

    checkpoints = commands.add_parser("checkpoints", help="where runs can be gone on from")
    checkpoints.add_argument(
        "id", metavar="RUN_ID", nargs="?", help="only those of this run; of a checkpoint, all about it"
    )
    checkpoints.add_argument("--workflow", metavar="NAME", help="only those of runs of this workflow")
    checkpoints.add_argument("--limit", type=_count, default=20, metavar="N")
    checkpoints.add_argument(
        "--delete", action="store_true", help="delete this checkpoint; its run is left as it is"
    )
    _json(checkpoints)
    checkpoints.set_defaults(module="inspect")

    resume = commands.add_parser("resume", help="continue a parked run, or continue from a checkpoint")
    resume.add_argument("checkpoint", metavar="RUN_ID|CHECKPOINT")
    resume.add_argument("value", metavar="RESPONSE", nargs="?", help="the answer, where it is a question")
    _quiet(resume)
    _json(resume)
    resume.set_defaults(module="inspect")

    runs = commands.add_parser("runs", help="the recent runs")
    runs.add_argument("--limit", type=_count, default=20, metavar="N")
    _json(runs)
    runs.set_defaults(module="inspect")

    show = commands.add_parser("show", help="how a run went, block by block")
    show.add_argument("run", metavar="RUN_ID")
    show.add_argument("--follow", action="store_true", help="show what happens until it ends or waits")
    _json(show)
    show.set_defaults(module="inspect")

    prune = commands.add_parser("prune", help="delete old runs that have ended; unfinished ones are kept")
    prune.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    prune.add_argument("--days", type=_days, metavar="N", help="delete runs that ended more than N days ago")
    prune.add_argument("--keep", type=_count, metavar="N", help="keep at most N ended runs, the newest")
    prune.add_argument("--size", type=_bytes, metavar="SIZE", help="shrink the store to SIZE, e.g. 500MB")
    _json(prune)
    prune.set_defaults(module="inspect")

    listing = commands.add_parser("list", help="the workflows that can be run")
    listing.add_argument("query", nargs="*", metavar="WORD", help="only those that mention all of these")
    listing.add_argument("--tags", metavar="A,B", default="", help="only those with all of these tags")
    _json(listing)
    listing.set_defaults(module="definitions")

    info = commands.add_parser("info", help="what a workflow takes, does, asks and gives")
    info.add_argument("workflow", metavar="NAME|FILE")
    _json(info)
    info.set_defaults(module="definitions")

    validate = commands.add_parser("validate", help="check workflow files: all problems at once")
    validate.add_argument("files", metavar="FILE", nargs="+", help="a YAML file, or - for stdin")
    _json(validate)
    validate.set_defaults(module="definitions")

    trust = commands.add_parser("trust", help="let the settings and MCP servers of a directory count")
    trust.add_argument("directory", metavar="DIR", nargs="?", help="without it, the working directory")
    what = trust.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="list the directories that you trust")
    what.add_argument("--remove", action="store_true", help="trust it no more")
    _json(trust)
    trust.set_defaults(module="trust")

    worker = commands.add_parser("worker", help="carry out steps for a Temporal server, until told to go")
    worker.set_defaults(module="temporal")

    dev = commands.add_parser("temporal-dev", help="a Temporal server for development, on this machine")
    dev.add_argument("--port", type=int, default=7233, metavar="N")
    dev.add_argument("--db", metavar="FILE", help="where it keeps runs; without it, with the other runs")
    dev.add_argument("--ui", action="store_true", help="with its web page, 1000 ports above")
    dev.set_defaults(module="temporal")

    plugin = commands.add_parser("plugin", help="print the directory of the Claude Code plugin")
    plugin.set_defaults(module="definitions")

    schema = commands.add_parser("schema", help="the JSON Schema of workflow files, for editors")
    schema.add_argument("--output", "-o", metavar="FILE", help="write it to a file, and not to stdout")
    schema.set_defaults(module="definitions")
    parser.commands = commands.choices
    return parser


def _count(text: str) -> int:
    try:
        if (number := int(text)) >= 1:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"it takes a whole number of 1 or more, not {text!r}")


def _days(text: str) -> float:
    try:
        if 0 <= (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"it takes a number of days, not {text!r}")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)i?b?", text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"it takes a size such as 500MB or 2GB, not {text!r}")
    return int(float(match[1]) * 1000 ** " kmg".index(match[2] or " "))


def _seconds(text: str) -> float:
    try:
        if 0 < (number := float(text)) < math.inf:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"it takes seconds, more than 0, not {text!r}")


def _playing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--answers", metavar="FILE", help="answers by step id, YAML or JSON; lists for steps that ask again"
    )
    parser.add_argument(
        "--yes", "-y", action="store_true", help="run the commands that are asked for, without asking"
    )
    _quiet(parser)


def _quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="print questions, failures and outputs, but no progress"
    )


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="exactly one JSON object on stdout")


def _refuse(parser: Parser, left: Sequence[str]) -> NoReturn:
    """Refuse words that a command does not take, with what was probably meant."""
    from workflows_mcp.values import nearest

    said = f"unrecognized arguments: {' '.join(left)}"
    options = sorted(set(re.findall(r"--[a-z][a-z-]*", parser.format_help())))
    meant = nearest(left[0].partition("=")[0], options)
    if meant is not None:
        said += f"; did you mean {meant}?"
    if "--input" in options and not re.match(r"-[^-]", left[0]):
        name, value = left[0].removeprefix("--"), left[1] if len(left) > 1 else "VALUE"
        said += f"; inputs are given as --input {name if '=' in name else f'{name}={value}'}"
    parser.error(said)


def _open_closed_streams() -> None:
    """A stream that was closed by whoever started us (`>&-`) leads nowhere, and is not the place of the next
    file that is opened, which would be written to in its stead."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    parser = build_parser()
    options, left = parser.parse_known_args(arguments)
    if len(left) == 1 and getattr(options, "value", "") is None and not left[0].startswith("-"):
        options.value = left.pop()  # `answer ID --step X VALUE`, which argparse does not understand
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
        # Whoever read our output has gone; leave without a word, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return WRONG_USE
    except OSError as error:
        print(f"workflows-mcp: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
