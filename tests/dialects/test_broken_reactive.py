"""Broken reactive files: each is answered with exactly its problems, all of them at once.

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

BROKEN = Path(__file__).parent / "broken_reactive"
ANY = 0
"""The engine of JavaScript says where in the line, and in which words."""

# fmt: off
EXPECTED: Table = {
    "beside_the_wrapper": [
        P("unknown_key", 1, 1, "'imports' stands beside 'workflow'", "put it below 'workflow', or remove the line workflow: and what indents"),
    ],
    "collisions": [
        W("name_collision", 2, 53, "'phase' is a field of raw, and of state too: read by its name, it is that of raw", "give one of the two another name, or read state.phase"),
        W("name_collision", 5, 5, "'files' is a computed field, and a field of raw too: read by its name, it is the computed one", "give one of the two another name, or read raw.files"),
        W("name_collision", 6, 5, "'target' is a computed field, and a field of raw too: read by its name, it is the computed one", "give one of the two another name, or read raw.target"),
        P("undefined", 7, 21, "'missing' comes from 'raw.file', which nothing declares or writes", "did you mean 'raw.files'?"),
    ],
    "computed_as_steps": [
        P("undefined", 5, 48, "this.b: there is no 'this' in a computed field, which follows from what it names", "write b"),
        P("undefined", 6, 29, "global.b: there is no 'global' in a computed field, which follows from what it names", "write b"),
        P("undefined", 7, 37, "this: there is no 'this' in a computed field, which follows from what it names", "name each field that it reads, e.g. raw.files"),
        P("syntax", 9, 39, "'transform' is JavaScript as it stands, and no template", "leave out the braces: transform: input + 1"),
        P("syntax", 10, 59, "'validate' is JavaScript as it stands, and no template", "leave out the braces: validate: output>0"),
        P("undefined", 17, 70, "global.b: there is no 'global' in a computed field, which follows from what it names", 'hand it to the task: inputs: {b: "{{ b }}"}, and write b'),
    ],
    "computed_cycles": [
        P("cycle", 4, 5, "the computed fields come from each other for ever: first → second → third → first", "let one of them come from raw fields only; in a transform, raw.name is"),
        P("cycle", 7, 5, "the computed field 'alone' comes from itself", "let one of them come from raw fields only; in a transform, raw.name is"),
        P("cycle", 8, 5, "the computed fields come from each other for ever: by_name → other → by_name", "let one of them come from raw fields only; in a transform, raw.name is"),
    ],
    "computed_fields": [
        P("missing_key", 4, 5, "the computed field 'no_transform' needs a 'transform'", 'add a line: transform: "input.length"'),
        P("unknown_key", 5, 33, "the computed field 'misspelt' has no key 'tranform'", "did you mean 'transform'?"),
        P("undefined", 6, 26, "'from_nowhere' comes from 'raw.fils', which nothing declares or writes", "did you mean 'raw.files'?"),
        P("undefined", 7, 39, "'from_no_field' comes from 'computed.valid', and there is no computed field 'valid'", "computed fields: bare, both, from_no_field, from_nowhere, maybe, missp"),
        P("bad_path", 8, 18, '"files" is no path of the state', "write raw.files, or computed.files for a computed field"),
        P("undefined", 9, 22, "'of_state' comes from 'raw.phase', which nothing declares or writes", "write state.phase"),
        P("undefined", 10, 25, "'of_computed' comes from 'raw.bare', which nothing declares or writes", "write computed.bare"),
        P("wrong_type", 11, 21, "'from' must be a path or a list of them, not list []", 'e.g. from: "raw.files", or from: ["raw.files", "raw.status"]'),
        P("wrong_type", 12, 20, "'from' must be a path or a list of them, not integer 3", 'e.g. from: "raw.files", or from: ["raw.files", "raw.status"]'),
        P("wrong_type", 13, 43, "'transform' must be JavaScript, not list [\"input\"]", 'e.g. transform: "input.length > 0"'),
        P("wrong_value", 14, 60, "'on_error' must be use_fallback, propagate or ignore, not \"use_falback\"", "did you mean 'use_fallback'? values: ignore, propagate, use_fallback"),
        P("missing_key", 15, 64, "on_error: use_fallback needs a 'fallback'", "add a line: fallback: []"),
        P("wrong_value", 16, 76, "'fallback' is never used with on_error: ignore", "write on_error: use_fallback"),
        P("missing_key", 17, 5, "the static field 'no_value' needs a 'value'", "add a line: value: …"),
        P("unknown_key", 18, 36, "'from' says nothing of a static field, which is its value", "remove it, or static: true"),
        P("wrong_value", 19, 53, "the computed field 'not_static' has a value of its own and does not say static: true", "add a line: static: true"),
        P("wrong_type", 20, 21, "'static' must be true or false, not text \"perhaps\"", "true: the field is its value, always"),
        P("wrong_type", 21, 12, "the computed field 'short' must be a mapping, not text \"raw.files\"", "e.g. short: {from: raw.files, transform: input.length}"),
        P("bad_path", 22, 23, '"this" is no path of the state', 'e.g. from: "raw.files" or "computed.valid_files"'),
        P("bad_path", 23, 20, '"raw" is no path of the state', 'e.g. from: "raw.files" or "computed.valid_files"'),
        P("bad_path", 24, 20, '"global.files" is no path of the state', "write raw.files, or computed.files for a computed field"),
        W("spelling", 25, 21, '"this.files" is understood, and is not the documented spelling', "write from: raw.files"),
    ],
    "computed_syntax": [
        P("syntax", 10, ANY, "the expression cannot be read: …", "a transform is JavaScript: an expression, or statements that end in on"),
        P("syntax", 14, ANY, "the expression cannot be read: …", "a transform is JavaScript: an expression, or statements that end in on"),
    ],
    "default_state": [
        P("unknown_key", 2, 3, "'counter' stands outside of 'raw' and 'state'", "put it below raw: default_state: {raw: {counter: 0}}"),
        P("unknown_key", 3, 3, "'status' stands outside of 'raw' and 'state'", 'put it below raw: default_state: {raw: {status: "{{ now() }}"}}'),
        P("wrong_type", 4, 8, "'raw' must be a mapping, not list [\"a\",\"b\"]", "e.g. raw: {count: 0}"),
        W("without_effect", 5, 3, "computed fields have no first values: they follow from others", "remove it; they are declared under state_schema: {computed: …}"),
    ],
    "documents": [
        P("wrong_type", 1, 7, "'name' must be text, not list [\"documents\"]", "put quotes around it if it is meant as text"),
        P("wrong_type", 2, 10, "'imports' must be a list of files, not list [\"shared/tasks.yaml\",3]", 'e.g. imports: ["shared/common-tasks.yaml"]'),
        P("wrong_type", 3, 7, "'tags' must be a list of words", "e.g. tags: [python, test]"),
        W("literal_default", 4, 21, "inputs.limit is not looked up: the configuration is taken as it is written", "put it into default_state: {raw: …}, where expressions are resolved"),
        P("unknown_type", 5, 17, 'there is no input type "intt"', "did you mean 'int'?"),
    ],
    "error_handling": [
        P("wrong_value", 4, 13, "'on_error' must be checkpoint_and_fail, continue or retry_workflow, not \"give_up\"", "values: checkpoint_and_fail, continue, retry_workflow"),
        P("unknown_key", 5, 3, "'max_retries' is for on_error: retry_workflow", "write on_error: retry_workflow, or remove it"),
        P("wrong_type", 6, 31, "'enabled' must be true or false, not text \"sometimes\"", "true: what went wrong in a step is added to the list at state_path"),
        P("bad_path", 6, 54, "'errors' does not say which part of the state is written", "write raw.errors"),
        W("without_effect", 6, 62, "there are no stack traces: an error says which step failed, and why", "remove it"),
        P("unknown_key", 6, 90, "'error_collection' has no key 'stack'", "keys: enabled, include_stack_traces, state_path"),
        P("unknown_type", 9, 14, "there is no step type 'user_mesage'", "did you mean 'user_message'?"),
        P("unknown_key", 10, 3, "'error_handling' has no key 'on_succes'", "keys: error_collection, max_retries, on_error, on_failure"),
        P("wrong_type", 11, 33, "'retry_failed_steps' must be true or false, not text \"maybe\"", "write true or false"),
        P("unknown_key", 11, 40, "'on_resume' has no key 'skip'", "keys: exclude, load_from_checkpoint, reset_error_counts, retry_failed_steps, skip_completed_steps"),
    ],
    "error_handling_as_text": [
        P("wrong_type", 2, 17, "'error_handling' must be a mapping, not text \"continue\"", "e.g. error_handling: {on_error: continue}"),
    ],
    "failures_of_steps": [
        P("wrong_value", 3, 52, "'on_error' must be fail, continue or retry, not \"ignore\"", "values: continue, fail, retry"),
        P("wrong_value", 4, 58, "'fallback_value' is never used with on_error: fail", "write on_error: continue, or on_error: retry to try it again before"),
        W("without_effect", 5, 58, "'retry_count' counts only with on_error: retry; this step is not tried again", "write on_error: retry, or remove it"),
        W("without_effect", 6, 42, "'retry_delay' counts only with on_error: retry; this step is not tried again", "write on_error: retry, or remove it"),
        P("wrong_value", 7, 72, "'retry_count' must be from 0 to 999, not -1", "how often it is tried again, e.g. retry_count: 3"),
        P("wrong_type", 8, 72, "'retry_count' must be a whole number, e.g. 42, not text \"often\"", "how often it is tried again, e.g. retry_count: 3"),
        P("wrong_type", 8, 92, "'retry_delay' must be a number, e.g. 42 or 3.5, not text \"soon\"", "milliseconds, e.g. retry_delay: 5000"),
        P("wrong_type", 9, 73, "'retry_count' must be a number, or one expression without filters, not \"{{ n | length }}\"", 'e.g. retry_count: "{{ config.retry_count }}"'),
        P("wrong_value", 10, 51, "'timeout' must be from 1 to 1000000000000 milliseconds, not 0", "e.g. timeout: 5000, which is five seconds"),
        P("wrong_value", 11, 57, "'timeout' must be from 1 to 1000000000000 milliseconds, not -5", "e.g. timeout: 5000, which is five seconds"),
        P("wrong_type", 12, 45, "'timeout' must be a number, e.g. 42 or 3.5, not text \"soon\"", "milliseconds, e.g. timeout: 5000"),
        P("wrong_type", 13, 52, "'timeout' must be a number, or one expression without filters, not \"about {{ n }}\"", 'e.g. timeout: "{{ config.timeout }}"'),
        P("wrong_value", 14, 51, "'timeout' must be from 1 to 1000000000000 milliseconds, not 2000000000000", "e.g. timeout: 5000, which is five seconds"),
        P("wrong_value", 15, 57, 'there is no output format "xml"', "formats: json, key_value, lines, text"),
        P("wrong_type", 16, 63, "'output_format' must be 'text', 'lines', 'json' or 'key_value', not text \"lnes\"", "did you mean 'lines'?"),
        P("wrong_value", 17, 56, "'on_interrupt' must be repeat, ask or fail, not \"maybe\"", "values: ask, fail, repeat"),
        P("wrong_value", 17, 71, "'run_on' must be agent or server, not \"nobody\"", "values: agent, server"),
        P("wrong_value", 18, 49, "'on_error' must be fail or continue, not \"retry\"", "values: continue, fail"),
        P("unknown_input", 19, 38, "user_input has no input 'run_on'", "user_input takes: choices, default, description, error_state_update, f"),
    ],
    "ids": [
        P("bad_id", 2, 11, '"two words" cannot be an id', "an id holds letters, digits, '_' and '-', e.g. run-tests"),
        P("bad_id", 3, 10, '"a.b" cannot be an id', "an id holds letters, digits, '_' and '-', e.g. run-tests"),
        P("bad_id", 4, 10, '["a"] cannot be an id', "an id holds letters, digits, '_' and '-', e.g. run-tests"),
        P("bad_id", 5, 11, '"mark {{ x }} done" cannot be an id', "an id holds letters, digits, '_' and '-', e.g. run-tests"),
    ],
    "loops": [
        P("bad_target", 3, 5, "a step of type break stands outside of any loop", "it belongs into the body of a while, or the steps of a foreach; exit e"),
        P("bad_target", 7, 9, "a step of type continue stands outside of any loop", "it belongs into the body of a while, or the steps of a foreach; exit e"),
        P("wrong_value", 10, 21, "'max_iterations' must be 1 or more, not 0", "how often the body is carried out at most; after that the loop fails"),
        P("wrong_type", 11, 5, "'body' is empty", "each step is an entry: - type: shell_command, and below it what the ty"),
        P("wrong_type", 13, 16, "a condition is text, not integer 3", 'e.g. condition: "{{ has_errors }}"'),
        P("wrong_type", 14, 21, "'max_iterations' must be a whole number, e.g. 42, not text \"many\"", "how often the body is carried out at most; after that the loop fails"),
        P("unknown_key", 16, 5, "a step of type while has 'body' and 'steps', which mean the same", "keep one of the two"),
        P("wrong_type", 18, 12, "'items' must be a list, not text \"files\"", 'e.g. items: "{{ files }}" or items: [linux, macos]'),
        P("bad_id", 19, 20, '"raw" cannot be the name of a variable', "'raw' has a meaning of its own in expressions: take another name"),
        P("bad_id", 20, 17, '"2nd" cannot be the name of a variable', "a name of letters, digits and '_' that starts with a letter, e.g. file"),
        W("unreachable", 24, 9, "step '4-foreach-steps-2-user_message' is never come to: '4-foreach-steps-1-break' leaves the loop in any case", "remove it, or give '4-foreach-steps-1-break' a condition: when: …"),
        P("wrong_type", 25, 28, "'items' must be a list, not integer 3", 'e.g. items: "{{ files }}" or items: [linux, macos]'),
        P("bad_id", 25, 61, "the item and its position are both called 'n'", "give one of the two another name"),
        P("wrong_type", 25, 64, "'steps' must be a list, not object", "each step is an entry: - type: shell_command, and below it what the ty"),
        W("unreachable", 27, 5, "step 'behind' is never come to: '6-exit' ends the workflow in any case", "remove it, or give '6-exit' a condition: when: …"),
        P("bad_target", 31, 9, "a step of type break stands outside of any loop", "it belongs into the body of a while, or the steps of a foreach; exit e"),
    ],
    "malformed_expressions": [
        P("syntax", 1, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("syntax", 3, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("syntax", 3, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("syntax", 4, ANY, "the expression cannot be read: …", "an expression ends with }}; braces that are text themselves are writte"),
        P("syntax", 8, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("syntax", 9, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("wrong_type", 9, 70, 'a condition is text, not list ["n"]', 'e.g. when: "{{ has_errors }}"'),
        P("wrong_type", 10, 40, "'workflow' must be the name of a workflow, not list [\"a\"]", 'e.g. workflow: "shared:check-standards"'),
        P("wrong_type", 10, 53, "'inputs' must be a mapping of names and values, not list [\"b\"]", "write the inputs below it: name: value"),
        P("syntax", 11, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
    ],
    "missing_keys": [
        P("missing_input", 2, 5, "shell_command needs the input 'command'", "shell_command takes: command (required), working_dir, timeout, env, "),
        P("missing_input", 3, 5, "agent_shell_command needs the input 'command'", "agent_shell_command takes: command (required), reason, output_format,"),
        P("missing_input", 4, 5, "mcp_call needs the input 'method'", "mcp_call takes: method (required), params, timeout"),
        P("missing_input", 5, 5, "mcp_call needs the input 'method'", "mcp_call takes: method (required), params, timeout"),
        P("missing_input", 6, 5, "user_input needs the input 'prompt'", "user_input takes: prompt (required), prompt_type, validation, choices, default"),
        P("missing_key", 7, 5, "a step of type user_message needs 'message'", 'add a line: message: "{{ summary }}"'),
        P("missing_key", 8, 5, "a step of type conditional needs 'condition'", 'add a line: condition: "{{ has_errors }}"'),
        P("missing_key", 8, 5, "a step of type conditional needs 'then'", "add a line: then:, and below it the steps"),
        P("missing_key", 9, 5, "a step of type while needs 'condition'", 'add a line: condition: "{{ has_errors }}"'),
        P("missing_key", 9, 5, "a step of type while needs 'body'", "add a line: body:, and below it the steps"),
        P("missing_key", 10, 5, "a step of type foreach needs 'items'", 'add a line: items: "{{ files }}"'),
        P("missing_key", 10, 5, "a step of type foreach needs 'steps'", "add a line: steps:, and below it the steps"),
        P("missing_key", 11, 5, "a step of type sequential needs 'steps'", "add a line: steps:, and below it the steps"),
        P("missing_key", 12, 5, "a step of type parallel_foreach needs 'items'", 'add a line: items: "{{ file_batches }}"'),
        P("missing_key", 12, 5, "a step of type parallel_foreach needs 'sub_agent_task'", "add a line: sub_agent_task: the name of one of the sub_agent_tasks"),
        P("missing_key", 13, 5, "a step of type include_workflow needs 'workflow'", 'add a line: workflow: "the name of a workflow"'),
        P("missing_key", 14, 5, "a step of type state_update needs 'path', or 'updates'", "add a line: path: raw.count, or updates: [{path: raw.count, value: 1}]"),
        P("missing_key", 15, 5, "a step of type wait needs 'duration_seconds'", "add a line: duration_seconds: 30"),
        P("missing_input", 16, 5, "apply_hints needs the input 'file', 'hints'", "apply_hints takes: file (required), hints (required)"),
    ],
    "misspelt_keys": [
        P("unknown_key", 1, 1, "a workflow has no key 'nam'", "did you mean 'name'?"),
        P("unknown_key", 2, 1, "a workflow has no key 'default_sate'", "did you mean 'default_state'?"),
        P("unknown_input", 5, 27, "shell_command has no input 'comand'", "did you mean 'command'?"),
        P("unknown_input", 6, 42, "shell_command has no input 'state_updates'", "did you mean 'state_update'?"),
        P("unknown_key", 7, 25, "a step of type conditional has no key 'conditon'", "did you mean 'condition'?"),
        P("unknown_key", 8, 41, "a step of type while has no key 'max_iteration'", "did you mean 'max_iterations'?"),
        P("unknown_key", 8, 59, "a step of type while has no key 'boddy'", "did you mean 'body'?"),
        P("unknown_key", 9, 26, "a step of type user_message has no key 'mesage'", "did you mean 'message'?"),
        P("unknown_key", 10, 39, "a step of type user_message has no key 'title'", "keys: description, id, message, name, on_error, type, when"),
        P("unknown_key", 11, 39, "a step of type user_message has no key 'state_update'", "a message has no result: use a step of type state_update"),
        P("unknown_key", 12, 26, "a step of type state_update has no key 'pth'", "did you mean 'path'?"),
        P("unknown_key", 13, 60, "a step of type parallel_foreach has no key 'on_error'", "write on_sub_agent_error: {strategy: continue}"),
        P("unknown_key", 13, 80, "a step of type parallel_foreach has no key 'retry_count'", "keys: description, error_state_update, id, items, max_parallel, name,"),
        P("unknown_key", 14, 28, "'mcp' has no key 'metod'", "did you mean 'method'?"),
        W("spelling", 15, 22, "'tool' is understood, and is not the documented spelling", "write method"),
        W("spelling", 15, 34, "'args' is understood, and is not the documented spelling", "write params"),
        P("unknown_key", 16, 47, "a step of type include_workflow has no key 'on_completed'", "did you mean 'on_complete'?"),
        P("unknown_key", 17, 18, "a step of type exit has no key 'value'", "keys: description, id, name, type, when"),
        P("unknown_key", 19, 7, "the task 't' has no key 'initial_state'", "did you mean 'default_state'?"),
    ],
    "misspelt_types": [
        P("unknown_type", 2, 12, "there is no step type 'shell_comand'", "did you mean 'shell_command'?"),
        P("unknown_type", 3, 11, "there is no step type 'condtional'", "did you mean 'conditional'?"),
        P("unknown_type", 6, 16, "there is no step type 'user_mesage'", "did you mean 'user_message'?"),
        P("unknown_type", 7, 12, "there is no step type 'paralel_foreach'", "did you mean 'parallel_foreach'?"),
        P("unknown_type", 8, 12, '["exit"] is no step type', "types:"),
        P("missing_key", 9, 5, "a step needs a type", "add a line: type: …, one of: conditional, while, foreach, break, conti"),
        P("unknown_type", 10, 12, "there is no step type 'dance'", "types:"),
    ],
    "names": [
        W("undefined", 3, 58, "inputs.traget: there is no input 'traget'", "did you mean 'target'?"),
        W("undefined", 3, 78, "nothing provides 'later'", "declare it under inputs, or give it a value: default_state: {raw: {lat"),
        W("undefined", 6, 57, "nothing provides 'fils'", "did you mean 'files'? there is: count, files, input, limit, output, re"),
        W("undefined", 8, 39, "nothing provides 'file'", "did you mean 'files'? there is: count, files, limit, results, start, t"),
        W("undefined", 9, 39, "raw.fils: nothing declares or writes the field 'fils'", "did you mean 'files'? fields: files, results, start, target"),
        W("undefined", 9, 54, "computed.cout: there is no computed field 'cout'", "did you mean 'count'? fields: count"),
        W("undefined", 9, 74, "state.phase: nothing declares or writes the field 'phase'", "declare it under state_schema"),
        W("undefined", 9, 92, "nothing provides 'unheard'", "declare it under inputs, or give it a value: default_state: {raw: {unh"),
        W("undefined", 10, 57, "nothing provides 'gone'", "declare it under inputs, or give it a value: default_state: {raw: {gon"),
        W("undefined", 10, 88, "nothing provides 'error'", "'error' exists only in error_state_update, on_failure and cleanup_on_e"),
        W("undefined", 15, 66, "nothing provides 'item'", "'item' exists only in the steps of a foreach, and in tasks"),
        W("undefined", 16, 48, "nothing provides 'itm'", "declare it under inputs, or give it a value: default_state: {raw: {itm"),
        W("undefined", 16, 68, "nothing provides 'result'", "'result' exists only in the state_update of a step that is carried out"),
        P("wrong_value", 17, 103, "'timeout' must be from 1 to 1000000000000 milliseconds, not 0", "e.g. timeout: 5000, which is five seconds"),
    ],
    "no_steps": [
        P("missing_key", 1, 1, "there are no 'steps'", "each step is an entry: - type: shell_command, and below it what the ty"),
    ],
    "no_tasks": [
        P("unknown_task", 2, 58, 'there is no task "process"', "declare it: sub_agent_tasks: {process: {steps: […]}}"),
    ],
    "not_steps": [
        P("wrong_type", 3, 5, 'a step must be a mapping, not text "make"', "e.g. - type: shell_command, and below it what the type takes"),
        P("wrong_type", 6, 5, "'then' is empty", 'put steps into it, or turn the test around: condition: "{{ !(…) }}"'),
        P("wrong_type", 7, 5, "'else' must be a list, not object", "each step is an entry: - type: shell_command, and below it what the ty"),
        P("wrong_type", 8, 24, "'steps' is empty", "each step is an entry: - type: shell_command, and below it what the ty"),
    ],
    "parallel": [
        P("unknown_task", 3, 70, 'there is no task "proces"', "did you mean 'process'? tasks: forgotten, process"),
        P("wrong_type", 4, 37, "'items' must be a list, not text \"batches\"", 'e.g. items: "{{ files }}" or items: [linux, macos]'),
        P("wrong_type", 4, 85, "'max_parallel' must be 1 or more, not 0", "how many items may be under way at once"),
        P("wrong_type", 5, 37, "'items' must be a list, not object {\"a\":1}", 'e.g. items: "{{ files }}" or items: [linux, macos]'),
        P("parallel_children", 5, 84, "'max_parallel' is 101; at most 100 children may be under way at once", "the limit is WORKFLOWS_LIMIT_PARALLEL_CHILDREN"),
        P("wrong_type", 5, 103, "'wait_for_all' must be true or false, not text \"maybe\"", "false: the steps behind it go on while the tasks are under way"),
        P("wrong_type", 6, 93, "'sub_agent_prompt_override' must be text, not list [\"Do it\"]", "what each sub-agent is told"),
        P("wrong_type", 7, 86, "'on_sub_agent_error' must be a mapping, not integer 3", "e.g. on_sub_agent_error: {strategy: retry_failed, max_retries: 2}"),
        P("wrong_value", 8, 86, "'strategy' must be retry_failed, continue or fail_all, not \"retry\"", "values: continue, fail_all, retry_failed"),
        P("unknown_key", 12, 46, "'max_retries' is for strategy: retry_failed", "write strategy: retry_failed, or remove it"),
        P("unknown_key", 12, 62, "'on_sub_agent_error' has no key 'collect'", "did you mean 'collect_errors'?"),
        P("bad_path", 12, 95, "'errors' does not say which part of the state is written", "write raw.errors"),
        P("wrong_type", 13, 103, "'collect_errors' must be true or false, not integer 1", "true: what went wrong in a task is added to the list at error_state_pa"),
        P("unknown_key", 14, 66, "a step of type parallel_foreach has no key 'steps'", "put the steps into sub_agent_tasks, and name the task: sub_agent_task:"),
        W("unused_task", 17, 3, "nothing hands out the task 'forgotten'", "name it in a step of type parallel_foreach: sub_agent_task: forgotten,"),
    ],
    "paths": [
        P("bad_path", 4, 32, "'computed.count' cannot be written", "computed fields follow from others: write what they come from, e.g. ra"),
        P("bad_path", 5, 32, "'n' does not say which part of the state is written", "write raw.n"),
        P("bad_path", 6, 33, "'{{ item }}.n' does not say which part of the state is written", "a path that is written begins with raw. or state.: raw.{{ item }}.n"),
        P("bad_path", 7, 32, "'inputs.n' cannot be written", "inputs stay as they were given; they are in raw as well, and can be wr"),
        P("bad_path", 8, 32, "'config.n' cannot be written", "the configuration stays as it is written: keep what changes in raw"),
        P("bad_path", 9, 32, "'raw' as a whole cannot be written", "name a field of it: raw.name"),
        P("bad_path", 10, 32, "'raw..n' cannot be read as a path from '..n' on", "keys are separated by dots; others stand in brackets: raw.files[0], ra"),
        P("bad_path", 11, 33, "'raw.files[' cannot be read as a path from '[' on", "keys are separated by dots; others stand in brackets: raw.files[0], ra"),
        P("bad_path", 12, 33, "'raw.my field' cannot be read as a path from ' field' on", "keys are separated by dots; others stand in brackets: raw.files[0], ra"),
        P("bad_path", 13, 33, "the path is empty", "e.g. path: raw.count"),
        P("wrong_type", 14, 32, "'path' must be text, not list [\"raw\",\"n\"]", "e.g. path: raw.result"),
        P("syntax", 15, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("missing_key", 16, 5, "the operation set needs a 'value'", "add a line: value: 5"),
        P("wrong_value", 17, 50, "'operation' must be set, append, increment or merge, not \"add\"", "values: append, increment, merge, set"),
        P("missing_key", 18, 5, "the operation append needs a 'value'", "add a line: value: one more"),
        P("wrong_type", 19, 35, "'updates' must be a list, not object {\"path\":\"raw.n\"}", "e.g. updates: [{path: raw.count, value: 1}]"),
        P("unknown_key", 20, 60, "'updates' has no key 'op'", "keys: operation, path, transform, value"),
        P("missing_key", 20, 70, "a change of the state needs 'path'", "add a line: path: raw.result"),
        P("wrong_type", 20, 82, 'a change of the state must be a mapping, not text "raw.n"', "e.g. {path: raw.result, value: …}"),
        P("unknown_key", 21, 26, "'path' stands beside 'updates', which has its own", "put it into the list of updates"),
        P("wrong_type", 21, 58, "'updates' is empty", "e.g. updates: [{path: raw.count, value: 1}]"),
        P("wrong_type", 22, 56, "'state_update' must be a mapping or a list of them, not text \"raw.n\"", "e.g. state_update: {path: raw.result}"),
        P("bad_path", 23, 64, "'files' does not say which part of the state is written", "write raw.files"),
        P("syntax", 23, ANY, "the expression cannot be read: …", "a transform is JavaScript: an expression, or statements that end in on"),
        P("missing_key", 24, 42, "a change of the state needs 'path'", "add a line: path: raw.result"),
        P("syntax", 25, ANY, "the expression cannot be read: …", "a transform is JavaScript: an expression, or statements that end in on"),
        P("wrong_type", 26, 81, "'transform' must be JavaScript, not integer 3", 'e.g. transform: "input.trim()"'),
        P("bad_path", 27, 32, "'this.n' does not say which part of the state is written", "a path that is written begins with raw. or state.: raw.n"),
        P("bad_path", 28, 32, "'global.state.phase' does not say which part of the state is written", "a path that is written begins with raw. or state.: state.phase"),
        P("bad_path", 29, 32, "'this' does not say which part of the state is written", "name a field of it, e.g. raw.count"),
    ],
    "secrets": [
        P("undefined", 1, 34, "secrets.TOKEN: a secret cannot be part of the state", "give it to a step that the server carries out"),
        P("undefined", 4, 39, "secrets.TOKEN: a secret cannot be part of 'message' here", "a secret can be given to steps that the server carries out (run_on: se"),
        P("undefined", 5, 53, "secrets.TOKEN: a secret cannot be part of 'params' here", "a secret can be given to steps that the server carries out (run_on: se"),
        P("undefined", 8, 54, "secrets.TOKEN: a secret cannot be part of 'value' here", "a secret can be given to steps that the server carries out (run_on: se"),
    ],
    "state_not_a_mapping": [
        P("wrong_type", 1, 16, "'default_state' must be a mapping, not list [\"counter\"]", "e.g. default_state: {raw: {count: 0}}"),
        P("wrong_type", 2, 15, "'state_schema' must be a mapping, not text \"raw\"", "e.g. state_schema: {raw: {files: array}}"),
        P("wrong_type", 3, 9, "'config' must be a mapping of names and values, not integer 10", "e.g. config: {max_parallel_agents: 10}"),
        P("wrong_type", 4, 12, "'on_resume' must be a mapping, not text \"always\"", "e.g. on_resume: {retry_failed_steps: true}"),
    ],
    "state_schema": [
        P("unknown_type", 3, 12, 'there is no type of fields "arry"', "did you mean 'array'?"),
        P("unknown_type", 4, 21, 'there is no type of fields "objekt"', "did you mean 'object'?"),
        P("unknown_key", 5, 13, "the field 'sizes' has no key 'typ'", "did you mean 'type'?"),
        P("unknown_type", 6, 12, 'there is no type of fields ["number"]', "types:"),
        P("unknown_key", 7, 3, "'state_schema' has no key 'files'", "put it below raw: state_schema: {raw: {files: array}}"),
        P("unknown_key", 8, 3, "'state_schema' has no key 'cmputed'", "did you mean 'computed'?"),
        P("unknown_type", 9, 33, "there is no type of fields 3", "types:"),
    ],
    "tasks": [
        P("prompt_in_task", 7, 9, "step '0-user_input' asks the user, but the task 'ask' is handed to sub-agents by parallel_foreach 'hand_out', and they have no user to ask", "ask before that: put the user_input before step 'hand_out', with a sta"),
        P("wrong_value", 9, 39, "the failure of a task is always told to the workflow", "to go on all the same, the parallel_foreach says on_sub_agent_error: {"),
        P("wrong_type", 9, 46, "'cleanup_on_error' must be a list, not object", "each step is an entry: - type: shell_command, and below it what the ty"),
        P("unknown_key", 9, 78, "'error_handling' has no key 'on_error'", "did you mean 'return_on_error'?"),
        P("unknown_type", 10, 24, 'there is no input type "strng"', "did you mean 'string'?"),
        P("syntax", 10, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
        P("prompt_in_task", 15, 13, "step 'confirm' asks the user, but the task 'nested' is handed to sub-agents by parallel_foreach '1-parallel_foreach', and they have no user to ask", "ask before that: put the user_input before step '1-parallel_foreach',"),
        P("missing_key", 16, 3, "there are no 'steps'", "each step is an entry: - type: shell_command, and below it what the ty"),
        W("unused_task", 16, 3, "nothing hands out the task 'empty'", "name it in a step of type parallel_foreach: sub_agent_task: empty, or"),
        P("wrong_type", 17, 3, "the task 'text' must be a mapping, not text \"do it\"", "it has inputs and steps"),
        P("bad_id", 18, 3, '"odd name" cannot be the name of a task', "a name holds letters, digits, '_' and '-', e.g. process_batch"),
        W("unused_task", 18, 3, "nothing hands out the task 'odd name'", "name it in a step of type parallel_foreach: sub_agent_task: odd name,"),
    ],
    "tasks_alone": [
        P("prompt_in_task", 5, 9, "step 'who' asks the user, but the task 'ask' is handed to sub-agents, and they have no user to ask", "ask before that: put the user_input before the parallel_foreach, with"),
    ],
    "tasks_not_a_mapping": [
        P("wrong_type", 2, 18, "'sub_agent_tasks' must be a mapping of names, not list [\"process\"]", "e.g. sub_agent_tasks: {process_batch: {steps: […]}}"),
    ],
    "tools": [
        P("wrong_type", 2, 27, "'mcp' must be a mapping, not text \"lint\"", "e.g. mcp: {method: lint_project, params: {}}"),
        P("unknown_key", 3, 22, "'method' stands in 'mcp' and beside it", "keep one of the two"),
        P("wrong_type", 3, 64, "'params' must be a mapping, not list []", "params: What the tool is given, by name."),
        P("wrong_type", 4, 36, "'method' must be text, not list [\"lint\"]", "method: Which tool: server.tool, or only its name where no two have th"),
        P("wrong_type", 5, 32, "'file': string should have at least 1 character", "file: The file that the hints are for."),
        P("wrong_type", 5, 42, "'hints' must be a list, not integer 3", "hints: What is to be changed in it: a list of texts or objects."),
    ],
    "types_of_other_dialects": [
        P("unknown_type", 3, 12, "there is no step type 'shell'", "did you mean 'shell_command'?"),
        P("unknown_type", 4, 12, "there is no step type 'Shell'", "did you mean 'shell_command'?"),
        P("unknown_type", 5, 11, "there is no step type 'condition'", "did you mean 'conditional'?"),
        P("unknown_type", 8, 16, "there is no step type 'set_state'", "did you mean 'state_update'?"),
        P("unknown_type", 9, 12, "there is no step type 'prompt'", "did you mean 'user_input'?"),
        P("unknown_type", 10, 12, "there is no step type 'return'", "did you mean 'exit'?"),
        P("unknown_type", 11, 12, "there is no step type 'workflow'", "did you mean 'include_workflow'?"),
        P("unknown_type", 12, 12, "there is no step type 'delegate'", "did you mean 'parallel_foreach'?"),
        P("unknown_type", 13, 12, "there is no step type 'goto'", "did you mean 'while'?"),
    ],
    "user_inputs": [
        P("wrong_type", 4, 28, "'validation.pattern': the pattern \"^(a|b$\" cannot be read: missing ) at position 6", "validation: What the answer must be like: pattern, min_length, max_len"),
        P("wrong_type", 4, 51, "'validation.error_mesage': is not known here", "validation: What the answer must be like: pattern, min_length, max_len"),
        P("wrong_type", 5, 32, "'prompt' must be text, not list [\"Which?\"]", "prompt: What the user is asked."),
        P("wrong_type", 5, 54, "'validation' must be a mapping, not text \"a\"", "validation: What the answer must be like: pattern, min_length, max_len"),
    ],
    "wait_in_loop": [
        P("wait_in_loop", 7, 89, "its tasks of one round could still be under way in the next one", "inside of a loop wait for them: wait_for_all: true"),
    ],
    "workflow_tries": [
        P("wrong_value", 3, 57, "'max_retries' must be from 1 to 99, not 0", "how often the workflow is carried out again, e.g. max_retries: 2"),
        P("wrong_type", 3, 78, "'error_collection' must be a mapping, not list [\"a\"]", "e.g. error_collection: {enabled: true}"),
        P("wrong_type", 3, 83, "'on_failure' must be a list, not text", "each step is an entry: - type: shell_command, and below it what the ty"),
    ],
    "wrapped": [
        P("undefined", 6, 21, "'total' comes from 'raw.nothing', which nothing declares or writes", "declare it: state_schema: {raw: {nothing: any}}"),
        P("syntax", 6, ANY, "the expression cannot be read: …", "a transform is JavaScript: an expression, or statements that end in on"),
        P("unknown_type", 8, 14, "there is no step type 'shell_comand'", "did you mean 'shell_command'?"),
        P("syntax", 9, ANY, "the expression cannot be read: …", "an expression is JavaScript: {{ files.length > 0 }}"),
    ],
    "words_for_results": [
        P("unknown_type", 6, 19, "there is no step type 'nothing'", "types: CreateFile"),
        W("literal_value", 4, 85, "the value is the word 'stdout', not the stdout of the step", 'write value: "{{ stdout }}"'),
    ],
}
# fmt: on


def test_every_broken_file_is_in_the_table() -> None:
    assert every_file_is_in(EXPECTED, BROKEN)
    assert len(kinds_in(EXPECTED)) >= 100


@pytest.mark.rows("R2", "R4", "R7", "R13")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_all_problems_of_a_broken_file_are_reported_at_once(name: str) -> None:
    expected = errors_first(EXPECTED[name])
    found = problems_of(BROKEN / f"{name}.yaml")
    assert len(found) == len(expected)
    for problem, wanted in zip(found, expected, strict=True):
        assert problem.place is not None
        assert (problem.code, problem.warning) == (wanted.code, wanted.warning)
        if wanted.column == ANY:
            assert problem.place.line == wanted.line
            assert problem.message.startswith(wanted.message.removesuffix("…"))
        else:
            assert (problem.place.line, problem.place.column) == (wanted.line, wanted.column)
            assert problem.message == wanted.message


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_problem_shows_where_it_is_the_line_itself_and_what_to_do(name: str) -> None:
    path = BROKEN / f"{name}.yaml"
    for problem, expected in zip(problems_of(path), errors_first(EXPECTED[name]), strict=True):
        shows_where_and_what(problem, path)
        assert problem.hint.startswith(expected.hint)
