"""Finds workflows in the directories of definitions, on demand.

The name of a workflow is the `name:` in its file, or else the name of the file. A later directory overrides
an earlier one; if two files in one directory have the same name, the last one counts, and a warning is
logged. A broken file does not affect others: it is listed with its problems, and reading it raises a
DefinitionError.

    catalog = Catalog.of(settings, registry)
    catalog.bundle("deploy")                        # the plan, and every plan that it calls
    catalog.bundle_of_file(Path("flows/x.yaml"))    # finds the workflows next to the file too
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workflows_mcp.dialects import Definition, load
from workflows_mcp.errors import DefinitionError, Place, Problem, RequestError, UnknownWorkflow
from workflows_mcp.library.bundles import HINT, Importer, Joined, Reach, assemble, reach_of
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.plan import Bundle, Plan, called_workflows
from workflows_mcp.settings import Settings
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import did_you_mean, is_whole

# ----------------------------------------------------------------------------------------------------
# Reads the name of a workflow from the start of its file, because a search must not parse all files as YAML.


_NAME = re.compile(r"""^name[ \t]*:[ \t]+(?:"([^"\n]*)"|'([^'\n]*)'|([^#\n]*?))[ \t]*(?:#.*)?\r?$""", re.M)

_WRAPPER = re.compile(r"^workflow[ \t]*:[ \t]*(?:#.*)?\r?$", re.M)

_INNER_NAME = re.compile(_NAME.pattern.replace("^name", "^ +name"), re.M)


def name_in(head: str) -> str:
    """The `name:` in the first part of a file; empty if there is none."""
    match = _found(head.removeprefix("\ufeff"))
    name = next((part for part in match.groups() if part), "") if match else ""
    return name.strip()


def place_of_name(text: str, file: str) -> Place:
    """The place of the name; the start of the file if there is none."""
    text = text.removeprefix("\ufeff")
    match = _found(text)
    at = match.start() if match else 0
    line = text[at:].partition("\n")[0].rstrip("\r")
    return Place(file, text.count("\n", 0, at) + 1, len(line) - len(line.lstrip()) + 1, line)


def _found(text: str) -> re.Match[str] | None:
    return _NAME.search(text) or _wrapped_name(text)


def _wrapped_name(head: str) -> re.Match[str] | None:
    """The name in a file with all keys below `workflow:`, which is the least indented one."""
    wrapper = _WRAPPER.search(head)
    names = _INNER_NAME.finditer(head, wrapper.end()) if wrapper else ()
    return min(names, key=lambda found: len(found[0]) - len(found[0].lstrip()), default=None)


# ----------------------------------------------------------------------------------------------------
# Folders of definition files: their files, and why a folder cannot be read.


logger = logging.getLogger(__name__)


_SUFFIXES = (".yaml", ".yml")

_SKIPPED = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory to search; `deep`: with its subdirectories."""

    path: Path
    label: str
    deep: bool = True

    def files(self, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
        """The definition files in a fixed order; a folder that does not exist has none."""
        for directory, inner, names in os.walk(self.path, onerror=on_error):
            searched = sorted(filter(_is_searched, inner)) if self.deep else []
            inner[:] = [name for name in searched if _is_unicode(directory, name)]
            files = sorted(name for name in names if name.endswith(_SUFFIXES))
            yield from (Path(directory, name) for name in files if _is_unicode(directory, name))

    def described(self) -> str:
        """The label of the folder, with what cannot be read in it."""
        errors: list[OSError] = []
        for _ in self.files(errors.append):
            pass
        closed = [self._why(error) for error in errors if not isinstance(error, FileNotFoundError)]
        return f"{self.label} (cannot be read: {'; '.join(closed)})" if closed else self.label

    def _why(self, error: OSError) -> str:
        reason = str(error.strerror)
        return reason if Path(error.filename) == self.path else f"{error.filename}: {reason}"


def _is_searched(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED


_skipped_names: set[tuple[str, str]] = set()


def _is_unicode(directory: str, name: str) -> bool:
    """Whether a file name is valid UTF-8; others cannot be in answers, and each is logged once."""
    if is_whole(name):
        return True
    if (directory, name) not in _skipped_names:
        _skipped_names.add((directory, name))
        logger.warning("%s: skipping a name that is not UTF-8: %r; rename it", directory, name)
    return False


# ----------------------------------------------------------------------------------------------------
# The cache of a catalog, which does not read unchanged files again.


_BUNDLES = 64

Stamp = tuple[int, int]

"""The modification time of a file, and its size: the same stamp means the same content."""


Facts = tuple[str, str, tuple[str, ...], bool, bool, bool]

"""The details of a workflow for a list: description, dialect, tags, and three flags.

