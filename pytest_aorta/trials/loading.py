"""Loads the class of a workload, and describes it as plain data, with its options and source files."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_aorta.common import RequestError
from pytest_aorta.common.import_target import target_file
from pytest_aorta.probe.loaded import file_of, imported_since
from pytest_aorta.trials.execution import LAUNCHER_OWNED, TRIAL_DIR
from pytest_aorta.trials.records import canonical_json
from pytest_aorta.trials.workload import to_plain

if TYPE_CHECKING:
    from pytest_aorta.probe.loaded import ModuleCount

# The class


class WorkloadLoadError(Exception): ...


class ConfigError(RequestError):
    """An unknown option, a value that does not fit, or an invalid declaration of a workload."""


def load_class(target: str) -> type[Any]:
    """Import ``module:Class`` or ``/path/file.py:Class``.

    A file is imported under the name that a process started by it can import it by, too: ``multiprocessing`` with
    ``spawn`` or ``forkserver`` hands ``sys.path`` down, and names of modules in pickles.

    Raises:
        WorkloadLoadError: there is no such attribute, or it is no workload.
        Exception: any that the import raises.
    """
    where, _, qualname = target.rpartition(":")
    module, path = where, Path(where)
    if where.endswith(".py"):
        module, root = module_name(path)
        # As with `python file.py`, its neighbours can be imported.
        for folder in (str(path.parent), str(root)):
            if sys.path[:1] != [folder]:
                sys.path.insert(0, folder)
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if loaded is None and "." not in path.stem and path.is_file():
            importlib.invalidate_caches()
            file = getattr(importlib.util.find_spec(module), "origin", None)
        if file is None or not Path(file).exists() or not path.samefile(file):
            # Another module has the name. Descendants with an interpreter of their own cannot import this one.
            module = f"aorta_file_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
            if module not in sys.modules:
                spec = importlib.util.spec_from_file_location(module, path)
                if spec is None or spec.loader is None:
                    raise WorkloadLoadError(f"{path} cannot be loaded as Python")
                sys.modules[module] = importlib.util.module_from_spec(spec)
                try:
                    spec.loader.exec_module(sys.modules[module])
                except BaseException:
                    del sys.modules[module]
                    raise
    cls: Any = importlib.import_module(module)
    for part in qualname.split("."):
        cls = getattr(cls, part, None)
        if cls is None:
            raise WorkloadLoadError(f"{where} has no {qualname!r}")
    if not isinstance(cls, type):
        raise WorkloadLoadError(f"{target} is a {type(cls).__name__}, not a class")
    missing = []
    for method in ("setup", "run"):
        if not callable(getattr(cls, method, None)):
            missing.append(method)
    if missing:
        raise WorkloadLoadError(f"{target} is no workload: it has no {' and no '.join(missing)}()")
    return cls


def module_name(path: Path) -> tuple[str, Path]:
    """The dotted name of a file, and the folder that has to be on ``sys.path`` for it: above its outermost package."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


def set_arguments(target: str) -> None:
    """Give this process a ``sys.argv`` for the workload's ``argparse``, in place of the runner's arguments.

    It is as in a script in the workload's file without arguments. Imports the packages around a module; if the module
    cannot be found, its name stands for its file.
    """
    where = target.rpartition(":")[0]
    sys.argv = [where]  # for the packages around it
    if not where.endswith(".py"):
        with contextlib.suppress(Exception):  # the import of the workload will raise it again
            spec = importlib.util.find_spec(where)
            sys.argv = [spec.origin if spec is not None and spec.origin is not None else where]


@contextlib.contextmanager
def own_arguments(target: str) -> Iterator[None]:
    before = sys.argv
    try:
        set_arguments(target)
        yield
    finally:
        sys.argv = before


