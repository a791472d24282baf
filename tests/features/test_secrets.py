"""Secrets: a step gets the value, and nobody else ever sees it: no file, no log, no answer, however it goes."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from support.rendered import Service
from workflows_mcp.errors import MissingSecret
from workflows_mcp.settings.model import Settings
from workflows_mcp.values import secret_mark, to_json

pytestmark = pytest.mark.rows("X5")

T = TypeVar("T")
SECRET = "tok-3f9a'b c\"d$x/é+end"
MARK = secret_mark("TOKEN")
ENCODED = base64.b64encode(SECRET.encode()).decode()
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
PARTS = (b"tok-3f9a", b"/\xc3\xa9+end", ENCODED[:12].encode(), ENCODED[8:20].encode(), b"b%20c")
"""What must not be found anywhere."""
PRINTS = 'printf "%s\\n" "${secrets.TOKEN}"; printf %s "${secrets.TOKEN}" | base64 -w 0; printf "\\n"'


@pytest.fixture(autouse=True)
def _given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", SECRET)


Nowhere = Callable[..., None]


def leaks(home: Path) -> list[tuple[str, bytes]]:
    """Where the secret is found in the files of the store and of runs."""
    found = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "runs.db" for path in found)
    return [(path.name, part) for path in found for part in PARTS if part in path.read_bytes()]


@pytest.fixture
def nowhere(settings: Settings) -> Nowhere:
    """Looks for the secret in files, and in what was answered."""

    def look(*said: Any) -> None:
        assert leaks(settings.home) == []
        text = to_json(list(said)).encode() + repr(said).encode()
        assert [part for part in PARTS if part in text] == []

    return look


def with_service(settings: Settings, work: Callable[[Service], Awaitable[T]]) -> T:
    async def session() -> T:
        async with Service.open(settings) as service:
            return await work(service)

    return asyncio.run(asyncio.wait_for(session(), 30))


async def all_of(service: Service, run_id: str) -> list[Any]:
    """All that can be asked about a run."""
    return [
        await service.status(run_id),
        await service.next_step(run_id),
        await service.state(run_id),
        await service.state(run_id, paths=["blocks", "inputs", "outputs"]),
        [step async for step in service.progress(run_id).steps()],
        await service.recent(),
    ]


class Ran:
    """A run that has ended, and all that was told of it."""

    def __init__(self, answer: dict[str, Any], said: list[Any]) -> None:
        self.answer = answer
        self.said = [answer, *said]
        self.blocks: dict[str, Any] = said[3]["values"]["blocks"]

    def outputs(self, block: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.blocks[block]["outputs"]
        return found


def carried_out(
    settings: Settings, text: str, inputs: dict[str, Any] | None = None, answers: tuple[Any, ...] = ()
) -> Ran:
    async def work(service: Service) -> Ran:
        answer = await service.start(text=text, inputs=inputs or {})
        for result in answers:
            answer = await service.submit(answer["workflow_id"], result)
        ran = Ran(answer, await all_of(service, answer["workflow_id"]))
        assert (settings.home / "runs.db-wal").stat().st_size > 0
        assert leaks(settings.home) == [], "while the store is open"
        return ran

    return with_service(settings, work)


def shell(command: str, *more: str, name: str = "a", after: str = "") -> str:
    lines = [f"  - id: {name}", "    type: Shell", *(f"    {line}" for line in more)]
    if after:
        lines.append(f"    depends_on: [{after}]")
    return "\n".join([*lines, "    inputs:", f"      command: {json.dumps(command)}", ""])


def workflow(*blocks: str, **keys: Any) -> str:
    more = (f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
    return "".join(("name: secretive\n", *more, "blocks:\n", *blocks))


@pytest.mark.parametrize(
    ("command", "more", "status", "printed"),
    [
        (PRINTS, (), "completed", True),
        (f"{PRINTS}; ( {PRINTS} ) >&2; exit 3", (), "failed", True),
        (f"{PRINTS}; exec sleep 30", ("timeout: 0.6",), "failed", True),
        (f"{PRINTS}; exit 1", ("retry: {attempts: 3, delay: 0.01}",), "failed", True),
        (f"{PRINTS}; mkdir '${{secrets.TOKEN}}/x'", (), "failed", True),
        ('set -x; : "${secrets.TOKEN}" ${secrets.TOKEN}', (), "completed", False),
        (f"( {PRINTS} ) | tee $SCRATCH/file; mv $SCRATCH/file printed", (), "completed", True),
    ],
    ids=["printed", "failed", "timed out", "retried", "in a message", "traced", "in files"],
)
def test_a_secret_that_a_command_prints_is_found_nowhere(
    settings: Settings, nowhere: Nowhere, command: str, more: tuple[str, ...], status: str, printed: bool
) -> None:
    ran = carried_out(settings, workflow(shell(command, *more)))
    assert ran.answer["status"] == status, ran.answer
    outputs = ran.outputs()
    if printed:
        assert outputs["stdout"] == f"{MARK}\n{secret_mark('TOKEN:base64')}\n"
    assert MARK in outputs["command_executed"]
    assert MARK in ran.blocks["a"]["inputs"]["command"]
    nowhere(*ran.said)


def test_a_value_flows_on_through_outputs_calls_and_files_and_is_right_at_the_end(
    settings: Settings, workspace: Path, nowhere: Nowhere
) -> None:
    digest = 'printf %s "{}" | sha256sum | cut -d " " -f 1'
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\ninputs: {token: string, list: list, encoded: string}\nblocks:\n"
        + shell(digest.format("${inputs.token}"), name="text")
        + shell(digest.format("${inputs.list[0]}"), name="item")
        + shell('printf %s "${inputs.encoded}" | base64 -d | sha256sum | cut -d " " -f 1', name="decoded")
        + shell("printf %s ${inputs.token} > by-command; sha256sum < by-command", name="unquoted")
        + "outputs: {all: '${blocks.text.stdout}${blocks.item.stdout}${blocks.decoded.stdout}'}\n"
    )
    text = workflow(
        shell(
            'printf "%s\n" "${secrets.TOKEN}"; printf %s "${secrets.TOKEN}" > file; '
            'printf %s "${secrets.TOKEN}" | base64 -w 0 >&2',
            "outputs: {found: {type: string, path: file}}",
        ),
        "  - id: call\n    type: ExecuteWorkflow\n    depends_on: [a]\n    inputs:\n      workflow: inner\n"
        "      inputs:\n        token: ${blocks.a.outputs.found}\n        encoded: ${blocks.a.stderr}\n"
        "        list: ['${secrets.TOKEN}', '${blocks.a.stdout}']\n",
        outputs={"all": "${blocks.call.outputs.all}"},
    )
    ran = carried_out(settings, text)
    assert ran.answer["status"] == "completed", ran.answer
    assert ran.answer["outputs"] == {"all": f"{DIGEST}\n" * 3}
    assert ran.outputs()["found"] == MARK
    nowhere(*ran.said)


def test_every_step_type_gets_the_value_and_gives_the_mark(
    settings: Settings, workspace: Path, nowhere: Nowhere
) -> None:
    text = workflow(
        "  - id: create\n    type: CreateFile\n    inputs: {path: plain.txt, content: '<${secrets.TOKEN}>'}\n"
        "  - id: read\n    type: ReadFile\n    depends_on: [create]\n    inputs: {path: plain.txt}\n"
        "  - id: binary\n    type: ReadFile\n    depends_on: [create]\n"
        "    inputs: {path: plain.txt, mode: binary}\n"
        "  - id: render\n    type: RenderTemplate\n"
        "    inputs: {template: 'x{{ t }}', variables: {t: '${secrets.TOKEN}'}}\n"
        "  - id: write\n    type: WriteJSONState\n"
        "    inputs: {path: state.json, data: {deep: [{key: '${secrets.TOKEN}'}]}}\n"
        "  - id: load\n    type: ReadJSONState\n    depends_on: [write]\n    inputs: {path: state.json}\n"
    )
    ran = carried_out(settings, text)
    assert ran.answer["status"] == "completed", ran.answer
    assert (workspace / "plain.txt").read_text() == f"<{SECRET}>"
    assert json.loads((workspace / "state.json").read_text()) == {"deep": [{"key": SECRET}]}
    assert ran.outputs("read")["content"] == f"<{MARK}>"
    assert ran.outputs("render")["rendered"] == f"x{MARK}"
    assert ran.outputs("load")["data"] == {"deep": [{"key": MARK}]}
    assert "⟦secret:TOKEN:base64" in ran.outputs("binary")["content"]
    nowhere(*ran.said)


def test_what_a_step_that_cannot_be_carried_out_says_holds_no_secret(
    settings: Settings, nowhere: Nowhere
) -> None:
    text = workflow(
        "  - id: a\n    type: ReadFile\n    inputs: {path: 'x/${secrets.TOKEN}'}\n",
        "  - id: b\n    type: ReadFile\n    inputs: {path: x, max_size_mb: 'x${secrets.TOKEN}'}\n",
        "  - id: c\n    type: Shell\n    inputs: {command: 'true', working_dir: '${secrets.TOKEN}'}\n",
    )
    ran = carried_out(settings, text)
    assert f"x/{MARK}" in ran.blocks["a"]["metadata"]["message"]
    assert "max_size_mb" in ran.blocks["b"]["metadata"]["message"]
    assert f"/{MARK} does not exist" in ran.blocks["c"]["metadata"]["message"]
    nowhere(*ran.said)


def test_a_secret_that_a_command_finds_by_itself_is_known_where_a_workflow_names_it(
    settings: Settings, workspace: Path, nowhere: Nowhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKFLOWS_SECRET_TOKEN")
    monkeypatch.setenv("TOKEN", SECRET)
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\nblocks:\n"
        + shell('printf %s "$TOKEN"')
        + shell('printf %s "${secrets.TOKEN}${blocks.a.stdout}" | sha256sum', name="b", after="a")
        + "outputs: {said: '${blocks.a.stdout} ${blocks.b.stdout}'}\n"
    )
    text = workflow(
        "  - id: call\n    type: ExecuteWorkflow\n    inputs: {workflow: '${inputs.which}'}\n",
        inputs={"which": {"type": "string", "default": "inner"}},
    )
    ran = carried_out(settings, text)
    twice = hashlib.sha256((SECRET * 2).encode()).hexdigest()
    assert ran.outputs("call")["said"] == f"{MARK} {twice}  -\n"
    nowhere(*ran.said)


def test_a_secret_is_data_in_a_command_and_not_among_its_arguments(
    settings: Settings, nowhere: Nowhere
) -> None:
    look = "tr '\\0' '\\n' < /proc/$$/cmdline > cmdline; tr '\\0' '\\n' < /proc/$$/environ | grep -c wf_0=; "
    ran = carried_out(settings, workflow(shell(look + 'printf %s "${secrets.TOKEN}" | sha256sum')))
    assert ran.outputs()["stdout"].split() == ["1", DIGEST, "-"]
    cmdline = (settings.workspace / "cmdline").read_text()
    assert "printf %s" in cmdline
    assert "tok-" not in cmdline
    nowhere(*ran.said)


def test_a_secret_inside_of_a_command_that_was_handed_over_is_data_too(
    settings: Settings, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "x; touch broken $(touch broken)")
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\ninputs: {command: string}\nblocks:\n" + shell("${inputs.command}")
    )
    text = workflow(
        "  - id: call\n    type: ExecuteWorkflow\n    inputs:\n      workflow: inner\n"
        '      inputs: {command: \'printf %s "${secrets.TOKEN}" > got; echo "$0" ${secrets.TOKEN} | wc -w\'}\n'
    )
    ran = carried_out(settings, text)
    assert ran.answer["status"] == "completed", ran.answer
    assert (workspace / "got").read_text() == "x; touch broken $(touch broken)"
    assert not (workspace / "broken").exists()


def test_the_own_variable_of_a_secret_is_not_handed_to_commands(settings: Settings) -> None:
    ran = carried_out(settings, workflow(shell("env | grep -c WORKFLOWS_SECRET; true")))
    assert ran.outputs()["stdout"] == "0\n"


@pytest.mark.parametrize("keep", range(1800, 1800 + 2 * len(SECRET.encode()), 3))
def test_where_output_was_cut_in_the_middle_of_a_secret_no_part_of_it_is_left(
    settings: Settings, nowhere: Nowhere, keep: int
) -> None:
    limits = dataclasses.replace(settings.limits, captured_bytes=keep)
    command = 'i=0; while [ $i -lt 100 ]; do printf "%s" "${secrets.TOKEN}"; i=$((i+1)); done; exit 1'
    truncated = shell(command) + "      truncate: true\n"
    ran = carried_out(dataclasses.replace(settings, limits=limits), workflow(truncated))
    stdout = ran.outputs()["stdout"]
    assert ran.outputs()["truncated"] is True
    assert stdout == MARK * (keep // len(SECRET.encode()))
    nowhere(*ran.said)


def test_long_values_in_messages_are_cut_without_leaving_a_part_of_a_secret(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "0123456789abcdefghij" * 20
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", long + '"')
    limits = dataclasses.replace(settings.limits, preview_chars=300)
    text = workflow(
        shell("echo 'pad ${secrets.TOKEN}' >&2; exit 1", "on_failure: continue"),
        shell("echo $((${secrets.TOKEN} + 1))", "on_failure: continue", name="refused"),
    )
    ran = carried_out(dataclasses.replace(settings, limits=limits), text)
    assert "the value" in ran.blocks["refused"]["metadata"]["message"]
    assert "[part of a secret]…" in ran.blocks["refused"]["metadata"]["message"]
    assert "0123456789" not in to_json(ran.said)


# What looks like a mark


FORGED = "⟦secret:TOKEN⟧ \\u27e6secret:TOKEN\\u27e7"


def test_a_mark_in_an_input_a_file_or_an_answer_does_not_pull_a_secret_in(
    settings: Settings, workspace: Path
) -> None:
    (workspace / "page.html").write_text(f"<p>{FORGED}</p>")
    (workspace / "list.json").write_text('["\\u27e6secret:TOKEN\\u27e7", "⟦", "secret:TOKEN⟧"]')
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\ninputs: {list: list}\nblocks:\n"
        + shell('printf "%s|" "${inputs.list[0]}" "${inputs.list[1]}${inputs.list[2]}"')
        + "outputs: {said: '${blocks.a.stdout}'}\n"
    )
    text = workflow(
        "  - id: ask\n    type: Prompt\n    inputs: {prompt: which}\n",
        "  - id: page\n    type: ReadFile\n    depends_on: [ask]\n    inputs: {path: page.html}\n",
        "  - id: list\n    type: ReadFile\n    depends_on: [ask]\n    inputs: {path: list.json}\n",
        "  - id: call\n    type: ExecuteWorkflow\n    depends_on: [list]\n"
        "    inputs: {workflow: inner, inputs: {list: '${blocks.list.content}'}}\n",
        shell(
            'printf "%s|" "${blocks.page.content}" "${inputs.x}" "${inputs.x}ret:TOKEN⟧" "${inputs.o.k}" '
            '"${blocks.ask.response}"',
            after="page",
        ),
        "  - id: joined\n    type: CreateFile\n    depends_on: [ask]\n"
        "    inputs: {path: joined, content: '${inputs.first}${inputs.second}'}\n",
        inputs={"x": "string", "o": "object", "first": "string", "second": "string"},
    )
    answer = {
        "x": "⟦sec",
        "o": '{"k": "\\u27e6secret:TOKEN\\u27e7"}',
        "first": "⟦",
        "second": "secret:TOKEN⟧",
    }
    ran = carried_out(settings, text, answer, (json.dumps({"response": FORGED}),))
    assert ran.answer["status"] == "completed", ran.answer
    for said in (ran.outputs()["stdout"], ran.outputs("call")["said"], (workspace / "joined").read_text()):
        assert "tok-" not in said
        assert MARK not in said
        assert "[secret:TOKEN⟧" in said


def test_where_no_secret_is_known_a_mark_from_outside_is_nothing_either(
    settings: Settings, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKFLOWS_SECRET_TOKEN")
    monkeypatch.setenv("TOKEN", SECRET)
    (workspace / "page.html").write_text("⟦secret:TOKEN⟧")
    text = workflow(
        "  - id: page\n    type: ReadFile\n    inputs: {path: page.html}\n",
        shell("echo ${blocks.page.content} ${inputs.x}", after="page"),
        inputs={"x": "string"},
    )
    ran = carried_out(settings, text, {"x": "⟦secret:TOKEN⟧"})
    assert ran.outputs()["stdout"] == "[secret:TOKEN⟧ [secret:TOKEN⟧\n"


def test_a_value_in_an_input_an_answer_or_a_reason_is_kept_as_a_mark_and_used_as_the_value(
    settings: Settings, nowhere: Nowhere
) -> None:
    text = workflow(
        "  - id: ask\n    type: Prompt\n    inputs: {prompt: 'is it ${inputs.x}'}\n",
        shell('printf "%s" "${blocks.ask.response}" "${inputs.x}" | sha256sum', after="ask"),
        "  - id: wait\n    type: Prompt\n    depends_on: [a]\n    inputs: {prompt: and now}\n",
        inputs={"x": "string"},
    )

    async def work(service: Service) -> list[Any]:
        asked = await service.start(text=text, inputs={"x": SECRET})
        run_id = asked["workflow_id"]
        answered = await service.submit(run_id, SECRET, step_id="ask")
        again = await service.submit(run_id, SECRET, step_id="ask")
        assert asked["action"]["parameters"] == {"prompt": f"is it {MARK}"}
        assert again["action"]["step_id"] == "wait"
        ended = await service.cancel(run_id, reason=f"because of {SECRET}")
        assert ended["error"]["message"] == f"because of {MARK}"
        return [asked, answered, again, ended, *await all_of(service, run_id)]

    said = with_service(settings, work)
    twice = hashlib.sha256((SECRET * 2).encode()).hexdigest()
    assert said[-3]["values"]["blocks"]["a"]["outputs"]["stdout"].split()[0] == twice
    nowhere(*said)


# Missing, changed and forbidden ones


def test_secrets_that_are_required_are_all_named_before_anything_runs(
    settings: Settings, workspace: Path
) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\nblocks:\n" + shell("echo ${secrets.INNER_KEY}")
    )
    text = "secrets: required\n" + workflow(
        shell("touch started; echo ${secrets.TOKEN} ${secrets.API_KEY}"),
        "  - id: call\n    type: ExecuteWorkflow\n    inputs: {workflow: inner}\n",
    )

    async def work(service: Service) -> None:
        with pytest.raises(MissingSecret) as caught:
            await service.start(text=text)
        assert caught.value.message == "the secret 'API_KEY' is missing; the secret 'INNER_KEY' is missing"
        assert "WORKFLOWS_SECRETS_FILE" in caught.value.hint
        assert await service.recent() == []

    with_service(settings, work)
    assert not (workspace / "started").exists()


def test_a_secret_that_is_gone_when_its_step_comes_fails_the_step(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = workflow(
        "  - id: ask\n    type: Prompt\n    inputs: {prompt: go on}\n",
        shell("echo ${secrets.TOKEN}", after="ask"),
    )

    async def work(service: Service) -> dict[str, Any]:
        asked = await service.start(text=text)
        monkeypatch.delenv("WORKFLOWS_SECRET_TOKEN")
        return await service.submit(asked["workflow_id"], "yes")

    answer = with_service(settings, work)
    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "missing_secret"
    assert "the secret 'TOKEN' is missing" in answer["error"]["message"]
    assert "WORKFLOWS_SECRET_TOKEN" in answer["error"]["hint"]


def test_a_secret_that_is_changed_under_way_is_used_from_the_next_step_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKFLOWS_SECRET_TOKEN")
    file = tmp_path / "secrets.env"
    file.write_text("TOKEN=value-number-one\n")
    file.chmod(0o600)
    text = workflow(
        shell(f"printf %s ${{secrets.TOKEN}} | tee one; printf 'TOKEN=value-number-two\n' > {file}"),
        shell("printf %s ${secrets.TOKEN} | tee two; cat one", after="a", name="b"),
    )
    ran = carried_out(dataclasses.replace(settings, secrets_file=file), text)
    assert (settings.workspace / "one").read_text() == "value-number-one"
    assert (settings.workspace / "two").read_text() == "value-number-two"
    assert ran.outputs()["stdout"] == MARK
    assert ran.outputs("b")["stdout"] == MARK * 2


def test_only_secrets_that_the_settings_name_may_be_used(settings: Settings) -> None:
    narrow = dataclasses.replace(settings, secrets=("OTHER",))
    with pytest.raises(MissingSecret, match=r"'TOKEN' may not be used.*WORKFLOWS_SECRETS"):
        carried_out(narrow, "secrets: required\n" + workflow(shell("echo ${secrets.TOKEN}")))


def test_a_secret_that_is_too_short_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "abc")
    with pytest.raises(MissingSecret, match="fewer than 4 characters"):
        carried_out(settings, "secrets: required\n" + workflow(shell("echo ${secrets.TOKEN}")))


def test_what_a_workflow_needs_of_secrets_can_be_asked_before(settings: Settings, workspace: Path) -> None:
    (workspace / ".workflows" / "inner.yaml").write_text(
        "name: inner\nblocks:\n" + shell("echo ${secrets.API_KEY} ${secrets.TOKEN}")
    )
    info = with_service(settings, lambda service: _soon(service.workflow_info("inner")))
    assert info["secrets"] == ["API_KEY", "TOKEN"]
    assert info["missing_secrets"] == ["API_KEY"]
    assert "tok-" not in to_json(info)


async def _soon(value: T) -> T:
    return value


@pytest.mark.rows("X5")
def test_a_secret_in_the_hint_of_a_failure_is_nowhere(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "hunter2-long-value")
    text = """
name: hint
blocks:
  - id: give
    type: Shell
    inputs: {command: 'printf "{\\"%s\\": 1}" "${secrets.TOKEN}" > $SCRATCH/d.json'}
    outputs: {data: {type: json, path: $SCRATCH/d.json}}
  - id: fail
    type: RenderTemplate
    depends_on: [give]
    inputs: {template: "{{ d.nowhere }}", variables: {d: "${blocks.give.outputs.data}"}}
"""

    async def work(service: Service) -> dict[str, Any]:
        return await service.start(text=text)

    answer = with_service(settings, work)
    assert answer["status"] == "failed"
    assert "hunter2" not in str(answer)
    assert all(b"hunter2" not in path.read_bytes() for path in settings.home.rglob("*") if path.is_file())
    assert "⟦secret:TOKEN⟧" in answer["error"]["hint"]


@pytest.mark.rows("X5")
def test_a_definition_cannot_hold_what_stands_for_a_secret(settings: Settings) -> None:
    async def work(service: Service) -> None:
        text = "name: m\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'echo ⟦secret:TOKEN⟧'}}\n"
        (problem,) = service.validate(text)
        assert (problem.code, problem.place and problem.place.line) == ("secret_mark", 3)

    with_service(settings, work)
