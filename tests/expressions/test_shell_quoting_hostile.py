"""No value runs a second command, in any quoting, in dash, bash or zsh; in quotes it arrives byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.shell_contexts import (
    AWKWARD,
    EXACT,
    FOREIGN,
    FRAGMENTS,
    HOSTILE,
    ORDINARY,
    SAFE_ONLY,
    SHELLS,
    WITH_NEWLINE,
    Ran,
    as_code,
    run_script,
)
from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.shell.quoting import problems, quoted_script


def run_in(shell: str, context: str, value: str, directory: Path) -> Ran:
    name = Path(shell).name.replace("dash", "sh")
    script = quoted_script(as_code(context, value), shell=name, keep_in_file=lambda number, text: "")
    return run_script(shell, script.text, directory, script.variables)


@pytest.mark.rows("G10")
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", EXACT.values(), ids=EXACT)
def test_a_value_in_quotes_arrives_byte_for_byte(shell: str, context: str, tmp_path: Path) -> None:
    for value in (*HOSTILE[:8], *AWKWARD):
        ran = run_in(shell, context, value, tmp_path / "here")
        assert not ran.pwned, value
        assert ran.output == value


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", WITH_NEWLINE.values(), ids=WITH_NEWLINE)
def test_a_value_in_a_here_document_arrives_byte_for_byte(shell: str, context: str, tmp_path: Path) -> None:
    for value in (*HOSTILE[:8], *AWKWARD):
        ran = run_in(shell, context, value, tmp_path / "here")
        assert not ran.pwned, value
        assert ran.output == value + "\n"


@pytest.mark.rows("G10")
@pytest.mark.parametrize("context", FOREIGN.values(), ids=FOREIGN)
def test_a_value_inside_code_is_refused_before_anything_runs(context: str) -> None:
    found = problems(tuple(context.split("@")), "bash")
    assert found
    assert all(refusal.hint and "unsafe" not in refusal.hint for refusal in found)
    with pytest.raises(ExpressionError):
        quoted_script(as_code(context, "1"), keep_in_file=lambda number, text: "")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("context", "value", "printed"), ORDINARY.values(), ids=ORDINARY)
def test_a_value_that_is_data_is_never_refused(
    shell: str, context: str, value: str, printed: str, tmp_path: Path
) -> None:
    assert run_in(shell, context, value, tmp_path / "here").output == printed


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("context", SAFE_ONLY.values(), ids=SAFE_ONLY)
def test_no_value_runs_a_second_command(shell: str, context: str, tmp_path: Path) -> None:
    for value in HOSTILE:
        try:
            ran = run_in(shell, context, value, tmp_path / "here")
        except ExpressionError:
            continue  # refused is as good
        assert not ran.pwned, value


# `env` is not among them: piped into a shell it hands over every variable, and that is the author's own doing.
@pytest.mark.slow
@settings(
    max_examples=200,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(st.sampled_from(FRAGMENTS), min_size=2, max_size=20).map("".join),
    st.sampled_from([value for value in HOSTILE if not value.startswith("-")]),
)
def test_no_value_gets_out_of_any_jumble_of_syntax(tmp_path: Path, context: str, value: str) -> None:
    if not context.replace("@", "").strip():
        return  # nothing but references: the author's own code
    for shell in SHELLS:
        try:
            ran = run_in(shell, context, value, tmp_path / "here")
        except ExpressionError:
            return
        assert not ran.pwned, shell
