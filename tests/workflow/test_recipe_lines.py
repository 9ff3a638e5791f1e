"""Lines of the keys of a TOML text."""

from __future__ import annotations

from pytest_aorta.workflow.toml_errors import key_lines, line_of

TEXT = '''[workspace]
path = "w"

[[action]]
name = "a" # [not.a.header]
command = """
name = "not a key"
[not a header]
"""
"quoted key".x = 1
[action.group]
maximum_size = 3
[[action.group.include]]
condition = ["/a", "<", 1]
[[action.group.include]]
all = [
  ["/a", "<", 1],
]

[[action]]
resources.walltime.per_directory = "01:00:00"
'''


def test_keys_stand_where_they_are_written() -> None:
    lines = key_lines(TEXT)
    expected = {
        ("workspace",): 1,
        ("workspace", "path"): 2,
        ("action", 0): 4,
        ("action", 0, "name"): 5,
        ("action", 0, "command"): 6,
        ("action", 0, "quoted key", "x"): 10,
        ("action", 0, "group"): 11,
        ("action", 0, "group", "maximum_size"): 12,
        ("action", 0, "group", "include", 0): 13,
        ("action", 0, "group", "include", 1): 15,
        ("action", 0, "group", "include", 1, "all"): 16,
        ("action", 1): 20,
        ("action", 1, "resources", "walltime", "per_directory"): 21,
    }
    assert {place: lines.get(place) for place in expected} == expected
    assert not any("not a key" in str(place) or "not" in place for place in lines)


def test_what_has_no_line_stands_where_the_table_around_it_stands() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("action", 0, "group", "include", 1, "all", 0, 1)) == 16
    assert line_of(lines, ("action", 1, "name")) == 20
    assert line_of(lines, ("nowhere",)) == 1
