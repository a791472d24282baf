"""How references are written into commands, and what is refused with which advice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.language import Code
from workflows_mcp.expressions.shell.quoting import problems, quoted_script, quoted_words, substitute
from workflows_mcp.values import Value

CALCULATOR = """
case @ in
  +|-|/|\\*)
    echo "$((@ @ @))"
    ;;
  *)
    echo "'@' is an unsupported operation" >&2
    exit 1
    ;;
esac
"""


def code(text: str, *values: Value) -> Code:
    return Code(tuple(text.split("@")), values)


def no_file(number: int, text: str) -> str:
    raise AssertionError("no file is needed")


def script(text: str, *values: Value) -> str:
    return quoted_script(code(text, *values), keep_in_file=no_file).text


def refused(text: str, *values: Value) -> str:
    with pytest.raises(ExpressionError) as caught:
        quoted_script(code(text, *values), keep_in_file=no_file)
    return str(caught.value)


def output_of(text: str, *values: Value, shell: str = "/bin/sh") -> str:
    quoted = quoted_script(code(text, *values), keep_in_file=no_file)
    finished = subprocess.run(
        [shell, "-c", quoted.text],
        env={"PATH": "/usr/bin:/bin", **quoted.variables},
        capture_output=True,
        check=False,
    )
    return finished.stdout.decode() + finished.stderr.decode()


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("echo @", "echo ${_wf_0}"),
        ('echo "@"', 'echo "${_wf_0}"'),
        ("echo '@'", "echo ''\"${_wf_0}\"''"),
        ("X=@", 'X="${_wf_0}"'),
        ("cat > @", 'cat > "${_wf_0}"'),
        ('echo "cost: $@"', 'echo "cost: \\$${_wf_0}"'),
        ("sh -c 'echo \"$1\"' _ @", "sh -c 'echo \"$1\"' _ ${_wf_0}"),
        ("cat <<'E'\n$x @\nE\n", "cat <<_wf_end\n\\$x ${_wf_0}\n_wf_end\n"),
    ],
)
def test_a_reference_is_written_for_the_quotes_around_it(written: str, becomes: str) -> None:
    assert script(written, "value") == becomes


def test_every_value_has_a_variable_of_its_own() -> None:
    quoted = quoted_script(code("echo @ '@' @", 1, True, None), keep_in_file=no_file)
    assert quoted.variables == {"_wf_0": "1", "_wf_1": "true", "_wf_2": ""}


def test_values_are_text_as_everywhere_else() -> None:
    quoted = quoted_script(code("echo @ @", [1, "a"], {"b": None}), keep_in_file=no_file)
    assert list(quoted.variables.values()) == ['[1,"a"]', '{"b":null}']


def test_no_name_of_the_author_is_hidden() -> None:
    quoted = quoted_script(code("_wf_0=mine; echo $_wf_0 @", "x"), names=["__wf_0"], keep_in_file=no_file)
    assert quoted.variables == {"___wf_0": "x"}
    assert quoted.text == "_wf_0=mine; echo $_wf_0 ${___wf_0}"


def test_a_command_without_values_is_left_alone() -> None:
    text = "echo \"it's $HOME\" `date` <<'X'\nX\n"
    assert script(text) == text


@pytest.mark.parametrize("text", ["@", " @\n", "\n@\n"])
def test_nothing_but_one_reference_is_the_authors_own_code(text: str) -> None:
    assert script(text, "echo $((1 + 1)); echo 'x'").strip() == "echo $((1 + 1)); echo 'x'"


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
@pytest.mark.parametrize(("operation", "result"), [("+", "8\n"), ("-", "4\n"), ("*", "12\n"), ("/", "3\n")])
def test_an_operator_can_be_a_value(shell: str, operation: str, result: str) -> None:
    values = (operation, 6, operation, 2, operation)
    assert output_of(CALCULATOR, *values, shell=shell) == result


def test_an_operator_that_is_none_is_told_from_one() -> None:
    values = ("$(x)", 6, "+", 2, "$(x)")
    assert output_of(CALCULATOR, *values) == "'$(x)' is an unsupported operation\n"


def test_a_bare_value_becomes_words() -> None:
    assert output_of("printf '<%s>' @", "a b  c") == "<a><b><c>"


def test_a_value_that_is_assigned_or_written_to_stays_one_word(tmp_path: Path) -> None:
    assert output_of('X=@; echo "$X"', "a  b") == "a  b\n"
    assert output_of("env X=@ sh -c 'echo \"$X\"'", "a b") == "a b\n"
    assert output_of("cd @; echo x > @; cat '@'", str(tmp_path), "a b", "a b") == "x\n"


@pytest.mark.parametrize("value", ["x", "a[$(id)]", "1;2", "$x", "`id`", "'1'"])
def test_only_numbers_and_operators_can_be_computed_with(value: str) -> None:
    assert "only numbers and operators" in refused('echo "$((1 + @))"', value)


@pytest.mark.parametrize("value", [1, -2.5, "0x1F", "(1 + 2) * 3", "16#ff", "1 << 4", ""])
def test_numbers_and_operators_can_be_computed_with(value: Value) -> None:
    assert script("echo $((@))", value) == "echo $((${_wf_0}))"


@pytest.mark.parametrize(
    ("text", "name", "hint"),
    [
        ("python3 -c 'print(@)'", "python -c", "sys.argv[1]"),
        ("sudo sh -c 'echo @'", "sh -c", """sh -c 'echo "$1"' _ "${…}\""""),
        ("sh -c @", "sh -c", "as an argument"),
        ("awk '{ print @ }' file", "awk", "awk -v value="),
        ("jq '.a == \"@\"'", "jq", "--arg value"),
        ("node --eval='@ + 1'", "node --eval", "process.argv[1]"),
        ("eval 'echo @'", "eval", "without eval"),
        ("su -c 'echo @' user", "su -c", "`env:`"),
        ('sh -c ": ${X:-@}"', "sh -c", "as an argument"),
        ('eval ": `echo @`"', "eval", "without eval"),
        ("printf 'echo %s' @ | sh", "sh", "as an argument"),
    ],
)
def test_a_value_inside_code_is_refused_whatever_it_is(text: str, name: str, hint: str) -> None:
    for value in (1, "plain", "x; id"):
        message = refused(text, value)
        assert f"`{name}` would read the value as part of its code" in message
        assert hint in message
        assert "unsafe" not in message


