"""Broken files: each is answered with exactly its problems, all of them at once.

A line of the table is a problem: its code, its line and column, and words that its message and its hint
must hold. Every problem shows file, line and column, the line itself, and what to do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.broken_files import P, Table, every_file_is_in, problems_of, shows_where_and_what
from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.steps.registry import default_registry

BROKEN = Path(__file__).parent / "broken"
EXPECTED: Table = {
    "alias_bomb": [P("too_large", 2, 6, "more than 1000000 values", "WORKFLOWS_LIMIT_DOCUMENT_NODES")],
    "alias_of_itself": [P("too_deep", 5, 13, "more than 60 levels", "alias of itself")],
    "bad_depends_on": [
        P("wrong_type", 10, 9, "a dependency is the id of a block", "depends_on: [build]"),
        P("wrong_type", 11, 34, "'required' must be true or false", "false: this block also runs"),
        P("unknown_key", 11, 41, "no key 'optional'", "keys: block, required"),
        P("wrong_type", 12, 9, 'not list ["build"]', "depends_on: [build]"),
        P("wrong_type", 16, 17, "not object", "depends_on: [{block: build"),
    ],
    "bad_id": [
        P("bad_id", 3, 9, '"build it" cannot be an id', "letters, digits"),
        P("bad_id", 6, 9, '["a"] cannot be an id', "letters, digits"),
    ],
    "bad_indentation": [P("yaml", 5, 12, "mapping values are not allowed", "indented further")],
    "bad_on_failure": [
        P("wrong_value", 6, 17, 'must be fail or continue, not "ignore"', "continue, fail"),
        P("wrong_value", 10, 17, '"Continue"', "did you mean 'continue'?"),
    ],
    "bad_output_specs": [
        P("bad_output", 9, 15, "jsn", "json"),
        P("bad_output", 12, 9, "path", "path"),
        P("unknown_key", 17, 5, "ReadFile declares no outputs", "remove it"),
    ],
    "bad_repetition": [
        P("unknown_key", 5, 13, "'retry' has no 'atempts'", "did you mean 'attempts'?"),
        P("wrong_value", 9, 23, "from 1 to 1000, not 0", "counts all tries"),
        P("wrong_value", 13, 17, 'does not know "timout"', "did you mean 'timeout'?"),
        P("wrong_value", 17, 12, "not list [3]", "retry: 3"),
        P("wrong_type", 21, 15, "must be a list or an object, not integer 12", "for_each: ${inputs.files}"),
        P("wrong_type", 26, 19, "'max_parallel' must be a whole number", "under way at once"),
        P("wrong_value", 27, 20, "parallel or sequential", "did you mean 'sequential'?"),
        P("unknown_key", 31, 5, "'max_parallel' is for a block with for_each", "or remove it"),
        P("undefined", 32, 29, "'each' exists only in a block with for_each", "add for_each"),
        P("undefined", 35, 16, "not known yet where they are listed", "refer to inputs"),
        P("undefined", 36, 29, "an item has no 'item'", "count, index, key, value"),
        P("undefined", 40, 29, "as a whole it has no output 'stdout'", "results"),
        P("undefined", 40, 60, "has its own inputs", "${blocks.items.key.inputs"),
    ],
    "block_not_a_mapping": [
        P("wrong_type", 3, 5, 'a block must be a mapping, not text "make"', "- id: build"),
        P("wrong_type", 6, 13, "'inputs' must be a mapping", "name: value"),
        P("missing_key", 7, 5, "a block needs an id", "id: a-name"),
        P("missing_key", 9, 5, "a block needs a type", "Shell"),
        P("wrong_type", 11, 10, "'outputs' must be a mapping", "e.g. outputs:"),
    ],
    "blocks_empty": [P("wrong_type", 2, 1, "'blocks' is empty", "- id: build")],
    "blocks_not_a_list": [P("wrong_type", 2, 1, "'blocks' must be a list, not object", "- id: build")],
    "braces_before_text": [P("yaml", 6, 37, "did not find expected key", "needs quotes")],
    "colon_in_text": [P("yaml", 6, 25, "mapping values are not allowed", "needs quotes")],
    "cycle_of_three": [
        P("cycle", 6, 18, "compile → package → test → compile", "remove one of these dependencies")
    ],
    "duplicate_id": [P("duplicate_id", 9, 9, "line 3 and again on line 9", "another id")],
    "duplicate_key": [
        P("duplicate_key", 7, 7, "'command' stands on line 6 and again on line 7", "keep one"),
        P("duplicate_key", 11, 5, "'type' stands on line 10 and again on line 11", "keep one"),
    ],
    "inputs_not_a_mapping": [
        P("wrong_type", 3, 3, "'inputs' must be a mapping of names, not list", "e.g. inputs:"),
        P("wrong_type", 5, 7, "'tags' must be a list", "e.g. tags:"),
    ],
    "malformed_conditions": [
        P("syntax", 8, 38, "cannot be read", "write == to compare"),
        P("syntax", 12, 16, "a function call is not part of the condition language", "and/or/not"),
        P("syntax", 16, 41, "unknown word 'production'", "text needs quotes: 'production'"),
        P("syntax", 22, 7, "arithmetic is not part", "there are: =="),
        P("wrong_type", 26, 16, "a condition is text, not list", "e.g. condition:"),
    ],
    "malformed_reference": [
        P("syntax", 10, 21, "malformed reference: ${inputs.name", "${inputs.name}"),
        P("syntax", 15, 22, "malformed reference: ${inputs.my name}", "${inputs.name}"),
    ],
    "many_problems": [
        P("unknown_type", 3, 23, 'no input type "text"', "string"),
        P("unknown_input", 8, 7, "no input 'comand'", "did you mean 'command'?"),
        P("undefined", 8, 20, "no input 'target'", "environment"),
        P("unknown_dependency", 9, 18, "no block 'checkout'", "deploy, test"),
        P("not_a_dependency", 13, 26, "'deploy' runs after block 'test'", "remove the reference"),
        P("syntax", 14, 43, "unknown word 'yes'", "write true or false"),
        P("undefined", 22, 11, "no block 'deploi'", "did you mean 'deploy'?"),
    ],
    "misplaced_secrets": [
        P("undefined", 5, 27, "cannot be shown to an agent", "inputs of blocks that the server carries out"),
        P("undefined", 9, 16, "cannot be part of 'condition'", "can be given to inputs"),
        P("undefined", 10, 14, "cannot be part of 'timeout'", "can be given to inputs"),
        P("undefined", 11, 46, "named by one word", "${secrets.GITHUB_TOKEN}"),
        P("undefined", 14, 25, "cannot be the name of a workflow", "can be given to inputs"),
        P("syntax", 17, 29, "malformed reference: ${secrets.TOKEN", "a reference looks like"),
        P("undefined", 19, 10, "cannot be an output", "can be given to inputs"),
    ],
    "missing_block_reference": [
        P("undefined", 14, 13, "no block 'bild'", "did you mean 'build'? blocks: build, report"),
        P("undefined", 17, 10, "there is no 'build'", "write ${blocks.build.…}"),
        P("undefined", 18, 10, "there is no 'block'", "did you mean 'blocks'?"),
    ],
    "missing_input_reference": [
        P("undefined", 9, 25, "no input 'enviroment'", "did you mean 'environment'?"),
        P("undefined", 9, 46, "no input 'nothing'", "inputs: environment, version"),
        P("undefined", 11, 14, "no input 'enviroment'", "did you mean 'environment'?"),
    ],
    "missing_metadata_field": [
        P("undefined", 6, 22, "the metadata of a run has no 'workflow'", "did you mean 'workflow_name'?"),
        P("undefined", 8, 9, "the metadata of a block has no 'duration_ms'", "execution_time_ms"),
        P("undefined", 9, 11, "block 'build' calls no workflow", "outputs"),
    ],
    "missing_output_field": [
        P("undefined", 12, 14, "block 'build' has no output 'stdot'", "did you mean 'stdout'?"),
        P("undefined", 13, 15, "block 'build' has no output 'exitcode'", "did you mean 'exit_code'?"),
        P("undefined", 16, 9, "block 'report' has no output 'rendred'", "did you mean 'rendered'?"),
    ],
    "missing_step_inputs": [
        P("missing_input", 3, 5, "Shell needs the input 'command'", "command (required)"),
        P("missing_input", 7, 5, "RenderTemplate needs the input 'template'", "template (required)"),
    ],
    "neither_blocks_nor_steps": [P("missing_key", 1, 1, "there are no 'blocks'", "a list of blocks")],
    "not_a_dependency": [
        P("not_a_dependency", 10, 22, "'lint' does not wait for block 'build'", "add 'build' to depends_on"),
        P("undefined", 14, 22, "a block cannot read itself", "refer to"),
        P("undefined", 14, 54, "all blocks at once", "name one"),
        P("not_a_dependency", 15, 16, "'report' does not wait for block 'lint'", "add 'lint' to depends_on"),
    ],
    "numbers_out_of_range": [
        P("yaml", 8, 12, ".inf is not a number that JSON can hold", "quote it: '.inf'"),
        P("yaml", 9, 12, "more than 64 bits", "quote it"),
    ],
    "private_names": [
        P("private", 6, 21, "'__internal__' is private", "blocks, inputs, metadata"),
        P("private", 7, 16, "'_hidden' is private", "blocks, inputs, metadata"),
        P("private", 9, 11, "'__class__' is private", "blocks, inputs, metadata"),
    ],
    "reference_in_flow_list": [P("yaml", 8, 18, "did not find expected ','", "needs quotes")],
    "reference_without_inputs": [P("undefined", 6, 25, "declares no inputs", "environment: {type: string}")],
    "self_and_unknown_dependency": [
        P("self_dependency", 6, 18, "'build' depends on itself", "remove it"),
        P("unknown_dependency", 10, 18, "no block 'biuld'", "did you mean 'build'?"),
    ],
    "tab_indentation": [P("yaml", 5, 1, "tab", "use spaces")],
    "two_cycles": [
        P("cycle", 7, 16, "a → b → a", "remove one"),
        P("cycle", 16, 18, "c → d → c", "remove one"),
    ],
    "unclosed_quote": [P("yaml", 6, 16, "unexpected end of stream", "never closed")],
    "unknown_block_type": [
        P("unknown_type", 4, 11, "no block type 'Shel'", "did you mean 'Shell'?"),
        P("unknown_type", 8, 11, "no block type 'Kubernetes'", "RenderTemplate"),
    ],
    "unknown_input_type": [
        P("unknown_type", 4, 11, '"integr"', "did you mean 'integer'?"),
        P("unknown_type", 5, 10, '"listt"', "did you mean 'list'?"),
        P("wrong_type", 6, 9, "must be a type or a mapping", "{type:"),
    ],
    "unknown_keys_everywhere": [
        P("unknown_key", 2, 1, "a workflow has no key 'descripton'", "did you mean 'description'?"),
        P("unknown_key", 6, 5, "input 'version' has no key 'defualt'", "did you mean 'default'?"),
        P("unknown_key", 10, 5, "a block has no key 'input'", "did you mean 'inputs'?"),
        P("unknown_input", 16, 7, "Shell has no input 'timout'", "did you mean 'timeout'?"),
        P("unknown_key", 17, 5, "a block has no key 'depend_on'", "did you mean 'depends_on'?"),
    ],
    "unquoted_braces": [
        P("yaml", 6, 16, "{{ inputs.command }} is read as a mapping", 'quote it: "{{ inputs.command }}"'),
        P("syntax", 6, 16, "{{ inputs.command }} is not evaluated here", "write ${inputs.command}"),
        P("unknown_type", 8, 11, "no block type 'Shel'", "did you mean 'Shell'?"),
    ],
    "wrong_defaults": [
        P("wrong_type", 5, 14, 'must be a whole number, e.g. 42, not text "many"', "'count'"),
        P("wrong_type", 8, 14, "must be text", "put quotes around it"),
        P("wrong_type", 11, 14, "must be a list", "'flags'"),
        P("wrong_type", 14, 15, "'required' must be true or false", "true or false"),
    ],
    "wrong_dialect": [P("dialect", 2, 10, "'grpah'", "did you mean 'graph'?")],
    "wrong_literals": [
        P("wrong_type", 6, 16, "'command' must be text, not list", "command"),
        P("wrong_type", 7, 16, 'not text "soon"', "timeout"),
        P("wrong_type", 8, 12, "'env' must be a mapping, not list", "env"),
        P("wrong_type", 13, 13, "'mode' must be 'text' or 'binary'", "did you mean 'text'?"),
        P("wrong_type", 14, 14, "'timeout' must be a number of seconds above 0", "timeout: 90"),
    ],
    "braces_of_older_files": [
        P("syntax", 7, 22, "{{inputs.name}} is not evaluated here", "write ${inputs.name}"),
        P("syntax", 8, 17, "{{ blocks.a.outputs.stdout }}", "write ${blocks.a.outputs.stdout}"),
        P("syntax", 9, 17, "{{inputs.name == 'x'}}", "write ${inputs.name} == 'x';"),
        P("syntax", 17, 11, "${{ inputs.name }}", "write ${inputs.name};"),
        P("syntax", 18, 10, "{{inputs.name | upper}}", "write ${inputs.name | upper}"),
    ],
    "names_that_are_no_references": [
        P("undefined", 10, 14, "there is no 'item'", "did you mean ${each.value}?"),
        P("undefined", 11, 14, "'each' is no value itself", "did you mean ${each.value}?"),
        P("undefined", 12, 14, "there is no 'HOME'", "\\${HOME}"),
        P("undefined", 13, 14, "there is no 'files'", "did you mean ${inputs.files}?"),
        P("undefined", 14, 9, "no input 'name'", "inputs: files"),
        P("syntax", 16, 12, "can only stand alone", "an output or an input of its own"),
    ],
    "types_that_cannot_fit": [
        P("wrong_type", 5, 57, "not text", "for_each: ${blocks.list.outputs.stdout | lines}"),
        P("wrong_type", 6, 37, "not integer", "a list or an object"),
        P("wrong_type", 7, 38, "not text", "remove the white space"),
        P("wrong_type", 8, 37, "not text", "for_each: ${inputs.text | trim | lines}"),
    ],
    "words_of_other_systems": [
        P("unknown_key", 3, 25, "no key 'enum'", "write validation: {enum: […]}"),
        P("unknown_type", 6, 11, "no block type 'Approval'", "write type: Prompt"),
        P("unknown_key", 7, 5, "no key 'if'", "write condition: …"),
        P("unknown_key", 10, 5, "no key 'needs'", "write depends_on: …"),
        P("unknown_key", 11, 5, "no key 'matrix'", "write for_each: ${inputs.items}"),
        P("unknown_key", 12, 5, "no key 'continue-on-error'", "write on_failure: continue"),
        P("unknown_key", 13, 5, "no key 'retries'", "write retry: {retries: N}"),
    ],
    "yaml_tag": [
        P("tag", 6, 16, "!!python/object/apply:os.system", "remove it"),
        P("wrong_type", 6, 16, "'command' must be text", "command"),
        P("tag", 7, 16, "'!!int'", "remove it"),
    ],
}


def test_every_broken_file_is_in_the_table() -> None:
    assert every_file_is_in(EXPECTED, BROKEN)
    assert len(EXPECTED) >= 30


@pytest.mark.rows("G24")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_all_problems_of_a_broken_file_are_reported_at_once(name: str) -> None:
    found = problems_of(BROKEN / f"{name}.yaml")
    places = [(problem.code, problem.place.line, problem.place.column) for problem in found if problem.place]
    assert places == [(it.code, it.line, it.column) for it in EXPECTED[name]]
    for problem, expected in zip(found, EXPECTED[name], strict=True):
        assert expected.message in problem.message
        assert expected.hint in problem.hint


@pytest.mark.rows("G24")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_problem_shows_where_it_is_the_line_itself_and_what_to_do(name: str) -> None:
    path = BROKEN / f"{name}.yaml"
    for problem in problems_of(path):
        shows_where_and_what(problem, path)


@pytest.mark.parametrize(
    "mistake",
    [
        "inputs: {{command: 'echo ${{blocks.nothing-{n}.stdout}}'}}",
        "inputs: {{command: 'true'}}, depends_on: [nothing-{n}]",
        "inputs: {{comand: 'true'}}",
    ],
)
def test_thousands_of_problems_are_cut_where_nobody_reads_on(mistake: str) -> None:
    blocks = "\n".join(f"  - {{id: b-{n}, type: Shell, {mistake.format(n=n)}}}" for n in range(3000))
    with pytest.raises(DefinitionError) as caught:
        load(f"blocks:\n{blocks}\n", file="many.yaml", registry=default_registry())
    problems = caught.value.problems
    assert len(problems) == 101
    assert (problems[-1].code, str(problems[-1].place).split(":")[1]) == ("more", "102")


def test_thousands_of_duplicate_keys_are_cut_too() -> None:
    with pytest.raises(DefinitionError) as caught:
        load("a: 1\n" * 50_000, file="many.yaml", registry=default_registry())
    assert len(caught.value.problems) == 100
