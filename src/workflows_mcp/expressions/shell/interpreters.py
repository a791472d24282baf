"""Finds the words of a command that another program reads as code: `sh -c`, awk, eval, `git -c alias.x=!…`.

    read_words(["sh", "-c", "echo hi", "x"]).code    # [Code(2, 3, "sh -c", …)]

It works with names and positions only; words are as the command gets them (`syntax.py`). Whether a value that
begins with a dash is an option is up to the author of the command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from workflows_mcp.expressions.shell.syntax import EXPANSION, HOLE, SUBSTITUTION

_ENV = "pass the value in `env:`, and read the variable in the code"
_ARGUMENT = "pass the value as an argument"
_SHELL = f'{_ARGUMENT}: sh -c \'echo "$1"\' _ "${{…}}"'


@dataclass(frozen=True, slots=True)
class Code:
    """The words from `first` up to `last` are code that `name` reads."""

    first: int
    last: int
    name: str
    hint: str


@dataclass(slots=True)
class Reading:
    """How a command uses its words."""

    code: list[Code] = field(default_factory=list)
    input: Code | None = None
    """The program that reads standard input as code."""
    whole: list[int] = field(default_factory=list)
    """Words that must not become several."""
    computed: list[int] = field(default_factory=list)
    """Words in which only numbers are data, in bash and zsh or (`computed_in_zsh`) in zsh only."""
    computed_in_zsh: list[int] = field(default_factory=list)
    named_if_bare: list[int] = field(default_factory=list)
    """Words in which bash evaluates the name of a variable, if a value is split into words."""
    expanded: list[int] = field(default_factory=list)
    """Words in which make expands `$`."""

    def add(self, first: int, last: int, name: str, hint: str = _ENV) -> None:
        self.code.append(Code(first, last, name, hint))


@dataclass(frozen=True, slots=True)
class _Interpreter:
    """A program. `code`: options followed by code. `takes`: options followed by another word."""

    code: str
    hint: str = f"{_ARGUMENT}, or in `env:`"
    takes: frozenset[str] = frozenset()
    anywhere: bool = False
    """The option may also come after other words."""
    reads_input: bool = True


_PYTHON = _Interpreter(
    r"-[A-Za-z]*c",
    f"{_ARGUMENT}: python3 -c 'import sys; print(sys.argv[1])' \"${{…}}\"",
    frozenset({"-W", "-X"}),
)
_NODE = _Interpreter(
    r"-e|-p|-pe|--eval|--print",
    f"{_ARGUMENT}: node -e 'console.log(process.argv[1])' \"${{…}}\"",
    frozenset({"-r", "--require", "--import", "--loader"}),
)
_COMMAND = _Interpreter(r"-[a-z]*c|--command", anywhere=True)
_SQL = _Interpreter(
    r"-c|--command|-e|--execute", takes=frozenset({"-h", "-p", "-U", "-u", "-d", "-D", "-P"}), anywhere=True
)
_INTERPRETERS: dict[str, _Interpreter] = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "perl": _Interpreter(
        r"-[A-Za-z0-9]*[eE]", f"{_ARGUMENT}: perl -e 'print $ARGV[0]' \"${{…}}\"", frozenset({"-I"})
    ),
    "ruby": _Interpreter(
        r"-[A-Za-z0-9]*e", f"{_ARGUMENT}: ruby -e 'puts ARGV[0]' \"${{…}}\"", frozenset({"-I", "-r"})
    ),
    "node": _NODE,
    "nodejs": _NODE,
    "bun": _NODE,
    "deno": _Interpreter(r"eval"),
    "php": _Interpreter(r"-r|-B|-R|-E", takes=frozenset({"-d", "-c"})),
    "lua": _Interpreter(r"-e", takes=frozenset({"-l"})),
    "Rscript": _Interpreter(r"-e"),
    "osascript": _Interpreter(r"-e"),
    "gnuplot": _Interpreter(r"-e"),
    "pwsh": _Interpreter(r"-[cC].*"),
    "powershell": _Interpreter(r"-[cC].*"),
    "fish": _Interpreter(r"-[a-z]*c|--command"),
    "su": _COMMAND,
    "runuser": _COMMAND,
    "script": _COMMAND,
    "flock": _Interpreter(r"-c|--command", anywhere=True, reads_input=False),
    "psql": _SQL,
    "mysql": _SQL,
    "mariadb": _SQL,
    "sqlite3": _Interpreter(r"-cmd"),
    "at": _Interpreter(r"(?!)"),
    "batch": _Interpreter(r"(?!)"),
    "dc": _Interpreter(r"-e|--expression"),
    "ed": _Interpreter(r"(?!)"),
    "ex": _Interpreter(r"-c|--cmd|\+.*", anywhere=True),
    "vim": _Interpreter(r"-c|--cmd|\+.*", anywhere=True, reads_input=False),
    "nvim": _Interpreter(r"-c|--cmd|\+.*", anywhere=True, reads_input=False),
    "emacs": _Interpreter(r"--eval|--execute", anywhere=True, reads_input=False),
}
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
_FILTERS: dict[str, str] = {
    **dict.fromkeys(
        ("awk", "gawk", "mawk", "nawk"), f"{_ARGUMENT}: awk -v value=\"${{…}}\" '{{ print value }}'"
    ),
    **dict.fromkeys(("sed", "gsed"), 'use awk -v value="${…}", or write the file with RenderTemplate'),
    **dict.fromkeys(("jq", "gojq"), f"{_ARGUMENT}: jq --arg value \"${{…}}\" '.name == $value'"),
}
"""Programs whose first operand is code, and how to pass a value to them."""
_FILTER_CODE = frozenset({"-e", "--expression", "--source"})
_FILTER_TAKES = {
    "jq": {"--arg": 3, "--argjson": 3, "--slurpfile": 3, "--rawfile": 3, "--indent": 2, "-L": 2},
    "awk": {"-F": 2, "-v": 2, "--assign": 2, "--field-separator": 2},
    "sed": {"-l": 2, "--line-length": 2},
}
_MAKES = frozenset({"make", "gmake"})
_ALL_WORDS = frozenset({"alias", "compgen", "complete", "parallel", "watch"})
_BUILTINS = frozenset({"eval", "trap", ".", "source"})
_BEFORE_A_COMMAND = frozenset({"command", "builtin", "exec", "time", "coproc"})
_OPTIONS: dict[str, re.Pattern[str]] = {
    "tar": re.compile(
        r"--checkpoint-action|--to-command|--use-compress-program|-I|-F|--(info|new-volume)-script|--(rsh|rmt)-command"
    ),
    "rsync": re.compile(r"-[a-zA-Z]*e|--rsh|--rsync-path"),
    "git": re.compile(r"--exec|--extcmd|--[a-z]+-filter|--upload-pack|--receive-pack|foreach"),
    "scp": re.compile(r"-o|-S"),
    "sftp": re.compile(r"-o|-S"),
    "env": re.compile(r"-S|--split-string"),
    "make": re.compile(r"--eval|-E"),
    "gmake": re.compile(r"--eval|-E"),
}
"""Options of programs whose value is code: in the next word, or after `=`, or attached."""
_GIT_CODE = re.compile(
    r"(?i)alias\.|pager\.|[^=]*(command|pager|editor|helper|textconv|cmd|program|fsmonitor|hookspath|askpass|proxy|clean"
    r"|smudge|process|driver)(=|\Z)"
)
"""Settings of git whose values are commands."""
CODE_VARIABLE = re.compile(
    r"(PS[0-4]|PROMPT_COMMAND|BASH_ENV|ENV|(GIT_)?(SEQUENCE_)?EDITOR|VISUAL|(GIT_)?PAGER|GIT_SSH_COMMAND|LESSOPEN|LESSCLOSE"
    r"|RSYNC_RSH|FZF_DEFAULT_COMMAND|PERL5OPT|PYTHONSTARTUP|RUBYOPT|NODE_OPTIONS)\+?="
)
"""Variables whose values a shell or another program runs as code."""
_WRAPPERS = frozenset(
    {
        "exec",
        "command",
        "builtin",
        "env",
        "nohup",
        "time",
        "nice",
        "ionice",
        "timeout",
        "stdbuf",
        "setsid",
        "xargs",
    }
    | {
        "find",
        "chrt",
        "taskset",
        "strace",
        "sudo",
        "doas",
        "docker",
        "podman",
        "kubectl",
        "chroot",
        "nsenter",
    }
    | {"unshare", "ssh", "su", "coproc", "exec"}
)
"""Commands that run another one."""
_HARMLESS = frozenset({"echo", "printf", "test", "[", "[[", "for", "select", "true", "grep", "which", ":"})
_STANDARD_INPUT = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_VERSION = re.compile(r"(?<=[a-z])[0-9.]+$")
_SSH_TAKES = re.compile(r"-[a-zA-Z0-9]*[bcDEeFIiJLlmOpQRSWw]")


def read_words(words: Sequence[str]) -> Reading:
    """How a command with these words uses them."""
    reading = Reading()
    if not words:
        return reading
    start = _start(words)
    _arithmetic(words, start, reading)
    names = [_name(word) for word in words]
    if names[start] in _HARMLESS:
        return reading
    wraps = names[start] in _WRAPPERS or not names[start]
    for position in range(start, len(words)):
        if position == start or wraps or _has_code_option(words, position):
            _program(words, position, names[position], reading)
    if not names[0] and _has_code_option(words, 0):
        _shell(words, 0, reading)  # $SHELL -c …
    if "xargs" in names:
        _replaced(words, names.index("xargs"), reading)
    elif names[start] == "find" and any(
        "{}" in words[it.first] for it in reading.code if it.first < len(words)
    ):
        reading.add(0, len(words), "find -exec", f"pass {{}} as an argument: {_SHELL}")
    return reading


def _name(word: str) -> str:
    """The name of the program at a path; empty if it depends on a value or an expansion."""
    if HOLE in word or EXPANSION in word:
        return ""
    name = word.rpartition("/")[2]
    versionless = _VERSION.sub("", name)
    return versionless if versionless in _INTERPRETERS else name


def _start(words: Sequence[str]) -> int:
    """The index of the command itself, after words such as $SUDO that may be empty."""
    start = 0
    while start + 1 < len(words) and (
        not _name(words[start]) or words[start] in ("command", "builtin", "exec")
    ):
        start += 1
    return start


def _has_code_option(words: Sequence[str], position: int) -> bool:
    return any(re.fullmatch(r"-[A-Za-z]*[ceEr]|--eval|--command", word) for word in words[position + 1 :])


def _program(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    if name in _SHELLS:
        _shell(words, position, reading)
    elif name in _BUILTINS and (
        position == 0 or words[position - 1] in _BEFORE_A_COMMAND or not _name(words[0])
    ):
        _builtin(words, position, name, reading)
    elif name in _ALL_WORDS:
        reading.add(position + 1, len(words), name)
        reading.input = Code(0, 0, name, _ENV) if name == "parallel" else reading.input
    elif name in _FILTERS:
        _filter(words, position, name, reading)
    elif name == "ssh":
        _ssh(words, position, reading)
    elif name in _INTERPRETERS:
        _interpreter(words, position, name, reading)
    if name in _MAKES:
        reading.expanded += range(position + 1, len(words))
        if any(
            word in ("-f", "--file", "--makefile")
            and words[index + 1 : index + 2]
            and words[index + 1] in _STANDARD_INPUT
            for index, word in enumerate(words)
        ) or not {"-f-", "--file=-", "--makefile=-"}.isdisjoint(words):
            reading.input = Code(0, 0, f"{name} -f -", _ENV)
    if name in _OPTIONS:
        _options(words, position, name, reading)


def _builtin(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    first = position + 1 + (words[position + 1 : position + 2] == ["--"])
    if name == "eval":
        reading.add(first, len(words), name, "run the command directly, without eval")
    elif name == "trap":
        reading.add(first, first + 1, name, _ENV)
    elif len(words) == position + 1 or words[position + 1] in _STANDARD_INPUT:
        reading.input = Code(0, 0, name, _ENV)
    elif words[position + 1].startswith(SUBSTITUTION):
        reading.add(position + 1, position + 2, name)


def _shell(words: Sequence[str], position: int, reading: Reading) -> None:
    name = _name(words[position]) or "a shell"
    from_option = reads_input = False
    index = position + 1
    while index < len(words):
        word = words[index]
        if word in ("--rcfile", "--init-file"):
            reading.add(index + 1, index + 2, f"{name} {word}")
            index += 2
        elif word.startswith("--") and len(word) > 2:
            index += 1
        elif re.fullmatch(r"[-+][A-Za-z]+", word):
            from_option |= word[0] == "-" and "c" in word
            reads_input |= word[0] == "-" and "s" in word
            index += 2 if word[-1] in "oO" else 1
        elif word[0:1] in (HOLE, EXPANSION) and not from_option and _has_code_option(words, index):
            index += 1  # perhaps nothing, or an option
        else:
            index += word in ("--", "-")
            break
    operand = words[index : index + 1]
    if from_option:
        reading.add(index, index + 1, f"{name} -c", _SHELL)
    elif reads_input or not operand or operand[0] in _STANDARD_INPUT:
        reading.input = Code(0, 0, name, _SHELL)
    elif operand[0].startswith(SUBSTITUTION):
        reading.add(index, index + 1, name, _SHELL)


def _interpreter(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    interpreter = _INTERPRETERS[name]
    index, operands = position + 1, 0
    while index < len(words):
        word = words[index]
        option = re.match(interpreter.code, word)
        if option and option.end() == len(word):
            last = index + 1 if word.startswith("+") else index + 2
            reading.add(last - 1, last, f"{name} {word}".partition("+")[0].strip(), interpreter.hint)
            operands += 1
            index = last
        elif option and word.startswith("-") and (word[option.end()] == "=" or word[1] != "-"):
            reading.add(index, index + 1, f"{name} {option[0]}", interpreter.hint)  # attached to its option
            operands += 1
            index += 1
        elif name == "python" and word == "-m":
            return
        elif word in interpreter.takes:
            index += 2
        elif word.startswith("-") and word not in _STANDARD_INPUT:
            index += 1
        elif name == "sqlite3" and operands:
            reading.add(
                index,
                index + 1,
                name,
                "use python3 -c and a query parameter: execute('… ?', [sys.argv[1]])",
            )
            index += 1
        else:
            operands += word not in _STANDARD_INPUT
            if word.startswith(SUBSTITUTION):
                reading.add(index, index + 1, name, interpreter.hint)
            if not interpreter.anywhere and name != "sqlite3":
                break
            index += 1
    if interpreter.reads_input and (not operands or interpreter.anywhere or name == "sqlite3"):
        reading.input = Code(0, 0, name, interpreter.hint)


def _filter(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    """awk, sed and jq: the code is the first operand, unless an option contains it."""
    hint = _FILTERS[name]
    kind = next(it for it in _FILTER_TAKES if it in name)
    takes, expressions = _FILTER_TAKES[kind], frozenset() if kind == "jq" else _FILTER_CODE
    has_program = False
    index = position + 1
    while index < len(words):
        word = words[index]
        option = word.partition("=")[0]
        if word in expressions:
            reading.add(index + 1, index + 2, name, hint)
            has_program = True
            index += 2
        elif option in expressions or (kind == "sed" and re.match(r"-[nEruzsi]*e.", word)):
            reading.add(index, index + 1, name, hint)
            has_program = True
            index += 1
        elif word in ("-f", "--file", "--from-file"):
            has_program = True
            if words[index + 1 : index + 2] and words[index + 1] in _STANDARD_INPUT:
                reading.input = Code(0, 0, f"{name} -f -", hint)
            index += 2
        elif word in takes:
            index += takes[word]
        elif word.startswith("-") and word not in ("-", "--"):
            has_program |= word.startswith(("-f", "--file="))
            index += 1
        else:
            index += word == "--"
            break
    if not has_program and index < len(words):
        reading.add(index, index + 1, name, hint)


def _ssh(words: Sequence[str], position: int, reading: Reading) -> None:
    index = position + 1
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        if words[index].startswith("-o"):
            reading.add(index, index + 2 if words[index] == "-o" else index + 1, "ssh -o")
            index += 2 if words[index] == "-o" else 1
        else:
            index += 2 if _SSH_TAKES.fullmatch(words[index]) else 1
    hint = "send it as input: printf '%s' \"${…}\" | ssh host 'read -r value; …'"
    reading.whole.append(index)
    reading.add(index + 1, len(words), "ssh", hint)
    if index + 1 >= len(words):
        reading.input = Code(0, 0, "ssh", hint)


def _options(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    options = _OPTIONS[name]
    for index in range(position + 1, len(words)):
        word = words[index]
        found = options.match(word)
        if found and found.end() == len(word):
            reading.add(index + 1, index + 2, f"{name} {word}")
        elif found and (word[found.end()] == "=" or not word.startswith("--")):
            reading.add(index, index + 1, f"{name} {found[0]}")
        elif name == "git":
            _git_word(words, position, index, reading)


def _git_word(words: Sequence[str], position: int, index: int, reading: Reading) -> None:
    """A setting whose value is a command, or the command of a rebase."""
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
        if words[index] == "-I":
            marks |= {*words[index + 1 : index + 2]}
        elif words[index].startswith("-I"):
            marks.add(words[index][2:])
    for use in reading.code:
        code = " ".join(words[use.first : use.last])
        if use.first >= len(words) or any(mark in code for mark in marks):
            hint = "remove -I, and read the argument: xargs sh -c 'echo \"$1\"' _"
            reading.input = Code(0, 0, f"xargs {use.name}", hint)


# Words that shells evaluate: subscripts of names, and arithmetic

_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_DECLARES = frozenset({"declare", "typeset", "local", "export", "readonly", "integer", "float"})
_TAKES_NAMES = frozenset({"unset", "read", "getopts", "mapfile", "readarray", "wait"})
_COUNTS = frozenset({"exit", "return", "shift", "break", "continue", "repeat"})
_NAME_HINT = "use `case`, or check the value in a condition of the workflow"


def _arithmetic(words: Sequence[str], start: int, reading: Reading) -> None:
    name = words[start]
    rest = range(start + 1, len(words))
    if name == "let":
        reading.add(start + 1, len(words), name, 'compute with expr: expr "${…}" + 1')
    elif name in _DECLARES:
        options = "".join(word[1:] for word in words[start + 1 :] if word.startswith("-"))
        for index in rest:
            if (
                name in ("integer", "float")
                or set(options) & set("inFE")
                or HOLE in words[index].partition("=")[0]
            ):
                reading.add(
                    index, index + 1, f"{name} {'-' + options if options else ''}".strip(), _NAME_HINT
                )
    elif name in _TAKES_NAMES:
        for index in rest:
            if words[index - 1] not in ("-p", "-d", "-i", "-t", "-n", "-u"):
                reading.add(index, index + 1, name, "write the name of the variable into the command")
    elif name == "printf":
        if words[start + 1 : start + 2] and words[start + 1].startswith((HOLE, "-v")):
            last = start + 3 if words[start + 1] == "-v" else start + 2
            reading.add(start + 1, last, "printf", "add a format: printf '%s' \"${…}\"")
        numbers = re.search(r"%[-+ #0-9.*]*[diouxXeEfFgG]", " ".join(words[start + 1 : start + 2]))
        reading.computed_in_zsh += rest[1:] if numbers else ()
    elif name in ("[", "test", "[["):
        for index in rest:
            if words[index] in _COMPARES_NUMBERS:
                around = (index - 1, index + 1)
                (reading.computed if name == "[[" else reading.computed_in_zsh).extend(around)
            before = words[index - 1]
            if before in ("-v", "-R") or (name != "[[" and index > start + 1 and before == HOLE):
                reading.add(index, index + 1, f"{name} {before}".replace(HOLE, "…"), _NAME_HINT)
        if name != "[[":
            reading.named_if_bare += rest
    elif name in _COUNTS:
        reading.computed_in_zsh += rest
