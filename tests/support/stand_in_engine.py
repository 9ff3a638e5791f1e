"""A stand-in for a container engine, where none is: ``run``, ``kill`` and ``image inspect`` as docker has them.

    python -S stand_in_engine.py run --name=NAME [--mount=...] [--env=...] [--workdir=...] IMAGE COMMAND...

The container is real (namespaces of users, mounts and processes, by ``unshare``), and, as docker's, no descendant that
ends with its client: descriptors and variables do not get in. Its image is a double: this host, without its /tmp.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE = "sha256:" + "5" * 64

#: In new namespaces: the root of the container below /mnt. Arguments: working directory, mounts, "--", command.
SETUP = """
set -e
mount -t tmpfs none /mnt
for path in /*; do
  case $path in
    /mnt|/tmp|/proc|/opt|/.dockerenv) ;;
    *)
      if [ -L $path ]; then cp -P $path /mnt
      elif [ -d $path ]; then mkdir /mnt$path; mount --rbind $path /mnt$path
      fi ;;
  esac
done
mkdir /mnt/tmp /mnt/proc /mnt/opt
chmod 1777 /mnt/tmp
for path in /opt/*; do
  if [ -d "$path" ]; then mkdir "/mnt$path"; mount --rbind "$path" "/mnt$path"; fi
done
mount -t proc proc /mnt/proc
touch /mnt/.dockerenv
directory=$1; shift
while [ "$1" != -- ]; do
  mkdir -p "/mnt$2"; mount --rbind "$1" "/mnt$2"; shift 2
done
shift
exec chroot /mnt sh -c 'cd "$1"; shift; exec "$@"' sh "$directory" "$@"
"""

UNSHARE = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork")


def main(words: list[str]) -> int:
    if words[:1] == ["run"]:
        return run(words[1:])
    if words[:1] == ["kill"]:
        return kill(words[1])
    if words[:2] == ["image", "inspect"]:
        print(IMAGE)
        return 0
    print(f"the stand-in knows no {words}", file=sys.stderr)
    return 125


def run(words: list[str]) -> int:
    given: dict[str, list[str]] = {}
    while words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        given.setdefault(name, []).append(value)
    image = words.pop(0)
    if image.startswith("missing"):
        print(f"Error: No such image: {image}", file=sys.stderr)
        return 125
    variables = [*given.get("env", []), f"PATH={os.defpath}", "FROM_IMAGE=yes"]
    mounts = []
    for mount in given["mount"]:
        fields = dict(field.partition("=")[::2] for field in mount.split(","))
        mounts += [fields["source"], fields["target"]]
    container = subprocess.Popen(
        [*UNSHARE, "sh", "-c", SETUP, "sh", given["workdir"][0], *mounts, "--", "env", "-i", *variables, *words],
        start_new_session=True,
    )
    pid_file(given["name"][0]).write_text(str(container.pid))
    code = container.wait()
    return code if code >= 0 else 128 - code


def kill(name: str) -> int:
    pid = int(pid_file(name).read_text())
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    return 0


def pid_file(name: str) -> Path:
    return Path(os.environ.get("STAND_IN_FOLDER", tempfile.gettempdir()), f"{name}.pid")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
