"""Contrast of the report's colours, by the formulas of WCAG 2.2 (relative luminance, contrast ratio)."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import pytest_aorta.triage.report

TEMPLATES = Path(pytest_aorta.triage.__file__).parent / "templates"
STYLE = (TEMPLATES / "style.css.j2").read_text()

#: Of each variable, its colour in the light and in the dark scheme.
VARIABLES = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE)
}
BACKGROUNDS = ("bg", "surface", "raised")
TEXTS = ("ink", "muted", "accent", "fixes", "reduces", "worse", "undecided", "error")
GRAPHICS = ("out-failed", "out-timeout", "out-other")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(two)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_and_marks_have_contrast_aa(scheme: int) -> None:
    pairs = [*product(TEXTS, BACKGROUNDS), *product(GRAPHICS, ["surface"])]  # marks are words as well
    for text, background in pairs:
        ratio = contrast(VARIABLES[text][scheme], VARIABLES[background][scheme])
        assert ratio >= 4.5, f"{text} on {background}: {ratio:.2f}"


def test_every_variable_that_is_used_is_there() -> None:
    sources = [path.read_text() for path in TEMPLATES.glob("*.css.j2")] + [
        Path(pytest_aorta.triage.report.__file__).read_text()
    ]
    used = set(re.findall(r"var\(--([\w-]+)", "".join(sources)))
    assert used - {"tone", "share", "sans", "mono"} <= VARIABLES.keys()
    assert VARIABLES.keys() == {*BACKGROUNDS, *TEXTS, *GRAPHICS, "line"}