The flags: clients see a prompt for it; it can run, and not only provide tasks; it calls others by name."""


@dataclass(slots=True)
class Memory:
    """The cache, by file, which is valid while the file does not change.

    It keeps only the last definitions, but the details for a list, which are small, of all workflows.
    """

    most: int = DEFAULT_LIMITS.cached_definitions
    most_bytes: int = DEFAULT_LIMITS.cached_bytes
    """The maximum size of the texts of the definitions; the last one is always kept."""
    names: dict[Path, tuple[Stamp, str]] = field(default_factory=dict)
    facts: dict[Path, tuple[Stamp, Facts]] = field(default_factory=dict)
    definitions: OrderedDict[Path, tuple[Stamp, Definition | DefinitionError]] = field(
        default_factory=OrderedDict
    )
    bundles: OrderedDict[str, Bundle] = field(default_factory=OrderedDict)
    joined: Joined = field(default_factory=dict)
    logged: set[tuple[Path, Path]] = field(default_factory=set)
    """Pairs of files with the same name that were logged: the hidden one, and the used one."""

    def definition(self, path: Path, stamp: Stamp | None) -> Definition | DefinitionError | None:
        remembered = self.definitions.get(path)
        if remembered is None or remembered[0] != stamp:
            return None
        self.definitions.move_to_end(path)
        return remembered[1]

    def keep(self, path: Path, stamp: Stamp, found: Definition | DefinitionError) -> None:
        self.definitions[path] = (stamp, found)
        self.definitions.move_to_end(path)
        size = sum(at[1] for at, _ in self.definitions.values())
        while len(self.definitions) > self.most or (size > self.most_bytes and len(self.definitions) > 1):
            _, ((_, dropped), _) = self.definitions.popitem(last=False)
            size -= dropped
        if isinstance(found, Definition):
            self.facts[path] = (stamp, facts_of(found.plan))
        else:
            self.facts.pop(path, None)

    def same(self, bundle: Bundle) -> Bundle:
        """The cached bundle if nothing in it has changed, so that runs share it."""
        known = self.bundles.get(bundle.main)
        plans = list(map(id, bundle.plans.values()))
        if known is None or list(map(id, known.plans.values())) != plans:
            known = bundle
        self.bundles[bundle.main] = known
        self.bundles.move_to_end(bundle.main)
        size = sum(map(_size_of, self.bundles.values()))
        while len(self.bundles) > _BUNDLES or (size > self.most_bytes and len(self.bundles) > 1):
            size -= _size_of(self.bundles.popitem(last=False)[1])
        return known


def _size_of(bundle: Bundle) -> int:
    return sum(map(len, bundle.sources.values()))


def facts_of(plan: Plan) -> Facts:
    calls = bool(called_workflows(plan))
    return plan.description, plan.dialect, plan.tags, plan.prompt, bool(plan.body.nodes), calls


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None if it does not exist, or is a pipe or a device."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_size


Read = Callable[[str, str], Definition]

"""Converts (text, file) to a definition; raises DefinitionError with all problems."""


BUILT_IN = "built-in"

_HEAD_BYTES = 64 * 1024

_OUT_OF_REACH = "the file is outside of the directories that may be read"

_HIDES_CALLS = frozenset({"cycle", "duplicate_id", "circular_call"})

"""Problems of a draft that make a check of its calls impossible."""


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """A workflow in a list; `problems` is empty if it can run."""

    name: str
    description: str
    dialect: str
    source: str
    file: str
    tags: tuple[str, ...] = ()
    prompt: bool = False
    """Clients see a prompt for it."""
    problems: tuple[Problem, ...] = ()

    @property
    def is_built_in(self) -> bool:
        """Whether it is a workflow of the library that the user has not replaced."""
        return self.source == BUILT_IN


@dataclass(frozen=True, slots=True)
class Entry:
    """The file of a workflow; only its name has been read."""

    name: str
    path: Path
    source: str


Missing = Callable[[Iterable[str]], "list[str]"]


class Catalog:
    def __init__(
        self,
        builtin: Path | None,
        directories: Sequence[Path],
        read: Read,
        limits: Limits = DEFAULT_LIMITS,
        reach: Reach | None = None,
    ) -> None:
        """`reach` are the files that may be read; the default are the directories and their links."""
        self._folders = [Folder(builtin, BUILT_IN)] if builtin is not None else []
        self._folders += [Folder(path, str(path)) for path in directories]
        self._reach = reach or Reach(tuple(folder.path for folder in self._folders))
        self._read = read
        self._most_bytes = limits.document_bytes
        self._memory = Memory(limits.cached_definitions, limits.cached_bytes)
        self._checking: set[Path] = set()
        """Broken files whose calls are being checked, to stop at circular calls."""

    @classmethod
    def of(cls, settings: Settings, registry: StepRegistry) -> Catalog:
        """The built-in workflows, and those of the user's directories."""

        def read(text: str, file: str) -> Definition:
            return load(
                text,
                file=file,
                registry=registry,
                limits=settings.limits,
                state_access=settings.state_access,
            )

        builtin = builtin_directory()
        reach = reach_of(settings, builtin)
        return cls(builtin, settings.definition_directories, read, settings.limits, reach)

    # Bundles, which a run is pinned to

    def bundle(self, name: str, beside: str = "") -> Bundle:
        """The bundle of a workflow, by name; the directory of the file `beside` takes precedence.

        Raises UnknownWorkflow, or DefinitionError with all its problems and those of its calls.
        """
        catalog = self._beside(Path(beside)) if beside and Path(beside).is_file() else self
        return catalog._bundle(_to_run(catalog.definition(name)))

    def bundle_of_file(self, path: Path) -> Bundle:
        """The bundle of any file; workflows in its directory take precedence over others."""
        if not path.is_file():
            raise RequestError(
                f"there is no file {path}", hint="workflows-mcp list shows the workflows of the catalog"
            )
        catalog = self._beside(path)
        return catalog._bundle(_to_run(catalog._definition_in(path)))

    def bundle_of_text(self, text: str, file: str = "<yaml>") -> Bundle:
        return self._bundle(_to_run(self._read_all(text, file)))

    def check_text(
        self, text: str, *, file: str = "<yaml>", missing_secrets: Missing | None = None
    ) -> list[Problem]:
        """The warnings of a definition; raises DefinitionError if it cannot run.

        `missing_secrets` returns the secrets that cannot be used.
        """
        path = Path(file).absolute()
        if not path.is_file():
            return [*self._check(text, file, missing_secrets)]
        catalog = self._beside(path)
        same = catalog._same_name(path, text, file)
        try:
            return [*catalog._check(text, file, missing_secrets), *same]
        except DefinitionError as error:
            raise DefinitionError([*error.problems, *same], name=error.name) from None

    # The list of workflows

    def list(self, *, tags: Sequence[str] = (), query: str = "") -> list[WorkflowSummary]:
        """The workflows with all these tags and all words of the query, sorted by name."""
        words = query.lower().split()
        every = [self._summary(entry) for _, entry in sorted(self.entries().items())]
        return [
            summary
            for summary in every
            if summary is not None
            and set(tags) <= set(summary.tags)
            and all(word in _searched(summary) for word in words)
        ]

    def entries(self) -> dict[str, Entry]:
        """All workflows by name, without overridden ones."""
        found: dict[str, Entry] = {}
        for folder in self._folders:
            here: dict[str, Path] = {}
            for path in folder.files():
                name = self._name(path)
                if name is None:
                    continue
                if name in here:
                    self._log_same_name(name, here[name], path)
                here[name] = path
                found[name] = Entry(name, path, folder.label)
        return found

    def find(self, name: str) -> Entry:
        """The file of a workflow; raises UnknownWorkflow with the nearest names and the directories."""
        known = self.entries()
        entry = known.get(name)
        if entry is None:
            looked = ", ".join(folder.described() for folder in self._folders) or "nowhere"
            raise UnknownWorkflow(
                f"there is no workflow '{name}'",
                hint=f"{did_you_mean(name, known, what='available', limit=30)}; looked in: {looked}",
            )
        return entry

    def source_of(self, name: str) -> str:
        """The source of a workflow: built-in, or a directory."""
        return self.find(name).source

    def definition(self, name: str) -> Definition:
        """The definition of a workflow; raises UnknownWorkflow or DefinitionError."""
        return self._definition_in(self.find(name).path)

    def text_of(self, name: str) -> str:
        """The text of a definition, also of a wrong one; only the first part of one that is too long.

        Raises UnknownWorkflow, or RequestError if it cannot be read.
        """
        path = self.find(name).path
        try:
            return self._bytes_of(path).decode("utf-8", "replace")
        except OSError as error:
            raise RequestError(f"'{name}' cannot be read: {error.strerror} ({path})") from None

    # Inside

    def _bytes_of(self, path: Path) -> bytes:
        """The content of a file, up to one byte more than a definition may have."""
        if not self._reach.allows(path):
            raise PermissionError(errno.EPERM, _OUT_OF_REACH, str(path))
        with path.open("rb") as file:
            return file.read(self._most_bytes + 1)

    def _beside(self, file: Path) -> Catalog:
        """This catalog, with precedence for the workflows in the directory of `file`."""
        other = Catalog(None, (), self._read)
        other._most_bytes = self._most_bytes
        directory = file.resolve().parent
        other._folders = [*self._folders, Folder(directory, str(directory), deep=False)]
        other._reach = self._reach.with_root(directory)
        other._memory = self._memory
        return other

    @property
    def _importer(self) -> Importer:
        folders = [folder.path for folder in reversed(self._folders)]
        return Importer(self._definition_in, folders, self._reach, self._memory.joined)

    def _bundle(self, definition: Definition) -> Bundle:
        return self._assembled(definition)[0]

    def _assembled(self, definition: Definition) -> tuple[Bundle, Sequence[Problem]]:
        known = self.entries() if called_workflows(definition.plan) else ()
        bundle, warnings = assemble(definition, self._of_key, known, self._importer, self._key_of_call)
        return self._memory.same(bundle), warnings

    def _key_of_call(self, name: str, by: Definition) -> str:
        """The key of a called workflow: the library calls its own workflows, even if overridden."""
        library = self._library
        if library is None or not Path(by.plan.file).absolute().is_relative_to(library.path):
            return name
        own = self._in_library(name)
        return f"{BUILT_IN}:{name}" if own is not None and self.find(name).path != own else name

    def _of_key(self, key: str) -> Definition:
        name = key.removeprefix(f"{BUILT_IN}:")
        own = self._in_library(name) if name != key else None
        return self._definition_in(own) if own is not None else self.definition(key)

    def _in_library(self, name: str) -> Path | None:
        files = self._library.files() if self._library is not None else ()
        return next((path for path in files if self._name(path) == name), None)

    @property
    def _library(self) -> Folder | None:
        return next((folder for folder in self._folders if folder.label == BUILT_IN), None)

    def _check(self, text: str, file: str, missing_secrets: Missing | None) -> Sequence[Problem]:
        definition = self._read_all(text, file)
        bundle, warnings = self._assembled(definition)
        found = [*definition.warnings, *warnings]
        for name in missing_secrets(bundle.secrets) if missing_secrets is not None else ():
            message = f"the secret '{name}' is missing or cannot be used: the step that needs it will fail"
            hint = f"set WORKFLOWS_SECRET_{name}, or put it into the file of secrets"
            found.append(
                Problem("missing_secret", message, hint, place=place_of_name(text, file), warning=True)
            )
        return found

    def _log_same_name(self, name: str, hidden: Path, used: Path) -> None:
        if (hidden, used) in self._memory.logged:
            return
        self._memory.logged.add((hidden, used))
        logger.warning(
            "two files hold a workflow named '%s': %s is used, %s is not. Rename one of them.",
            name,
            shown_path(used),
            shown_path(hidden),
        )

    def _same_name(self, path: Path, text: str, file: str) -> Sequence[Problem]:
        """A warning if another file of the same directory has a workflow of the same name."""
        name = self._name(path)
        for folder in self._folders:
            known = [it for it in folder.files() if self._name(it) == name]
            others = [it for it in known if it.resolve() != path.resolve()]
            if others and len(others) < len(known):
                listed = ", ".join(map(shown_path, others))
                which = "this file" if known[-1] not in others else shown_path(known[-1])
                message = f"the name '{name}' is also used by {listed}: by this name, {which} runs"
                hint, place = "give one of them another name", place_of_name(text, file)
                return [Problem("name_collision", message, hint, place=place, warning=True)]
        return []

    def _read_all(self, text: str, file: str) -> Definition:
        try:
            return self._read(text, file)
        except DefinitionError as error:
            raise self._with_calls(error) from None

    def _with_calls(self, error: DefinitionError) -> DefinitionError:
        """The error of a definition, with the problems of its calls added."""
        if not isinstance(error.draft, Definition) or any(it.code in _HIDES_CALLS for it in error.problems):
            return DefinitionError(error.problems, name=error.name)
        try:
            self._bundle(error.draft)
        except DefinitionError as more:
            known = {(problem.place, problem.message) for problem in error.problems}
            added = [problem for problem in more.problems if (problem.place, problem.message) not in known]
            problems = sorted([*error.problems, *added], key=_by_place)
            return DefinitionError(problems, name=error.name)
        return DefinitionError(error.problems, name=error.name)

    def _definition_in(self, path: Path) -> Definition:
        path = path.absolute()
        stamp = stamp_of(path)
        is_allowed = self._reach.allows(path)
        found = self._memory.definition(path, stamp) if is_allowed else None
        if found is None:
            found = self._load(path)
            if stamp is not None and is_allowed:
                self._memory.keep(path, stamp, found)
        if not isinstance(found, DefinitionError):
            return found
        if path in self._checking:
            raise DefinitionError(found.problems, name=found.name)
        self._checking.add(path)
        try:
            raise self._with_calls(found)
        finally:
            self._checking.discard(path)

    def _summary(self, entry: Entry) -> WorkflowSummary | None:
        """The summary of a workflow; None for a file that has only tasks for other files."""
        try:
            facts = self._facts(entry.path)
        except DefinitionError as error:
            reason = f"cannot be run: {error.message}"
            tags, problems = self._tags_of_draft(entry.path), tuple(error.problems)
            return WorkflowSummary(
                entry.name, reason, "", entry.source, str(entry.path), tags, False, problems
            )
        description, dialect, tags, prompt, can_be_run, calls = facts
        if not can_be_run:
            return None
        if calls:
            try:
                self._bundle(self._definition_in(entry.path))
            except DefinitionError as error:
                reason = f"cannot be run: {error.message}"
                problems = tuple(error.problems)
                return WorkflowSummary(
                    entry.name, reason, "", entry.source, str(entry.path), tags, False, problems
                )
        return WorkflowSummary(entry.name, description, dialect, entry.source, str(entry.path), tags, prompt)

    def _tags_of_draft(self, path: Path) -> tuple[str, ...]:
        """The tags of a definition with problems, if they could be read."""
        found = self._memory.definition(path.absolute(), stamp_of(path))
        draft = found.draft if isinstance(found, DefinitionError) else None
        return draft.plan.tags if isinstance(draft, Definition) else ()

    def _facts(self, path: Path) -> Facts:
        remembered = self._memory.facts.get(path.absolute())
        if remembered is not None and remembered[0] == stamp_of(path):
            return remembered[1]
        return facts_of(self._definition_in(path).plan)

    def _name(self, path: Path) -> str | None:
        """The name of the workflow in a file, without parsing it; None if there is no file."""
        stamp = stamp_of(path)
        if stamp is None:
            return None
        remembered = self._memory.names.get(path)
        if remembered is not None and remembered[0] == stamp:
            return remembered[1]
        if not self._reach.allows(path):
            return path.stem
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
        except OSError:
            head = ""
        name = name_in(head) or path.stem
        self._memory.names[path] = (stamp, name)
        return name

    def _load(self, path: Path) -> Definition | DefinitionError:
        try:
            content = self._bytes_of(path)
            is_cut = len(content) > self._most_bytes  # the error is the size, not the effect of the cut
            errors = "replace" if is_cut else "strict"
            return self._read(content.decode("utf-8", errors), shown_path(path))
        except DefinitionError as error:
            return error
        except UnicodeDecodeError as error:
            problem = Problem(
                "encoding",
                f"the file is not UTF-8: byte {error.start} cannot be read",
                "save it as UTF-8",
                place=Place(shown_path(path), 1, 1),
            )
        except OSError as error:
            if error.strerror == _OUT_OF_REACH:
                place = Place(shown_path(path), 1, 1)
                return DefinitionError(
                    [Problem("forbidden", _OUT_OF_REACH, HINT, place=place)], name=path.stem
                )
            problem = Problem(
                "unreadable",
                f"the file cannot be read: {error.strerror}",
                "check that it exists and may be read",
                place=Place(shown_path(path), 1, 1),
            )
        return DefinitionError([problem], name=path.stem)


def _to_run(definition: Definition) -> Definition:
    """Returns the definition; raises RequestError if it has nothing to run."""
    if definition.plan.body.nodes:
        return definition
    raise RequestError(
        f"'{definition.plan.name}' has no steps: it has tasks for workflows that import it",
        hint=f"start a workflow with the line imports: [{definition.plan.file}]",
    )


def _by_place(problem: Problem) -> tuple[bool, str, int, int]:
    place, is_warning = problem.place, problem.warning
    return (is_warning, place.file, place.line, place.column) if place is not None else (is_warning, "", 0, 0)


def builtin_directory() -> Path:
    """The directory of the workflows that are part of the package."""
    return Path(__file__).parent / "templates"


def shown_path(path: Path) -> str:
    """A path for display: relative if it is below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _searched(summary: WorkflowSummary) -> str:
    return f"{summary.name} {summary.description} {' '.join(summary.tags)}".lower()
