"""The documented examples of the graph dialect: files that a command leaves, and the eight checks of their paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.programs import Programs

RUN_TESTS = """
- id: run_tests
  type: Shell
  inputs:
    command: "pytest --json-report --json-report-file=$SCRATCH/results.json"
  outputs:
    test_results:
      type: json
      path: "$SCRATCH/results.json"
      description: "Test execution results"
      required: true
"""
WRITES_REPORT = """
for argument in "$@"; do
  case "$argument" in
    --json-report-file=*) echo '{"passed": 42, "failed": []}' > "${argument#--json-report-file=}" ;;
  esac
done
"""


@pytest.mark.rows("G11")
def test_the_report_of_a_command_becomes_an_output_of_its_type(run: Any, programs: Programs) -> None:
    programs.add("pytest", WRITES_REPORT)
    ran = run(
        "name: report\nblocks:" + RUN_TESTS + "outputs:\n"
        "  results: ${blocks.run_tests.outputs.test_results}\n"
        "  passed: ${blocks.run_tests.test_results.passed}\n"
    )
    assert ran.answer["outputs"] == {"results": {"passed": 42, "failed": []}, "passed": 42}


@pytest.mark.rows("G11")
def test_a_required_output_that_is_missing_is_a_crash_and_an_optional_one_is_null(
    run: Any, programs: Programs
) -> None:
    programs.add("pytest")
    ran = run("name: report\nblocks:" + RUN_TESTS)
    assert ran.answer["status"] == "failed"
    metadata = ran.blocks["run_tests"]["metadata"]
    assert (metadata["status"], metadata["outcome"]) == ("failed", "n/a")
    assert "'test_results' is missing" in metadata["message"]

    ran = run("name: report\nblocks:" + RUN_TESTS.replace("required: true", "required: false"))
    assert ran.answer["status"] == "completed"
    assert ran.blocks["run_tests"]["outputs"]["test_results"] is None


# The eight checks of an output's path, one by one

TEN_MEGABYTES = 10 * 1024 * 1024


def left(run: Any, command: str, path: str, *, unsafe: bool = False, working_dir: str = "sub") -> Any:
    """The output `it` of a block whose command leaves a file at `path`, or the message of its crash."""
    ran = run(
        "name: checks\ninputs: {command: string}\nblocks:\n"
        "  - id: leave\n    type: Shell\n"
        f"    inputs: {{command: '${{inputs.command}}', working_dir: '{working_dir}'}}\n"
        f"    outputs: {{it: {{type: string, path: '{path}', unsafe: {str(unsafe).lower()}}}}}\n",
        {"command": command},
    )
    block = ran.blocks["leave"]
    if ran.answer["status"] == "completed":
        return block["outputs"]["it"]
    assert (block["metadata"]["status"], block["metadata"]["outcome"]) == ("failed", "n/a")
    return ran.answer["error"]


@pytest.fixture(autouse=True)
def directories(workspace: Path) -> None:
    (workspace / "sub").mkdir()


@pytest.mark.rows("G11")
def test_1_variables_in_the_path_are_expanded(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPORTS", "reports")
    assert left(run, "echo x > $SCRATCH/out", "$SCRATCH/out") == "x"
    assert left(run, "echo x > ${SCRATCH}/out", "${SCRATCH}/out") == "x"
    assert left(run, "mkdir -p reports; echo x > reports/out", "$REPORTS/out") == "x"


@pytest.mark.rows("G11")
def test_2_an_absolute_path_is_refused_in_safe_mode(run: Any, workspace: Path) -> None:
    error = left(run, "echo x > out", str(workspace / "sub" / "out"))
    assert error["code"] == "forbidden"
    assert "absolute path" in error["message"]


@pytest.mark.rows("G11")
def test_3_a_relative_path_starts_in_the_working_directory_and_an_unsafe_one_may_be_absolute(
    run: Any, workspace: Path
) -> None:
    assert left(run, "echo here > out", "out") == "here"
    assert (workspace / "sub" / "out").exists()
    assert left(run, "echo there > ../other", str(workspace / "other"), unsafe=True) == "there"


@pytest.mark.rows("G11")
@pytest.mark.parametrize("unsafe", [False, True])
def test_4_a_symbolic_link_is_refused_always(run: Any, unsafe: bool) -> None:
    error = left(run, "echo x > real; ln -s real out", "out", unsafe=unsafe)
    assert error["code"] == "forbidden"
    assert "symbolic link" in error["message"]


@pytest.mark.rows("G11")
def test_5_a_path_may_not_leave_the_working_directory_in_safe_mode(run: Any) -> None:
    error = left(run, "echo x > ../out", "../out")
    assert error["code"] == "forbidden"
    assert "outside the working directory" in error["message"]
    assert left(run, "echo x > ../out", "../out", unsafe=True) == "x"


@pytest.mark.rows("G11")
def test_6_the_file_must_exist(run: Any, workspace: Path) -> None:
    error = left(run, "true", "out")
    assert error["code"] == "step_failed"
    assert f"created no file {workspace / 'sub' / 'out'}" in error["message"]


@pytest.mark.rows("G11")
@pytest.mark.parametrize(("make", "what"), [("mkdir out", "directory"), ("mkfifo out", "ordinary file")])
def test_7_the_path_must_be_a_file(run: Any, make: str, what: str) -> None:
    assert what in left(run, make, "out")["message"]


@pytest.mark.rows("G11")
@pytest.mark.parametrize("unsafe", [False, True])
def test_8_the_file_may_have_ten_megabytes_and_no_more(run: Any, workspace: Path, unsafe: bool) -> None:
    (workspace / "sub" / "out").write_bytes(b"x" * (TEN_MEGABYTES + 1))
    error = left(run, "true", "out", unsafe=unsafe)
    assert error["code"] == "step_failed"
    assert "WORKFLOWS_LIMIT_FILE_BYTES" in error["message"] + error.get("hint", "")
    (workspace / "sub" / "out").write_bytes(b"x" * TEN_MEGABYTES)
    assert isinstance(left(run, "true", "out", unsafe=unsafe), str)


@pytest.mark.rows("G11")
def test_an_unsafe_path_reaches_as_far_as_the_settings_let_steps_go(run: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x", encoding="utf-8")
    error = left(run, "true", str(tmp_path / "elsewhere"), unsafe=True)
    assert error["code"] == "forbidden"
    assert "WORKFLOWS_ALLOWED_PATHS" in error["message"] + error.get("hint", "")
