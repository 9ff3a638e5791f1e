"""Where the ranks of a trial write: ``attempt_<k>/rank_<global rank>.<stream>.log`` below its artifacts folder."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, Std, to_map

from pytest_aorta.launch.child.rank_files import ATTEMPT, attempt_folder


class RankLogs(LogsSpecs):
    """Logs of the ranks at names that are known in advance, with a folder for each attempt.

    torch numbers attempts by restarts, and writes over the logs of an attempt that a membership change has ended.
    """

    def __init__(self, folder: Path, redirects: str, tee: str) -> None:
        self._streams = Std.from_str(redirects), Std.from_str(tee)
        super().__init__(str(folder), redirects=self._streams[0], tee=self._streams[1])
        self._folder = folder
        #: Number of the attempt that runs, from 0; -1 before the first.
        self.attempt = -1

    @property
    def root_log_dir(self) -> str:
        """The trial's artifacts folder."""
        return str(self._folder)

    def begin_attempt(self) -> None:
        """Use the folder of the next attempt."""
        self.attempt += 1

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Paths for every local rank of one attempt."""
        folder = attempt_folder(self._folder, self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        redirects, tee = (to_map(streams, len(envs)) for streams in self._streams)
        destination = LogsDest()
        for local_rank, env in envs.items():
            base = folder / f"rank_{env['RANK']}"
            to_file = redirects[local_rank] | tee[local_rank]
            destination.stdouts[local_rank] = f"{base}.stdout.log" if Std.OUT in to_file else ""
            destination.stderrs[local_rank] = f"{base}.stderr.log" if Std.ERR in to_file else ""
            if Std.OUT in tee[local_rank]:
                destination.tee_stdouts[local_rank] = f"{base}.stdout.log"
            if Std.ERR in tee[local_rank]:
                destination.tee_stderrs[local_rank] = f"{base}.stderr.log"
            destination.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = f"{base}.error.json"
            env[ATTEMPT] = str(self.attempt)
        return destination
