"""A file of another folder, here: a hard link or a copy, complete or not at all, never over one that is there."""

from __future__ import annotations

import contextlib
import fcntl
import filecmp
import os
import shutil
import stat
import tempfile
from pathlib import Path

#: End of the name of a copy that is being made.
UNFINISHED = ".merging"


def is_same(one: Path, other: Path) -> bool:
    """Whether two files, or two links, have the same content."""
    first, second = os.lstat(one), os.lstat(other)
    if (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino):
        return True
    if stat.S_IFMT(first.st_mode) != stat.S_IFMT(second.st_mode):
        return False
    if stat.S_ISLNK(first.st_mode):
        return os.readlink(one) == os.readlink(other)
    return stat.S_ISREG(first.st_mode) and first.st_size == second.st_size and filecmp.cmp(one, other, shallow=False)


def place(source: Path, target: Path, *, may_link: bool) -> None:
    """Have a file at ``target`` as well; of a link, the link.

    Args:
        source: the file.
        target: where nothing is yet.
        may_link: whether both may be one file: nothing changes it.

    Raises:
        FileExistsError: something is there meanwhile.
        OSError: the folder cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        os.symlink(os.readlink(source), target)
        return
    if may_link:
        with contextlib.suppress(OSError):  # another file system, or one without links
            os.link(source, target)
            return
    fd, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=UNFINISHED)
    temporary = Path(name)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has a writer, see ``atomic.remove_abandoned``
        shutil.copy2(source, temporary)
        os.fsync(fd)
        _rename(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
        os.close(fd)


def _rename(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)  # a rename would replace what is there
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        temporary.rename(target)
