"""Which words of a command are code, or become code: the script of `sh -c`, the program of awk, `eval`.

A value inside such a word would be read by another program as part of its code, whatever quotes the shell saw
around it. Words come as the command will get them (see `shell_script.Piece.text`), so the same tables serve a
command that is run without a shell. Everything here is about names and positions; it must not know values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from workflows_mcp.expressions.shell_script import EXPANSION, HOLE


class Reader(Enum):
    """Who reads the code, which decides how a value can be handed to it."""

    SAME_SHELL = "the same shell"
    CHILD_SHELL = "a shell that has our variables"
    OTHER = "something that does not, or is no shell"
    SED = "sed"
    MAKE = "make, which expands $ in its arguments"


@dataclass(frozen=True, slots=True)
class Code:
    """The words from `first` up to `last` are, put together, code."""

    first: int
    last: int
    reader: Reader
    name: str
    hint: str


@dataclass(slots=True)
class Reading:
    """What a command does with its words."""

    code: list[Code] = field(default_factory=list)
    input: Code | None = None
    """Who reads its standard input as code."""
    not_options: list[int] = field(default_factory=list)
    """Words before which an option may stand: a value that begins with a dash would be one."""
    one_word: list[int] = field(default_factory=list)
    """Words that are one thing, so that a value there must not become several."""


@dataclass(frozen=True, slots=True)
class _Interpreter:
    """`code`: options whose next word is code. `takes`: options whose next word is something else."""

    code: re.Pattern[str]
    hint: str
    takes: frozenset[str] = frozenset()
    last_option: str = ""
    attached: tuple[str, ...] = ()
    reads_input: bool = True


_NEVER = re.compile(r"(?!)")
_AS_ARGUMENT = "pass the value as an argument instead"
_PYTHON = _Interpreter(
    re.compile(r"-[A-Za-z]*c"),
    f"{_AS_ARGUMENT}: python3 -c 'import sys; print(sys.argv[1])' ${{…}}",
    frozenset({"-W", "-X"}),
    "-m",
)
_PERL = _Interpreter(
    re.compile(r"-[A-Za-z0-9]*[eE]"), f"{_AS_ARGUMENT}: perl -e 'print $ARGV[0]' ${{…}}", frozenset({"-I"})
)
_RUBY = _Interpreter(
    re.compile(r"-[A-Za-z0-9]*e"), f"{_AS_ARGUMENT}: ruby -e 'puts ARGV[0]' ${{…}}", frozenset({"-I", "-r"})
)
_NODE = _Interpreter(
    re.compile(r"-e|-p|-pe|--eval|--print"),
    f"{_AS_ARGUMENT}: node -e 'console.log(process.argv[1])' ${{…}}",
    frozenset({"-r", "--require", "--import", "--loader"}),
    attached=("--eval=", "--print="),
)
_PLAIN = f"{_AS_ARGUMENT}, or through env:"
_HOST_OPTIONS = frozenset({"-h", "-p", "-U", "-u", "-d", "-D", "-P"})
_INTERPRETERS: dict[str, _Interpreter] = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "perl": _PERL,
    "ruby": _RUBY,
    "node": _NODE,
    "nodejs": _NODE,
    "bun": _NODE,
    "deno": _Interpreter(re.compile(r"eval"), _PLAIN),
    "php": _Interpreter(re.compile(r"-r|-B|-R|-E"), _PLAIN, frozenset({"-d", "-c"})),
    "lua": _Interpreter(re.compile(r"-e"), _PLAIN, frozenset({"-l"})),
    "Rscript": _Interpreter(re.compile(r"-e"), _PLAIN),
    "osascript": _Interpreter(re.compile(r"-e"), _PLAIN),
    "pwsh": _Interpreter(re.compile(r"-[cC].*"), _PLAIN),
    "fish": _Interpreter(re.compile(r"-[a-z]*c|--command"), _PLAIN, attached=("--command=",)),
    "su": _Interpreter(re.compile(r"-c|--command"), _PLAIN, attached=("--command=",)),
    "runuser": _Interpreter(re.compile(r"-c|--command"), _PLAIN, attached=("--command=",)),
    "flock": _Interpreter(re.compile(r"-c|--command"), _PLAIN, reads_input=False),
    "script": _Interpreter(re.compile(r"-[a-z]*c|--command"), _PLAIN, attached=("--command=",)),
    "at": _Interpreter(_NEVER, _PLAIN),
    "batch": _Interpreter(_NEVER, _PLAIN),
    "psql": _Interpreter(re.compile(r"-c|--command"), _PLAIN, _HOST_OPTIONS, attached=("--command=",)),
    "mysql": _Interpreter(re.compile(r"-e|--execute"), _PLAIN, _HOST_OPTIONS, attached=("--execute=",)),
    "mariadb": _Interpreter(re.compile(r"-e|--execute"), _PLAIN, _HOST_OPTIONS, attached=("--execute=",)),
    "sqlite3": _Interpreter(_NEVER, _PLAIN),
}
_ANYWHERE = frozenset({"su", "runuser", "flock", "script", "psql", "mysql", "mariadb"})
"""Their option for code may also come after other words."""
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
_SEDS = frozenset({"sed", "gsed"})
_MAKES = frozenset({"make", "gmake"})
_ALL_WORDS = frozenset({"alias", "compgen", "complete", "parallel", "watch"})
_BUILTINS = frozenset({"eval", "trap", ".", "source"})
_INHERITING = frozenset(
    {"exec", "command", "builtin", "env", "nohup", "time", "nice", "ionice", "timeout", "stdbuf"}
    | {"setsid", "xargs", "find", "chrt", "taskset", "strace"}
)
"""Commands that run another one with the same variables."""
_CLEARING = frozenset(
    {"sudo", "doas", "docker", "podman", "kubectl", "chroot", "nsenter", "unshare", "ssh", "su"}
)
"""Commands that run another one without our variables, or elsewhere."""
_HARMLESS = frozenset(
    {"echo", "printf", "test", "[", "[[", "for", "select", "function", "true", "grep", "which"}
)
_PROGRAMS = _AWKS | _SEDS | _MAKES | {"ssh", "watch", "parallel"}
_STANDARD_INPUT = frozenset({"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_VERSION = re.compile(r"(?<=[a-z])[0-9.]+$")
_SHELL_HINT = f"{_AS_ARGUMENT}: sh -c 'echo \"$1\"' _ ${{…}}"
_SSH_TAKES = re.compile(r"-[a-zA-Z0-9]*[bcDEeFIiJLlmOpQRSWw]")


def read_command(words: tuple[str, ...]) -> Reading:
    """What a command with these words does with them."""
    return _read_command(words) if sum(map(len, words)) < 2000 else _read_command.__wrapped__(words)


@lru_cache(maxsize=512)
def _read_command(words: tuple[str, ...]) -> Reading:
    reading = Reading()
    position, inherits = _interpreter(words)
    if position < 0:
        return reading
    name = _name(words[position])
    same_shell = Reader.SAME_SHELL if inherits else Reader.OTHER
    if name in _SHELLS or not name:
        _shell(words, position, inherits, reading)
    elif name == "eval":
        first = position + 1 + (words[position + 1 : position + 2] == ("--",))
        reading.code.append(Code(first, len(words), same_shell, name, _SHELL_HINT))
    elif name == "trap":
        first = position + 1 + (words[position + 1 : position + 2] == ("--",))
        reading.code.append(Code(first, first + 1, same_shell, name, _SHELL_HINT))
    elif name in (".", "source"):
        if len(words) == position + 1 or words[position + 1] in _STANDARD_INPUT:
            reading.input = Code(0, 0, Reader.OTHER, name, _PLAIN)
    elif name in _ALL_WORDS:
        reading.code.append(Code(position + 1, len(words), Reader.OTHER, name, _PLAIN))
    elif name in _MAKES:
        reading.code += [
            Code(index, index + 1, Reader.MAKE, name, _PLAIN) for index in range(position + 1, len(words))
        ]
    elif name in _AWKS or name in _SEDS:
        _program(words, position, name, reading)
    elif name == "ssh":
        _ssh(words, position, reading)
    else:
        _flagged(words, position, _INTERPRETERS[name], name, reading)
    return reading


def _name(word: str) -> str:
    """The name of a program by its path; empty if it is not known before it runs."""
    if HOLE in word or EXPANSION in word:
        return ""
    name = word.rpartition("/")[2]
    return _VERSION.sub("", name) if _VERSION.sub("", name) in _INTERPRETERS else name


def _known(name: str) -> bool:
    return name in _SHELLS or name in _INTERPRETERS or name in _PROGRAMS


def _start(words: Sequence[str]) -> tuple[int, bool]:
    """Where the command itself stands, and whether that is certain: $SUDO before it may be empty or not."""
    start, certain = 0, True
    while start + 1 < len(words):
        if _name(words[start]) == "":
            certain = False
        elif words[start] not in ("command", "builtin"):
            break
        start += 1
    return start, certain


def _interpreter(words: Sequence[str]) -> tuple[int, bool]:
    """Which word is the program that reads code, -1 if none; and whether it is sure to get our variables."""
    if not words:
        return -1, True
    names = [_name(word) for word in words]
    start, certain = _start(words)
    if names[start] in _BUILTINS or names[start] in _ALL_WORDS or _known(names[start]):
        return start, certain
    if names[start] not in _HARMLESS:
        wraps = names[start] in _INHERITING or names[start] in _CLEARING
        for position in range(start + 1, len(words)):
            if _known(names[position]) and (wraps or _has_code_option(words, position)):
                before = names[start:position]
                cleared = "env" in before and not {"-i", "-", "--ignore-environment"}.isdisjoint(words)
                passed_on = names[start] in _INHERITING and not cleared and _CLEARING.isdisjoint(before)
                return position, certain and passed_on
    if names[0] == "" and _has_code_option(words, 0):
        return 0, False  # $SHELL -c …
    return -1, True


def _has_code_option(words: Sequence[str], position: int) -> bool:
    return any(re.fullmatch(r"-[A-Za-z]*[ceEr]|--eval|--command", word) for word in words[position + 1 :])


def _shell(words: Sequence[str], position: int, inherits: bool, reading: Reading) -> None:
    name = _name(words[position]) or "a shell"
    from_option = unsure = reads_input = False
    index = position + 1
    while index < len(words):
        word = words[index]
        if word.startswith((HOLE, EXPANSION)) and not from_option:
            reading.not_options.append(index)
            unsure = True
            index += 1
        elif word in ("--rcfile", "--init-file"):
            index += 2
        elif word.startswith("--") and len(word) > 2:
            index += 1
        elif re.fullmatch(r"[-+][A-Za-z]+", word):
            from_option |= word[0] == "-" and "c" in word
            reads_input |= word[0] == "-" and "s" in word
            index += 2 if word[-1] in "oO" else 1
        else:
            index += word in ("--", "-")
            break
    reader = Reader.CHILD_SHELL if inherits and not unsure else Reader.OTHER
    if from_option:
        reading.code.append(Code(index, index + 1, reader, f"{name} -c", _SHELL_HINT))
    elif reads_input or (index >= len(words) and not unsure) or _STANDARD_INPUT & {*words[index : index + 1]}:
        reading.input = Code(0, 0, reader, name, _SHELL_HINT)


def _flagged(
    words: Sequence[str], position: int, interpreter: _Interpreter, name: str, reading: Reading
) -> None:
    index = position + 1
    operand = False
    while index < len(words):
        word = words[index]
        if interpreter.code.fullmatch(word):
            reading.code.append(Code(index + 1, index + 2, Reader.OTHER, f"{name} {word}", interpreter.hint))
            operand = True
            index += 2
        elif word.startswith(interpreter.attached) and interpreter.attached:
            reading.code.append(Code(index, index + 1, Reader.OTHER, name, interpreter.hint))
            operand = True
            index += 1
        elif interpreter.last_option and word == interpreter.last_option:
            return
        elif word in interpreter.takes:
            index += 2
        elif re.match(r"-[A-Za-z]", word) and interpreter.code.fullmatch(word[:2]) and len(word) > 2:
            # The code follows its option without a blank.
            reading.code.append(Code(index, index + 1, Reader.OTHER, name, interpreter.hint))
            operand = True
            index += 1
        elif word.startswith((HOLE, EXPANSION)):
            reading.not_options.append(index)
            operand = True
            index += 1
        elif word.startswith("-") or name in _ANYWHERE:
            if HOLE in word:
                reading.code.append(Code(index, index + 1, Reader.OTHER, name, interpreter.hint))
            index += 1
        else:
            operand = word not in _STANDARD_INPUT
            break
    if interpreter.reads_input and not operand:
        reading.input = Code(0, 0, Reader.OTHER, name, interpreter.hint)


def _program(words: Sequence[str], position: int, name: str, reading: Reading) -> None:
    """awk and sed: the program is the first word that is no option, unless an option brought it."""
    awk = name in _AWKS
    reader = Reader.OTHER if awk else Reader.SED
    hint = (
        f"{_AS_ARGUMENT}: awk -v value=${{…}} '{{ print value }}'"
        if awk
        else "use another delimiter than the value has, or write the file with RenderTemplate"
    )
    brought = False
    index = position + 1
    if not awk:  # its options may also stand at the end
        reading.not_options += [each for each in range(index, len(words)) if words[each].startswith(HOLE)]
    while index < len(words):
        word = words[index]
        if word in ("-e", "--expression", "--source"):
            reading.code.append(Code(index + 1, index + 2, reader, name, hint))
            brought = True
            index += 2
        elif word.startswith(("--expression=", "--source=")):
            reading.code.append(Code(index, index + 1, reader, name, hint))
            brought = True
            index += 1
        elif word in ("-f", "--file"):
            brought = True
            index += 2
        elif word in ("-F", "-v", "--assign", "--field-separator", "-l", "--line-length"):
            index += 2
        elif word.startswith("-") and word not in ("-", "--"):
            brought |= word.startswith(("-f", "--file="))
            index += 1
        else:
            index += word == "--"
            break
    if not brought and index < len(words):
        reading.code.append(Code(index, index + 1, reader, name, hint))


def _ssh(words: Sequence[str], position: int, reading: Reading) -> None:
    index = position + 1
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        if words[index].startswith("-o"):
            reading.code.append(Code(index, index + 2, Reader.OTHER, "ssh -o", _PLAIN))
            index += 2 if words[index] == "-o" else 1
        else:
            index += 2 if _SSH_TAKES.fullmatch(words[index]) else 1
    reading.not_options.append(index)
    reading.one_word.append(index)
    reading.code.append(Code(index + 1, len(words), Reader.OTHER, "ssh", _PLAIN))
    if index + 1 >= len(words):
        reading.input = Code(0, 0, Reader.OTHER, "ssh", _PLAIN)


# What bash evaluates without being asked: the subscript of a name, and arithmetic

_COMPARES_NUMBERS = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_DECLARES = frozenset({"declare", "typeset", "local", "export", "readonly"})
_TAKES_NAMES = frozenset({"unset", "read", "getopts", "mapfile", "readarray", "wait"})


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Words that bash computes as numbers, and words in which it looks for the name of a variable."""

    arithmetic: frozenset[int] = frozenset()
    names: frozenset[int] = frozenset()
    names_if_bare: frozenset[int] = frozenset()
    not_options: frozenset[int] = frozenset()


