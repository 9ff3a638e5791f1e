"""Names that come with the package, and what is said about names that do not exist."""

from __future__ import annotations

import pytest

from pytest_aorta.registry import Environment, Mitigation, Registry, UnknownMitigationError


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"docker": "image", "venv": "/v", "rocm": "7.0"}, "docker"),
        ({"venv": "/v", "rocm": "7.0"}, "venv"),
        ({"rocm": "7.0"}, "rocm"),
        ({}, "local"),
    ],
)
def test_the_kind_of_an_environment_is_the_outermost_thing_it_asks_for(fields: dict[str, str], kind: str) -> None:
    assert Environment("x", source_package="here", **fields).kind == kind  # type: ignore[arg-type]


def test_the_values_of_variables_do_not_show_in_representations() -> None:
    secret = {"TOKEN": "hunter2"}

    assert "hunter2" not in repr(Mitigation("m", secret, "here"))
    assert "hunter2" not in repr(Environment("e", env=secret, source_package="here"))


def test_a_variable_is_a_mitigation_of_its_own_name() -> None:
    registry = Registry.load()
    assert dict(registry.mitigation("OMP_NUM_THREADS=1").env) == {"OMP_NUM_THREADS": "1"}
    assert dict(registry.mitigation("A=").env) == {"A": ""}
    for wrong in ("1A=2", "=2", "A=\0", "A=\n"):
        with pytest.raises(UnknownMitigationError):
            registry.mitigation(wrong)


def test_a_typo_gets_a_suggestion_whatever_its_case() -> None:
    with pytest.raises(UnknownMitigationError, match=r"did you mean 'tf32_off'\?"):
        Registry.load().mitigation("TF32-OFF")
