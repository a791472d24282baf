from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import time
from typing import Any

import psutil
import pytest

from support.rendered import Service
from support.screen import Screen
from workflows_mcp.settings.model import Settings

BUILD = """\
name: build
inputs:
  what: {type: string}
  count: {type: integer, default: 1}
  parts: {type: list, default: []}
blocks:
  - id: compile
    type: Shell
    inputs: {command: 'echo "compiling ${inputs.what}"; sleep 0.2'}
  - id: check
    type: Shell
    inputs: {command: 'sleep 0.2'}
  - id: never
    type: Shell
    condition: ${inputs.count} > 5
    inputs: {command: 'echo no'}
  - id: pack
    type: Workflow
    depends_on: [compile, check]
    inputs: {workflow: packing, inputs: {count: '${inputs.count}'}}
outputs:
  log: ${blocks.compile.outputs.stdout}
  boxes: ${blocks.pack.outputs.boxes}
  parts: ${inputs.parts}
"""
PACKING = """\
name: packing
inputs: {count: {type: integer}}
blocks:
  - {id: box, type: RenderTemplate, inputs: {template: 'boxed', variables: {}}}
outputs: {boxes: '${inputs.count}'}
"""
ASK = """\
name: ask
blocks:
  - {id: name, type: Prompt, inputs: {prompt: 'Who are you?'}}
  - {id: side, type: Shell, inputs: {command: 'sleep 0.4; echo side > side.txt'}}
  - id: greet
    type: RenderTemplate
    depends_on: [name]
    inputs: {template: 'Hello {{ who }}', variables: {who: '${blocks.name.response}'}}
outputs: {greeting: '${blocks.greet.rendered}'}
"""
FAIL = """\
name: fail
blocks:
  - {id: good, type: Shell, inputs: {command: 'echo fine'}}
  - id: bad
    type: Shell
    inputs: {command: 'echo almost; echo "out of paper" >&2; exit 4'}
"""


def test_a_file_is_run_with_progress_on_stderr_and_outputs_on_stdout(terminal: Any) -> None:
    terminal.write("flows/build.yaml", BUILD)
    terminal.write("flows/packing.yaml", PACKING)
    said = terminal.run(
        "run", "flows/build.yaml", "-i", "what=it", "-i", "count=3", "--input", 'parts:=["a", {"b": 1}]'
    )
    assert said.code == 0, said.err
    assert said.out == 'log: compiling it\nboxes: 3\nparts: ["a",{"b":1}]\n'
    lines = said.err.splitlines()
    starts = [line for line in lines if "▸ compile" in line or "▸ check" in line]
    assert len(starts) == 2
    ends = [index for index, line in enumerate(lines) if "✓ compile" in line or "✓ check" in line]
    assert all(lines.index(start) < min(ends) for start in starts)
    assert re.search(r"^\d\d:\d\d:\d\d  ✓ compile  0\.\d s$", said.err, re.M)
    assert re.search(r"– never  skipped: the condition is false", said.err)
    assert re.search(r"  ✓ pack/box", said.err)
    assert said.err.index("✓ pack/box") < said.err.index("✓ pack  ")
    assert re.search(r"^✓ build wf_\w+ completed in \d\.\d s$", said.err, re.M)
    assert "\033[" not in said.err


def test_json_is_exactly_one_object_the_answer_of_the_run(terminal: Any) -> None:
    terminal.write("build.yaml", BUILD)
    terminal.write("packing.yaml", PACKING)
    inputs = terminal.write("inputs.json", '{"what": "all", "count": 2}')
    said = terminal.run("run", "build.yaml", "--inputs-file", str(inputs), "-i", "count=7", "--json")
    assert said.code == 0
    assert said.out.count("\n") == 1
    answer = said.data
    assert answer["status"] == "completed"
    assert answer["outputs"] == {"log": "compiling all\n", "boxes": 7, "parts": []}
    assert answer["progress"] == {"done": 4, "total": 4}
    said = terminal.run("run", "build.yaml", "--inputs-file", "-", "--json", stdin='{"what": "piped"}')
    assert said.data["outputs"]["log"] == "compiling piped\n"


def test_long_outputs_are_not_cut_for_people_and_scripts(terminal: Any) -> None:
    text = (
        "name: long\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'seq 1 20000'}}\n"
        "outputs: {all: '${blocks.a.stdout}'}\n"
    )
    said = terminal.run("run", "-", "--json", stdin=text)
    assert said.data["outputs"]["all"].splitlines()[-1] == "20000"


