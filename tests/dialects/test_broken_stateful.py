"""Broken stateful files: each is answered with exactly its problems, all of them at once.

A line of the table is a problem (P) or a warning (W): its code, its line and column, its message, and how its hint
begins. Every problem shows file, line and column, the line itself, and what to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.broken_files import (
    P,
    Table,
    W,
    errors_first,
    every_file_is_in,
    kinds_in,
    problems_of,
    shows_where_and_what,
)

BROKEN = Path(__file__).parent / "broken_stateful"
# fmt: off
EXPECTED: Table = {
    "agents": [
        P("bad_agent", 9, 13, '"@Security_Analyzer" cannot be the name of an agent', "write @security-analyzer: '@' and then lower-case letters, digits and "),
        P("bad_agent", 15, 12, '"report-writer" cannot be the name of an agent', "write @report-writer: '@' and then lower-case letters, digits and '-',"),
    ],
    "condition_without_steps": [
        P("missing_key", 4, 5, "a step of type condition needs 'if'", 'add a line: if: "{{ state.ready }}"'),
        P("missing_key", 9, 5, "a step of type condition needs 'then'", "add a line: then:, and below it the steps"),
        P("wrong_type", 17, 5, "'then' is empty", 'put steps into it, or turn the test around: if: "{{ not … }}"'),
        P("wrong_type", 21, 9, 'a condition is text, not list ["ready"]', 'e.g. if: "{{ state.approved }}"'),
        P("wrong_type", 24, 5, "'else' must be a list, not object", "each step is an entry: - id: build, and below it type and what the typ"),
    ],
    "duplicate_ids": [
        P("duplicate_id", 9, 14, "the id 'build' stands on line 3 and again on line 9", "give one of the two steps another id"),
    ],
    "duplicate_keys": [
        P("duplicate_key", 12, 5, "'type' stands on line 9 and again on line 12", "keep one of the two"),
        P("duplicate_key", 18, 5, "'type' stands on line 14 and again on line 18", "keep one of the two"),
    ],
    "foreach_mistakes": [
        P("missing_key", 4, 5, "a step of type foreach needs 'items'", 'add a line: items: "{{ state.files }}"'),
        P("missing_key", 4, 5, "a step of type foreach needs 'task'", "add a line: task: the name of one of the tasks"),
        P("missing_key", 4, 5, "a step of type foreach needs 'output_to'", "add a line: output_to: a field for the list of results"),
        P("wrong_type", 10, 12, "'items' must be a list, not integer 12", 'e.g. items: "{{ state.files }}" or items: [linux, macos]'),
        P("unknown_task", 11, 11, 'there is no task "analyse"', "did you mean 'analyze'?"),
        P("wrong_type", 12, 17, "'sequential' must be true or false, not text \"maybe\"", "true: one item after the other"),
        P("wrong_type", 13, 19, "'max_parallel' must be 1 or more, not 0", "how many items may be under way at once"),
        P("parallel_children", 20, 19, "'max_parallel' is 101; at most 100 children may be under way at once", "the limit is WORKFLOWS_LIMIT_PARALLEL_CHILDREN"),
        P("unknown_key", 25, 5, "a step of type foreach has no key 'item'", "did you mean 'items'?"),
    ],
    "goto_mistakes": [
        P("missing_key", 13, 9, "a step of type goto needs 'max_iterations'", "add a line: max_iterations: 3"),
        P("bad_target", 18, 17, "there is no step 'improv'", "did you mean 'improve'?"),
        P("bad_target", 22, 17, "step 'itself' jumps to itself", "name a step before or after it"),
        P("bad_target", 26, 13, "step 'no-limit' is inside of another list, and cannot be jumped to from here", "a goto reaches the steps of its own list and of those around it: impro"),
        P("wrong_value", 27, 21, "'max_iterations' must be 1 or more, not 0", "how often it may jump; after that it fails, or the steps below it go on"),
        P("bad_target", 30, 13, "there is no step 'look'", "steps: check, hand-out, improve, into-a-list, no-id"),
        P("wrong_type", 31, 21, "'max_iterations' must be a whole number, e.g. 42, not text \"often\"", "how often it may jump; after that it fails, or the steps below it go on"),
        P("wrong_type", 34, 13, "'target' must be the id of a step, not list [\"improve\"]", "e.g. target: improve-quality"),
    ],
    "input_rules": [
        P("unknown_key", 5, 18, "validation has no key 'patern'", "did you mean 'pattern'?"),
        P("wrong_value", 5, 44, "'min_length' is greater than 'max_length', so that no value would do", "exchange the two"),
        P("syntax", 8, 28, "'pattern' cannot be used: the pattern \"^v(\" cannot be read: missing ) at position 3", "in double quotes a backslash is written twice: prefer '^v\\d+$' to \"^v\\"),
        P("wrong_value", 8, 40, "'enum' must be a list of the values that are allowed, not []", "e.g. enum: [a, b]"),
        P("wrong_type", 11, 14, "the default of input 'count' must be 10 or less, not 20", "change the type of 'count' or its default"),
        P("wrong_value", 12, 35, "'min_items' is for lists, and input 'count' is of type number", "rules for number: enum, min, max"),
        P("wrong_value", 16, 29, "'min_items' must be a whole number from 0 on, not integer -1", "e.g. 3"),
        P("unknown_type", 16, 44, 'there is no type of items "strng"', "did you mean 'string'?"),
        P("wrong_value", 20, 22, "'required_keys' must be a list of names, not \"host\"", "e.g. required_keys: [host, port]"),
        P("wrong_value", 22, 36, "'min' must be a number, not text \"none\"", "e.g. 10"),
        P("unknown_key", 22, 42, "the property 'port' has no key 'colour'", "keys: description, enum, item_type, max, max_items, max_length, min, m"),
        P("wrong_type", 23, 56, "a value of 'enum' must be text, e.g. \"hello\", not integer 3", "put quotes around it"),
        P("wrong_type", 23, 71, "'required' must be true or false, not text \"yes\"", "write true or false"),
        P("wrong_type", 24, 15, "'host' must be a type or a mapping, not integer 5", "e.g. host: {type: string}"),
        P("wrong_type", 25, 37, "'validation' must be a mapping of rules, not text \"high\"", "e.g. validation: {min: 1, max: 10}"),
        P("wrong_value", 26, 38, "'properties' is for objects, and input 'limits' is of type list", "rules for list: enum, min_items, max_items, item_type"),
        P("wrong_value", 27, 52, "'properties' must be a mapping of keys, not list [\"a\"]", "e.g. properties: {port: {type: integer}}"),
    ],
    "malformed_expressions": [
        P("syntax", 7, 28, "the expression cannot be read: unexpected end of template, expected 'end of print statement'.", "an expression is written {{ state.name }}, a statement {% if inputs.na"),
        P("syntax", 12, 32, "there is no filter 'lenght'", "did you mean 'length'?"),
        P("private", 13, 25, "'__class__' is private: names that start with '_' cannot be reached", "read inputs, the fields of the state, or what is in them"),
        P("syntax", 17, 22, "the condition is text with expressions in it, which would always be true", "a condition is one expression: {{ … }}, or the same without braces"),
        P("wrong_type", 22, 11, 'a condition is text, not list ["files"]', 'e.g. when: "{{ state.approved }}"'),
    ],
    "missing_keys": [
        P("missing_key", 3, 5, "a step needs an id", "add a line: id: a-name"),
        P("missing_key", 6, 5, "a step needs a type", "add a line: type: …"),
        P("missing_key", 8, 5, "a step of type set_state needs 'updates'", "add a line: updates: {field: value}"),
        P("missing_key", 11, 5, "a step of type wait needs 'duration_seconds'", "add a line: duration_seconds: 30"),
        P("missing_key", 14, 5, "a step of type workflow needs 'workflow'", "add a line: workflow: the name of a workflow"),
        P("missing_input", 17, 5, "shell needs the input 'command'", "shell takes: command (required)"),
        P("missing_input", 20, 5, "prompt needs the input 'prompt_type'", "prompt takes: message (required)"),
        P("missing_input", 24, 5, "mcp_call needs the input 'tool'", "mcp_call takes: tool (required)"),
        P("missing_input", 27, 5, "delegate needs the input 'instructions'", "delegate takes: instructions (required)"),
    ],
    "misspelt_keys": [
        P("unknown_key", 2, 1, "a workflow has no key 'descripton'", "did you mean 'description'?"),
        P("unknown_key", 4, 1, "a workflow has no key 'state_acess'", "did you mean 'state_access'?"),
        P("unknown_input", 9, 5, "shell has no input 'comand'", "did you mean 'command'?"),
        P("unknown_input", 10, 5, "shell has no input 'ouput_to'", "did you mean 'output_to'?"),
        P("unknown_key", 14, 5, "a step of type set_state has no key 'update'", "did you mean 'updates'?"),
        P("unknown_key", 17, 5, "a step of type wait has no key 'need_state'", "did you mean 'needs_state'?"),
        P("unknown_key", 18, 5, "a step of type wait has no key 'duration_second'", "did you mean 'duration_seconds'?"),
        P("unknown_key", 23, 5, "a step of type return has no key 'when'", "put the return into the then of a condition"),
        P("unknown_key", 24, 5, "a step of type return has no key 'output_to'", "what it returns is the result; nothing comes after it"),
    ],
    "misspelt_types": [
        P("unknown_type", 5, 11, "there is no step type 'shel'", "did you mean 'shell'?"),
        P("unknown_type", 10, 11, "there is no step type 'conditon'", "did you mean 'condition'?"),
        P("unknown_type", 14, 26, "there is no step type 'setstate'", "did you mean 'set_state'?"),
        P("unknown_type", 16, 11, "there is no step type 'shell_command'", "did you mean 'shell'?"),
        P("unknown_type", 20, 11, '["shell"] is no step type', "types: condition"),
    ],
    "needs_state": [
        P("undeclared_state", 7, 51, "step 'undeclared' reads state.config and does not declare it", 'write needs_state: ["files", "secret", "config"]'),
        P("undeclared_state", 8, 15, "step 'undeclared' reads state.secret and does not declare it", 'write needs_state: ["files", "secret", "config"]'),
        W("undeclared_state", 9, 5, "step 'nothing-declared' does not declare which state it reads; it sees what it reads", 'add a line: needs_state: ["files"]'),
        P("undefined", 14, 20, "needs_state names 'file', which nothing writes", "did you mean 'files'?"),
        W("undefined", 18, 20, "needs_state names 'results', which nothing writes", "fields: config, count, even_more, files, last, more, safe, secret"),
        W("undefined", 18, 31, "needs_state names 'config.mode', which nothing writes", "name the field alone: config"),
        P("wrong_type", 22, 18, "'needs_state' must be a list of fields, not text \"files\"", 'e.g. needs_state: ["files", "config"], or ["*"]'),
        P("undeclared_state", 27, 25, "step 'optional' reads state.config and does not declare it", 'write needs_state: ["config"]'),
    ],
    "not_a_list_of_steps": [
        P("wrong_type", 2, 16, "'initial_state' must be a mapping of fields, not list [\"files\"]", "e.g. initial_state: {count: 0}"),
        P("wrong_type", 4, 5, 'a step must be a mapping, not text "make"', "e.g. - id: build, and below it type and what the type takes"),
        P("bad_id", 5, 10, '"build it" cannot be an id', "an id holds letters, digits, '_' and '-', e.g. run-tests"),
        W("unused_task", 10, 3, "nothing carries out the task 'empty'", "name it in a step of type foreach: task: empty, or remove it"),
        P("wrong_type", 10, 11, "'steps' is empty", "each step is an entry: - id: build, and below it type and what the typ"),
        P("missing_key", 11, 3, "there are no 'steps'", "each step is an entry: - id: build, and below it type and what the typ"),
        W("unused_task", 11, 3, "nothing carries out the task 'none'", "name it in a step of type foreach: task: none, or remove it"),
        P("wrong_type", 12, 3, "the task 'text' must be a mapping, not text \"make\"", "it has inputs, initial_state and steps"),
        P("bad_id", 13, 3, '"odd name" cannot be the name of a task', "a name holds letters, digits, '_' and '-', e.g. analyze_file"),
        W("unused_task", 13, 3, "nothing carries out the task 'odd name'", "name it in a step of type foreach: task: odd name, or remove it"),
    ],
    "outputs_to_nowhere": [
        P("bad_id", 2, 17, '"_hidden" cannot be a field of the state', "a name of letters, digits, '_' and '-' that starts with a letter, e.g."),
        P("bad_id", 2, 29, '"{{ x }}" cannot be a field of the state', "a name of letters, digits, '_' and '-' that starts with a letter, e.g."),
        W("literal_default", 2, 54, "inputs.count is not looked up: the initial state is taken as it is written", "set it in a first step of type set_state"),
        P("bad_id", 8, 16, '"build.result" cannot be a field of the state', "a name of letters, digits, '_' and '-' that starts with a letter, e.g."),
        P("bad_id", 12, 15, '"state" cannot be a field of the state', "'state' has a meaning of its own in expressions: take another name"),
        P("bad_id", 12, 25, '"2nd" cannot be a field of the state', "a name of letters, digits, '_' and '-' that starts with a letter, e.g."),
    ],
    "prompts": [
        P("wrong_type", 7, 11, "'prompt_type' must be 'info', 'confirm', 'text' or 'choice', not text \"chioce\"", "did you mean 'choice'?"),
        P("wrong_type", 8, 5, "the inputs of prompt: a choice needs 'choices', a list of what can be chosen", "prompt takes: message (required)"),
        P("wrong_type", 13, 5, "the inputs of prompt: 'choices' are for prompt_type: choice, not for text", "prompt takes: message (required)"),
        P("wrong_type", 24, 28, "'validation.pattern': the pattern \"(\" cannot be read: missing ) at position 1", "validation: What a text must be like: pattern, min_length, max_length."),
        P("wrong_type", 24, 44, "'validation.min_lenght': is not known here", "validation: What a text must be like: pattern, min_length, max_length."),
    ],
    "prompts_of_sub_agents": [
        P("prompt_in_task", 25, 13, "step 'confirm' asks the user, but the task 'deploy_service' is handed to sub-agents by foreach 'deploy', and they have no user to ask", "ask before that foreach: put the prompt before step 'deploy', with an "),
        P("prompt_in_task", 34, 9, "step 'tell' asks the user, but the task 'deploy_part' is handed to sub-agents by foreach 'deploy', and they have no user to ask", "ask before that foreach: put the prompt before step 'deploy', with an "),
    ],
    "read_too_early": [
        P("undefined", 7, 23, "state.built.stdout: nothing has written the field 'built' when step 'report' reads it", "give it a first value, initial_state: {built: null}, or put step 'buil"),
        P("undefined", 11, 22, "state.n: nothing has written the field 'n' when step 'count' reads it", "give it a first value: initial_state: {n: null}"),
    ],
    "references": [
        P("undefined", 9, 23, "inputs.enviroment: the workflow has no input 'enviroment'", "did you mean 'environment'?"),
        P("undefined", 9, 47, "state.verion: nothing writes the field 'verion' of the state", "did you mean 'version'?"),
        P("undefined", 9, 66, "build_result: there is no 'build_result'", "a field of the state is written state.build_result"),
        P("undefined", 9, 85, "environment: there is no 'environment'", "an input is written inputs.environment"),
        P("undefined", 9, 103, "stat.x: there is no 'stat'", "did you mean 'state'?"),
        P("undefined", 14, 18, "late: there is no 'late'", "a field of the state is written state.late; by its bare name only what"),
        P("undefined", 17, 18, "item: 'item' exists only in a task, which a foreach carries out for each item", "read state or inputs"),
        P("undefined", 22, 29, "secrets.TOKEN: a secret cannot be part of 'parameters' here", "a secret can be given to steps that the server carries out (run_on: se"),
        W("undefined", 22, 58, "inputs.nothing: the workflow has no input 'nothing'", "inputs: environment"),
        P("undefined", 32, 62, "inputs.file: the task declares no inputs", "declare it under inputs: file: {type: string}"),
        P("undefined", 32, 91, "state.version: nothing writes the field 'version' of the state", "a task has a state of its own: give it in the items, and read item or "),
    ],
    "run_on": [
        P("wrong_value", 7, 13, "'run_on' must be agent or server, not \"cloud\"", "values: agent, server"),
        P("unknown_input", 13, 5, "prompt has no input 'run_on'", "prompt takes"),
        P("unknown_input", 14, 5, "prompt has no input 'command'", "prompt takes"),
        P("wrong_value", 19, 15, "'on_error' must be fail or continue, not \"ignore\"", "values: continue, fail"),
        P("wrong_value", 20, 19, "'on_interrupt' must be repeat, ask or fail, not \"again\"", "values: ask, fail, repeat"),
        P("wrong_type", 21, 14, "'timeout' must be a number, not text \"soon\"", "timeout: Seconds after which it is killed, with all it has started."),
        P("unknown_key", 22, 13, "'retry' has no 'atempts'", "did you mean 'attempts'?"),
    ],
    "state_access": [
        P("wrong_value", 2, 15, "'state_access' must be enforce or warn, not \"relaxed\"", "values: enforce, warn"),
        P("wrong_value", 5, 62, "'duration_seconds' must be 0 or more, not -1", "seconds, e.g. duration_seconds: 30"),
    ],
    "tasks_not_a_mapping": [
        P("wrong_type", 2, 8, "'tasks' must be a mapping of names, not list [\"look\"]", "e.g. tasks: {analyze_file: {steps: […]}}"),
        P("unknown_task", 8, 11, 'there is no task "look"', "declare it: tasks: {look: {steps: […]}}"),
    ],
    "unreached": [
        W("unreachable", 10, 9, "step 'after-good' is never come to: 'good' ends the workflow in any case", "remove it, or put the return into a condition"),
        W("unreachable", 13, 5, "step 'never' is never come to: 'check' ends the workflow in any case", "remove it, or put the return into a condition"),
        P("unknown_input", 14, 49, "shell has no input 'comand'", "did you mean 'command'?"),
        W("unused_task", 16, 3, "nothing carries out the task 'unused'", "name it in a step of type foreach: task: unused, or remove it"),
    ],
    "workflow_calls": [
        P("wrong_type", 6, 15, "'workflow' must be the name of a workflow, not list [\"run-tests\"]", "e.g. workflow: run-tests"),
        P("wrong_type", 7, 13, "'inputs' must be a mapping of names and values, not list [\"a\"]", "write the inputs below it: name: value"),
        P("wrong_type", 12, 14, "'timeout' must be a number of seconds above 0, not integer -3", "e.g. timeout: 90"),
        P("unknown_key", 13, 5, "a step of type workflow has no key 'retries'", "write retry: {retries: N}"),
    ],
}
# fmt: on


def test_every_broken_file_is_in_the_table() -> None:
    assert every_file_is_in(EXPECTED, BROKEN)
    assert len(kinds_in(EXPECTED)) >= 100


@pytest.mark.rows("S1", "S2", "S10", "S17")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_all_problems_of_a_broken_file_are_reported_at_once(name: str) -> None:
    found = [
        (
            it.code,
            it.place.line if it.place else 0,
            it.place.column if it.place else 0,
            it.message,
            it.warning,
        )
        for it in problems_of(BROKEN / f"{name}.yaml")
    ]
    assert found == [
        (it.code, it.line, it.column, it.message, it.warning) for it in errors_first(EXPECTED[name])
    ]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_problem_shows_where_it_is_the_line_itself_and_what_to_do(name: str) -> None:
    path = BROKEN / f"{name}.yaml"
    for problem, expected in zip(problems_of(path), errors_first(EXPECTED[name]), strict=True):
        shows_where_and_what(problem, path)
        assert problem.hint.startswith(expected.hint)
