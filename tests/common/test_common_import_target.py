"""Objects by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.common.import_target import import_target


def test_a_name_may_have_dots() -> None:
    assert import_target("pathlib:Path") is Path
    assert import_target("pathlib:Path.cwd") == Path.cwd


@pytest.mark.parametrize(
    ("target", "error"), [("no_such_module:x", ModuleNotFoundError), ("pathlib:Nothing", AttributeError)]
)
def test_what_is_not_there_cannot_be_imported(target: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        import_target(target)
