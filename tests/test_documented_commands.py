"""Every ``pytest-aorta`` command that the documentation shows is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pytest_aorta.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]

_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown_commands() -> list[str]:
    """In blocks, and those with arguments within the text; there, a name alone stands for the command as such."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in _FENCED.findall(text):
            found += re.findall(r"^(?:\$ )?(?:.*&& )?pytest-aorta (.*)$", block, re.MULTILINE)
        found += re.findall(r"`pytest-aorta ([^\s`]+ [^`]+)`", _FENCED.sub("", text))
    return found


@pytest.mark.parametrize("shown", shown_commands())
def test_a_command_that_is_shown_is_taken(shown: str) -> None:
    words = shlex.split(shown.partition(" > ")[0].replace("\n", " "), comments=True)
    command: click.Command = main
    name = "pytest-aorta"
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    command.make_context(name, words)


def test_there_are_such_commands() -> None:
    assert len(shown_commands()) > 30