def evaluated_words(words: tuple[str, ...]) -> Evaluated:
    start, _ = _start(words)
    name = words[start] if words else ""
    rest = range(start + 1, len(words))
    if name == "let":
        return Evaluated(arithmetic=frozenset(rest))
    if name in _DECLARES:
        options = "".join(word for word in words[start + 1 :] if word.startswith("-"))
        if "i" in options:
            return Evaluated(arithmetic=frozenset(rest))
        named = [index for index in rest if "n" in options or HOLE in words[index].partition("=")[0]]
        return Evaluated(names=frozenset(named))
    if name in _TAKES_NAMES:
        return Evaluated(
            names=frozenset(index for index in rest if words[index - 1] not in ("-p", "-d", "-i"))
        )
    if name == "printf":
        after_option = [index for index in rest if words[index - 1] == "-v" or words[index].startswith("-v")]
        return Evaluated(names=frozenset(after_option), not_options=frozenset(rest[:1]))
    if name in ("[", "test"):
        after_option = [
            index
            for index in rest
            if words[index - 1] in ("-v", "-R") or HOLE in words[index - 1] or EXPANSION in words[index - 1]
        ]
        return Evaluated(names=frozenset(after_option), names_if_bare=frozenset(rest))
    if name == "[[":
        numbers = {
            neighbour
            for index in rest
            if words[index] in _COMPARES_NUMBERS
            for neighbour in (index - 1, index + 1)
        }
        named = [index for index in rest if words[index - 1] in ("-v", "-R")]
        return Evaluated(arithmetic=frozenset(numbers), names=frozenset(named))
    return Evaluated()
