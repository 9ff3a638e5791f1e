"""Contracts with the private parts of pytest and pytest-timeout: one test per name, saying what breaks without it."""

from __future__ import annotations

import io
import re
import textwrap
from typing import Any, cast

import pytest

from pytest_aorta.plugin.compat import (
    GeneratedFunction,
    SkippedItem,
    fixture_definitions,
    general_timeout,
    has_no_summary,
    longrepr_of,
    native_ini_value,
    set_terminal_file,
    terminal_file,
    terminal_width,
    with_lines,
)

pytest_plugins = ["pytester"]

#: A plugin whose items are generated functions: two passing and one failing, of one test function.
GENERATED = """
    import pytest
    from pytest_aorta.plugin.compat import GeneratedFunction

    def helper():
        raise ValueError("wrong")

    def check(request, shared):
        if request.node.name.endswith("-bad]"):
            helper()

    class Item(GeneratedFunction):
        def visible_traceback(self, traceback):
            return traceback.filter(lambda entry: entry.name == "helper")

    class File(pytest.File):
        def collect(self):
            item = None
            for name in ("trial[a-0]", "trial[a-1]", "trial[a-bad]"):
                item = Item.of(self, name, check, item)
                yield item

    def pytest_collect_file(file_path, parent):
        return File.from_parent(parent, path=file_path) if file_path.name == "generated.txt" else None

    @pytest.fixture
    def shared():
        return 1
"""