def describe(cls: type[Any], overrides: dict[str, Any], steps: int | None) -> dict[str, Any]:
    """What the host needs of a workload before its first trial: the fields of ``launch.environment.WorkloadInfo``.

    ``config_error`` is a message when the options, or what the class declares, do not fit, else ``None``.
    """
    description: dict[str, Any] = {"config": {}, "config_warnings": [], "data_files": {}, "startup_variables": {}}
    description |= {"result_scope": "global", "config_error": None}
    own: dict[str, Any] = {}
    try:
        resolved = resolve_config(cls, overrides, steps)
        description |= {"config": resolved.plain, "config_warnings": list(resolved.warnings)}
        description["data_files"] = data_files(cls, resolved.value)
        own = cls.aorta_description(resolved.value) if hasattr(cls, "aorta_description") else {}
        description["result_scope"] = result_scope(cls)
        options = resolved.value if isinstance(resolved.value, dict) else resolved.plain
        description["startup_variables"] = startup_variables(cls, options)
    except ConfigError as error:
        description["config_error"] = str(error)
    root = source_root(cls)
    return {
        "launch_mode": getattr(cls, "launch_mode", "single_process"),
        "min_world_size": int(getattr(cls, "min_world_size", 1)),
        "timeout_sec": getattr(cls, "timeout_sec", None),
        "source": getattr(sys.modules.get(cls.__module__), "__file__", None),
        "source_root": None if root is None else str(root),
        "sources": sources(list(sys.modules), root, cls.__module__),
        # AORTA's way to say that a workload must not run in the process of its runner.
        "requires_process": bool(getattr(cls, "trial_isolation_required", False))
        and getattr(cls, "trial_isolation_default", "in_process") == "process",
        **description,
        **own,
    }


# Files that decide what it does

#: Bytes of a file that are read for its digest; of a larger one, size and time of modification stand for them.
READ_AT_MOST = 64 * 2**20

#: Folders of what is installed, known by name and version.
INSTALLED = ("site-packages", "dist-packages")

_INSTALLED = re.compile(rf"/(?:{'|'.join(INSTALLED)})/")

#: Folders in which torch and Triton keep what they have compiled.
_COMPILED = re.compile(r"/(?:torchinductor_|\.triton|torch_extensions|inductor_cache)")

_STDLIB = f"{os.path.dirname(os.__file__)}{os.sep}"
_OWN = f"{Path(__file__).parents[1]}{os.sep}"


def source_root(cls: type[Any]) -> Path | None:
    """The folder of a class's package, or of its module; ``None`` where it has no file."""
    own = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if own is None:
        return None
    top, dot, _ = cls.__module__.partition(".")
    package = getattr(sys.modules.get(top), "__file__", None) if dot else None
    return Path(package or own).parent.resolve()


def imported_later(cls: type[Any], before: ModuleCount | None, known: Mapping[str, str]) -> dict[str, str]:
    """``sources`` of the modules imported since ``before``, or of all, without those that are ``known``."""
    names = None if before is None else imported_since(before)
    if names == []:
        return {}
    imported = sources(list(sys.modules) if names is None else names, source_root(cls))
    return {path: digest for path, digest in imported.items() if path not in known}


#: Files that say nothing of a workload's data: modules, and what belongs to a repository or an installation.
_NO_DATA = re.compile(r"\.(?:py|pyc|so|pth|log)\Z|/(?:\.git|__pycache__|site-packages|dist-packages)/")

#: Files that are noted, and bytes of them that may be read for their digests.
_MOST_FILES, _MOST_BYTES = 1000, 2**26


class ReadBelow:
    """The files below some folders that this process opens, and only reads, from now on.

    ``root`` is the folder of the workload. Not those that native code opens by itself, or other processes.
    """

    def __init__(self, root: Path | None, *more: Path) -> None:
        self._root = "" if root is None else f"{root}{os.sep}"
        folders = [*more, *([] if root is None else [root])]
        self._folders = tuple({f"{os.path.abspath(folder)}{os.sep}" for folder in folders} - {os.sep * 2})
        self._read: dict[str, None] = {}
        self._written: set[str] = set()
        self._is_over = False
        sys.addaudithook(self._note)  # for good

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._is_over:
            return
        try:
            path, flags = os.path.abspath(os.fsdecode(arguments[0])), arguments[2] or 0
            if not path.startswith(self._folders) or _NO_DATA.search(path) or len(self._read) >= _MOST_FILES:
                return
            if flags & (os.O_WRONLY | os.O_RDWR):
                self._written.add(path)
            else:
                self._read[path] = None
        except Exception:  # what is raised here would be raised by the workload's own call
            return

    def paths(self) -> list[str]:
        """Relative to the ``root`` in it, else absolute; nothing is noted any more."""
        self._is_over = True
        found: list[str] = []
        left = _MOST_BYTES
        for path in self._read:
            if path in self._written or not os.path.isfile(path):
                continue
            left -= min(os.path.getsize(path), READ_AT_MOST)
            if left < 0:
                break
            found.append(path.removeprefix(self._root))
        return found


