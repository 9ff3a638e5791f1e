"""``pytest-aorta bundle``: results that may be given away, which the other commands still read."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.projects import command
from support.results import write_cell

SECRET = "correct-horse-battery"

#: A line of a log, and what is left of it.
LINES = {
    f"login with {SECRET}!": "login with <redacted>!",
    "export HF_TOKEN=abc123 OMP_NUM_THREADS=4": "export HF_TOKEN=<redacted> OMP_NUM_THREADS=4",
    '{"api_key": "k-1234", "tokens": 512, "name": "bpe"}': '{"api_key": "<redacted>", "tokens": 512, "name": "bpe"}',
    "train.py --wandb-api-key 9f8e7d --lr 0.1": "train.py --wandb-api-key <redacted> --lr 0.1",
    "clone https://bob:pw@git.example/x": "clone https://<redacted>@git.example/x",
    "Authorization: Bearer abcdefgh1234": "Authorization: Bearer <redacted>",
    "found hf_abcdefghijklmnopqrst": "found <redacted>",
    'File "/home/jane/train.py", line 3': 'File "~/train.py", line 3',
    "rank 0 on node-17 at 10.1.2.3:29500, again 10.1.2.3": "rank 0 on host-1 at address-1:29500, again address-1",
    "peer fe80::1ff:fe23:4567:890a": "peer address-2",
    "12:30:45 step 3 loss=nan key=loss throughput_tokens=1.5e3": "",
    "127.0.0.1 nvidia-cublas-cu12==12.9.1.4 libcublas.so.12.9.1.4": "",
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVICE_PASSWORD", SECRET)
    write_cell(Path("results"), "FF......")
    for file in Path("results").rglob("trial_[0-2].json"):
        record = json.loads(file.read_text())
        folder = file.with_suffix("")
        folder.mkdir()
        (folder / "stdout.log").write_text("\n".join(LINES) + "\n")
        (folder / "core").write_bytes(b"\xff\x00" + SECRET.encode())
        (folder / "node-17.txt").write_text("a file that is named after its host")
        record["artifacts"] = {"stdout": f"{folder.name}/stdout.log", "core": f"{folder.name}/core", "tmp": "/tmp/x"}
        record["artifacts"]["trace"] = f"{folder.name}/node-17.txt"
        record["host"] = "node-17.cluster"
        file.write_text(json.dumps(record))
    return tmp_path


def unpacked(tmp_path: Path, *options: str) -> tuple[Path, str]:
    done = command("bundle", "results", "-o", "ticket.tar.gz", *options)
    assert done.exit_code == 0, done.output
    with tarfile.open("ticket.tar.gz") as archive:
        assert {entry.uname for entry in archive} == {""}
        archive.extractall(tmp_path / "elsewhere", filter="data")
    return tmp_path / "elsewhere" / "ticket", done.output


def test_a_bundle_has_neither_secrets_nor_places_and_counts_what_it_replaced(results: Path) -> None:
    folder, output = unpacked(results)
    logs = sorted(folder.rglob("stdout.log"))
    assert [log.parent.name for log in logs] == ["trial_0", "trial_1"]  # of failed trials
    for log in logs:
        assert log.read_text().splitlines() == [new or old for old, new in LINES.items()]
    everything = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    everything += "".join(map(str, folder.rglob("*")))
    for gone in (SECRET, "jane", "node-17", "10.1.2.3"):
        assert gone not in everything
    manifest = json.loads((folder / "manifest.json").read_text())
    counts = {Path(each["file"]).name: each["replaced"] for each in manifest["files"]}
    assert counts["stdout.log"] == {"secrets": 7, "homes": 1, "hosts": 1, "addresses": 3}
    assert {Path(file).name: why for file, why in manifest["left_out"].items()} == {"core": "no text"}
    assert "left out" in output


def test_the_other_commands_read_a_bundle(results: Path) -> None:
    folder, _ = unpacked(results, "--all-logs")
    assert len(list(folder.rglob("stdout.log"))) == 3
    compared = command("compare", "results", str(folder / "results"))
    assert compared.stdout.count("2/8") == 2, compared.output
    text = (folder / "README.txt").read_text()
    (line, _) = [line.split() for line in text.splitlines() if "--aorta-replay" in line]
    assert (folder / line[2]).is_file()
    again = command("bundle", "results", "-o", "ticket.tar.gz")
    assert again.exit_code == 2
    assert "ticket.tar.gz is there already" in again.stderr