@pytest.mark.parametrize(
    "text",
    [
        'python3 "@"',
        'sh -c \'echo "$1"\' _ "@"',
        'sh "@"',
        "git commit -m '@'",
        'git -c user.name="@" commit',
        "sed -n 1p @",
        "git config user.name '@'",
        "git cherry-pick -x '@'",
        "git clean -x '@'",
        "echo '@' | docker build -t x .",
        "find . -name '@'",
        "make @",
        'tar -cf "@" .',
        "curl '@' | cat",
        "mysql db < '@'",
        "cd '@'; curl -s https://example.com/install.sh | sh",
        "( cd '@'; curl -s https://example.com/install.sh | sh )",
        "echo sh -c '@'",
        "find '@' -exec sh -c 'echo \"$1\"' _ {} \\;",
        'ssh "@" uptime',
        "docker run '@' sh -c 'echo hi'",
        "jq --arg v '@' '.a == $v' file",
    ],
)
def test_what_a_program_does_with_an_argument_is_not_guessed(text: str) -> None:
    assert problems(tuple(text.split("@"))) == ()
    assert script(text, "-- x")


def test_make_gets_no_value_that_it_would_expand() -> None:
    assert "make would expand" in refused("make release VERSION='@'", "$(shell id)")
    assert script("make release TITLE='@'", "Fix; the bug")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('echo "${@}"', "in the name of a variable"),
        ("cat <<@\nx\n", "delimiter of a here-document"),
        ("echo $'it\\'s' @", "which shells read differently"),
        ("echo \"${X#'@'}\"", "inside ${…} inside double quotes"),
    ],
)
def test_where_no_value_can_stand_it_says_so(text: str, where: str) -> None:
    assert where in refused(text, "x")


def test_a_value_with_a_nul_character_is_refused() -> None:
    assert "NUL" in refused("echo '@'", "a\0b")


def test_a_large_value_travels_in_a_file(tmp_path: Path) -> None:
    large = "0123456789\n" * 100_000 + "the end\n\n\n"

    def keep(number: int, text: str) -> str:
        path = tmp_path / f"it's {number}"
        path.write_text(text)
        return str(path)

    for text in ("printf %s '@' | cksum", "cat <<'E' | cksum\n@\nE\n"):
        quoted = quoted_script(code(text, large), keep_in_file=keep)
        assert quoted.variables == {}
        for shell in ("/bin/dash", "/bin/bash"):
            expected = large + ("\n" if "<<" in text else "")
            wanted = subprocess.run(
                ["cksum"], input=expected.encode(), capture_output=True, check=True
            ).stdout
            finished = subprocess.run([shell, "-c", quoted.text], capture_output=True, check=True)
            assert finished.stdout == wanted


def test_many_values_that_are_large_together_do_not_fill_the_environment() -> None:
    kept: list[int] = []

    def keep(number: int, text: str) -> str:
        kept.append(number)
        return f"/tmp/{number}"

    values = ["x" * 30_000] * 20
    quoted = quoted_script(code("echo" + " @" * 20, *values), keep_in_file=keep)
    assert sum(len(text) for text in quoted.variables.values()) <= 256 * 1024
    assert len(kept) + len(quoted.variables) == 20


def test_without_a_shell_a_value_is_part_of_its_word_and_never_split() -> None:
    words = quoted_words(code("printf '%s|' pre-@ '@' \"a @\" @", "x y", "$(id)", "'", ""))
    assert words == ["printf", "%s|", "pre-x y", "$(id)", "a '", ""]


def test_without_a_shell_a_value_inside_code_is_refused_too() -> None:
    with pytest.raises(ExpressionError, match="would read the value as part of its code"):
        quoted_words(code("bash -c \"echo '@'\"", "'; id; '"))
    assert quoted_words(code("bash -c 'echo \"$1\"' _ @", "; id"))[-1] == "; id"


def test_without_a_shell_an_open_quote_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="No closing quotation"):
        quoted_words(code("echo '@", "x"))


def test_spliced_text_is_what_a_reader_expects_to_see() -> None:
    assert substitute(code("echo '@' @", "a", [1])) == "echo 'a' [1]"


def test_deep_nesting_is_an_answer_not_a_crash() -> None:
    assert "too deeply" in refused("echo " + "$(" * 3000 + "@", "x")
    assert script("echo " + "$((" * 40 + "@", 1)


def test_a_long_script_is_read_in_reasonable_time() -> None:
    text = "cat <<'E' > out\n" + "some line of text with $signs and `ticks`\n" * 20_000 + "@\nE\n"
    assert script(text, "x").endswith("${_wf_0}\n_wf_end\n")