@pytest.fixture
def generated(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(textwrap.dedent(GENERATED))
    pytester.path.joinpath("generated.txt").touch()
    return pytester


def items_of(pytester: pytest.Pytester) -> list[GeneratedFunction]:
    config = pytester.parseconfigure("generated.txt", "-p", "no:aorta")
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    session.perform_collect()
    return [item for item in session.items if isinstance(item, GeneratedFunction)]


def test_repr_exception_info_shows_a_text_as_it_is_and_survives_xdist(pytester: pytest.Pytester) -> None:
    """Without ``_pytest._code.code``, a failed trial is shown with a traceback through the plugin, or not at all."""
    config = pytester.parseconfigure()
    report = pytest.TestReport(
        "aorta::w[a]",
        ("generated.txt", 0, "w"),
        {},
        "failed",
        longrepr_of("first\nsecond", "w.py", None, "first"),
        "call",
    )

    plain = config.hook.pytest_report_to_serializable(config=config, report=report)
    restored = config.hook.pytest_report_from_serializable(config=config, data=plain)

    assert restored.longreprtext == "first\nsecond"
    assert restored.longrepr.reprcrash.message == "first"  # the short summary


def test_lines_come_below_a_failure_whatever_it_is_shown_as(pytester: pytest.Pytester) -> None:
    """Without ``TerminalRepr``, nothing says how many trials have failed like the one that is shown."""
    shown = io.StringIO()
    writer = pytester.parseconfigure().get_terminal_writer()
    writer._file = shown
    found = with_lines(longrepr_of("first\nsecond", "w.py", None, "first"), ["and 3 more"])
    found.toterminal(writer)
    with_lines("a text", ["and 4 more"]).toterminal(writer)

    assert re.sub("\x1b.*?m", "", shown.getvalue()).splitlines() == [
        "first",
        "second",
        "and 3 more",
        "a text",
        "and 4 more",
    ]
    assert found.reprcrash.message == "first"  # type: ignore[attr-defined]


def test_what_the_terminal_reporter_writes_to_can_be_replaced(pytester: pytest.Pytester) -> None:
    """Without ``TerminalWriter._file``, the live view cannot make room for what pytest writes, and is in its way."""
    config = pytester.parseconfigure()
    file = io.StringIO()
    set_terminal_file(config, file)
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line("here")

    assert terminal_file(config) is file
    assert file.getvalue() == "here\n"
    assert terminal_file(pytester.parseconfigure("-p", "no:terminal")) is None


def test_fixture_definitions_are_those_of_the_item_in_order(generated: pytest.Pytester) -> None:
    """Without ``Function._fixtureinfo``, trials are prefetched although a fixture of the user sets their variables."""
    item = items_of(generated)[0]

    assert [it.func.__name__ for it in fixture_definitions(item)["shared"]] == ["shared"]


def test_the_closure_of_fixtures_is_made_once_for_all_items_of_a_function(generated: pytest.Pytester) -> None:
    """Without the arguments ``callobj`` and ``fixtureinfo``, ten thousand trials take minutes to collect, or cannot."""
    first, *others = items_of(generated)

    assert others
    assert all(fixture_definitions(item) is fixture_definitions(first) for item in others)


def test_a_duration_that_is_no_phase_of_an_item_is_shown_with_the_others(pytester: pytest.Pytester) -> None:
    """Without ``TerminalReporter.stats[""]``, ``--durations`` says nothing of imports."""
    pytester.makeconftest("""
        import pytest
        from pytest_aorta.plugin.compat import Duration, add_duration

        def pytest_runtest_logfinish(nodeid):
            add_duration(the_config, Duration(12.5, "import", nodeid))

        def pytest_configure(config):
            global the_config
            the_config = config
        """)
    pytester.makepyfile("def test_it(): pass")

    shown = pytester.runpytest("--durations", "0")

    shown.stdout.fnmatch_lines(["12.50s import   *::test_it", "*= 1 passed in *"])
    assert pytester.runpytest("-p", "no:terminal").ret == pytest.ExitCode.OK


def test_items_with_brackets_in_their_names_are_known_again(generated: pytest.Pytester) -> None:
    """Without ``Item._id`` as pytest 9.2 parses it, ``--lf`` runs all trials again."""
    generated.runpytest("generated.txt", "-p", "no:aorta").assert_outcomes(passed=2, failed=1)

    generated.runpytest("generated.txt", "-p", "no:aorta", "--lf").assert_outcomes(failed=1)
    generated.runpytest("-p", "no:aorta", "generated.txt::trial[a-1]").assert_outcomes(passed=1)


def test_a_traceback_has_only_the_entries_that_are_visible(generated: pytest.Pytester) -> None:
    """Without ``_traceback_filter``, a trial in pytest's own process shows the plugin's frames first."""
    result = generated.runpytest("generated.txt", "-p", "no:aorta")

    result.stdout.fnmatch_lines(["*def helper():", '>*raise ValueError("wrong")'])
    result.stdout.no_fnmatch_line("*def check(*")


@pytest.mark.parametrize(("given", "limit"), [(("--timeout=2.5",), 2.5), (("--timeout=0",), None), ((), None)])
def test_pytest_timeout_keeps_its_limit_for_all_tests_in_its_config(
    pytester: pytest.Pytester, given: tuple[str, ...], limit: float | None
) -> None:
    """Without ``Config._env_timeout``, a prefetched trial has no deadline where only ``--timeout`` gives one."""

    assert general_timeout(pytester.parseconfigure(*given)) == limit


def test_without_pytest_timeout_there_is_no_limit(pytester: pytest.Pytester) -> None:
    assert general_timeout(pytester.parseconfigure("-p", "no:timeout")) is None


def test_what_an_item_that_does_not_run_would_have_torn_down_is_torn_down(pytester: pytest.Pytester) -> None:
    """Without ``SetupState.teardown_exact``, the item after those for which there was no time cannot be set up."""
    pytester.makeconftest(
        """
        import pytest
        from pytest_aorta.plugin.compat import tear_down_before

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            if item.name == "test_omitted":
                tear_down_before(item, nextitem)
                return True
        """
    )
    pytester.makepyfile(test_a="def test_one(): pass\ndef test_omitted(): pass", test_b="def test_two(): pass")
    pytester.runpytest("-p", "no:aorta").assert_outcomes(passed=2)


def test_a_skip_of_ours_is_a_skip() -> None:
    """Without ``_pytest.outcomes.Skipped``, trials that are not needed would be errors."""
    assert issubclass(SkippedItem, pytest.skip.Exception)


def test_width_of_a_text_in_a_terminal() -> None:
    """Without it, the table at the end is out of line where names are not ASCII."""
    assert [terminal_width(text) for text in ("", "abc", "漢字", "a\u0301")] == [0, 3, 4, 1]


def test_values_of_native_toml_are_texts(pytester: pytest.Pytester) -> None:
    """``Config._inicfg``: without it, numbers in a pytest.toml end pytest with an error."""
    if pytest.version_tuple < (9, 0):
        pytest.skip("pytest has native TOML since 9.0")
    pytester.makefile(".toml", pytest="[pytest]\naorta_trials = 3\naorta_resume = true\naorta_config = ['a=1']")
    config = pytester.parseconfig()
    values = [native_ini_value(config, f"aorta_{name}") for name in ("trials", "resume", "config")]
    assert values == ["3", "true", ["a=1"]]


def test_a_reporter_that_does_not_know_no_summary() -> None:
    """As pytest-tldr's is: the table would end in an AttributeError."""
    assert not has_no_summary(cast("pytest.TerminalReporter", object()))
