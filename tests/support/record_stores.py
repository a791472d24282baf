"""Records a store of runs as a version of the program leaves it, for `tests/engines/stores`:

    python -m support.record_stores /path/to/that/version/bin/workflows-mcp NAME

It uses only the terminal, which every version has. Runs wait for answers, or have failed; they belong to the
directory WORKSPACE, because a run keeps the directory that it was started in. Keep the stores that are there: they
are what users have on their disks.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw

STORES = Path(__file__).parents[1] / "engines" / "stores"
WORKSPACE = Path("/tmp/workflows-mcp-recorded-store")
WORKFLOWS = {
    "graph": """\
name: graph
inputs: {who: {type: string, default: Ada}}
blocks:
  - {id: first, type: Shell, inputs: {command: 'echo "hello ${inputs.who}"; echo first >> ran.log'}}
  - {id: each, type: RenderTemplate, for_each: [a, b, c], inputs: {template: '{{ it }}', variables: {it: '${each.value}'}}}
  - {id: ask, type: Prompt, depends_on: [first], inputs: {prompt: 'Polite?'}}
  - {id: last, type: Shell, depends_on: [ask, each], inputs: {command: 'echo "${blocks.ask.outputs.response}"'}}
outputs: {said: '${blocks.first.outputs.stdout | trim}', answer: '${blocks.last.outputs.stdout | trim}', items: '${blocks.each.outputs.count}'}
""",
    "failed": """\
name: failed
blocks:
  - {id: done, type: Shell, inputs: {command: 'echo done >> ran.log'}}
  - {id: needs_file, type: Shell, depends_on: [done], inputs: {command: 'test -e now-it-works'}}
  - {id: after, type: Shell, depends_on: [needs_file], inputs: {command: 'echo after'}}
outputs: {after: '${blocks.after.outputs.stdout | trim}'}
""",
    "stateful": """\
name: stateful
initial_state: {found: []}
steps:
  - {id: list, type: set_state, needs_state: [], updates: {files: "{{ ['a.py', 'b.py'] }}"}}
  - {id: each, type: foreach, needs_state: [files], items: "{{ state.files }}", agent: "@task", task: look, output_to: found}
  - {id: sure, type: prompt, prompt_type: confirm, needs_state: [found], message: "Keep {{ state.found | length }}?", output_to: sure}
  - {id: r, type: return, needs_state: [found, sure], value: {found: "{{ state.found }}", sure: "{{ state.sure.confirmed }}"}}
tasks:
  look:
    inputs: {file: {type: string, required: true}}
    steps:
      - {id: read, type: delegate, needs_state: [], instructions: "Look at {{ inputs.file }}", output_to: seen}
      - {id: r, type: return, needs_state: [seen], value: "{{ inputs.file }}: {{ state.seen.response }}"}
""",
    "reactive": """\
name: reactive
default_state: {raw: {count: 0, names: []}}
state_schema:
  raw: {count: number, names: array}
  computed:
    double: {from: raw.count, transform: "input * 2"}
steps:
  - {id: a, type: shell_command, command: "echo one; echo reactive >> ran.log", output_format: text, state_update: {path: raw.names, operation: append, value: "{{ result }}"}}
  - id: loop
    type: while
    condition: "{{ count < 3 }}"
    max_iterations: 5
    body:
      - {id: ask, type: user_input, prompt: "Number {{ count }} ({{ double }})?", state_update: {path: raw.names, operation: append, value: "{{ result }}"}}
      - {id: up, type: state_update, path: raw.count, operation: increment}
""",
}
ANSWERED = {"stateful": ("quite short", "each/0/read"), "reactive": ("two", "ask")}
"""The question of each run that is answered before the store is kept, so that it stops in the middle."""


def record(program: str, name: str) -> None:
    shutil.rmtree(WORKSPACE, ignore_errors=True)
    WORKSPACE.mkdir()
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "WORKFLOWS_HOME": home, "HOME": home}

        def call(*arguments: str) -> dict[str, Any]:
            done = subprocess.run(
                [program, *arguments, "--json"],
                cwd=WORKSPACE, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode in (1, 3), done.stderr
            return dict(json.loads(done.stdout))

        for workflow, text in WORKFLOWS.items():
            (WORKSPACE / f"{workflow}.yaml").write_text(text, encoding="utf-8")
            run_id = call("run", f"{workflow}.yaml")["workflow_id"]
            if workflow in ANSWERED:
                value, step = ANSWERED[workflow]
                call("answer", run_id, value, "--step", step)
        compact = Path(home) / "compact.db"
        connection = apsw.Connection(str(Path(home) / "runs.db"))
        connection.execute("VACUUM INTO ?", (str(compact),))
        connection.close()
        STORES.mkdir(exist_ok=True)
        (STORES / f"{name}.db.gz").write_bytes(gzip.compress(compact.read_bytes(), mtime=0))
    shutil.rmtree(WORKSPACE)


if __name__ == "__main__":
    record(*sys.argv[1:])
