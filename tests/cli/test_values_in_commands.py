"""A command that would be refused when it runs is refused when it is validated; shells other than sh."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support import forked

REFUSED = {
    "graph": """\
name: w
inputs: {x: {type: str}}
blocks:
  - id: a
    type: Shell
    inputs:
      command: sh -c 'echo ${inputs.x}'; eval "${inputs.x} y"
""",
    "reactive": """\
name: w
default_state: {x: "1"}
steps:
  - id: a
    type: shell_command
    command: sh -c 'echo {{ state.x }}'; eval "{{ state.x }} y"
""",
    "stateful": """\
name: w
initial_state: {x: "1"}
steps:
  - id: a
    type: shell
    needs_state: [x]
    command: sh -c 'echo {{ state.x }}'; eval "{{ state.x }} y"
""",
}
SHELLS = {
    "bash": ("false | true; echo never", "", 1),
    "zsh": ('a=(x y); echo "${a[1]}"', "x", 0),
    "python": ("import os; print(os.environ['X'] * 2)", "vv", 0),
    "node": ("console.log(process.env.X)", "v", 0),
    "[sh, -e]": ("echo $X; false; echo never", "v", 1),
}


def cli(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*forked.command(), *arguments],
        capture_output=True,
        text=True,
        cwd=home,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "WORKFLOWS_HOME": str(home / "h")},
        check=False,
    )


@pytest.mark.rows("G10")
@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_validate_reports_every_value_that_stands_inside_code(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(text)
    said = cli(tmp_path, "validate", "w.yaml")
    everything = said.stdout + said.stderr
    assert said.returncode != 0
    assert "`sh -c` would read the value as part of its code" in everything
    assert "`eval` would read the value as part of its code" in everything
    assert "pass the value as an argument" in everything
    assert "unsafe" not in everything


@pytest.mark.rows("G10")
@pytest.mark.parametrize(("shell", "expected"), SHELLS.items(), ids=SHELLS)
def test_a_command_is_read_by_the_shell_that_the_block_names(
    shell: str, expected: tuple[str, str, int], tmp_path: Path
) -> None:
    command, printed, exit_code = expected
    program = {"python": "python3", "[sh, -e]": "sh"}.get(shell, shell)
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"there is no {program}")
    (tmp_path / "w.yaml").write_text(
        f"name: w\nblocks:\n  - id: a\n    type: Shell\n    inputs:\n      shell: {shell}\n      env: {{X: v}}\n"
        f"      command: |-\n        {command}\n      continue-on-error: true\n"
        "outputs:\n  said: ${blocks.a.outputs.stdout}\n  code: ${blocks.a.outputs.exit_code}\n"
    )
    ran = cli(tmp_path, "run", "w.yaml", "--json")
    assert json.loads(ran.stdout)["outputs"] == {"said": printed and printed + "\n", "code": exit_code}


@pytest.mark.parametrize(
    ("shell", "command", "says"),
    [
        ("python", "print('${inputs.x}')", 'os.environ["NAME"]'),
        ("[perl, -w]", "print '${inputs.x}'", "`perl` would read the value as part of its code"),
        ("bsah", "true", "'bash'"),
        ("[no-such-program]", "true", "there is no program `no-such-program`"),
    ],
)
def test_what_a_shell_cannot_run_is_said(shell: str, command: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        f"name: w\ninputs: {{x: {{type: str, default: y}}}}\nblocks:\n  - id: a\n    type: Shell\n"
        f'    inputs: {{shell: {shell}, command: "{command}"}}\n'
    )
    said = cli(tmp_path, "run", "w.yaml")
    assert said.returncode != 0
    assert says in said.stdout + said.stderr
