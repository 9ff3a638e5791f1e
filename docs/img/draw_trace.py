"""The picture in docs/explanation/runtime.md: ``python docs/img/draw_trace.py`` draws the trace of a small graph."""

from __future__ import annotations

import json
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Any

from pytest_aorta.runtime import Orchestrator, TaskArgs, TaskError, Worker

#: Pixels of a millisecond, of a row, and left of the rows.
_MILLISECOND, _ROW, _LEFT = 4.0, 34, 110

_COLOURS = {"success": "#8ac926", "task_failure": "#ff6b6b"}


def load(args: Any) -> None:
    time.sleep(0.03)


def step(args: Any) -> None:
    time.sleep(0.02 + 0.01 * args.scalars[0])
    if args.scalars[0] == 3:
        raise ValueError("NaN in step 3")


def build(orch: Orchestrator, handles: Any, config: Any) -> None:
    loaded = [orch.submit_sub(handles[0]) for _ in range(2)]
    for number in range(4):
        orch.submit_sub(handles[1], TaskArgs().add_scalar(number), after=loaded)


def main() -> None:
    with Worker(3, num_sub_workers=2) as worker, tempfile.TemporaryDirectory() as folder:
        handle = worker.submit(build, [worker.register(load), worker.register(step)])
        try:
            handle.wait()
        except TaskError as error:
            print(error)
        handle.trace(Path(folder, "run.json"))
        events = json.loads(Path(folder, "run.json").read_text())["traceEvents"]
    begin = min(event["ts"] for event in events if event["ph"] == "X")
    shapes, width = [], 0.0
    for event in events:
        y = 8 + _ROW * event["tid"]
        if event["ph"] == "M":
            shapes.append(f'<text x="8" y="{y + 18}" fill="#d8d8d8">{escape(event["args"]["name"])}</text>')
            continue
        x, wide = _LEFT + (event["ts"] - begin) / 1e3 * _MILLISECOND, event["dur"] / 1e3 * _MILLISECOND
        colour = _COLOURS[event["args"]["outcome"]]
        shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="26" rx="3" fill="{colour}"/>')
        shapes.append(f'<text x="{x + 6:.1f}" y="{y + 18}" fill="#1a1a1a">{escape(event["name"])}</text>')
        width = max(width, x + wide)
    size = f'width="{width + 10:.0f}" height="{2 * _ROW + 12}"'
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="13">'
    body = "\n".join(['<rect width="100%" height="100%" fill="#1a1a1a"/>', *shapes])
    Path(__file__).with_name("trace.svg").write_text(f"{frame}\n{body}\n</svg>\n")


if __name__ == "__main__":
    main()
