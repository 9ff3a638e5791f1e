"""Notes which files the Python processes of a command open, so that a later run can tell whether one has changed.

Imported at the start of every one of them, perhaps by another interpreter: no imports from this package, and none of
modules that take time. ``launch.host.trial_files`` reads what is noted.
"""

import atexit
import os
import sys

#: Lines that one process writes at most.
_MOST = 2000

_SYSTEM = ("/proc/", "/dev/", "/sys/", "/usr/", "/lib", "/etc/")


def watch(file: str) -> None:
    """Append to ``file`` a line per opened file from now on, also in forks: ``r`` or ``w``, and its path.

    At the orderly end, ``d`` and the path of each device that is open.
    """
    prefixes = (prefix + os.sep for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    installed = tuple(prefix for prefix in (*_SYSTEM, *prefixes) if not os.getcwd().startswith(prefix))
    told = os.path.join(os.path.dirname(file), "processes", "")
    noted: set[object] = set()

    def write(line: str) -> None:
        try:  # anew each time: programs close descriptors that they do not know
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, os.fsencode(line + "\n"))
        finally:
            os.close(descriptor)

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
        if "\n" in path or path.startswith((*installed, told)):
            return
        write(how + path)

    def note_devices() -> None:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink("/proc/self/fd/" + number))
            except OSError:  # that of the listing
                pass
        for path in found:
            if path.startswith(("/dev/nvidia", "/dev/dri/render")) and path[-1:].isdigit():
                write("d" + path)

    if hasattr(sys, "addaudithook"):
        atexit.register(note_devices)
        sys.addaudithook(note)
