"""A command as one text: ordinary values leave it as it was written, and no value is ever more than data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.shell_contexts import (
    AWKWARD,
    EXACT,
    FRAGMENTS,
    HOSTILE,
    SAFE_ONLY,
    SHELLS,
    WITH_NEWLINE,
    as_code,
    run_script,
)
from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.language import Code
from workflows_mcp.expressions.shell.quoting import MAX_BYTES, quoted_text
from workflows_mcp.values import Value, secret_mark

pytestmark = pytest.mark.rows("S8")

PLAIN_BUT_HOSTILE = [
    "x touch pwned",
    "A=b touch pwned",
    "then touch pwned",
    "do touch pwned",
    "x\ttouch pwned",
    "=touch pwned",
    "x!touch pwned",
    "\\'; touch pwned; '",
    '\\"; touch pwned; "',
    "$(touch pwned",
    "`touch pwned",
    "\\\n; touch pwned",
    " # ",
    "2",
]
"""Values that are harmless in a variable, and would not be as text."""


def text_of(command: str, *values: Value) -> str:
    return quoted_text(Code(tuple(command.split("@")), values))


@pytest.mark.parametrize(
    ("command", "values", "text"),
    [
        ("docker build -t @:latest .", ("api",), "docker build -t api:latest ."),
        ("cd @ && npm test --coverage", ("src/app_2",), "cd src/app_2 && npm test --coverage"),
        ("npm test @", ("--watch=false unit e2e",), "npm test --watch=false unit e2e"),
        ("npm test @", ("unit\ne2e\n",), "npm test unit e2e "),
        ('find @ -name "@" | head -@', (".", "*.py", 50), 'find . -name "*.py" | head -50'),
        ("kubectl apply -f k8s/@/@.yaml", ("prod", "api"), "kubectl apply -f k8s/prod/api.yaml"),
        ('git commit -m "@"', ("It's done (really)",), 'git commit -m "It\'s done (really)"'),
        ('git commit -m "@"', ('Costs $5, says "he"',), 'git commit -m "Costs \\$5, says \\"he\\""'),
        ("grep '@' log", ("O'Hara",), "grep 'O'\\''Hara' log"),
        ("grep '@' log", ("a $b `c`",), "grep 'a $b `c`' log"),
        ("rm @", ("a; rm -rf /",), "rm 'a;' rm -rf /"),
        ("ls @", ("*",), "ls '*'"),
        ("X=@ ./run", ("a b",), "X='a b' ./run"),
        ("echo hi > @", ("my file",), "echo hi > 'my file'"),
        ("echo @>log", ("2",), "echo '2'>log"),
        ("echo $HOME@", ("dir",), "echo $HOME'dir'"),
        ('echo "$HOME@"', ("dir",), 'echo "$HOME""dir"'),
        ('echo "$@"', ("5",), 'echo "\\$5"'),
        ("@ --version", ("if",), "'if' --version"),
        ("@ --version", ("A=b",), "'A=b' --version"),
        ("echo @ end", ("",), "echo  end"),
        ("echo a@#b", (" ",), "echo a'' ''#b"),
        ("echo @ # for @", (True, "$x"), "echo true # for "),
        ("cat > f <<'EOF'\n@\nEOF\n", ("a $b\nc",), "cat > f <<'EOF'\na $b\nc\nEOF\n"),
        ("cat > f <<EOF\n@ $HOME\nEOF\n", ("a $b",), "cat > f <<EOF\na \\$b $HOME\nEOF\n"),
        ('echo "$(cat "@")"', ("a b",), 'echo "$(cat "a b")"'),
        ("echo @", ([1, {"a": None}],), "echo '[1,{\"a\":null}]'"),
        ("echo @", (secret_mark("TOKEN"),), f"echo '{secret_mark('TOKEN')}'"),
    ],
)
def test_a_value_is_put_in_as_it_is_or_quoted_for_where_it_stands(
    command: str, values: tuple[Value, ...], text: str
) -> None:
    assert text_of(command, *values) == text


@pytest.mark.parametrize(
    ("command", "values", "text"),
    [
        ("echo `date +@`", ("%Y %m",), "export _wf_0='%Y %m'\necho `date +${_wf_0}`"),
        (
            "case @ in a) ls @;; esac",
            ("it's", "src"),
            "export _wf_0='it'\\''s'\ncase ${_wf_0} in a) ls src;; esac",
        ),
        ("echo @\\\n.txt", ("a b",), "export _wf_0='a b'\necho ${_wf_0}\\\n.txt"),
        ("cat <<EOF\n@\nEOF\n", ("x\nEOF\ny",), "export _wf_0='x\nEOF\ny'\ncat <<EOF\n${_wf_0}\nEOF\n"),
    ],
)
def test_where_quoting_is_not_certain_to_be_right_a_variable_goes_before_the_command(
    command: str, values: tuple[Value, ...], text: str
) -> None:
    assert text_of(command, *values) == text


def test_a_command_that_is_nothing_but_one_reference_is_the_authors_own_code() -> None:
    assert text_of("@", "ls | wc -l; date") == "ls | wc -l; date"
    assert text_of("ls | wc -l") == "ls | wc -l"


@pytest.mark.parametrize(
    ("command", "value", "says", "hint"),
    [
        ("python3 -c \"print('@')\"", "');import os;('", "as part of its code", "as an argument"),
        ("echo $((@ + 1))", "a[$(id)]", "only numbers", "condition"),
        ('echo "${@}"', "HOME", "in the name of a variable", "double quotes"),
        ("echo @", "a\0b", "NUL", "file"),
        ("echo @", "x" * (MAX_BYTES + 1), "too large", "file"),
    ],
)
def test_what_cannot_be_data_there_is_refused_with_what_to_do(
    command: str, value: str, says: str, hint: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        text_of(command, value)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_a_command_that_gets_too_long_is_refused() -> None:
    with pytest.raises(ExpressionError, match="at most 102400"):
        text_of(" ".join(["echo @"] * 5), *["x" * 30_000] * 5)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", EXACT.values(), ids=EXACT)
def test_a_value_in_quotes_arrives_byte_for_byte(shell: str, context: str, tmp_path: Path) -> None:
    for value in (*HOSTILE[:8], *AWKWARD, *PLAIN_BUT_HOSTILE):
        ran = run_script(shell, quoted_text(as_code(context, value)), tmp_path / "here")
        assert not ran.pwned, value
        assert ran.output == value


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", WITH_NEWLINE.values(), ids=WITH_NEWLINE)
def test_a_value_in_a_here_document_arrives_byte_for_byte(shell: str, context: str, tmp_path: Path) -> None:
    for value in (*HOSTILE[:8], *AWKWARD, *PLAIN_BUT_HOSTILE):
        ran = run_script(shell, quoted_text(as_code(context, value)), tmp_path / "here")
        assert not ran.pwned, value
        assert ran.output == value + "\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_without_quotes_a_value_is_the_words_that_a_variable_would_be(shell: str, tmp_path: Path) -> None:
    for value in (*HOSTILE, *AWKWARD, *PLAIN_BUT_HOSTILE):
        try:
            text = quoted_text(as_code("printf '%s\\n' begin @ end", value))
        except ExpressionError:
            continue
        ran = run_script(shell, text, tmp_path / "here")
        words = [word for word in value.replace("\t", " ").replace("\n", " ").split(" ") if word]
        assert ran.output.splitlines() == ["begin", *words, "end"]
        assert not ran.pwned


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", SAFE_ONLY.values(), ids=SAFE_ONLY)
def test_no_value_runs_a_second_command(shell: str, context: str, tmp_path: Path) -> None:
    for value in (*HOSTILE, *PLAIN_BUT_HOSTILE):
        try:
            text = quoted_text(as_code(context, value))
        except ExpressionError:
            continue  # refused is as good
        assert not run_script(shell, text, tmp_path / "here").pwned, value


SIMPLE = (
    ["@"] * 8
    + [" ", "'", '"', "$(", ")", "\\", "\n", ";", "|", "&&", "#", "$", "printf '[%s]' ", "echo ", "x"]
    + ["$HOME", "${HOME}", "\\\n", "\t", "X=", "export X=", '; echo "$X"', ">out", "; cat out", "2", "~", "!"]
    + ["cat <<EOF\n", "\nEOF\n", "cat <<'EOF'\n", "<<-EOF\n", "{ ", "; }", "( ", "if true; then ", "; fi"]
    + ["for i in ", '; do echo "$i"', "; done", ">&2", " # ", "a=b ", "true "]
)
"""What is quoted in its place more often than not."""


@pytest.mark.slow
@settings(
    max_examples=300,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.one_of(
        [
            st.lists(st.sampled_from(fragments), min_size=2, max_size=14).map("".join)
            for fragments in (FRAGMENTS, SIMPLE)
        ]
    ).filter(lambda context: "@" in context and context.replace("@", "").strip() != ""),
    st.lists(
        st.sampled_from([value for value in (*HOSTILE, *PLAIN_BUT_HOSTILE) if value[0] != "-"]),
        min_size=14,
        max_size=14,
    ),
)
def test_no_value_gets_out_of_any_jumble_of_syntax(tmp_path: Path, context: str, values: list[str]) -> None:
    texts = tuple(context.split("@"))
    try:
        text = quoted_text(Code(texts, tuple(values[: len(texts) - 1])))
    except ExpressionError:
        return
    for shell in SHELLS:
        try:
            assert not run_script(shell, text, tmp_path / "here").pwned, shell
        except subprocess.TimeoutExpired:
            shutil.rmtree(tmp_path / "here", ignore_errors=True)
