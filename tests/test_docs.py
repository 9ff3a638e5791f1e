"""The documentation's examples run, its commands are such, and its lists are complete."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest
from support.settings_table import written
from support.stage import Stage

from pytest_aorta import WorkloadResult
from pytest_aorta.cli.main import main
from pytest_aorta.plugin.ordinary_tests import RunTrial
from pytest_aorta.settings import SETTINGS

DOCS = Path(__file__).parents[1] / "docs"

FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for tag, text in fenced if tag == language]


def test_the_table_of_settings_is_current() -> None:
    page = (DOCS / "reference" / "options.md").read_text()
    assert written(page) == page, "python tests/support/settings_table.py docs/reference/options.md"


def test_every_field_of_a_result_and_every_keyword_of_aorta_run_has_a_row() -> None:
    page = (DOCS / "guides" / "workloads.md").read_text()
    rows = [re.findall(r"`(\w+)`", cells) for cells in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)]
    named = {name for row in rows for name in row}
    parameters = inspect.signature(RunTrial.__call__).parameters.values()
    keywords = {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert named >= {field.name for field in dataclasses.fields(WorkloadResult)} | keywords


@pytest.mark.slow
def test_the_examples_of_workloads_run(pytester: pytest.Pytester) -> None:
    for block in [*blocks("guides/workloads.md", "python"), *blocks("guides/flaky-tests.md", "python")]:
        name = block.splitlines()[0].removeprefix("# ")
        (pytester.path / name).write_text(block)
    (command,) = blocks("guides/workloads.md", "")
    result = pytester.runpytest_subprocess(*shlex.split(command)[1:])
    result.assert_outcomes(passed=4)
    result = pytester.runpytest_subprocess("my_ranks.py", "test_repro.py", "test_train.py", "test_order.py")
    result.assert_outcomes(passed=7 + 4)


@pytest.mark.slow
def test_the_example_of_run_trials_runs(pytester: pytest.Pytester) -> None:
    (block,) = blocks("reference/options.md", "python")
    (pytester.path / "script.py").write_text(block)
    result = pytester.run(sys.executable, "script.py")
    said = block.partition("    # ")[2].partition("\n")[0]
    assert result.outlines == ["none ['ok', 'ok']", "tf32_off ['ok', 'ok']", said]


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.slow
def test_the_example_of_two_runs_is_compared_as_shown(stage: Stage) -> None:
    (workload,) = blocks("guides/compare.md", "python")
    commands, shown = blocks("guides/compare.md", "")[1], blocks("guides/compare.md", "text")[0]
    stage.write(flaky=workload)
    script = commands.replace("pytest-aorta", f"{sys.executable} -m pytest_aorta")
    script = re.sub("^pytest ", f"{sys.executable} -m pytest -q ", script, flags=re.MULTILINE)
    result = stage.command("bash", "-c", script)
    assert result.ret == 1
    said = "\n".join(result.outlines).partition("A  before")[2]
    expected = shown.partition("A  before")[2]
    when_and_where = r"  \d{4}-\d\d-\d\d \d\d:\d\d  .*"
    assert (
        re.sub(when_and_where, "", f"{said}\n" + "\n".join(result.errlines)).strip()
        == re.sub(when_and_where, "", expected).strip()
    )


@pytest.mark.slow
def test_the_example_of_the_runtime_runs(pytester: pytest.Pytester) -> None:
    example = blocks("explanation/runtime.md", "python")[0]
    (pytester.path / "sums.py").write_text(example)
    result = pytester.run(sys.executable, "sums.py")
    result.stdout.fnmatch_lines(["[[]3.0, 3.0, 3.0, 3.0[]] [[]{'sum': 4.0}, {'sum': 8.0}, None[]]"])
    assert result.stderr.str() == ""


@pytest.mark.slow
def test_the_loop_of_the_runtime_runs(pytester: pytest.Pytester) -> None:
    (pytester.path / "loop.py").write_text(blocks("explanation/runtime.md", "python")[1])
    result = pytester.run(sys.executable, "loop.py")
    assert (result.ret, result.outlines, result.stderr.str()) == (0, ["[0.0, 2.0, 4.0, 6.0, 8.0]"], "")


@pytest.mark.statement(50)
def test_the_example_of_the_specification_runs_as_written(pytester: pytest.Pytester) -> None:
    before = """
