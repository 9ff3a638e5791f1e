"""Options of a workload: as declared, as given, and as its constructor gets them."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from pytest_aorta.common.import_target import target_file
from pytest_aorta.settings import RequestError
from pytest_aorta.trials.conversion import to_plain
from pytest_aorta.trials.execution import LAUNCHER_OWNED, TRIAL_DIR

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

_DECLARATIONS = (
    "distributed_result_scope",
    "isolated_distributed_backend",
    "isolated_startup_env",
    "trial_isolation_default",
    "trial_isolation_required",
    "trial_isolation_supported",
)


class DeclarationError(ValueError):
    """A workload declares something that AORTA does not know either."""


def is_aorta_workload(cls: type[Any]) -> bool:
    from_aorta = any(base.__module__.partition(".")[0] == "aorta" for base in cls.__mro__)
    return from_aorta or any(hasattr(cls, name) for name in _DECLARATIONS)


def supports_process(cls: type[Any]) -> bool:
    """Whether a workload supports AORTA's trial isolation ``process``."""
    return "process" in getattr(cls, "trial_isolation_supported", ())


def requires_process(cls: type[Any]) -> bool:
    """Whether a workload must not run in the process of its runner."""
    default = getattr(cls, "trial_isolation_default", "in_process")
    return bool(getattr(cls, "trial_isolation_required", False)) and default == "process"


def result_scope(cls: type[Any]) -> str:
    """``rank_local`` when a workload declares so, in our words (``result_scope``) or in AORTA's; else ``global``.

    Raises:
        DeclarationError: it is neither.
    """
    found = "global"
    for name in ("result_scope", "distributed_result_scope"):
        scope = getattr(cls, name, "global")
        if scope not in _SCOPES:
            raise DeclarationError(f"{cls.__name__}.{name} is {scope!r}; valid: {', '.join(_SCOPES)}")
        found = scope if scope != "global" else found
    return found


