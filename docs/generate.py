"""Pages that MkDocs makes of the code, and files of the checkout that pages link to. A hook of ``mkdocs.yml``."""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the pages are about this checkout, not about a package that is installed

#: Outside of docs/, and linked from there.
_LISTS = (ROOT / "tests" / "workflow" / "features_of_row.md", ROOT / "tests" / "runtime" / "statements.md")

_HEAD = "<!-- made of the code by docs/generate.py -->\n\n"

#: What no option says of a key of a recipe.
_KEYS = {
    "action": "an action: `[[action]]`",
    "default.action": "keys of all actions",
    "default": "`[default.action]`: keys that all actions have",
    "workspace": "where directories lie",
    "signatures": "names of ways to fail, each with regular expressions",
    "mitigation": "mitigations, as in a registry file",
    "environment": "environments, as in a registry file",
    "name": "name of the action",
    "from": "take the keys that are left out from this action",
    "previous_actions": "wait until these are complete",
    "command": "the command: of trials where a key of trials is given, else on directories",
    "products": "files that make a directory complete",
    "launchers": "what stands before the command, from `launchers.toml`",
    "each": "what a command works on",
    "cell_trials": "another number of trials for these cells",
    "axes": "a cell for each value of an option, or of `extra_env`",
    "distributed": "ranks of a trial",
    "expect": "`fail`: a trial passes when the failure is reproduced",
    "until_decided": "end when each verdict is clear",
    "stop_after": "end the trials of a cell with its N-th failure",
    "nodes": 'nodes of `each = "node"`, as of SLURM: `gpu[001-064]`',
    "every": "run all trials again once in this period",
    "resources": "what a job asks for",
    "group": "how directories or trials are chosen, sorted and split into jobs",
    "submit_options": "of each cluster, by its name",
    "retry": "how often `submit --watch` submits again what was lost",
    "path": "folder of the workspace",
    "value_file": "file of each directory with its value, as JSON",
    "include": "only directories that one of these conditions selects",
    "condition": "`[pointer, operator, value]`",
    "all": "a list of conditions that must all hold",
    "any": "a list of conditions; one must hold",
    "sort_by": "JSON pointers to sort by",
    "reverse_sort": "sort the other way round",
    "split_by_sort_key": "a group for each value of the keys",
    "maximum_size": "most units in a group",
    "submit_whole": "submit a group only as a whole",
    "processes": "number of processes",
    "threads_per_process": "cores of each process",
    "gpus_per_process": "GPUs of each process",
    "walltime": "time limit of a job: `hh:mm:ss`",
    "per_submission": "of a job",
    "per_directory": "for each directory of a job",
    "per_cpu_mb": "MB for each core",
    "per_gpu_mb": "MB for each GPU",
    "account": "account of the job",
    "setup": "shell text before the commands",
    "custom": "further lines for the scheduler",
    "partition": "partition of the job",
    "output_file_path": "folder of the job's output",
    "output_file_name": "name of the job's output",
    "infrastructure": "after a lost node or a preemption",
    "oom": "after too little memory",
    "times": "so many times",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {
        "commands": _commands(),
        "recipe-keys": _recipe_keys(),
        "record-schema": _record(),
        "matrix-schema": _matrix(),
        "collectors": _collectors(),
        "python": _python(),
    }
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=_HEAD + text))
    for path in [ROOT / "CONTRIBUTING.md", *_LISTS, *_examples()]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
        if path.suffix == ".md" and name not in str(config.nav):
            config.not_in_nav = _and(config.not_in_nav, name)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page that links out of docs/ finds the file below it in the site, and the other way round."""
    levels = page.file.src_uri.count("/")
    if page.file.src_uri.startswith(("examples/", "tests/", "CONTRIBUTING")):
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    return markdown.replace(f"]({'../' * (levels + 1)}", f"]({'../' * levels}")


def _and(spec: Any, name: str) -> Any:
    import pathspec

    return (spec or pathspec.gitignore.GitIgnoreSpec([])) + pathspec.gitignore.GitIgnoreSpec.from_lines([name])


def _examples() -> Iterator[Path]:
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if "__pycache__" not in path.parts:
            yield path


def _page(title: str, about: str) -> str:
    return f"# {title}\n\n{about}\n\n"


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    cells = [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows]
    return (
        "\n".join([head, "|---" * (head.count("|") - 1) + "|", *(f"| {' | '.join(row)} |" for row in cells)]) + "\n\n"
    )


def _commands() -> str:
    import click

    from pytest_aorta.cli.main import main

    about = "What `pytest-aorta COMMAND --help` says of each. Pytest's options are in [a table](options.md)."
    text = _page("Commands", about)

    def add(command: click.Command, name: str, parent: click.Context | None) -> None:
        nonlocal text
        context = click.Context(command, parent=parent, info_name=name, max_content_width=90, terminal_width=90)
        text += f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n\n"
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                found = command.get_command(context, each)
                if found is not None and not found.hidden:
                    add(found, each, context)

    add(main, "pytest-aorta", None)
    return text


def _recipe_keys() -> str:
    from pydantic import BaseModel

    from pytest_aorta.settings import SETTINGS
    from pytest_aorta.workflow.recipe import RecipeTable

    of_options = {setting.name.replace("-", "_"): setting for setting in SETTINGS}
    about = "All keys may be left out. An unknown one is an error. [Recipes](../guides/recipes.md) has examples."
    text = _page("Keys of a recipe", about)
    seen: set[type[BaseModel]] = set()
    wanted: list[tuple[str, type[BaseModel]]] = [("", RecipeTable)]
    while wanted:
        place, model = wanted.pop(0)
        if model in seen:
            continue
        seen.add(model)
        rows = []
        for field_name, field in model.model_fields.items():
            name = field.alias or field_name
            inner = [it for it in _within(field.annotation) if isinstance(it, type) and issubclass(it, BaseModel)]
            wanted += [(f"{place}.{name}".lstrip("."), it) for it in inner]
            option = of_options.get(name) or of_options.get(name.removesuffix("s"))
            meaning = _KEYS.get(f"{place}.{name}", _KEYS.get(name, option.help if option else ""))
            assert meaning, f"{place}.{name} needs a meaning in _KEYS"
            assert meaning or model is not RecipeTable, name
            default = field.get_default(call_default_factory=True)
            shown = "" if isinstance(default, BaseModel) or default in (None, (), {}) else f"`{_toml(default)}`"
            rows.append(
                (
                    f"`{name}`",
                    "list of text" if name == "vary" else _kind(field.annotation),
                    shown,
                    meaning.replace(" (repeat)", ""),
                )
            )
        title = f"`{place}`" if place else "The file"
        text += f"## {title}\n\n" + _table("| key | takes | default | |", iter(rows))
    return text


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, default=str)


def _within(kind: Any) -> Iterator[Any]:
    yield kind
    for each in typing.get_args(kind):
        yield from _within(each)


def _kind(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(each) for each in arguments if each is not types.NoneType))
    if origin is tuple:
        inner = _kind(arguments[0])
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    if origin is not None:
        return "table"
    names = {str: "text", int: "number", float: "number", bool: "true or false", Path: "path", Any: "any"}
    found = names.get(kind)
    if found:
        return found
    return (
        "table"
        if hasattr(kind, "model_fields")
        else {"timedelta": "duration"}.get(getattr(kind, "__name__", ""), "text")
    )


def _record() -> str:
    schema = json.loads((ROOT / "pytest_aorta" / "schemas" / "trial_result.schema.json").read_text())
    about = (
        "The JSON Schema of a trial file, `schemas/trial_result.schema.json` in the package, key by key;"
        " [results](results.md) explains it."
    )
    text = _page("Schema of a record", about)
    for name, part in [("The record", schema), *sorted(schema["$defs"].items())]:
        about = re.sub(r"``(.*?)``", r"`\1`", part.get("description", "").partition("\n\n")[0])
        always = set(part.get("required", ()))
        keys = part.get("properties", {}).items()
        rows = ((f"`{key}`", _json_kind(value), "" if key in always else "may be missing") for key, value in keys)
        text += f"## {name}\n\n{about}\n\n" + _table("| key | type | |", rows)
    return text


def _json_kind(part: dict[str, Any]) -> str:
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_json_kind(each) for each in part["anyOf"]))
    if "enum" in part:
        return ", ".join(f"`{each}`" for each in part["enum"])
    if part.get("type") == "array":
        return f"list of {_json_kind(part.get('items', {}))}"
    if part.get("type") == "object" and isinstance(part.get("additionalProperties"), dict):
        return f"object of {_json_kind(part['additionalProperties'])}"
    return str(part.get("const", part.get("type", "any")))


def _matrix() -> str:
    from pytest_aorta.triage import TriageSettings
    from pytest_aorta.triage.columns import COLUMNS, MEANINGS
    from pytest_aorta.triage.matrix import SCHEMA_VERSION, RunState, matrix_json
    from pytest_aorta.triage.verdicts import Triage

    head = json.loads(matrix_json(Triage(TriageSettings()).table(), RunState()))
    kinds = {str: "text", bool: "true or false", list: "list", dict: "object", type(None): "text or null"}
    about = "[The table](../guides/table.md) says what each key means; the schema is `schemas/matrix.schema.json`."
    text = _page(f"`matrix.json`, version {SCHEMA_VERSION}", about)
    text += "## The run\n\n" + _table(
        "| key | type |", ((f"`{key}`", kinds[type(value)]) for key, value in head.items())
    )
    columns = ((f"`{each.key}`", each.title, ", ".join(each.formats)) for each in COLUMNS if each.key)
    text += "## Each of `cells`\n\n" + _table("| key | column | shown to people in |", columns)
    words = ((f"`{kind}`", meaning) for kind, meaning in MEANINGS.items())
    return text + "## `verdict.kind`\n\n" + _table("| kind | the cell |", words)


def _collectors() -> str:
    from click.testing import CliRunner

    from pytest_aorta.cli.main import main

    listed = json.loads(CliRunner().invoke(main, ["list", "collectors", "--json"]).stdout)["collectors"]
    about = "Run trials with `--aorta-collect NAME:OPTION=VALUE,NAME`: [the guide](../guides/collectors.md)."
    text = _page("Collectors", about)
    for each in listed:
        text += f"## {each['name']}\n\n{each['summary'].replace('``', '`')}\n\n"
        options = ((f"`{name}`", f"`{_toml(it['default'])}`", it["help"]) for name, it in each["options"].items())
        text += _table("| option | default | |", options) if each["options"] else ""
    return text


def _python() -> str:
    import pytest_aorta

    text = "# Python\n\nWhat `from pytest_aorta import ...` gives; [options](options.md) has an example.\n\n"
    for name, home in sorted(pytest_aorta._HOMES.items(), key=lambda item: item[0].lower()):
        if name != "__version__":
            text += f"::: pytest_aorta.{home}.{name}\n\n"
    return text + "::: pytest_aorta.plugin.hookspecs\n    options:\n      show_root_toc_entry: true\n"