def digest_once(path: Path) -> str | None:
    """``file_digest``, which reads a file again only when its size or its time has changed: many trials read one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _digest_of(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=10_000)
def _digest_of(path: Path, *identity: int) -> str | None:
    return file_digest(path)


def sources(names: Iterable[str], root: Path | None, own: str = "") -> dict[str, str]:
    """Digests of the source files of those modules ``names`` that no installed distribution provides.

    The module ``own`` is always included. Keys are paths: relative to the folder ``root`` in it, else absolute.
    """
    inside = None if root is None or root.name in INSTALLED else f"{root}{os.sep}"
    files: set[str] = set()
    for name in names:
        if name != own and (name == "__main__" or name.partition(".")[0] in sys.stdlib_module_names):
            continue
        file = file_of(sys.modules.get(name))
        if file is None or "\0" in file:
            continue
        if inside is not None and file.startswith(inside):
            # A virtual environment may lie below a workload's folder; what is installed there is not its source.
            is_known = _INSTALLED.search(file, len(inside) - 1) is not None
        else:
            is_known = file.startswith((_OWN, _STDLIB)) or bool(_INSTALLED.search(file) or _COMPILED.search(file))
        if name == own or not is_known:
            files.add(os.path.realpath(file))
    digests: dict[str, str] = {}
    for file in sorted(files):
        if (digest := file_digest(Path(file))) is not None:
            digests[file.removeprefix(inside or "")] = digest
    return digests


def file_digest(path: Path) -> str | None:
    """16 hexadecimal digits of a file's content, or of all files below a folder; ``None`` when it is not there.

    For a file of more than ``READ_AT_MOST`` bytes, size and time of modification as text. For a larger folder, the
    digest of the sizes and times of its files.
    """
    try:
        status = path.stat()
        is_folder = stat.S_ISDIR(status.st_mode)
        if not is_folder and not stat.S_ISREG(status.st_mode):
            return None
        files, size = {path: status}, status.st_size
        if is_folder:
            files = {file: file.stat() for file in sorted(path.rglob("*")) if file.is_file()}
            size = sum(status.st_size for status in files.values())
        lines = []
        for each, status in files.items():
            text = f"{status.st_size} bytes of {status.st_mtime_ns}"
            if size <= READ_AT_MOST:
                text = hashlib.sha256(each.read_bytes()).hexdigest()[:16]
            if not is_folder:
                return text
            lines.append(f"{each.relative_to(path)}\0{text}\n")
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    except OSError:
        return None


def data_files(cls: type[Any], config: Any) -> dict[str, str | None]:
    """Digests of the files and folders that a workload declares as ``data_files``, by the paths that it declares.

    ``config`` is what the constructor would get. A relative path is one in the working directory, as for ``open``, or
    else one beside the workload's file.

    Raises:
        TypeError: what is declared are no paths.
    """
    declared: Any = getattr(cls, "data_files", ())
    if callable(declared):
        declared = declared(config)
    paths = [declared] if isinstance(declared, str | os.PathLike) else declared
    digests: dict[str, str | None] = {}
    root = source_root(cls) or Path()
    for path in paths if isinstance(paths, list | tuple) else (None,):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(
                f"data_files of {cls.__qualname__} is {declared!r}; expected a list of paths, or a class method that "
                "takes the options and returns one"
            )
        digests[os.fspath(path)] = file_digest(Path(path)) or file_digest(root / path)
    return digests


# What AORTA's base class declares beyond ours, and the options that its runner adds to a workload's own.
#
# Here every trial has a process of its own, unless isolation is switched off. So a workload that supports AORTA's
# trial isolation ``process`` finds what it finds in AORTA's isolated worker, and any other one what ``in_process``
# offers.

TrialIsolation = Literal["process", "in_process"]

#: Beginning of the names of options that the runner adds.
RESERVED = "_aorta_"

#: Group of entry points: a workload's name to a function of its options.
STARTUP_GROUP = "aorta.workload_startup_env"

_SCOPES = ("global", "rank_local")

_DECLARATIONS = {
    "distributed_result_scope",
    "isolated_distributed_backend",
    "isolated_startup_env",
    "trial_isolation_default",
    "trial_isolation_required",
    "trial_isolation_supported",
}


def is_aorta_workload(cls: type[Any]) -> bool:
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "aorta":
            return True
    return not _DECLARATIONS.isdisjoint(dir(cls))


def result_scope(cls: type[Any]) -> str:
    """``rank_local`` when a workload declares so, in our words (``result_scope``) or in AORTA's; else ``global``.

    Raises:
        ConfigError: it is neither.
    """
    scope_so_far = "global"
    for name in ("result_scope", "distributed_result_scope"):
        scope = getattr(cls, name, "global")
        if scope not in _SCOPES:
            raise ConfigError(f"{cls.__name__}.{name} is {scope!r}; valid: {', '.join(_SCOPES)}")
        scope_so_far = scope if scope != "global" else scope_so_far
    return scope_so_far


def startup_variables(cls: type[Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a workload wants to have before its process starts, unless they are set already.

    They are what its entry point of the group ``aorta.workload_startup_env`` returns, else ``isolated_startup_env()``.

    Raises:
        ConfigError: they are no texts, or belong to the launcher of the ranks.
    """
    name, declared = f"{cls.__name__}.isolated_startup_env()", getattr(cls, "isolated_startup_env", None)
    if is_aorta_workload(cls):
        from importlib.metadata import entry_points

        target = f"{cls.__module__}:{cls.__qualname__}"
        names = {entry.name for entry in entry_points(group="aorta.workloads") if entry.value == target}
        for entry in entry_points(group=STARTUP_GROUP):
            if entry.name in names:
                name, declared = f"{STARTUP_GROUP}: {entry.name} = {entry.value}", entry.load()
    if declared is None:
        return {}
    variables = declared(dict(options))
    if not isinstance(variables, dict) or not all(isinstance(it, str) for pair in variables.items() for it in pair):
        raise ConfigError(f"{name} has to return a dict of texts")
    owned = [each for each in variables if LAUNCHER_OWNED.fullmatch(each)]
    if owned:
        raise ConfigError(f"{name}: {owned[0]} is set by the launcher of the ranks")
    return variables


