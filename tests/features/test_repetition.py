"""Blocks that are carried out more than once, from YAML to answer: `retry`, `timeout`, `for_each`."""

from __future__ import annotations

from typing import Any

import pytest

from workflows_mcp.errors import DefinitionError


@pytest.mark.rows("X7")
def test_a_flaky_command_succeeds_in_the_end_and_says_how_often_it_was_tried(run: Any) -> None:
    ran = run(
        """
name: flaky
blocks:
  - id: flaky
    type: Shell
    retry: {attempts: 5, delay: 0.01}
    inputs:
      command: echo try >> $RUN_SCRATCH/tries; test $(wc -l < $RUN_SCRATCH/tries) -ge 3
outputs:
  tries: ${blocks.flaky.metadata.attempts}
  worked: ${blocks.flaky.succeeded}
"""
    )
    assert ran.answer["outputs"] == {"tries": 3, "worked": True}


@pytest.mark.rows("X7")
def test_only_the_exit_codes_that_are_named_are_tried_again(run: Any) -> None:
    text = """
name: codes
inputs: {code: {type: integer}}
blocks:
  - id: command
    type: Shell
    on_failure: continue
    retry: {attempts: 2, delay: 0, on: [75]}
    inputs: {command: "exit ${inputs.code}"}
outputs: {tries: "${blocks.command.metadata.attempts}"}
"""
    assert run(text, {"code": 75}).answer["outputs"] == {"tries": 2}
    assert run(text, {"code": 1}).answer["outputs"] == {"tries": 1}


@pytest.mark.rows("X7")
def test_what_the_next_try_cannot_change_is_not_tried_again(run: Any) -> None:
    ran = run(
        """
name: pointless
blocks:
  - id: outside
    type: ReadFile
    retry: {attempts: 3, delay: 60}
    inputs: {path: /etc/hostname}
"""
    )
    assert ran.answer["error"]["code"] == "forbidden"
    assert ran.blocks["outside"]["metadata"]["attempts"] == 1


@pytest.mark.rows("X7")
def test_numbers_of_retry_may_be_references_and_are_checked_when_they_are_known(run: Any) -> None:
    text = """
name: given
inputs: {tries: {type: any}}
blocks:
  - id: bad
    type: Shell
    retry: {attempts: "${inputs.tries}", delay: 0}
    inputs: {command: exit 1}
"""
    assert run(text, {"tries": 3}).blocks["bad"]["metadata"]["attempts"] == 3
    error = run(text, {"tries": 0}).answer["error"]
    assert "'attempts' must be from 1 to 1000, not 0" in error["message"]
    assert error["line"] == 'retry: {attempts: "${inputs.tries}", delay: 0}'


FOR_EACH = """
name: each
inputs:
  services: {type: object}
blocks:
  - id: deploy
    type: Shell
    for_each: ${inputs.services}
    max_parallel: 2
    condition: ${each.value.enabled}
    inputs:
      command: printf '%s' "${each.index} of ${each.count}, ${each.key} on ${each.value.port}"
  - id: report
    type: Shell
    depends_on: [deploy]
    inputs: {command: 'printf %s "${blocks.deploy.web.stdout}"'}
outputs:
  web: ${blocks.deploy.web.outputs.stdout}
  by_path: ${blocks.deploy.outputs.results.web.stdout}
  by_position: ${blocks.deploy[0].stdout}
  with_slash: ${blocks.deploy['a/b'].stdout}
  off: ${blocks.deploy.off.skipped}
  skipped: ${blocks.deploy.outputs.skipped_keys}
  count: ${blocks.deploy.outputs.count}
  reported: ${blocks.report.stdout}
  status: ${blocks.deploy.status}
"""


def test_a_block_runs_for_each_entry_of_an_object_and_its_results_are_found_by_key(run: Any) -> None:
    services = {
        "web": {"enabled": True, "port": 80},
        "off": {"enabled": False, "port": 1},
        "a/b": {"enabled": True, "port": 8080},
    }
    ran = run(FOR_EACH, {"services": services})
    assert ran.answer["outputs"] == {
        "web": "0 of 3, web on 80",
        "by_path": "0 of 3, web on 80",
        "by_position": "0 of 3, web on 80",
        "with_slash": "2 of 3, a/b on 8080",
        "off": True,
        "skipped": ["off"],
        "count": 3,
        "reported": "0 of 3, web on 80",
        "status": "completed",
    }
    items = ran.blocks["deploy"]["items"]
    assert list(items) == ["web", "off", "a/b"]
    assert items["web"]["metadata"]["status"] == "completed"
    assert items["off"]["metadata"]["message"] == "the condition is false: ${each.value.enabled}"


def test_a_value_of_an_item_is_data_in_a_command(run: Any) -> None:
    ran = run(
        """
name: hostile
inputs: {names: {type: list}}
blocks:
  - id: say
    type: Shell
    for_each: ${inputs.names}
    inputs: {command: 'printf %s "${each.value}"'}
outputs: {said: "${blocks.say.outputs.results}"}
""",
        {"names": ['"; echo pwned; "', "$(echo pwned)", "`id`"]},
    )
    said = [result["stdout"] for result in ran.answer["outputs"]["said"]]
    assert said == ['"; echo pwned; "', "$(echo pwned)", "`id`"]


