from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from workflows_mcp.dialects import Definition, load
from workflows_mcp.errors import DefinitionError, Problem, RequestError, UnknownWorkflow
from workflows_mcp.library.catalog import Catalog, builtin_directory
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import load_settings
from workflows_mcp.steps.base import Step, StepInputs, StepOutputs
from workflows_mcp.steps.registry import StepRegistry, default_registry


class Note(Step):
    """Takes a text."""

    name = "Note"

    class Inputs(StepInputs):
        text: str = Field(default="", description="The text")

    class Outputs(StepOutputs):
        text: str = ""


class Call(Step):
    """Calls a workflow; the dialect knows how."""

    name = "ExecuteWorkflow"
    aliases = ("Workflow",)

    class Inputs(StepInputs):
        workflow: str = Field(description="Which")
        inputs: dict[str, object] = Field(default_factory=dict, description="Its inputs")
        timeout_ms: int | None = Field(default=None, description="How long it may take")


REGISTRY = StepRegistry(steps=[Note(), Call()])


def workflow(name: str = "", *, calls: str = "", **extra: str) -> str:
    head = f"name: {name}\n" if name else ""
    head += "".join(f"{key}: {value}\n" for key, value in extra.items())
    block = "  - id: one\n    type: Note\n    inputs: {text: hello}\n"
    for index, called in enumerate(calls.split()):
        block += f"  - id: call{index}\n    type: Workflow\n    inputs: {{workflow: {called}}}\n"
    return f"{head}blocks:\n{block}"


