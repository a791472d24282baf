"""Which files are read as definitions: none that no step may read, by `imports` or through a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.settings.model import Settings, load_settings

SECRET = "root:$6$do-not-show:19000:0:99999:7:::\n- [\n"
IMPORTS = "name: x\nimports: ['{}']\ndefault_state: {{raw: {{}}}}\nsteps: [{{type: exit}}]\n"
GOOD = "name: shared:good\ndefault_state: {raw: {}}\nsteps: [{type: exit}]\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in ("project/.workflows", "outside", "user/.workflows", "allowed"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside" / "shadow").write_text(SECRET)
    return tmp_path


def settings_of(place: Path, **more: str) -> Settings:
    environ = {"WORKFLOWS_HOME": str(place / "home"), **{f"WORKFLOWS_{key}": it for key, it in more.items()}}
    return load_settings(environ, workspace=place / "project")


def step_view_of(settings: Settings, text: str) -> str:
    """Everything that validating a text says."""
    return "\n".join(str(it) for it in Service.open(settings).validate(text) if not it.warning)


DENIALS: list[dict[str, str]] = [
    {},
    {"DENIED_CAPABILITIES": "read_files"},
    {"SECURITY_LEVEL": "safe"},
    {"READ_ONLY": "true"},
]


@pytest.mark.parametrize("more", DENIALS, ids=str)
@pytest.mark.parametrize(
    "name",
    ["{p}/outside/shadow", "../../outside/shadow", "link", "/proc/self/environ", "~/../outside/shadow"],
)
def test_an_import_of_a_file_that_no_step_may_read_is_refused_without_a_line_of_it(
    place: Path, name: str, more: dict[str, str]
) -> None:
    (place / "project" / ".workflows" / "link").symlink_to(place / "outside" / "shadow")
    said = step_view_of(settings_of(place, **more), IMPORTS.format(name.format(p=place)))
    assert "cannot be imported" in said or "there is no file" in said
    assert "do-not-show" not in said
    assert "PATH=" not in said
    missing = step_view_of(settings_of(place, **more), IMPORTS.format(f"{place}/outside/nothing"))
    assert "cannot be imported" in missing, "whether there is a file is not told either"


def test_what_may_be_read_is_imported_and_no_more_where_reading_is_denied(place: Path) -> None:
    for folder in ("project/.workflows", "project/flows", "user/.workflows", "allowed"):
        (place / folder).mkdir(exist_ok=True)
        (place / folder / "good.yaml").write_text(GOOD)
    allowed = {"ALLOWED_PATHS": str(place / "allowed")}
    denied = {**allowed, "DENIED_CAPABILITIES": "read_files"}
    for folder in ("project/.workflows", "project/flows", "user/.workflows", "allowed"):
        said = step_view_of(settings_of(place, **allowed), IMPORTS.format(place / folder / "good.yaml"))
        assert said == "", folder
        said = step_view_of(settings_of(place, **denied), IMPORTS.format(place / folder / "good.yaml"))
        assert ("cannot be imported" in said) == (not folder.endswith(".workflows")), folder


@pytest.mark.parametrize("of_a_directory", [False, True], ids=["file", "directory"])
def test_a_link_out_of_the_project_is_listed_as_one_that_may_not_be_read_without_a_line_of_it(
    place: Path, of_a_directory: bool
) -> None:
    (place / "outside" / "key.yaml").write_text("name: stolen-name\n" + SECRET)
    if of_a_directory:
        (place / "project" / ".workflows").rmdir()
        (place / "project" / ".workflows").symlink_to(place / "outside")
    else:
        (place / "project" / ".workflows" / "key.yaml").symlink_to(place / "outside" / "key.yaml")
    for more in DENIALS:
        service = Service.open(settings_of(place, **more))
        [entry] = [it for it in service.list_workflows() if not it.is_built_in]
        said = str(entry)
        with pytest.raises(WorkflowsError) as caught:
            service.inspector.text_of("key")
        said += str(caught.value)
        with pytest.raises(WorkflowsError) as caught:
            service.workflow_info("key")
        said += str(caught.value)
        assert "outside of the directories that may be read" in said
        assert "do-not-show" not in said
        assert "stolen-name" not in said


def test_links_of_the_user_s_own_directory_lead_wherever_the_user_wants(place: Path) -> None:
    (place / "outside" / "mine.yaml").write_text(
        "name: mine\ndefault_state: {raw: {}}\nsteps: [{type: exit}]\n"
    )
    (place / "user" / ".workflows" / "mine.yaml").symlink_to(place / "outside" / "mine.yaml")
    assert Service.open(settings_of(place)).workflow_info("mine")["workflow"] == "mine"
