"""Notes which files the Python processes of a command open, so that a later run can tell whether one has changed.

Imported at the start of every one of them, perhaps by another interpreter: no imports from this package, and none of
modules that take time. ``launch.host.trial_files`` reads what is noted.
"""

import os
import sys

#: Lines that one process writes at most.
_MOST = 2000

_SYSTEM = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/")


def watch(file: str) -> None:
    """Append to ``file`` a line per opened file from now on, also in forks: ``r`` or ``w``, and its path."""
    prefixes = (prefix + os.sep for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    installed = tuple(prefix for prefix in (*_SYSTEM, *prefixes) if not os.getcwd().startswith(prefix))
    noted: set[object] = set()

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            how = "w" if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) else "r"
        elif event == "import":  # with a path where it loads a library
            path, how = arguments[1], "r"
        else:
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or (how, path) in noted or path == file or len(noted) > _MOST:
            return
        noted.add((how, path))
        try:
            path = os.path.abspath(path)
        except OSError:  # there is no working directory any more
            return
        if "\n" in path or path.startswith(installed):
            return
        try:  # anew each time: programs close descriptors that they do not know
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, os.fsencode(how + path + "\n"))
        finally:
            os.close(descriptor)

    if hasattr(sys, "addaudithook"):
        sys.addaudithook(note)
