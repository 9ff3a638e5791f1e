"""Long logs: head and tail are kept."""

from __future__ import annotations

from pathlib import Path

from pytest_aorta.launch.host.supervisor import cut_logs, punch_logs

MIB = 2**20


def test_of_a_log_beyond_the_limit_head_and_tail_stay_and_the_cut_is_said(tmp_path: Path) -> None:
    (tmp_path / "attempt_0").mkdir()
    log = tmp_path / "attempt_0" / "rank_1.stdout.log"
    log.write_bytes(b"head" + b"." * 1000 + b"tail")
    assert cut_logs(tmp_path, 1008) == []
    assert log.stat().st_size == 1008

    said = cut_logs(tmp_path, 8)

    assert log.read_text() == "head\n[... 1000 of 1008 bytes were cut here; aorta_log_limit keeps 8 ...]\ntail"
    assert said == ["attempt_0/rank_1.stdout.log: 1000 of 1008 bytes were cut; aorta_log_limit keeps 8"]
    assert cut_logs(tmp_path, 200) == []
    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_while_it_grows_its_middle_takes_no_room_on_the_disk(tmp_path: Path) -> None:
    log = tmp_path / "stdout.log"
    holes: dict[Path, int] = {}
    with log.open("ab") as file:
        for _ in range(8):
            file.write(b"x" * 4 * MIB)
            file.flush()
            punch_logs(tmp_path, 2 * MIB, holes)

    assert log.stat().st_size == 32 * MIB
    # Where the file system has no holes, the space is given back at the end only.
    assert log.stat().st_blocks * 512 in range(1, 8 * MIB) or log.stat().st_blocks * 512 >= 32 * MIB
    assert cut_logs(tmp_path, 2 * MIB) != []
    content = log.read_bytes()
    assert len(content) < 3 * MIB
    assert b"\0" not in content


def test_what_lies_elsewhere_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x" * 100)
    folder = tmp_path / "trial_0"
    folder.mkdir()
    (folder / "stdout.log").symlink_to(tmp_path / "elsewhere")
    (folder / "dump.bin").write_bytes(b"x" * 100)

    assert cut_logs(folder, 10) == []
    assert (tmp_path / "elsewhere").stat().st_size == 100