def test_a_failed_run_exits_with_1_and_says_where_and_what_was_printed(terminal: Any) -> None:
    terminal.write("fail.yaml", FAIL)
    said = terminal.run("run", "fail.yaml")
    assert said.code == 1
    assert said.out == ""
    assert "✗ bad" in said.err
    assert "block 'bad' failed" in said.err
    assert "at fail.yaml:4:" in said.err
    assert "out of paper" in said.err
    said = terminal.run("run", "fail.yaml", "--json")
    assert said.code == 1
    assert said.data["error"]["printed"] == "out of paper"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "build", "--timeout", "-1"], "more than 0, not '-1'"),
        (["run", "build", "--timeout", "0"], "more than 0, not '0'"),
        (["run", "build", "--timeout", "nan"], "more than 0, not 'nan'"),
        (["run", "build", "--timeout", "soon"], "more than 0, not 'soon'"),
        (["runs", "--limit", "0"], "1 or more, not '0'"),
        (["runs", "--limit", "-5"], "1 or more, not '-5'"),
        (["checkpoints", "--limit", "0"], "1 or more, not '0'"),
        (["run", "build", "what=it"], "write inputs as --input what=it"),
        (["run", "build", "--what", "it"], "write inputs as --input what=it"),
        (["run", "build", "--what=it"], "write inputs as --input what=it"),
        (["run", "build", "--what"], "write inputs as --input what=VALUE"),
        (["run", "build", "--tiemout", "3"], "did you mean --timeout?"),
        (["run", "build", "--time", "3"], "unrecognized arguments: --time 3"),
        (["show", "wf_0", "--jso"], "did you mean --json?"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs_with_the_usage_of_its_command(
    terminal: Any, arguments: list[str], message: str
) -> None:
    terminal.write(".workflows/build.yaml", BUILD)
    said = terminal.run(*arguments)
    assert said.code == 2
    assert message in said.err
    assert said.err.startswith(f"usage: workflows-mcp {arguments[0]} ")
    assert not terminal.home.exists()


@pytest.mark.parametrize("option", ["--inputs-file", "--answers"])
@pytest.mark.parametrize(
    ("file", "why"),
    [("nope.json", "No such file or directory"), (".", "Is a directory"), ("latin.json", "it is not UTF-8")],
)
def test_a_file_that_cannot_be_read_is_told_in_words(terminal: Any, option: str, file: str, why: str) -> None:
    (terminal.workspace / "latin.json").write_bytes(b'{"a": "\xe9"}')
    said = terminal.run("run", "example-hello", option, file)
    assert said.code == 2
    assert f"cannot read {option.removeprefix('--').removesuffix('-file')} from {file}: {why}\n" in said.err
    assert f"check the path of {option}, or use - for stdin" in said.err
    assert "Errno" not in said.err


def test_whoever_answers_a_run_that_has_ended_is_told_how_to_see_it(terminal: Any) -> None:
    run_id = terminal.run("run", "example-hello", "--json").data["workflow_id"]
    said = terminal.run("answer", run_id, "no")
    assert said.code == 2
    assert f"workflows-mcp show {run_id}" in said.err


def test_a_store_that_is_no_database_is_told_with_what_to_do(terminal: Any) -> None:
    terminal.home.mkdir()
    (terminal.home / "runs.db").write_text("this is no database, but it is long enough to be looked at " * 20)
    said = terminal.run("runs")
    assert said.code == 2
    assert "not a database" in said.err
    assert (
        "restore the file from a backup, move it away to start a new one, or set WORKFLOWS_HOME" in said.err
    )


@pytest.mark.rows("G24")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "bild"], "unknown_workflow", "there is no workflow 'bild'"),
        (["run", "absent.yaml"], "invalid_request", "there is no file absent.yaml"),
        (["run", "build"], "invalid_inputs", "missing input 'what'"),
        (
            ["run", "build", "-i", "what=x", "-i", "count=many"],
            "invalid_inputs",
            "'count' must be a whole number",
        ),
        (["run", "build", "-i", "what"], "invalid_inputs", "write name=text"),
        (["run", "build", "-i", "what:={"], "invalid_inputs", "not JSON"),
        (["run", "broken"], "invalid_definition", "broken.yaml:3:"),
        (["show", "wf_0"], "unknown_run", "wf_0"),
        (["answer", "wf_0", "x"], "unknown_run", "wf_0"),
        (["info", "bild"], "unknown_workflow", "did you mean 'build'?"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_to_do(
    terminal: Any, arguments: list[str], code: str, message: str
) -> None:
    terminal.write(".workflows/build.yaml", BUILD)
    terminal.write(".workflows/packing.yaml", PACKING)
    terminal.write(".workflows/broken.yaml", "name: broken\nblocks:\n  - {id: a, type: Shel}\n")
    said = terminal.run(*arguments)
    assert said.code == 2, said
    assert said.out == ""
    assert message in said.err
    said = terminal.run(*arguments, "--json")
    assert said.code == 2
    assert said.data["error"]["code"] == code


@pytest.mark.parametrize("arguments", [["walk"], ["run"], ["run", "x", "--json", "--frobnicate"]])
def test_words_that_do_not_exist_exit_with_2(terminal: Any, arguments: list[str]) -> None:
    said = terminal.run(*arguments)
    assert said.code == 2
    assert "usage: workflows-mcp" in said.err
    if "--json" in arguments:
        assert said.data["error"]["code"] == "usage"


@pytest.mark.rows("G15")
def test_without_a_terminal_a_question_ends_with_3_and_is_answered_later(terminal: Any) -> None:
    terminal.write("ask.yaml", ASK)
    said = terminal.run("run", "ask.yaml")
    assert said.code == 3
    assert "Who are you?" in said.err
    run_id = re.search(r"workflows-mcp answer (wf_\w+) VALUE", said.err)[1]  # type: ignore[index]
    # What does not depend on the answer is done before the command gives up.
    assert (terminal.workspace / "side.txt").exists()
    assert terminal.run("answer", run_id).code == 3
    listed = terminal.run("runs", "--json").data["runs"]
    assert [(run["workflow_id"], run["status"]) for run in listed] == [(run_id, "pending_action")]
    said = terminal.run("answer", run_id, "Ada")
    assert said.code == 0
    assert said.out == "greeting: Hello Ada\n"
    assert "✓ name" in said.err
    assert "side" not in said.err
    said = terminal.run("answer", run_id, "Bob", "--step", "name", "--json")
    assert said.code == 2
    assert said.data["error"]["code"] == "not_expected"


def test_an_answer_can_come_through_a_pipe(terminal: Any) -> None:
    terminal.write("ask.yaml", ASK)
    waiting = terminal.run("run", "ask.yaml", "--json")
    assert waiting.code == 3
    assert waiting.data["status"] == "pending_action"
    said = terminal.run("answer", waiting.data["workflow_id"], "--json", stdin="Grace\n")
    assert said.data["outputs"] == {"greeting": "Hello Grace"}


def test_on_a_terminal_the_question_is_asked_and_the_answer_typed(terminal: Any) -> None:
    terminal.write("ask.yaml", ASK)
    screen = Screen(terminal, "run", "ask.yaml")
    screen.wait_for("Who are you?")
    screen.wait_for("> ")
    screen.type("Linus\n")
    assert screen.end() == (0, "greeting: Hello Linus\n")


def test_what_a_step_printed_cannot_steer_the_terminal(terminal: Any) -> None:
    text = (
        "name: evil\nblocks:\n  - {id: a, type: Shell, inputs: "
        "{command: 'printf \"\\033[2Jgone\\007\" >&2; exit 1'}}\n"
    )
    terminal.write("evil.yaml", text)
    screen = Screen(terminal, "run", "evil.yaml")
    screen.wait_for("�[2Jgone�")
    assert screen.end()[0] == 1
    assert "\033" not in screen.shown


def test_on_a_terminal_the_end_of_input_leaves_the_question_for_later(terminal: Any) -> None:
    terminal.write("ask.yaml", ASK)
    screen = Screen(terminal, "run", "ask.yaml")
    screen.wait_for("> ")
    screen.type("\x04")
    screen.wait_for("workflows-mcp answer wf_")
    assert screen.end() == (3, "")


def interrupted(terminal: Any, command: str) -> str:
    """The id of a run that was interrupted by Ctrl-C while it ran this command."""
    terminal.write(
        "slow.yaml", f"name: slow\nblocks:\n  - {{id: a, type: Shell, inputs: {{command: '{command}'}}}}\n"
    )
    screen = Screen(terminal, "run", "slow.yaml")
    screen.wait_for("▸ a")
    until = time.monotonic() + 20
    while not (terminal.workspace / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    screen.process.send_signal(signal.SIGINT)
    screen.wait_for("workflows-mcp cancel wf_")
    assert screen.end() == (130, "")
    assert "is parked" in screen.shown
    run_id = re.search(r"cancel (wf_\w+)", screen.shown)
    assert run_id is not None
    [listed] = terminal.run("runs", "--json").data["runs"]
    assert (listed["status"], "parked by the user" in listed["why"]) == ("waiting", True)
    return run_id[1]


def test_ctrl_c_keeps_the_run_which_can_be_cancelled(terminal: Any) -> None:
    run_id = interrupted(terminal, "touch begun; sleep 30.7")
    assert terminal.run("cancel", run_id, "--reason", "changed my mind").code == 0
    said = terminal.run("show", run_id, "--json").data
    assert said["status"] == "cancelled"
    assert said["error"]["message"] == "changed my mind"
    assert terminal.run("cancel", run_id).code == 0


def test_a_run_that_was_interrupted_stays_so_until_it_is_resumed(terminal: Any) -> None:
    run_id = interrupted(terminal, "test -e begun && exit 0; touch begun; sleep 30.7")
    server = subprocess.Popen(
        terminal.command,
        cwd=terminal.workspace,
        env=terminal.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        terminal.write(
            "other.yaml", "name: other\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'true'}}\n"
        )
        assert terminal.run("run", "other.yaml").code == 0  # by then the server has looked for runs
        said = terminal.run("show", run_id, "--json").data
        assert said["status"] == "waiting"
        assert f"workflows-mcp resume {run_id}" in said["why"]
        assert terminal.run("resume", run_id).code == 0
        assert terminal.run("show", run_id, "--json").data["status"] == "completed"
    finally:
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(20) == 0


def test_a_timeout_cancels_the_run(terminal: Any) -> None:
    terminal.write(
        "slow.yaml", "name: slow\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'sleep 30'}}\n"
    )
    started = time.monotonic()
    said = terminal.run("run", "slow.yaml", "--timeout", "1", "--json")
    assert time.monotonic() - started < 25, "long before the command would have ended"
    assert said.code == 1
    assert said.data["status"] == "cancelled"
    assert "within 1 s" in said.data["error"]["message"]


@pytest.mark.rows("G8", "G9")
def test_show_has_the_tree_of_blocks_with_times_messages_and_outputs(terminal: Any) -> None:
    terminal.write("build.yaml", BUILD)
    terminal.write("packing.yaml", PACKING)
    run_id = terminal.run("run", "build.yaml", "-i", "what=it", "--json").data["workflow_id"]
    said = terminal.run("show", run_id)
    assert said.code == 0
    assert "✓ build completed" in said.out
    assert re.search(r"^  ✓ compile  0\.\d s$", said.out, re.M)
    assert 'stdout: "compiling it\\n"' in said.out
    assert "– never  skipped  the condition is false" in said.out
    assert re.search(r"^      ✓ box", said.out, re.M)
    assert "boxes: 1" in said.out
    data = terminal.run("show", run_id, "--json").data
    assert data["blocks"]["pack"]["blocks"]["box"]["outputs"]["rendered"] == "boxed"
    assert data["inputs"]["what"] == "it"
    assert terminal.run("runs").out.count(run_id) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_go_ends_the_commands_that_were_started(terminal: Any, number: int) -> None:
    terminal.write(
        "long.yaml",
        "name: long\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'echo $$ > pid; sleep 97'}}\n",
    )
    process = subprocess.Popen(
        [*terminal.command, "run", "long.yaml"],
        cwd=terminal.workspace,
        env=terminal.environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # noqa: PLW1509
    )
    until = time.monotonic() + 20
    pid_file = terminal.workspace / "pid"
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"is parked" in said
    assert not psutil.pid_exists(int(pid_file.read_text()))


def test_what_a_step_prints_is_shown_as_it_comes_and_not_with_json(terminal: Any) -> None:
    terminal.write(
        "live.yaml",
        "name: live\nblocks:\n  - {id: build, type: Shell, inputs: {command: echo compiling}}\n"
        "outputs: {said: '${blocks.build.outputs.exit_code}'}\n",
    )
    said = terminal.run("run", "live.yaml")
    assert "| compiling" in said.err
    assert "compiling" not in said.out
    assert "compiling" not in terminal.run("run", "live.yaml", "--json").err


def test_another_process_follows_a_run_and_what_its_steps_print(terminal: Any) -> None:
    terminal.write(
        "live.yaml",
        "name: live\nblocks:\n  - {id: build, type: Shell, inputs: {command: "
        "'echo compiling; until [ -f go ]; do sleep 0.02; done; echo linked'}}\n",
    )
    running = Screen(terminal, "run", "live.yaml")
    running.wait_for("| compiling")
    run_id = terminal.run("runs", "--json").data["runs"][0]["workflow_id"]
    following = Screen(terminal, "show", run_id, "--follow")
    following.wait_for("build | compiling")
    terminal.write("go", "")
    following.wait_for("✓ build")
    assert running.end()[0] == 0
    code, shown = following.end()
    assert code == 0
    assert "live completed" in shown


def test_a_run_is_named_by_the_first_characters_of_its_id(terminal: Any) -> None:
    terminal.write("hi.yaml", "name: hi\nblocks:\n  - {id: hi, type: Shell, inputs: {command: echo hi}}\n")
    first, second = (terminal.run("run", "hi.yaml", "--json").data["workflow_id"] for _ in range(2))
    length = next(n for n in range(4, 16) if first[:n] != second[:n])
    for name in (first[:length], first[3:length]):
        assert terminal.run("show", name, "--json").data["workflow_id"] == first


def test_a_beginning_that_several_ids_have_is_refused_with_these_ids(terminal: Any) -> None:
    text = "name: hi\nblocks:\n  - {id: hi, type: RenderTemplate, inputs: {template: hi}}\n"

    async def runs() -> list[str]:
        async with Service.open(Settings(workspace=terminal.workspace, home=terminal.home)) as service:
            return [(await service.start(text=text))["workflow_id"] for _ in range(17)]

    alike: dict[str, list[str]] = {}
    for run_id in asyncio.run(runs()):  # there are 16 first characters
        alike.setdefault(run_id[:4], []).append(run_id)
    beginning, ids = max(alike.items(), key=lambda item: len(item[1]))
    for word in ("show", "cancel", "answer"):
        said = terminal.run(word, beginning)
        assert said.code == 2
        assert f"the ids of {len(ids)} runs begin with '{beginning}'" in said.err
        assert any(run_id in said.err for run_id in ids)
        assert "use more of its characters" in said.err


def test_what_a_run_of_another_project_is_can_be_seen_in_the_list(terminal: Any) -> None:
    terminal.write("hi.yaml", "name: hi\nblocks:\n  - {id: hi, type: Shell, inputs: {command: echo hi}}\n")
    terminal.run("run", "hi.yaml")
    assert "~/workspace" in terminal.run("runs").out
    assert terminal.run("runs", "--json").data["runs"][0]["workspace"] == str(terminal.workspace)


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_a_quiet_run_prints_its_outputs_and_failures_alone(terminal: Any, option: str) -> None:
    text = "name: t\nblocks:\n  - {id: x, type: Shell, inputs: {command: COMMAND}}\noutputs: {said: '${blocks.x.stdout}'}\n"
    terminal.write("good.yaml", text.replace("COMMAND", "echo fine"))
    terminal.write("bad.yaml", text.replace("COMMAND", "echo oh; exit 3"))
    good = terminal.run("run", "good.yaml", option)
    assert (good.code, good.out, good.err) == (0, "said: fine\n", "")
    bad = terminal.run("run", "bad.yaml", option)
    assert bad.code == 1
    assert "Command exited with code 3" in bad.err
    assert re.search(r"^✗ t wf_\w+ failed in ", bad.err, re.M)
    terminal.write("bad.yaml", text.replace("COMMAND}", "exit 3}, on_failure: continue"))
    tolerated = terminal.run("run", "bad.yaml", option)
    assert tolerated.code == 0
    assert "completed" in tolerated.err
    assert ", 1 block failed: x" in tolerated.err


def test_no_retry_is_offered_where_it_would_be_refused(terminal: Any) -> None:
    text = "name: t\ninputs: {n: {type: any, default: {}}}\nblocks:\n  - {id: x, type: Shell, inputs: {command: 'echo ${inputs.n.no}'}}\n"
    terminal.write("bad.yaml", text)
    said = terminal.run("run", "bad.yaml")
    assert said.code == 1
    assert "retry" not in said.err


ANY = "name: any\ninputs: {v: {type: any, default: 1}}\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: '?'}}\n"


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--inputs-file", '{"v": {"a": [1, 1180591620717411303424]}}', "the input 'v.a[1]' is not accepted"),
        ("--inputs-file", '{"v": ' + "[" * 300 + "]" * 300 + "}", "it is nested deeper than 200"),
        (
            "--answers",
            "ask: {response: .nan}\n",
            ".nan is not a number that JSON can hold",
        ),
        (
            "--answers",
            "ask: {response: [1180591620717411303424]}\n",
            "1180591620717411303424 has more than 64 bits",
        ),
    ],
)
def test_values_that_cannot_be_kept_are_refused_with_their_place(
    terminal: Any, option: str, text: str, said: str
) -> None:
    terminal.write("any.yaml", ANY)
    terminal.write("values", text)
    done = terminal.run("run", "any.yaml", option, "values")
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err