def test_a_called_workflow_for_each_item_keeps_its_blocks(run: Any) -> None:
    ran = run(
        """
name: outer
blocks:
  - id: greet
    type: ExecuteWorkflow
    for_each: [ada, bob]
    inputs: {workflow: example-hello, inputs: {who: "${each.value}"}}
outputs:
  greetings: ${blocks.greet.outputs.results}
  deep: ${blocks.greet[1].blocks.greet.outputs.rendered}
"""
    )
    assert ran.answer["outputs"] == {
        "greetings": [{"greeting": "Hello, ada!"}, {"greeting": "Hello, bob!"}],
        "deep": "Hello, bob!",
    }


def test_no_items_are_no_failure(run: Any) -> None:
    ran = run(
        """
name: none
inputs: {names: {type: list, default: []}}
blocks:
  - {id: say, type: Shell, for_each: "${inputs.names}", inputs: {command: "echo ${each.value}"}}
  - {id: after, type: Shell, depends_on: [say], inputs: {command: echo after}}
outputs: {count: "${blocks.say.outputs.count}", after: "${blocks.after.stdout}"}
"""
    )
    assert ran.answer["outputs"] == {"count": 0, "after": "after\n"}


def test_a_skipped_block_with_items_keeps_its_shape(run: Any) -> None:
    ran = run(
        """
name: skipped
blocks:
  - {id: say, type: Shell, condition: "1 == 2", for_each: [a], inputs: {command: "echo ${each.value}"}}
outputs: {results: "${blocks.say.outputs.results}", skipped: "${blocks.say.skipped}"}
"""
    )
    assert ran.answer["outputs"] == {"results": [], "skipped": True}


TEXT = """
name: text
blocks:
  - {id: list, type: Shell, inputs: {command: "echo '%s'"}}
  - {id: say, type: Shell, depends_on: [list], for_each: "${blocks.list.stdout%s}", inputs: {command: "echo"}}
"""


def test_a_text_is_refused_as_items_before_anything_runs(run: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        run(TEXT % ("a b", ""))
    [problem] = refused.value.problems
    assert (problem.code, problem.message) == ("wrong_type", "for_each takes a list or an object, not text")
    assert problem.hint == (
        "the lines of a text are a list: for_each: ${blocks.list.stdout | lines}; JSON text: | json"
    )


def test_a_text_is_not_taken_for_items(run: Any) -> None:
    ran = run(TEXT % (r"\"a b\"", " | json"))
    assert 'for_each takes a list or an object, not text "a b"' in ran.answer["error"]["message"]
    assert "type: json" in ran.answer["error"]["hint"]


def test_more_items_than_the_limit_are_refused_with_the_setting(run: Any) -> None:
    ran = run(
        """
name: many
inputs: {items: {type: list}}
blocks:
  - {id: say, type: RenderTemplate, for_each: "${inputs.items}", inputs: {template: x}}
""",
        {"items": list(range(10_001))},
    )
    assert ran.answer["error"]["code"] == "for_each_items"
    assert "WORKFLOWS_LIMIT_FOR_EACH_ITEMS" in ran.answer["error"]["message"]


@pytest.mark.parametrize("read", ["results", "outputs.results", "count"])
def test_reading_what_items_gave_does_not_put_up_with_those_that_failed(run: Any, read: str) -> None:
    ran = run(
        f"""
name: strict
blocks:
  - {{id: t, type: Shell, for_each: [0, 1], inputs: {{command: "exit ${{each.value}}"}}}}
outputs: {{read: "${{blocks.t.{read}}}"}}
"""
    )
    assert ran.answer["status"] == "failed"


@pytest.mark.rows("G7")
def test_looking_at_a_block_does_not_put_up_with_the_failure_of_one_before_it(run: Any) -> None:
    ran = run(
        """
name: strict
blocks:
  - {id: compile, type: Shell, inputs: {command: exit 2}}
  - {id: release, type: Shell, depends_on: [compile], inputs: {command: echo}}
outputs: {released: "${blocks.release.succeeded}"}
"""
    )
    assert ran.answer["status"] == "failed"
    assert ran.answer["outputs"] == {"released": False}
    assert "block 'compile' failed: Command exited with code 2" in ran.answer["error"]["message"]


@pytest.mark.rows("X7")
def test_the_error_says_how_often_it_was_tried(run: Any) -> None:
    ran = run(
        """
name: tried
blocks:
  - {id: bad, type: Shell, retry: {attempts: 3, delay: 0}, inputs: {command: exit 1}}
"""
    )
    assert "block 'bad' failed after 3 tries" in ran.answer["error"]["message"]


def test_names_of_outputs_go_before_keys_and_no_entries_of_an_object_are_an_object(run: Any) -> None:
    text = """
name: keys
inputs: {items: {type: object}}
blocks:
  - {id: say, type: RenderTemplate, for_each: "${inputs.items}", inputs: {template: "{{ v }}", variables: {v: "${each.value}"}}}
outputs: {count: "${blocks.say.count}", results: "${blocks.say.results}"}
"""
    ran = run(text, {"items": {"count": "a", "results": "b"}})
    assert ran.answer["outputs"]["count"] == 2
    assert ran.answer["outputs"]["results"]["count"]["rendered"] == "a"
    assert run(text, {"items": {}}).answer["outputs"] == {"count": 0, "results": {}}