class Reading:
    """Reads definitions, and keeps count of what it read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, text: str, file: str) -> Definition:
        self.read.append(Path(file).name)
        return load(text, file=file, registry=REGISTRY)


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


Write = Callable[[str, str], Path]


@pytest.mark.rows("G21")
def test_a_later_directory_overrides_an_earlier_one_and_the_source_is_known(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("built/in/a.yaml", workflow("shared", description="built in"))
    write("built/b.yaml", workflow("only-built"))
    write("mine/x.yml", workflow("shared", description="mine"))
    catalog = Catalog(tmp_path / "built", [tmp_path / "mine", tmp_path / "absent"], reading)
    assert {item.name: item.source for item in catalog.list()} == {
        "only-built": "built-in",
        "shared": str(tmp_path / "mine"),
    }
    assert catalog.bundle("shared").plans["shared"].description == "mine"
    assert catalog.source_of("shared") == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("name: plain\n", "plain"),
        ("name: 'single'  # why\n", "single"),
        ('name: "double: it"\n', "double: it"),
        ("name: with:colon # comment\n", "with:colon"),
        ("\ufeffname: marked\n", "marked"),
        ("description: x\nname: second\r\n", "second"),
        ("description: |\n  name: inside\n", "file"),
        ("", "file"),
    ],
)
def test_the_name_is_the_one_in_the_file_or_else_that_of_the_file(
    tmp_path: Path, write: Write, reading: Reading, text: str, name: str
) -> None:
    write("file.yaml", text + "blocks:\n  - {id: a, type: Note}\n")
    catalog = Catalog(None, [tmp_path], reading)
    assert list(catalog.entries()) == [name]
    assert reading.read == []
    assert catalog.bundle(name).main == name


def test_of_two_files_of_one_name_in_a_directory_the_last_is_used_and_both_are_named_once(
    tmp_path: Path, write: Write, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    write("mine/a.yaml", workflow("deploy", description="hidden"))
    write("mine/inside/b.yaml", workflow("deploy", description="used"))
    write("other/a.yaml", workflow("deploy", description="weaker"))
    catalog = Catalog(None, [tmp_path / "other", tmp_path / "mine"], reading)
    assert catalog.bundle("deploy").plans["deploy"].description == "used"
    assert [summary.name for summary in catalog.list()] == ["deploy"]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("two files hold a workflow named 'deploy'")
    used, hidden = tmp_path / "mine" / "inside" / "b.yaml", tmp_path / "mine" / "a.yaml"
    assert f"{used} is used, {hidden} is not" in said


def test_where_there_are_no_workflows_at_all_that_is_said(tmp_path: Path, reading: Reading) -> None:
    with pytest.raises(UnknownWorkflow) as refused:
        Catalog(None, [tmp_path], reading).bundle("deploy")
    assert refused.value.hint == f"there are none; looked in: {tmp_path}"


@pytest.mark.parametrize("broken", [False, True])
def test_a_file_whose_name_another_one_of_its_directory_has_is_warned_of_when_it_is_checked(
    tmp_path: Path, write: Write, reading: Reading, broken: bool
) -> None:
    extra = "  - {id: one, type: Note}\n" if broken else ""
    text = "description: x\n" + workflow("deploy") + extra
    first = write("a.yaml", text)
    last = write("b.yaml", text)
    catalog = Catalog(None, [], reading)

    def checked(path: Path) -> list[Problem]:
        try:
            return catalog.check_text(text, file=str(path))
        except DefinitionError as error:
            return error.problems

    for path, other, run in ((first, last, str(last)), (last, first, "this file")):
        [problem] = [it for it in checked(path) if it.warning]
        assert problem.code == "name_collision"
        assert str(problem.place) == f"{path}:2:1"
        assert f"'deploy' is also used by {other}: by this name, {run} runs" in problem.message
    assert bool([it for it in checked(first) if not it.warning]) == broken
    last.unlink()
    assert [it for it in checked(first) if it.warning] == []


def test_a_directory_that_may_not_be_read_is_told_where_a_workflow_is_not_found(
    tmp_path: Path, write: Write, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("open/a.yaml", workflow("deploy"))
    write("open/closed/b.yaml", workflow("report"))
    write("closed/c.yaml", workflow("secret"))
    no_directory = write("file", "")
    look = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    catalog = Catalog(
        None, [tmp_path / "open", tmp_path / "closed", no_directory, tmp_path / "absent"], reading
    )
    with pytest.raises(UnknownWorkflow) as refused:
        catalog.bundle("secret")
    inside, closed = tmp_path / "open" / "closed", tmp_path / "closed"
    assert f"{tmp_path / 'open'} (cannot be read: {inside}: Permission denied)" in refused.value.hint
    assert f"{closed} (cannot be read: Permission denied)" in refused.value.hint
    assert f"{no_directory} (cannot be read: Not a directory)" in refused.value.hint
    assert refused.value.hint.endswith(str(tmp_path / "absent"))


@pytest.mark.rows("G24")
def test_an_unknown_workflow_names_the_nearest_the_available_and_where_was_looked(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("a.yaml", workflow("deploy"))
    write("b.yaml", workflow("report"))
    catalog = Catalog(None, [tmp_path], reading)
    with pytest.raises(UnknownWorkflow) as refused:
        catalog.bundle("deplyo")
    said = str(refused.value)
    assert "there is no workflow 'deplyo'" in said
    assert "did you mean 'deploy'?" in said
    assert "available: deploy, report" in said
    assert str(tmp_path) in said
    assert reading.read == []


def test_a_broken_file_hides_only_itself_and_says_what_is_wrong(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("good.yaml", workflow("good"))
    write("bad.yaml", "name: bad\nblocks:\n  - id: a\n    type: Noet\n  - id: b\n    typ: Note\n")
    (tmp_path / "bytes.yaml").write_bytes(b"name: caf\xe9\nblocks: []\n")
    catalog = Catalog(None, [tmp_path], reading)
    listed = {item.name: item for item in catalog.list()}
    assert not listed["good"].problems
    assert len(listed["bad"].problems) >= 2
    assert len(listed) == 3
    with pytest.raises(DefinitionError) as refused:
        catalog.bundle("bad")
    assert "did you mean 'Note'?" in str(refused.value)
    assert "bad.yaml:4:11" in str(refused.value)
    with pytest.raises(DefinitionError, match="not UTF-8"):
        catalog.bundle(next(name for name in listed if name.startswith("caf")))


def test_files_are_read_when_asked_for_and_again_only_when_they_change(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    path = write("a.yaml", workflow("one"))
    write("b.yaml", workflow("two"))
    catalog = Catalog(None, [tmp_path], reading)
    catalog.bundle("one")
    catalog.bundle("one")
    assert reading.read == ["a.yaml"]
    path.write_text(workflow("one", description="changed"), encoding="utf-8")
    assert catalog.bundle("one").plans["one"].description == "changed"
    path.write_text(workflow("renamed"), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert sorted(catalog.entries()) == ["renamed", "two"]
    path.unlink()
    assert list(catalog.entries()) == ["two"]


def test_the_list_is_narrowed_by_tags_and_words(tmp_path: Path, write: Write, reading: Reading) -> None:
    write("a.yaml", workflow("deploy-web", description="Ship it", tags="[ci, web]"))
    write("b.yaml", workflow("deploy-api", tags="[ci]"))
    catalog = Catalog(None, [tmp_path], reading)
    assert [item.name for item in catalog.list(tags=["ci"])] == ["deploy-api", "deploy-web"]
    assert [item.name for item in catalog.list(tags=["ci", "web"])] == ["deploy-web"]
    assert [item.name for item in catalog.list(query="SHIP deploy")] == ["deploy-web"]
    assert catalog.list(query="nothing like it") == []


def test_hidden_and_foreign_folders_are_not_looked_into(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("flows/.git/a.yaml", workflow("hidden"))
    write("flows/node_modules/b.yaml", workflow("foreign"))
    write("flows/deep/er/c.yaml", workflow("deep"))
    assert list(Catalog(None, [tmp_path / "flows"], reading).entries()) == ["deep"]


@pytest.mark.rows("X2")
def test_a_bundle_has_every_workflow_that_is_called_by_a_fixed_name(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("a.yaml", workflow("top", calls="middle"))
    write("b.yaml", workflow("middle", calls="bottom"))
    source = workflow("bottom")
    write("c.yaml", source)
    write("d.yaml", workflow("unrelated"))
    bundle = Catalog(None, [tmp_path], reading).bundle("top")
    assert bundle.main == "top"
    assert sorted(bundle.plans) == ["bottom", "middle", "top"]
    assert bundle.sources["bottom"] == source


def test_problems_of_called_workflows_and_of_calls_are_found_before_anything_runs(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("a.yaml", workflow("top", calls="midle"))
    write("b.yaml", workflow("middle"))
    write("c.yaml", workflow("other", calls="broken"))
    write("d.yaml", "name: broken\nblocks:\n  - {id: a, type: Nothing}\n")
    catalog = Catalog(None, [tmp_path], reading)
    with pytest.raises(DefinitionError) as refused:
        catalog.bundle("top")
    assert "there is no workflow 'midle'" in str(refused.value)
    assert "did you mean 'middle'?" in str(refused.value)
    assert "a.yaml:8:24" in str(refused.value)
    [warning] = catalog.check_text(workflow("other", calls="broken"))
    assert warning.warning
    assert "workflow 'broken' cannot be run: there is no block type 'Nothing'" in warning.message
    assert "d.yaml:3" in warning.message
    assert list(catalog.bundle("other").plans) == ["other"]


def test_a_workflow_may_call_itself_by_name_even_when_it_is_only_text(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    text = (
        "name: loop\ninputs: {n: {type: integer, default: 3}}\nblocks:\n"
        "  - id: again\n    type: Workflow\n    condition: ${inputs.n} > 0\n"
        "    inputs: {workflow: loop}\n"
    )
    assert list(Catalog(None, [tmp_path], reading).bundle_of_text(text).plans) == ["loop"]


def test_a_file_finds_the_files_next_to_it_before_all_others(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("catalog/helper.yaml", workflow("helper", description="from the catalog"))
    write("catalog/other.yaml", workflow("other"))
    start = write("project/main.yaml", workflow("main", calls="helper other"))
    write("project/near.yaml", workflow("helper", description="next to it"))
    write("project/compose.yaml", "services: {}\n")
    catalog = Catalog(None, [tmp_path / "catalog"], reading)
    assert catalog.bundle_of_file(start).plans["helper"].description == "next to it"
    assert catalog.bundle("helper").plans["helper"].description == "from the catalog"
    assert catalog.check_text(start.read_text(), file=str(start)) == []
    assert "compose.yaml" not in reading.read
    with pytest.raises(RequestError, match="there is no file"):
        catalog.bundle_of_file(tmp_path / "absent.yaml")


@pytest.mark.rows("G22")
def test_every_built_in_workflow_can_be_run(tmp_path: Path) -> None:
    settings = load_settings({"HOME": str(tmp_path)}, workspace=tmp_path)
    catalog = Catalog(builtin_directory(), [], Catalog.of(settings, default_registry())._read)
    summaries = catalog.list()
    assert {item.name for item in summaries} >= {"example-hello", "example-parallel", "example-approval"}
    for summary in summaries:
        assert summary.problems == (), summary.name
        assert summary.source == "built-in"
        assert summary.description
        assert catalog.bundle(summary.name).main == summary.name


@pytest.mark.rows("S14")
def test_only_the_last_definitions_are_kept_and_a_list_reads_nothing_twice(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    for number in range(6):
        write(f"flows/w{number}.yaml", workflow(f"w{number}", description=f"number {number}"))
    catalog = Catalog(None, [tmp_path / "flows"], reading, Limits(cached_definitions=3))
    assert [item.description for item in catalog.list()] == [f"number {number}" for number in range(6)]
    assert len(catalog._memory.definitions) == 3
    assert [item.description for item in catalog.list()] == [f"number {number}" for number in range(6)]
    assert len(reading.read) == 6
    catalog.definition("w5")
    assert len(reading.read) == 6
    catalog.definition("w0")
    assert reading.read[6:] == ["w0.yaml"]
    assert len(catalog._memory.definitions) == 3
    write("flows/w1.yaml", workflow("w1", description="changed, and longer"))
    assert catalog.list()[1].description == "changed, and longer"
    assert reading.read[7:] == ["w1.yaml"]


def test_definitions_are_kept_up_to_so_many_bytes_together(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    for number in range(6):
        write(f"flows/w{number}.yaml", workflow(f"w{number}", description="d" * 10_000))
    catalog = Catalog(None, [tmp_path / "flows"], reading, Limits(cached_bytes=25_000))
    for number in range(6):
        catalog.bundle(f"w{number}")
    assert [path.name for path in catalog._memory.definitions] == ["w4.yaml", "w5.yaml"]
    assert list(catalog._memory.bundles) == ["w4", "w5"]
    write("flows/large.yaml", workflow("large", description="d" * 30_000))
    catalog.bundle("large")
    catalog.bundle("large")
    assert reading.read.count("large.yaml") == 1
    assert len(catalog._memory.definitions) == 1


@pytest.mark.rows("S2")
def test_whether_undeclared_state_is_refused_is_a_setting(tmp_path: Path) -> None:
    text = "initial_state: {a: 1}\nsteps: [{id: s, type: return, needs_state: [], value: '{{ state.a }}'}]\n"
    strict = Catalog.of(load_settings({}, workspace=tmp_path), default_registry())
    with pytest.raises(DefinitionError):
        strict.check_text(text)
    lenient = load_settings({"WORKFLOWS_STATE_ACCESS": "warn"}, workspace=tmp_path)
    assert [problem.code for problem in Catalog.of(lenient, default_registry()).check_text(text)] == [
        "undeclared_state"
    ]
    with pytest.raises(RequestError, match="'state_access' cannot be 'never'"):
        load_settings({"WORKFLOWS_STATE_ACCESS": "never"}, workspace=tmp_path)


def test_what_is_no_file_is_no_workflow_and_holds_up_nobody(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    """Reading from a pipe or a device need not end."""
    write("good.yaml", workflow("good"))
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "absent")
    catalog = Catalog(None, [tmp_path], reading)
    assert list(catalog.entries()) == ["good"]
    for name in ("pipe", "endless", "nowhere"):
        with pytest.raises(UnknownWorkflow):
            catalog.text_of(name)


def test_of_a_file_that_is_too_long_only_so_much_is_read_and_that_it_is_too_long_is_told(
    tmp_path: Path, write: Write
) -> None:
    limits = Limits(document_bytes=2000)
    long = write("long.yaml", workflow("long", description="é" * 5000))

    def read(text: str, file: str) -> Definition:
        assert len(text) <= limits.document_bytes + 1
        return load(text, file=file, registry=REGISTRY, limits=limits)

    catalog = Catalog(None, [tmp_path], read, limits)
    [summary] = catalog.list()
    assert [problem.code for problem in summary.problems] == ["too_large"]
    assert long.read_text().startswith(catalog.text_of("long")[:900])


def test_a_workflow_with_problems_is_found_by_its_tags_all_the_same(
    tmp_path: Path, write: Write, reading: Reading
) -> None:
    write("broken.yaml", "name: broken\ntags: [deploy]\nblocks: [{id: a, type: Nothing}]\n")
    [summary] = Catalog(None, [tmp_path], reading).list(tags=["deploy"])
    assert (summary.name, summary.tags) == ("broken", ("deploy",))
    assert summary.problems
