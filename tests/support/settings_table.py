"""The table of settings in a page: ``python tests/support/settings_table.py docs/reference/options.md`` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_aorta.settings import SETTINGS

_BEGIN = "<!-- settings: python tests/support/settings_table.py docs/reference/options.md -->\n"
_END = "<!-- end -->\n"


def written(page: str) -> str:
    """A page whose table is the current one."""
    rows = ["| name | value | default | meaning |", "|---|---|---|---|"]
    for setting in SETTINGS:
        if setting.scope != "internal":
            value = f"`{setting.metavar}`" if setting.metavar else ""
            default = f"`{setting.default}`" if setting.default else ""
            rows.append(f"| `{setting.flag}` | {value} | {default} | {setting.help} |".replace("  ", " "))
    head, found, rest = page.partition(_BEGIN)
    table = "\n".join(rows)
    return f"{head}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}" if found else ""


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        Path(argument).write_text(written(Path(argument).read_text(encoding="utf-8")), encoding="utf-8")