def with_added(
    value: Any,
    cls: type[Any],
    isolation: TrialIsolation,
    trial_id: str,
    environment: dict[str, Any],
    overlay: Iterable[str],
    collect: list[str],
) -> Any:
    """Options with what AORTA's runner adds, in the process of a trial; ``overlay`` are the names of its variables.

    For AORTA's classes: others would find options that they do not know in ``Model(**config)``.
    """
    if not isinstance(value, dict) or not is_aorta_workload(cls):  # a typed Config has no place for them
        return value
    variables: dict[str, str] = {}
    own: dict[str, str] = {}
    for name in overlay:
        if name in os.environ:
            variables[name] = os.environ[name]
            if name in environment["env"]:
                own[name] = os.environ[name]
    added: dict[str, Any] = {
        "_aorta_environment": {**environment, "env": own},
        "_aorta_trial_env": variables,
        "_aorta_trial_isolation": isolation,
    }
    if collect:
        added["_aorta_collect"] = collect
    folder = os.environ.get(TRIAL_DIR)
    if folder is not None and os.environ.get("RANK", "0") == "0":
        stem = os.path.join(folder, "_".join(["trial", *trial_id.rsplit("_", 3)[1:]]))
        added |= {"_aorta_save_logs": True, "_aorta_log_prefix": stem}
        if collect:
            added["_aorta_collect_dir"] = stem
    return {**value, **added}


# Options: as declared, as given, and as its constructor gets them


@dataclass(frozen=True)
class Config:
    """``value`` goes to the constructor, ``plain`` into the record; ``warnings`` name options without effect."""

    value: Any
    plain: dict[str, Any]
    warnings: tuple[str, ...] = ()


def resolve_config(cls: type[Any], overrides: Mapping[str, Any], steps: int | None) -> Config:
    """Merge defaults, overrides and ``steps``.

    With a nested pydantic ``Config``, values are validated (text is read as the field's type) and unknown keys refused.
    Without one, the class's ``default_config`` is overlaid, and text that is JSON is read as JSON; an option that is
    not in there is a warning.

    Raises:
        ConfigError: naming the option, its value, and what would be valid.
    """
    given = dict(overrides)
    if steps is not None:
        given["steps"] = steps
    for key in given:
        if str(key).startswith(RESERVED):
            raise ConfigError(
                f"{cls.__name__}: the option {key!r} cannot be given: the runner adds what starts with {RESERVED}"
            )
    model = getattr(cls, "Config", None)
    if isinstance(model, type) and hasattr(model, "model_validate"):
        return _validated(cls, model, given)
    declared = getattr(cls, "default_config", None)
    if declared is not None and not isinstance(declared, Mapping):
        raise ConfigError(f"{cls.__name__}.default_config has to be a dict, and is a {type(declared).__name__}")
    default = dict(declared or {})
    merged, warnings = dict(default), []
    for key, value in given.items():
        merged[key] = _guess(value)
        if key not in default and declared is not None:
            import difflib

            nearest = difflib.get_close_matches(str(key), map(str, default), 1)
            known = f"known: {', '.join(sorted(map(str, default))) or 'none'}"
            hint = f"did you mean {nearest[0]!r}?" if nearest else known
            warnings.append(f"{cls.__name__}.default_config has no option {key!r} ({hint}); it may have no effect")
    return Config(merged, to_plain(merged), tuple(warnings))


