"""What C code a process was in when it crashed or hung."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pytest_aorta.collectors.contract import Collector, Summary
from pytest_aorta.common.texts import native_function


class Native(Collector):
    """The C and C++ frames of every thread of a process that crashes or hangs, by gdb."""

    needs_torch = False
    in_process: ClassVar[Path | None] = Path(__file__).parent / "in_process" / "native.py"

    def summarize(self, folder: Path, ranks: Sequence[int]) -> Summary:
        """The innermost C function of each process that crashed or hung."""
        data: dict[str, Any] = {}
        sentences = []
        paths = sorted(folder.rglob("*.json"))
        for path in paths:
            read = json.loads(path.read_text())
            who = path.stem.replace("_", " ")
            frames = read["threads"][0]["frames"] if read["threads"] else []
            name, library = native_function((frame["name"], frame["file"]) for frame in frames)
            place = f"{name}() of {library}" if name else ""
            what = "hung" if read["why"] == "hang" else read["why"]
            sentences.append(f"{who}: {what}" + (f" in {place}" if place else "; no C function of it is known"))
            data[path.stem] = {"why": read["why"], "function": name, "library": library}
        return Summary("; ".join(sentences), data, paths)