from pytest_aorta.runtime import CallConfig, TaskArgs, Worker

def verify_result():
    print("verified", flush=True)
"""
    (pytester.path / "recursion.py").write_text(before + blocks("explanation/runtime.md", "python")[3])
    result = pytester.run(sys.executable, "recursion.py")
    assert (result.ret, result.outlines, result.stderr.str()) == (0, ["verified"], "")


def test_every_statement_of_the_runtime_has_a_row_and_a_test() -> None:
    text = (DOCS.parent / "tests" / "runtime" / "statements.md").read_text()
    named = dict(re.findall(r"^\| (\d+) \|.*\| `(\w+)` \|$", text, re.MULTILINE))
    rows = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert [int(number) for number in rows] == list(range(1, 51))
    files = [Path(__file__), *(DOCS.parent / "tests" / "runtime").rglob("test_*.py")]
    sources = "".join(path.read_text() for path in files)
    assert set(re.findall(r"statement\((\d+)\)", sources)) == set(rows)
    for number, test in named.items():
        marks = sources.partition(f"def {test}(")[0].rpartition("\n\n\n")[2]
        assert f"statement({number})" in marks, test
    assert len(named) == len(rows)
    for test in re.findall(r"`(test_\w+)`", text):
        assert f"def {test}(" in sources, test


def test_the_example_of_a_registry_file_is_valid(pytester: pytest.Pytester) -> None:
    block, prefixes = blocks("guides/registry.md", "json")
    for file, text in (("names.json", block), ("prefixes.json", prefixes)):
        pytester.path.joinpath(file).write_text(json.dumps(json.loads(text)))
    names = ["--aorta-registry-file", "names.json", "--aorta-mitigations", "no_p2p"]
    result = pytester.runpytest_inprocess("--aorta-workload", "gemm", *names, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["aorta::gemm[[]local-no_p2p-0[]]"])
    names = ["--aorta-registry-file", "prefixes.json", "--aorta-environment", "sif", "--aorta-environment", "sqsh"]
    result = pytester.runpytest_inprocess("--aorta-workload", "gemm", *names, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["aorta::gemm[[]sif-none-0[]]", "aorta::gemm[[]sqsh-none-0[]]"])


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and the site make them: lower case, no punctuation, a hyphen for each space."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def test_links_between_pages_lead_somewhere() -> None:
    # The site is built of more: its generated pages have links of their own, which mkdocs checks.
    made = {
        f"{name}.md" for name in ("commands", "recipe-keys", "record-schema", "matrix-schema", "collectors", "python")
    }
    for page in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", text):
            file = (page.parent / target).resolve() if target else page
            if not (file.parent.name == "reference" and file.name in made):
                assert file.exists(), f"{page.name} links to {target}"
                assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


def test_the_ways_through_the_house_name_what_is_there() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    package = DOCS.parent / "pytest_aorta"
    places = [package, package / "launch" / "child"]
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.py)?|[a-z_]+\.py)`", text):
        assert any((place / name).exists() for place in (*places, DOCS.parent)), name
    steps = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py): ([\w., ]+)`", text)
    assert len(steps) > 30
    for file, names in steps:
        [source] = [(place / file).read_text() for place in places if (place / file).exists()]
        for name in re.findall(r"\w+", names):
            assert re.search(rf"\b{name}\b", source), f"{file}: {name}"


def test_pictures_of_the_columns_are_current() -> None:
    script = runpy.run_path(str(DOCS / "img" / "draw_columns.py"))
    drawn = {path.name: path.read_text() for path in (DOCS / "img" / "columns").iterdir()}
    assert drawn == script["pictures"](), "python docs/img/draw_columns.py"
    shown = re.findall(r"!\[[^]]*\]\(../img/columns/(\w+\.svg)\)", (DOCS / "guides" / "table.md").read_text())
    assert sorted(shown) == sorted(drawn)


def test_tests_that_the_page_for_users_of_aorta_names_are_there() -> None:
    text = (DOCS / "guides" / "aorta.md").read_text()
    rows = re.findall(r"^\| (?!there|-).*\|$", text, re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row)
        assert named or row.endswith("| none |"), f"no test: {row}"
        for file, test in named:
            assert f"def {test}(" in (DOCS.parent / "tests" / file).read_text(), f"{file}::{test}"


def shown_commands() -> list[str]:
    """In blocks, and those with arguments within the text; there, a name alone stands for the command as such."""
    found = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")), *(DOCS.parent / "examples").rglob("*.md")]:
        text = page.read_text()
        for block in FENCED.findall(text):
            found += re.findall(r"^(?:\$ )?(?:.*&& )?pytest-aorta (.*)$", block, re.MULTILINE)
        found += re.findall(r"`pytest-aorta ([^\s`]+ [^`]+)`", FENCED.sub("", text))
    assert len(found) > 30
    return found


@pytest.mark.parametrize("shown", shown_commands())
def test_a_command_that_is_shown_is_taken(shown: str) -> None:
    words = shlex.split(shown.partition(" > ")[0].replace("\n", " "), comments=True)
    command: click.Command = main
    name = "pytest-aorta"
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, name
        command = found
    command.make_context(name, words)


def test_a_line_of_pytest_that_is_shown_is_taken(pytestconfig: pytest.Config) -> None:
    line = re.compile(r"^(?:\$ )?(?:.*&& |srun .*? )?pytest ((?:.*\\\n)*.*)$", re.MULTILINE)
    shown = []
    for page in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]:
        blocks_of_page = FENCED.findall(page.read_text())
        shown += [found for block in blocks_of_page for found in line.findall(block) if "──" not in found]
    assert len(shown) > 40
    for each in shown:
        words = shlex.split(each.replace("\\\n", " "), comments=True)
        options, unknown = pytestconfig._parser.parse_known_and_unknown_args(words)
        assert [word for word in unknown if not word.startswith("--cov")] == [], each
        for setting in SETTINGS:
            given = getattr(options, setting.ini, None) or []
            for value in given if isinstance(given, list) else [given]:
                assert isinstance(value, str), each
                setting.parse(value)


#: The first pages and the guides that a reader follows step by step; the others are looked up.
GUIDES = [
    path
    for path in [DOCS / "README.md", *sorted((DOCS / "start").glob("*.md")), *sorted((DOCS / "guides").glob("*.md"))]
    if path.stem not in ("collectors", "divergence", "ending", "localize", "profiles", "search", "table")
]

#: Words by hand on all pages.
MOST_WORDS = 27_000


def by_hand(text: str) -> str:
    """A page without code, what a program has made, and the targets of links; code within a line is kept."""
    text = re.sub(r"^```.*?^```$|^  ```.*?^  ```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- (\w+): .*?-->.*?<!-- end.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def count_words(text: str) -> int:
    return sum(re.search(r"\w", word) is not None for word in text.split())


def sentences(text: str) -> list[str]:
    """Of paragraphs, items of lists and cells of tables; what is quoted as code is one word."""
    parts = re.split(r"\n\s*\n|\n(?=\s*[-*#|] ?|\s*\d+\. )", re.sub(r"``.*?``|`[^`]*`", "code", by_hand(text)))
    cells = [cell for part in parts for cell in (part.split("|") if part.lstrip().startswith("|") else [part])]
    return [each for cell in cells for each in re.split(r"(?<=[.!?])\s+", " ".join(cell.split()))]


def test_the_pages_are_short() -> None:
    pages = {page: re.sub(r"``.*?``|`[^`]*`", "", by_hand(page.read_text())) for page in DOCS.rglob("*.md")}
    assert sum(map(count_words, pages.values())) <= MOST_WORDS


def test_no_sentence_is_longer_than_30_words() -> None:
    long = {page.name: [it for it in sentences(page.read_text()) if count_words(it) > 30] for page in GUIDES}
    assert {name: found for name, found in long.items() if found} == {}


def test_an_example_comes_before_a_reader_has_to_scroll_twice() -> None:
    for page in GUIDES:
        assert page.read_text().partition("```")[0].count("\n") < 60, page.name
