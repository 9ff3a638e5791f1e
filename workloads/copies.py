"""Patterns through the device's memory: written, kept, copied within it, to and from the host, and to other devices."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from pytest_aorta.trials.workload import WorkloadResult

from ._common import PATTERNS, Soak, SoakConfig, StepLoop, free_memory, pattern

#: Words of 8 bytes that are made, copied to the host, or compared at a time.
_PIECE = 2**22


class Copies(Soak):
    """Words of known patterns, compared bit by bit wherever they have been.

    In each step, every pattern is written into a buffer, copied to a second one on the device, and compared there. What
    the buffer held since the step before is compared first: memory that forgets is found. Each piece also goes from the
    host to the device and back, and to each other GPU that the process sees and back. Step times are those of the
    copies alone, in milliseconds.

    Metrics: ``bytes_copied``, ``gb_per_sec``, ``words`` (of 8 bytes, in the buffer), ``peers`` (other GPUs).
    """

    class Config(SoakConfig, frozen=True):
        megabytes: PositiveInt = Field(default=32, description="size of the buffer, without memory")
        memory: float = Field(default=0.0, ge=0, le=0.9, description="share of the device's free memory for both")

    config: Copies.Config

    def setup(self) -> None:
        super().setup()
        config = self.config
        size = config.memory * free_memory(self.device) / 2 if config.memory else config.megabytes * 2**20
        self.words = max(_PIECE // 64, int(size) // 8)
        self.buffers = [torch.zeros(self.words, dtype=torch.int64, device=self.device) for _ in range(2)]
        is_gpu = self.device.type == "cuda"
        self.host = torch.empty(min(_PIECE, self.words), dtype=torch.int64, pin_memory=is_gpu)
        self.peers = [
            torch.device("cuda", index)
            for index in range(torch.cuda.device_count() if is_gpu else 0)
            if index != self.device.index
        ]

    def run(self) -> WorkloadResult:
        run, copied, held = StepLoop(self, self.device), 0, ("zeros", 0)
        one, other = self.buffers
        for step in run.steps():
            for name in PATTERNS:
                for start in range(0, self.words, _PIECE):
                    piece = one[start : start + _PIECE]
                    self._compare(run, step, piece, held, start, "kept")
                    now = pattern(name, step, start, piece.numel(), self.device)
                    with run.timed():
                        piece.copy_(now)
                    copied += piece.nbytes
                with run.timed():
                    other.copy_(one)
                copied += other.nbytes
                held = (name, step)
                for start in range(0, self.words, _PIECE):
                    piece = other[start : start + _PIECE]
                    self._compare(run, step, piece, held, start, "copied within the device")
                copied += self._through_others(run, step, held)
        seconds = sum(run.step_times) / 1e3
        return run.result(
            words=self.words,
            peers=len(self.peers),
            bytes_copied=copied,
            gb_per_sec=copied / 1e9 / seconds if seconds else 0.0,
        )

    def _through_others(self, run: StepLoop, step: int, held: tuple[str, int]) -> int:
        """One piece, another one in each step, by way of the host and of each peer."""
        pieces = -(-self.words // _PIECE)
        start = step % pieces * _PIECE
        piece = self.buffers[1][start : start + _PIECE]
        host = self.host[: piece.numel()]
        host.copy_(pattern(*held, start, piece.numel()))
        with run.timed():
            piece.zero_()
            piece.copy_(host, non_blocking=True)
        self._compare(run, step, piece, held, start, "copied from the host")
        host.zero_()
        with run.timed():
            host.copy_(piece, non_blocking=True)
        self._compare(run, step, host, held, start, "copied to the host")
        for peer in self.peers:
            with run.timed():
                there = piece.to(peer)
                torch.cuda.synchronize(peer)
            self._compare(run, step, there, held, start, f"copied to {peer}")
            with run.timed():
                piece.copy_(there)
            self._compare(run, step, piece, held, start, f"copied from {peer}")
        return piece.nbytes * (2 + 2 * len(self.peers))

    def _compare(self, run: StepLoop, step: int, words: Tensor, held: tuple[str, int], start: int, how: str) -> None:
        expected = pattern(*held, start, words.numel(), words.device)
        if torch.equal(words, expected):
            return
        wrong = (words != expected).nonzero().flatten()
        first = int(wrong[0])
        flipped = (int(words[first]) ^ int(expected[first])) % 2**64
        where: dict[str, Any] = {"pattern": held[0], "device": str(words.device), "word": start + first}
        details = {"wrong_words": len(wrong), "flipped_bits": f"{flipped:016x}"}
        run.failures.add(step, kind="wrong_copy", copy=how, **where, **details)
