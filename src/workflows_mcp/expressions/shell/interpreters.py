"""Finds the words of a command that a program reads as code: `sh -c`, awk, eval, `git -c alias.x=!…`.

    read_words(["sh", "-c", "echo hi", "x"]).uses       # [Use(2, 3, "sh -c", …)]

It works with names and positions only; words are as the command gets them (`syntax.py`). Whether a value that
begins with a dash is an option is up to the author of the command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from workflows_mcp.expressions.shell.syntax import EXPANSION, HOLE, SUBSTITUTION

_ENV = "pass the value in `env:`, and read the variable in the code"
_ARGUMENT = "pass the value as an argument"
_SHELL = f'{_ARGUMENT}: sh -c \'echo "$1"\' _ "${{…}}"'
_CHECK = "use `case`, or check the value in a condition of the workflow"


@dataclass(frozen=True, slots=True)
class Use:
    """What the words from `first` up to `last` are used for."""

    first: int
    last: int
    name: str
    """The program that reads the words as code; with `data`, the error for any other value."""
    hint: str
    data: re.Pattern[str] | None = None
    """The values that are data here; None: no value is."""
    if_bare: bool = False
    """Only values without quotes are used like this."""


@dataclass(slots=True)
class Reading:
    """How a command uses its words."""

    uses: list[Use] = field(default_factory=list)
    input: Use | None = None
    """The program that reads standard input as code."""
    integers: list[str] = field(default_factory=list)
    """The variables that it declares integers: the shell evaluates what is assigned to them."""

    def add(self, first: int, last: int, name: str, hint: str = _ENV) -> None:
        self.uses.append(Use(first, last, name, hint))


_NONE, _ALL, _FIRST, _REST = (0, 0), (0, None), (0, 1), (1, None)
_DEVICES = "/dev/stdin|/dev/fd/0|/proc/self/fd/0"
_STANDARD_INPUT = f"-|{_DEVICES}"


@dataclass(frozen=True, slots=True)
class _Program:
    """Which words of a program are code. Words and options are patterns."""

    code: str = r"(?!)"
    """Options with code in the next word, or attached to them."""
    operands: tuple[int, int | None] = _NONE
    """From which to which operand they are code; the first is not, if an option has the code."""
    hint: str = f"{_ARGUMENT}, or in `env:`"
    takes: str = r"(?!)"
    """Options followed by another word; by two, if a group matches."""
    file: str = r"(?!)"
    """Options followed by the path of a file with code."""
    only_with: str = ""
    """The option that makes operands code."""
    input: str = _STANDARD_INPUT
    """Words with which it reads code from standard input, as it does without any code; empty: it does not."""
    permutes: bool = False
    """Options may follow operands, and standard input is code in any case."""


def _with_names(table: dict[str, _Program]) -> dict[str, _Program]:
    return {name: program for names, program in table.items() for name in names.split()}


_RUNS_SHELL = r"-[a-z]*c|--command"
_PROGRAMS = _with_names(
    {
        "sh bash dash ash ksh mksh zsh": _Program(
            "--rcfile|--init-file",
            _FIRST,
            _SHELL,
            takes="[-+][A-Za-z]*[oO]",
            only_with="-[A-Za-z]*(c)[A-Za-z]*",
            input=f"{_DEVICES}|-[A-Za-z]*s[A-Za-z]*",
        ),
        "python pypy": _Program(
            "-[A-Za-z]*c",
            hint=f"{_ARGUMENT}: python3 -c 'import sys; print(sys.argv[1])' \"${{…}}\"",
            takes="-[WX]",
        ),
        "perl": _Program(
            "-[A-Za-z0-9]*[eE]", hint=f"{_ARGUMENT}: perl -e 'print $ARGV[0]' \"${{…}}\"", takes="-I"
        ),
        "ruby": _Program(
            "-[A-Za-z0-9]*e", hint=f"{_ARGUMENT}: ruby -e 'puts ARGV[0]' \"${{…}}\"", takes="-[Ir]"
        ),
        "node nodejs bun": _Program(
            "-p?e|-p|--eval|--print",
            hint=f"{_ARGUMENT}: node -e 'console.log(process.argv[1])' \"${{…}}\"",
            takes="-r|--require|--import|--loader",
        ),
        "deno": _Program("eval"),
        "php": _Program("-[rBRE]", takes="-[dc]"),
        "lua": _Program("-e", takes="-l"),
        "Rscript osascript gnuplot": _Program("-e"),
        "pwsh powershell": _Program("-[cC].*"),
        "dc": _Program("-e|--expression"),
        "fish": _Program(_RUNS_SHELL),
        "su runuser script": _Program(_RUNS_SHELL, permutes=True),
        "flock": _Program(_RUNS_SHELL, input="", permutes=True),
        "at batch ed": _Program(permutes=True),
        "ex": _Program(r"-c|--cmd|\+", permutes=True),
        "vim nvim": _Program(r"-c|--cmd|\+", input="", permutes=True),
        "emacs": _Program("--eval|--execute", input="", permutes=True),
        "psql mysql mariadb": _Program("-c|--command|-e|--execute", takes="-[hpUudDP]", permutes=True),
        "sqlite3": _Program(
            "-cmd",
            _REST,
            "use python3 -c and a query parameter: execute('… ?', [sys.argv[1]])",
            permutes=True,
        ),
        "awk gawk mawk nawk": _Program(
            "-e|--source",
            _FIRST,
            f"{_ARGUMENT}: awk -v value=\"${{…}}\" '{{ print value }}'",
            takes="-F|-v|--assign|--field-separator",
            file="-f|--file",
            input="",
        ),
        "sed gsed": _Program(
            "-[nEruzsi]*e|--expression",
            _FIRST,
            'use awk -v value="${…}", or write the file with RenderTemplate',
            takes="-l|--line-length",
            file="-f|--file",
            input="",
        ),
        "jq gojq": _Program(
            operands=_FIRST,
            hint=f"{_ARGUMENT}: jq --arg value \"${{…}}\" '.name == $value'",
            takes="--(arg|argjson|slurpfile|rawfile)|--indent|-L",
            file="-f|--from-file",
            input="",
        ),
        "ssh": _Program(
            "-o",
            _REST,
            "send it as input: printf '%s' \"${…}\" | ssh host 'read -r value; …'",
            takes="-[a-zA-Z0-9]*[bcDEeFIiJLlmOpQRSWw]",
        ),
        "make gmake": _Program("--eval|-E", hint=_ENV, file="-f|--file|--makefile", input="", permutes=True),
        "watch": _Program(operands=_ALL, hint=_ENV, input=""),
        "parallel": _Program(operands=_ALL, hint=_ENV, input=".*"),
    }
    | {
        names: _Program(options, hint=_ENV, input="", permutes=True)
        for names, options in {
            "tar": "--checkpoint-action|--to-command|--use-compress-program|-I|-F|--(info|new-volume)-script"
            "|--(rsh|rmt)-command",
            "rsync": "-[a-zA-Z]*e|--rsh|--rsync-path",
            "git": "--exec|--extcmd|--[a-z]+-filter|--upload-pack|--receive-pack|foreach",
            "scp sftp": "-o|-S",
            "env": "-S|--split-string",
        }.items()
    }
)
_DECLARES = ("declare", "typeset", "local", "export", "readonly", "integer", "float")
_INTEGER = re.compile("-[A-Za-z]*[iFE]")
_BUILTINS = _with_names(
    {
        "eval": _Program(operands=_ALL, hint="run the command directly, without eval", input=""),
        "trap": _Program(operands=_FIRST, hint=_ENV, input=""),
        ". source": _Program(hint=_ENV),
        "alias": _Program(operands=_ALL, hint=_ENV, input=""),
        "compgen complete": _Program("-[A-Za-z]", _ALL, _ENV, input=""),
        "let": _Program(operands=_ALL, hint='compute with expr: expr "${…}" + 1', input=""),
        " ".join(_DECLARES[:-2]): _Program(
            operands=_ALL, hint=_CHECK, only_with="-[A-Za-z]*([inFE])[A-Za-z]*", input=""
        ),
        "integer float": _Program(operands=_ALL, hint=_CHECK, input=""),
        "unset read getopts mapfile readarray wait": _Program(
            operands=_ALL,
            hint="write the name of the variable into the command",
            takes="-[A-Za-z]*[pditnu]",
            input="",
        ),
    }
)
CODE_VARIABLE = re.compile(
    r"(PS[0-4]|PROMPT_COMMAND|BASH_ENV|ENV|(GIT_)?(SEQUENCE_)?EDITOR|VISUAL|(GIT_)?PAGER|GIT_SSH_COMMAND|LESSOPEN|LESSCLOSE"
    r"|RSYNC_RSH|FZF_DEFAULT_COMMAND|PERL5OPT|PYTHONSTARTUP|RUBYOPT|NODE_OPTIONS)"
)
"""Variables whose values a shell or another program runs as code."""
# Words in which only some values are data. Which words they are is filled in for each command.
NUMBERS = Use(
    0,
    0,
    "the value {value} stands in shell arithmetic, where only numbers and operators are allowed",
    "check the value in a condition first, or use it as text",
    re.compile(r"(?:\s|[-+*/%()<>=!&|^~?:,]|[0-9][0-9A-Za-z#@_]*+|\.[0-9]++)*+"),
)
_HOST = Use(
    0,
    0,
    "ssh would run what comes after a blank in the value {value}",
    "put it in double quotes",
    re.compile(r"\S*"),
    if_bare=True,
)
_EXPANDED_BY_MAKE = Use(
    0,
    0,
    "make would expand `$` in the value {value}",
    "pass it in `env:`, and write $$NAME in the recipe",
    re.compile(r"[^$]*"),
)
_TESTED = Use(
    0,
    0,
    "the value {value} could be evaluated as an array item by `test`",
    "put it in double quotes, or compare it with `case`",
    re.compile(r"[^\[]*"),
    if_bare=True,
)
_GIT_CODE = re.compile(
    r"(?i)alias\.|pager\.|[^=]*(command|pager|editor|helper|textconv|cmd|program|fsmonitor|hookspath|askpass|proxy|clean"
    r"|smudge|process|driver)(=|\Z)"
)
"""Settings of git whose values are commands."""
_WRAPPERS = frozenset(
    """env nohup time nice ionice timeout stdbuf setsid xargs find chrt taskset strace sudo doas docker podman
    kubectl chroot nsenter unshare ssh su coproc""".split()  # noqa: SIM905
)
"""Commands that run another one."""
_HARMLESS = frozenset("echo printf test [ [[ for select true grep which :".split())  # noqa: SIM905
_MAY_BE_NOTHING = ("command", "builtin", "exec")
_VERSION = re.compile(r"(?<=[a-z])[0-9.]+$")


def read_words(words: Sequence[str], *, zsh: bool = False) -> Reading:
    """How a command with these words uses them."""
    reading = Reading()
    if not words:
        return reading
    names = [_name(word) for word in words]
    start = 0  # of the command itself, after words such as $SUDO that may be empty
    while start + 1 < len(words) and (not names[start] or words[start] in _MAY_BE_NOTHING):
        start += 1
    _evaluated(words, start, zsh, reading)
    if names[start] in _HARMLESS:
        return reading
    wraps = names[start] in _WRAPPERS or not names[start]
    for position in range(start, len(words)):
        name = names[position]
        program = (_BUILTINS.get(name) if position == start else None) or _PROGRAMS.get(name)
        if program and (position == start or wraps or _has_code_option(words, position)):
            _read_program(words, position, name, program, reading)
    if not names[0] and _has_code_option(words, 0):  # $SHELL -c …
        _read_program(words, 0, "a shell", _PROGRAMS["sh"], reading)
    if "xargs" in names:
        _replaced(words, names.index("xargs"), reading)
    elif names[start] == "find" and any(
        "{}" in words[it.first] for it in reading.uses if it.first < len(words)
    ):
        reading.add(0, len(words), "find -exec", f"pass {{}} as an argument: {_SHELL}")
    return reading


def _name(word: str) -> str:
    """The name of the program at a path; empty if it depends on a value or an expansion."""
    if HOLE in word or EXPANSION in word:
        return ""
    name = word.rpartition("/")[2]
    versionless = _VERSION.sub("", name)
    return versionless if versionless in _PROGRAMS else name


def _has_code_option(words: Sequence[str], position: int) -> bool:
    return any(re.fullmatch(r"-[A-Za-z]*[ceEr]|--eval|--command", word) for word in words[position + 1 :])


def _read_program(
    words: Sequence[str], position: int, name: str, program: _Program, reading: Reading
) -> None:
    operands: list[int] = []
    has_code = reads_input = False
    label = "" if program.only_with else name
    option_like, ends = ("[-+][^-]|--.", ("-", "--")) if program.only_with else ("-[^-]|--.", ("--",))
    index = position
    while (index := index + 1) < len(words):
        word = words[index]
        option = re.match(program.code, word)
        reads_input |= not has_code and re.fullmatch(program.input, word) is not None
        if option and (len(word) == option.end() or word[option.end()] == "=" or word[:2] != "--"):
            index += option.end() == len(word)  # else the code is attached
            reading.add(index, index + 1, f"{name} {option[0]}", program.hint)
            has_code = True
        elif found := program.only_with and re.fullmatch(program.only_with, word):
            label = f"{name} -{found[1]}"
        elif found := re.fullmatch(program.takes, word):
            index += 1 if found.lastindex is None else 2
        elif found := re.match(program.file, word):
            path = word[found.end() :].lstrip("=") or "".join(words[index + 1 : index + 2])
            index += found.end() == len(word)
            has_code = True
            if re.fullmatch(_STANDARD_INPUT, path):
                reading.input = Use(0, 0, f"{name} -f -", program.hint)
        elif re.match(option_like, word):
            continue
        elif not label and word[:1] in (HOLE, EXPANSION) and _has_code_option(words, index):
            continue  # perhaps nothing, or an option
        elif program.permutes:
            operands += [] if word == "--" else [index]
        else:
            operands = [*range(index + (word in ends), len(words))]
            break
    for index in operands if program.permutes else operands[:1]:
        if program.input and words[index].startswith(SUBSTITUTION):
            reading.add(index, index + 1, name, program.hint)
    if label and not (has_code and program.operands == _FIRST and not program.only_with):
        for index in operands[slice(*program.operands)]:
            reading.add(index, index + 1, label, program.hint)
            has_code = True
    named = has_code or len(operands) > program.operands[0]
    if program.input and (program.permutes or reads_input or not named):
        reading.input = Use(0, 0, name, program.hint)
    if name == "git":
        _read_git(words, position, reading)
    elif name == "ssh" and operands:
        host = operands[0]
        reading.uses.append(replace(_HOST, first=host, last=host + 1))
    elif name in ("make", "gmake"):
        reading.uses.append(replace(_EXPANDED_BY_MAKE, first=position + 1, last=len(words)))


def _read_git(words: Sequence[str], position: int, reading: Reading) -> None:
    """Settings whose values are commands, and the command of a rebase."""
    for index in range(position + 1, len(words)):
        word, before = words[index], words[position + 1 : index]
        if words[index - 1] == "-c" and (_GIT_CODE.match(word) or HOLE in word.partition("=")[0]):
            reading.add(index, index + 1, "git -c")
        elif "config" in before and HOLE not in word and _GIT_CODE.match(word):
            reading.add(index + 1, index + 2, "git config")
        elif word == "-x" and ("rebase" in before or "difftool" in before):
            reading.add(index + 1, index + 2, "git -x")


def _replaced(words: Sequence[str], position: int, reading: Reading) -> None:
    """Code into which xargs inserts its input."""
    marks = {"{}"} if any(word.startswith(("-i", "--replace")) for word in words) else set()
    for index in range(position + 1, len(words)):
        if words[index].startswith("-I"):
            marks |= {words[index][2:] or "".join(words[index + 1 : index + 2])}
    for use in reading.uses:
        code = " ".join(words[use.first : use.last])
        if use.data is None and (use.first >= len(words) or any(mark in code for mark in marks)):
            hint = "remove -I, and read the argument: xargs sh -c 'echo \"$1\"' _"
            reading.input = Use(0, 0, f"xargs {use.name}", hint)


# Words that shells evaluate: subscripts of names, and arithmetic


_COMPARES_NUMBERS = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
_COUNTS = ("exit", "return", "shift", "break", "continue", "repeat")


def _evaluated(words: Sequence[str], start: int, zsh: bool, reading: Reading) -> None:
    name, rest = words[start], range(start + 1, len(words))
    computed: list[int] = []
    if name in _DECLARES:
        if name in ("integer", "float") or any(_INTEGER.match(word) for word in words):
            reading.integers = [words[index].partition("=")[0] for index in rest]
        for index in rest:
            if HOLE in words[index].partition("=")[0]:
                reading.add(index, index + 1, name, _CHECK)
    elif name == "printf" and rest:
        if words[start + 1].startswith((HOLE, "-v")):
            last = start + 2 + (words[start + 1] == "-v")
            reading.add(start + 1, last, name, "add a format: printf '%s' \"${…}\"")
        if zsh and re.search(r"%[-+ #0-9.*]*[diouxXeEfFgG]", words[start + 1]):
            computed += rest[1:]
    elif name in ("[", "test", "[["):
        for index in rest:
            before = words[index - 1]
            if words[index] in _COMPARES_NUMBERS and (zsh or name == "[["):
                computed += (index - 1, index + 1)
            if before in ("-v", "-R") or (name != "[[" and index > start + 1 and before == HOLE):
                reading.add(index, index + 1, f"{name} {before}".replace(HOLE, "…"), _CHECK)
        if name != "[[":
            reading.uses.append(replace(_TESTED, first=start + 1, last=len(words)))
    elif zsh and name in _COUNTS:
        computed += rest
    reading.uses += [replace(NUMBERS, first=index, last=index + 1) for index in computed]
