"""Commands in which a value stands in every way that it can, and values that try to get out of their places.

`@` stands for the value in every context. Scripts are run by real shells in an empty directory; a value that
got out of its place would make the file `pwned` there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflows_mcp.expressions.language import Code

SHELLS = [
    path
    for shell in ("dash", "bash", "zsh")
    if (path := shutil.which(shell, path="/bin:/usr/bin:/opt/homebrew/bin"))
]

HOSTILE = [
    "'; touch pwned; echo \"",
    '"; touch pwned; echo "',
    "$(touch pwned)",
    "`touch pwned`",
    "x\ntouch pwned\n",
    "x\nEOF\ntouch pwned\n",
    "\tEOF\ntouch pwned",
    "a[$(touch pwned)]",
    "0+a[`touch pwned`0]",
    "-v a[$(touch${IFS}pwned)]",
    "-va[$(touch pwned)]",
    "); touch pwned; (",
    "}; touch pwned; {",
    ")) ; touch pwned; ((",
    "& touch pwned &",
    "| touch pwned",
    "\\$(touch pwned)",
    "\\",
    "esac; touch pwned",
    "b/e;1etouch pwned;#",
    "');import os;os.system('touch pwned');('",
    '");system("touch pwned");("',
    "-oProxyCommand=touch pwned",
]
AWKWARD = [
    "",
    "*",
    "a b  c",
    "-n",
    "~",
    "#",
    "ünïcödé €",
    "two\nlines\n\n",
    "' \"",
    "\x7f",
    "_wf_0",
    "%s \\n",
    "{a,b}",
]

EXACT = {
    "double quotes": 'printf %s "@"',
    "single quotes": "printf %s '@'",
    "after a backslash": "printf %s \\@",
    "after a line that goes on": 'printf %s \\\n "@"',
    "assignment": 'X=@; printf %s "$X"',
    "exported assignment": 'export X=@; printf %s "$X"',
    "variable for one command": "X='@' sh -c 'printf %s \"$X\"'",
    "argument of env": "env X=@ sh -c 'printf %s \"$X\"'",
    "default in double quotes": 'printf %s "${NOPE:-@}"',
    "quoted default": 'printf %s ${NOPE:-"@"}',
    "single-quoted default": "printf %s ${NOPE:-'@'}",
    "function": 'f() { printf %s "@"; }; f',
    "condition": 'if [ -n "x" ]; then printf %s "@"; fi',
    "loop": 'while true; do printf %s "@"; break; done',
    "group": '{ printf %s "@"; }',
    "subshell": '( printf %s "@" )',
    "after && and ||": 'true && printf %s "@" || false',
    "background": 'printf %s "@" & wait',
    "after a comment with a quote": "# it's @\nprintf %s '@'",
    "after a case": 'case x in a) ;; (b) ;; *) printf %s "@";; esac',
    "case in a substitution": 'x=$(case y in a) ;; *) printf "%s." "@";; esac); printf %s "${x%.}"',
    "case over lines": 'x=$(case y\nin\n(a|b) ;; # (\n*) printf "%s." "@";; esac); printf %s "${x%.}"',
    "nested substitutions": 'x=$(printf %s "$(printf "%s." "@")"); printf %s "${x%.}"',
    "backticks": 'x="`printf "%s." "@"`"; printf %s "${x%.}"',
    "single quotes in backticks": "x=\"`printf '%s.' '@'`\"; printf %s \"${x%.}\"",
    "argument of sh -c": 'sh -c \'printf %s "$1"\' _ "@"',
}
WITH_NEWLINE = {
    "here-document": "cat <<EOF\n@\nEOF\n",
    "literal here-document": "cat <<'EOF'\n@\nEOF\n",
    "here-document with a backslash": "cat <<\\EOF\n@\nEOF\n",
    "here-document with tabs": "cat <<-'EOF'\n\t@\n\tEOF\n",
    "the second of two here-documents": "cat <<A >/dev/null; cat <<'B'\nfirst\nA\n@\nB\n",
    "here-document in a condition": "if true; then cat <<EOF\n@\nEOF\nfi",
    "piped here-document": "cat <<'EOF' | cat\n@\nEOF\n",
}
SAFE_ONLY = {
    "bare": 'printf "%s " @',
    "mixed quotes": "printf %s a'b@c'\"d@e\"f@g",
    "case word": "case @ in x) echo x;; *) echo other;; esac",
    "case pattern": 'case "x" in @) echo x;; *) echo other;; esac',
    "words of a loop": 'for x in @; do printf %s "$x"; done',
    "comment": "echo hi # @",
    "bare substitution": "printf %s $(printf %s @)",
    "prefix pattern": 'X=abc; printf %s "${X#@}"',
    "arithmetic": 'echo "$((1 + @))"',
    "arithmetic command": "((@)); true",
    "arithmetic loop": "for ((i=0;i<@;i++)); do break; done",
    "bare test": "[ @ = x ]",
    "quoted test": '[ "@" = x ]',
    "comparison of numbers": "[[ @ -eq 1 ]]",
    "comparison in brackets": '[[ "@" == x && "@" -gt 1 ]]',
    "redirection": "echo hi > @.txt",
    "here-string": "cat <<< @",
    "dollar sign": 'printf %s "$@"',
    "after ANSI quotes": "printf %s $'it\\'s'; printf %s '@'",
    "open quote": "echo '@",
    "open double quote": 'echo "@',
    "python script": 'python3 "@"',
    "awk -v": "awk -v x=@ 'BEGIN { print 1 }'",
    "sed file": "echo a | sed 's/a/b/' \"@\"",
}

FOREIGN = {
    "sh -c in double quotes": "sh -c \"printf %s '@'\"",
    "sh -c in single quotes": "sh -c 'printf %s \"@\"'",
    "bash -lc": 'bash -lc "printf %s \\"@\\""',
    "path of a shell, and arguments": "/bin/bash -ec 'printf %s \"@\"' x y",
    "options before -c": "sh -eu -o noglob -c 'printf %s \"@\"'",
    "env sh -c": "env FOO=1 sh -c 'printf %s \"@\"'",
    "exec sh -c": "exec sh -c 'printf %s \"@\"'",
    "command sh -c": "command sh -c 'printf %s \"@\"'",
    "timeout sh -c": "timeout 5 sh -c 'printf %s \"@\"'",
    "sh -c in sh -c": 'sh -c "sh -c \'printf %s \\"@\\"\'"',
    "sh -c with a variable": 'D=dir; sh -c "printf %s \\"@\\"; : $D"',
    "find -exec sh -c": "find . -maxdepth 0 -exec sh -c 'printf %s \"@\"' {} \\;",
    "eval in double quotes": "eval \"printf %s '@'\"",
    "eval in single quotes": "eval 'printf %s \"@\"'",
    "trap": "trap 'printf %s \"@\"' EXIT",
    "script from a here-document": "sh <<EOF\nprintf %s '@'\nEOF\n",
    "script from a literal here-document": "sh <<'EOF'\nprintf %s \"@\"\nEOF\n",
    "script from a here-document with a variable": 'sh -s <<EOF\nX=$HOME; printf %s "@"\nEOF\n',
    "here-document in sh -c": "sh -c 'cat <<\"EOF\"\n@\nEOF\n'",
    "let": 'let "x=@"',
    "integer variable": "declare -i x=@",
    "item of an array": "a[@]=5",
    "item in a list": "a=([@]=1)",
    "reference to a name": 'declare -n r="@"; echo "$r"',
    "unset": 'unset "a[@]"',
    "test of a name": '[ -v "@" ]',
    "test of an item": '[ -v "a[@]" ]',
    "test of two": '[ "@" "@" ]',
    "name in brackets": '[[ -v "@" ]]',
    "format": 'printf "@"',
    "variable for printf": 'printf -v "@" x',
    "variable for read": 'read "@" </dev/null',
    "both outputs": "echo hi >&@",
    "ANSI quotes": "printf %s $'a\\n@'",
    "subscript": 'X=(1 2); printf %s "${X[@]}"',
    "substring": 'X=abcdef; printf %s "${X:@}"',
    "name": 'printf %s "${@}"',
    "backticks in backticks": 'printf %s `printf %s \\`printf %s "@"\\``',
    "quoted prefix pattern": "X=abc; printf %s \"${X#'@'}\"",
    "old arithmetic": "echo $[@]",
    "eval with a backslash at the end": "eval : @ \\",
    "coprocess": "coproc sh <<EOF\necho @\nEOF\nwait",
    "sh -c bare": "sh -c 'printf %s @'",
    "sh -c around a substitution": 'sh -c "printf %s $(printf %s @)"',
    "eval of words": "eval printf %s @",
    "pipe into sh": 'echo "echo @" | sh',
    "pipe of a group into sh": '{ echo "echo @"; } | cat | sh',
    "pipe into a subshell": 'echo "echo @" | ( sh )',
    "process substitution": 'sh <(echo "echo @")',
    "here-string for sh": "sh <<< \"printf %s '@'\"",
    "source from input": ". /dev/stdin <<EOF\necho @\nEOF\n",
    "unknown shell": '$SHELL -c "echo @"',
    "cleared environment": "env -i sh -c 'printf %s \"@\"'",
    "prompt of a trace": "PS4='+@ '; set -x; true",
    "alias": 'alias foo="echo @"',
    "python -c": "python3 -c \"print('@')\"",
    "python from input": "python3 - <<EOF\nprint('@')\nEOF\n",
    "awk": "awk 'BEGIN { print \"@\" }'",
    "sed": 'echo a | sed "s/a/@/"',
    "sed address": "echo a | sed -n '@p'",
    "perl -e": "perl -e 'print \"@\"'",
    "perl -pe": "echo a | perl -pe's/a/@/'",
    "xargs with a mark in the code": "echo '@' | xargs -I{} sh -c 'echo {}'",
    "xargs that gives a shell its code": 'echo "@" | xargs -0 sh -c',
    "alias of git": 'git -c alias.x="!echo @" x',
    "setting of git": "git config core.pager 'less @'",
    "command of a rebase": "git rebase -x 'echo @' HEAD~1",
    "any setting of git": "git -c '@' status",
    "timed eval": "time eval 'echo @'",
    "command of git": "git rebase --exec 'echo @' HEAD~1",
    "checkpoint of tar": "tar -cf /dev/null --checkpoint=1 --checkpoint-action=exec='echo @' .",
    "program of tar": 'tar --to-command "cat @" -xf x.tar',
    "makefile from input": 'printf "all:\\n\\techo @\\n" | make -f -',
    "makefile from a here-document": "make -f - <<EOF\nall:\n\techo @\nEOF\n",
    "make --eval": "make --eval='all:; echo @' -f /dev/null",
    "variable that was declared an integer": "declare -i x; x=@",
    "integer that is added to": "typeset -i n=0; n+=@",
    "code of ssh": 'ssh host "echo @"',
    "option of ssh": 'ssh -o ProxyCommand="nc @" host',
    "awk after an option": "awk -F: '{ print \"@\" }' /etc/passwd",
    "sed in double quotes": 'sed -n -e "s/a/@/p" file',
    "jq": "echo '{}' | jq '.a == \"@\"'",
    "sql": "sqlite3 x.db \"select '@'\"",
    "env -S": "env -S 'sh -c @'",
    "find with a mark in the code": "find '@' -exec sh -c 'echo {}' \\;",
    "function that reads code": 'f() { sh; }; echo "echo @" | f',
    "group that reads code": "{ cd .; sh; } <<EOF\necho @\nEOF\n",
    "command of git's transport": 'GIT_SSH_COMMAND="ssh @" git fetch',
    "code after a redirection": 'sh > log -c "echo @"',
    "code after a here-document": "cat <<EOF\n$X\n \n\nEOF\nsh -c 'echo @'",
    "backticks in a here-document": 'cat <<EOF\n`sh -c "echo @"`\nEOF\n',
    "sh -c that is one value": "sh -c '@'",
    "sudo sh -c": "sudo sh -c 'echo @'",
    "docker exec sh -c": "docker exec box sh -c 'echo @'",
    "watch": "watch ls @ -l",
    "perhaps eval": "$MAYBE_EMPTY eval 'echo @'",
}
"""Where a value would be code of another program, or of the shell itself: refused before anything runs."""
ORDINARY = {
    "text that begins with a dash": (
        "python3 -c 'import sys; print(sys.argv[1])' \"@\"",
        "- a\n- list\n",
        "- a\n- list\n\n",
    ),
    "targets of make": ("printf 'a b:\\n\\t\\100echo $\\100\\n' > Makefile; make @", "a b", "a\nb\n"),
    "words for awk": ("echo hi > a; echo ho > b; awk '{ print $1 }' @", "a b", "hi\nho\n"),
    "file that begins with a dash": ("echo hi > ./-x; cat ./@", "-x", "hi\n"),
    "name in a setting of git": ("git -c user.name='@' config user.name", "A. B (c)", "A. B (c)\n"),
    "variable of jq": ("echo '{}' | awk -v v='@' '{ print v }'", "x y", "x y\n"),
    "number in arithmetic": ("echo $((1 + @))", "2", "3\n"),
    "argument of sh -c": ("sh -c 'echo \"$1\"' _ '@'", "$(id)", "$(id)\n"),
    "argument of xargs": ("echo x | xargs sh -c 'echo \"$1 $2\"' _ '@'", "a;b", "a;b x\n"),
}
"""Commands in which a value is data: the value, and what is printed."""

FRAGMENTS = (
    ["@"] * 5
    + [
        " ",
        "'",
        '"',
        "$(",
        ")",
        "`",
        "\\",
        "\n",
        ";",
        "|",
        "&&",
        "#",
        "}",
        "[ ",
        " ]",
        "((",
        "))",
        "$((",
        "$'",
        "$",
    ]
    + [
        "echo ",
        "printf %s ",
        "true",
        "x",
        "${X:-",
        "${X#",
        "${X:",
        "[[ ",
        " ]]",
        " -eq ",
        "case x in ",
        "esac",
    ]
    + [
        "x) ",
        ";;",
        "<<EOF\n",
        "<<'EOF'\n",
        "\nEOF\n",
        "<<-EOF\n",
        "sh -c 'echo ",
        'bash -c "echo ',
        "eval : ",
    ]
    + ["eval 'echo ", "trap 'echo ", "> ", ">&", "<<< ", "a[", "]=", "X=", "export X=", "{ ", "; }", "( "]
    + [
        "if true; then ",
        "; fi",
        "for i in ",
        "; do ",
        "; done",
        "f() ",
        "x | sh",
        "cat ",
        "let ",
        "declare -i x=",
    ]
    + ["python3 -c 'print(", "sed s/x/", "awk 'BEGIN{", "\\\n", "\t", "!", "<("]
)


@dataclass(frozen=True)
class Ran:
    output: str
    pwned: bool


def as_code(context: str, value: str) -> Code:
    texts = tuple(context.split("@"))
    return Code(texts, (value,) * (len(texts) - 1))


def run_script(shell: str, script: str, directory: Path, variables: Mapping[str, str] | None = None) -> Ran:
    directory.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "SHELL": "/bin/sh",
        **(variables or {}),
    }
    finished = subprocess.run(
        [shell, "-c", script],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    pwned = (directory / "pwned").exists()
    shutil.rmtree(directory)
    return Ran(finished.stdout.decode("utf-8", "surrogateescape"), pwned)