def startup_variables(cls: type[Any], options: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a workload wants to have before its process starts, unless they are set already.

    They are what its entry point of the group ``aorta.workload_startup_env`` returns, else ``isolated_startup_env()``.

    Raises:
        DeclarationError: they are no texts, or belong to the launcher of the ranks.
    """
    name, declared = f"{cls.__name__}.isolated_startup_env()", getattr(cls, "isolated_startup_env", None)
    for entry in _startup_entries(cls) if is_aorta_workload(cls) else ():
        name, declared = f"{STARTUP_GROUP}: {entry.name} = {entry.value}", entry.load()
    found = {} if declared is None else declared(dict(options))
    if not isinstance(found, dict) or not all(isinstance(it, str) for pair in found.items() for it in pair):
        raise DeclarationError(f"{name} has to return a dict of texts")
    owned = [each for each in found if LAUNCHER_OWNED.fullmatch(each)]
    if owned:
        raise DeclarationError(f"{name}: {owned[0]} is set by the launcher of the ranks")
    return found


def _startup_entries(cls: type[Any]) -> Iterator[EntryPoint]:
    target = f"{cls.__module__}:{cls.__qualname__}"
    names = {entry.name for entry in entry_points(group="aorta.workloads") if entry.value == target}
    yield from (entry for entry in entry_points(group=STARTUP_GROUP) if entry.name in names)


def added_options(
    trial_id: str, environment: dict[str, Any], overlay: Iterable[str], collect: list[str], isolation: TrialIsolation
) -> dict[str, Any]:
    """What AORTA's runner adds, in the process of a trial; ``overlay`` are the names of its variables."""
    variables = {name: os.environ[name] for name in overlay if name in os.environ}
    own = {name: variables[name] for name in environment["env"] if name in variables}
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
    return added


class Options(dict[str, Any]):
    """Options of a workload. What AORTA's runner adds can be looked up in it, but is not listed.

    So ``Model(**config)`` gets the options alone, and ``config["_aorta_trial_env"]`` is there.
    """

    def __init__(self, options: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._added = added

    def __missing__(self, key: str) -> Any:
        return self._added[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._added

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an option, or of what was added."""
        return super().get(key, self._added.get(key, default))


def with_added(cls: type[Any], value: Any, added: Mapping[str, Any]) -> Any:
    """What the constructor of a workload receives; ``value`` are its options."""
    if not isinstance(value, dict):
        return value  # a typed Config has no place for them
    return {**value, **added} if is_aorta_workload(cls) else Options(value, added)


class ConfigError(RequestError):
    """An option that the workload does not have, or a value that does not fit."""


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
    reserved = [key for key in given if str(key).startswith(RESERVED)]
    if reserved:
        raise ConfigError(
            f"{cls.__name__}: the option {reserved[0]!r} cannot be given: the runner adds what starts with {RESERVED}"
        )
    model = getattr(cls, "Config", None)
    if isinstance(model, type) and hasattr(model, "model_validate"):
        return _validated(cls, model, given)
    declared = getattr(cls, "default_config", None)
    if declared is not None and not isinstance(declared, Mapping):
        raise ConfigError(f"{cls.__name__}.default_config has to be a dict, and is a {type(declared).__name__}")
    default = dict(declared or {})
    merged = {**default, **{key: _guess(value) for key, value in given.items()}}
    unknown = [] if declared is None else [key for key in given if key not in default]
    return Config(merged, to_plain(merged), tuple(_unknown(cls, key, default) for key in unknown))


def _unknown(cls: type[Any], key: str, known: Collection[str]) -> str:
    return f"{cls.__name__}.default_config has no option {key!r}{_nearest(key, known)}; it may have no effect"


def _nearest(key: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(str(key), map(str, known), 1)
    if nearest:
        return f" (did you mean {nearest[0]!r}?)"
    return f" (known: {', '.join(sorted(map(str, known))) or 'none'})"


def _validated(cls: type[Any], model: Any, given: dict[str, Any]) -> Config:
    from pydantic import ValidationError

    valid = {field.alias or name: field for name, field in model.model_fields.items()}
    unknown = [key for key in given if key not in valid and key not in model.model_fields]
    if unknown and model.model_config.get("extra") != "allow":
        raise _no_option(cls.__name__, unknown, valid)
    try:
        value = _validate(model, given)
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


def _no_option(cls: str, unknown: Iterable[str], valid: Collection[str]) -> ConfigError:
    return ConfigError(
        f"{cls} has no option {', '.join(map(repr, unknown))}; valid: {', '.join(sorted(valid)) or 'none'}"
    )


def check_names(target: str, given: Collection[str]) -> None:
    """Refuse options that a workload does not have, where its source says so: to import it may take long.

    Raises:
        ConfigError: as ``resolve_config``.
    """
    valid = _fields_in_source(target) if given else None
    unknown = [key for key in given if valid is not None and key not in valid]
    if valid is not None and unknown:
        raise _no_option(target.rpartition(":")[2], unknown, valid)


def _fields_in_source(target: str) -> set[str] | None:
    """Fields of the nested ``Config(BaseModel)``; ``None`` where the source does not say."""
    module, _, name = target.rpartition(":")
    file = target_file(target) if module else None
    try:
        found: ast.AST | None = None if file is None else ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    for each in (name, "Config"):
        body = getattr(found, "body", [])
        found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == each), None)
    if not isinstance(found, ast.ClassDef) or [*map(ast.unparse, found.bases)] not in (
        ["BaseModel"],
        ["pydantic.BaseModel"],
    ):
        return None
    if re.search(r"\b(alias\w*|allow|populate_by_name)\b", ast.unparse(found)):
        return None
    fields = (node.target for node in found.body if isinstance(node, ast.AnnAssign))
    return {field.id for field in fields if isinstance(field, ast.Name)}


def _validate(model: Any, given: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return model.model_validate(given)
    except ValidationError:
        guessed = {key: _guess(value) for key, value in given.items()}
        if guessed == given:
            raise
        try:
            return model.model_validate(guessed)
        except ValidationError:
            pass
        raise


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
    """Those of a nested pydantic ``Config``, else of ``default_config``; none where neither is there."""
    model = getattr(cls, "Config", None)
    if isinstance(model, type) and hasattr(model, "model_validate"):
        return _of_model(model)
    declared = getattr(cls, "default_config", None)
    found = declared if isinstance(declared, Mapping) else {}
    return [DeclaredOption(str(key), _type_name(value), _json(value), "") for key, value in found.items()]


def _of_model(model: Any) -> list[DeclaredOption]:
    from annotated_types import BaseMetadata  # pydantic's own

    found = []
    for name, field in model.model_fields.items():
        bounds = (str(each).partition("(")[2][:-1] for each in field.metadata if isinstance(each, BaseMetadata))
        takes = ", ".join([inspect.formatannotation(field.annotation), *bounds])
        default = None if field.is_required() else _json(field.get_default(call_default_factory=True))
        found.append(DeclaredOption(field.alias or name, takes, default, field.description or ""))
    return found


def _type_name(value: Any) -> str:
    return "anything" if value is None else type(value).__name__


def _json(value: Any) -> str:
    from pytest_aorta.trials.conversion import to_plain
    from pytest_aorta.trials.records import canonical_json

    return canonical_json(to_plain(value))