def _validated(cls: type[Any], model: Any, given: dict[str, Any]) -> Config:
    from pydantic import ValidationError

    valid = {field.alias or name: field for name, field in model.model_fields.items()}
    unknown = [key for key in given if key not in valid and key not in model.model_fields]
    if model.model_config.get("extra") != "allow":
        _refuse_unknown(cls.__name__, unknown, valid)
    guessed = {key: _guess(value) for key, value in given.items()}
    try:
        try:
            value = model.model_validate(given)
        except ValidationError as error:
            try:
                value = model.model_validate(guessed)
            except ValidationError:
                raise error from None
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, item['loc'])) or 'config'}={item['input']!r}: {item['msg']}" for item in error.errors()
        ]
        raise ConfigError(f"{cls.__name__}: " + "; ".join(lines)) from error
    try:
        plain = value.model_dump(mode="json")
    except Exception:  # an option that pydantic cannot write, such as a torch.dtype
        plain = dict(value)
    return Config(value, to_plain(plain))


def _refuse_unknown(cls: str, unknown: Sequence[str], valid: Collection[str]) -> None:
    if unknown:
        raise ConfigError(
            f"{cls} has no option {', '.join(map(repr, unknown))}; valid: {', '.join(sorted(valid)) or 'none'}"
        )


def check_names(target: str, given: Collection[str]) -> None:
    """Refuse options that a workload does not have, where its source says so: to import it may take long.

    Raises:
        ConfigError: as ``resolve_config``.
    """
    if (valid := _fields_in_source(target)) is not None:
        _refuse_unknown(target.rpartition(":")[2], [key for key in given if key not in valid], valid)


def _fields_in_source(target: str) -> set[str] | None:
    """Fields of the nested ``Config(BaseModel)``; ``None`` if the source does not show them."""
    module, _, name = target.rpartition(":")
    file = target_file(target) if module else None
    try:
        cls_node: ast.AST | None = None if file is None else ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for each in (name, "Config"):
        body = getattr(cls_node, "body", [])
        cls_node = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == each), None)
    if not isinstance(cls_node, ast.ClassDef) or [*map(ast.unparse, cls_node.bases)] not in (
        ["BaseModel"],
        ["pydantic.BaseModel"],
    ):
        return None
    if re.search(r"\b(alias\w*|allow|populate_by_name)\b", ast.unparse(cls_node)):
        return None
    fields = (node.target for node in cls_node.body if isinstance(node, ast.AnnAssign))
    return {field.id for field in fields if isinstance(field, ast.Name)}


def _guess(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):  # the latter of a text with thousands of brackets
        return {"true": True, "false": False, "none": None}.get(value.lower(), value)


@dataclass(frozen=True)
class DeclaredOption:
    name: str
    takes: str
    default: str | None
    help: str


def declared_options(cls: type[Any]) -> list[DeclaredOption]:
    """Options of a nested pydantic ``Config``, else of ``default_config``; empty without either."""
    model = getattr(cls, "Config", None)
    entries = []
    if not (isinstance(model, type) and hasattr(model, "model_validate")):
        declared = getattr(cls, "default_config", None)
        for key, value in declared.items() if isinstance(declared, Mapping) else ():
            takes = "anything" if value is None else type(value).__name__
            entries.append(DeclaredOption(str(key), takes, canonical_json(to_plain(value)), ""))
        return entries
    from annotated_types import BaseMetadata  # pydantic's own

    options: Any = model
    for name, field in options.model_fields.items():
        bounds = (str(each).partition("(")[2][:-1] for each in field.metadata if isinstance(each, BaseMetadata))
        takes = ", ".join([inspect.formatannotation(field.annotation), *bounds])
        default = field.get_default(call_default_factory=True)
        shown = None if field.is_required() else canonical_json(to_plain(default))
        entries.append(DeclaredOption(field.alias or name, takes, shown, field.description or ""))
    return entries
