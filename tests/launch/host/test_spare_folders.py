"""Empty folders are used again where they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_aorta.launch.host.spare_folders import SpareFolders


def test_an_empty_folder_moves_to_where_the_next_one_is_needed(tmp_path: Path) -> None:
    folders = SpareFolders()
    folders.make(tmp_path / "first")
    number = (tmp_path / "first").stat().st_ino
    assert folders.take_back(tmp_path / "first")

    folders.make(tmp_path / "second")
    assert (tmp_path / "second").stat().st_ino == number
    assert not (tmp_path / "first").exists()


def test_what_is_not_as_it_was_is_not_used_again(tmp_path: Path) -> None:
    folders = SpareFolders()
    for name in ("full", "changed", "gone", "link"):
        folders.make(tmp_path / name)
    (tmp_path / "full" / "file").touch()
    (tmp_path / "changed").chmod(0o500)
    (tmp_path / "gone").rmdir()
    (tmp_path / "link").rmdir()
    (tmp_path / "link").symlink_to(tmp_path)

    assert [folders.take_back(tmp_path / name) for name in ("full", "changed", "gone", "link")] == [
        False,
        True,
        False,
        False,
    ]
    folders.make(tmp_path / "next")
    assert (tmp_path / "next").stat().st_mode & 0o700 == 0o700


def test_one_that_has_vanished_is_made_anew(tmp_path: Path) -> None:
    folders = SpareFolders()
    folders.make(tmp_path / "first")
    folders.take_back(tmp_path / "first")
    (tmp_path / "first").rmdir()
    folders.make(tmp_path / "second")
    assert (tmp_path / "second").is_dir()


def test_one_that_exists_is_refused_and_none_is_left(tmp_path: Path) -> None:
    folders = SpareFolders()
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        folders.make(tmp_path / "there")
    folders.make(tmp_path / "own")
    folders.take_back(tmp_path / "own")
    folders.close()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
