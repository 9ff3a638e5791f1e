"""What C code a process was in when it crashed or hung."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, Summary

#: Functions of the C library by which a crash is made, not where it starts.
_MADE_BY = ("__pthread_kill", "pthread_kill", "__GI_raise", "raise", "gsignal", "__GI_abort", "abort", "__restore_rt")

#: Where the interpreter begins: what it calls is asked for, what calls it not.
_INTERPRETER = ("_PyEval_", "PyEval_")


class Native(Collector):
    """The C and C++ frames of every thread of a process that crashes or hangs, by gdb."""

    in_process: ClassVar[Path | None] = Path(__file__).parent / "in_process" / "native.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        """The innermost C function of each process that crashed or hung."""
        data: dict[str, Any] = {}
        sentences = []
        paths = sorted(folder.rglob("*.json"))
        for path in paths:
            read = json.loads(path.read_text())
            who = path.stem.replace("_", " ")
            place = innermost(read["threads"][0]["frames"] if read["threads"] else [])
            what = "hung" if read["why"] == "hang" else read["why"]
            sentences.append(f"{who}: {what}" + (f" in {place}" if place else "; gdb could not read its frames"))
            data[path.stem] = {"why": read["why"], "place": place, "threads": len(read["threads"])}
        return Summary("; ".join(sentences), data, paths)


def innermost(frames: Sequence[dict[str, str]]) -> str:
    """``inner, called by fill_buffer (libt.so)``: the first functions with names, below what ends a process."""
    named = []
    for frame in frames:
        if frame["name"].startswith(_INTERPRETER):
            break
        if frame["name"] != "??" and not (frame["name"].startswith(_MADE_BY) and not named):
            named.append((frame["name"].partition("(")[0], PurePath(frame["file"]).name))
    if not named:
        return ""
    (name, library), *outer = named
    called = f", called by {outer[0][0]}" if outer and outer[0][1] == library else ""
    return f"{name}{called}" + (f" of {library}" if library else "")
