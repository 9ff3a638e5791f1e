"""What a check says of devices that no machine here has: of results that differ among them, and of their counters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pytest_aorta.cli.check import _Device, _Host, _note_health, _other_bits, _shares
from pytest_aorta.probe.health.model import HealthEvent, HealthReading, PartReading
from pytest_aorta.trials.execution import Resources


def gpu(number: int, *checksums: str) -> _Device:
    """A GPU whose trials of gemm have had these checksums."""
    device = _Device("node7", f"GPU {number}", "gpu", Resources(devices=(number,)))
    for checksum in checksums:
        case = {"shape": "64x64x64", "dtype": "float16", "checksum": checksum}
        record: Any = SimpleNamespace(result=SimpleNamespace(metrics={"cases": [case]}))
        device.trials["gemm"].append((cast(Any, None), record))
    return device


def test_device_with_other_bits_than_most_is_named_and_of_two_both() -> None:
    eight = [gpu(number, *["a", "a", "a"]) for number in range(7)] + [gpu(7, "a", "b", "a")]
    assert [(device.name, text) for device, text in _other_bits(eight)] == [
        ("GPU 7", "other bits than most others of its model in gemm 64x64x64 float16")
    ]
    assert [device.name for device, _ in _other_bits([gpu(0, "a"), gpu(1, "b")])] == ["GPU 0", "GPU 1"]
    # Where all have different ones, they say nothing of any.
    assert list(_other_bits([gpu(number, f"{number}") for number in range(4)])) == []
    assert list(_other_bits([gpu(0, "a", "a"), gpu(1, "a", "a")])) == []


def test_ranks_have_a_gpu_each_or_none_at_all() -> None:
    def shares(name: str, devices: tuple[int, ...] | None) -> tuple[tuple[int, ...] | None, int | None]:
        resources, ranks = _shares(name, _Device("node7", "together", "host", Resources(devices=devices)))
        return resources.devices, ranks

    assert shares("alltoall", (0, 1, 2)) == ((0, 1, 2), 3)
    assert shares("allreduce", (0,)) == ((), 2)
    assert shares("allreduce", None) == (None, 2)
    assert shares("checkpoint", (0, 1)) == ((0, 1), None)
    assert shares("peers", (0, 1)) == (None, None)


def host() -> _Host:
    made = _Host("node7", None, devices=[gpu(0), gpu(1)])
    made.together = _Device("node7", "together", "host", Resources(devices=(0, 1)))
    return made


def reading(at: float, *events: HealthEvent, of_host: dict[str, int], **of_devices: dict[str, int]) -> HealthReading:
    devices = [
        PartReading(
            name=name.replace("_", " "),
            facts={"pci": f"0000:0{number}:00.0"},
            counters=counters,
            unreadable={"NVLink": "not supported"},
        )
        for number, (name, counters) in enumerate(of_devices.items())
    ]
    own = PartReading(name="host", counters=of_host, unreadable={"EDAC": "none", "fabric": "none"})
    return HealthReading(at=at, host=own, devices=devices, events=list(events))


def test_errors_count_for_their_device_and_harmless_counters_are_listed_only() -> None:
    node = host()
    before = reading(1, of_host={"net rx_dropped": 4}, GPU_0={"pcie_replays": 1}, GPU_1={"ecc_uncorrected": 2})
    xid = HealthEvent(at=2, kind="Xid", code=94, device="0000:00:00.0", text="Contained ECC error")
    after = reading(3, xid, of_host={"net rx_dropped": 9}, GPU_0={"pcie_replays": 3}, GPU_1={"ecc_uncorrected": 3})

    _note_health(node, before, after)

    assert node.devices[0].reasons == ["Xid 94 on GPU 0: Contained ECC error"]
    assert node.devices[1].reasons == ["ecc_uncorrected +1 on GPU 1"]
    assert node.together is not None
    assert node.together.reasons == []
    assert {"host: net rx_dropped +5", "GPU 0: pcie_replays +2"} <= set(node.counters)
    assert node.unread == [
        "not read: EDAC and fabric (not there)",
        "not read: GPU 0 NVLink and GPU 1 NVLink (not supported)",
    ]


def test_machine_check_counts_for_the_host() -> None:
    node = host()

    _note_health(node, reading(1, of_host={"machine_checks": 0}), reading(2, of_host={"machine_checks": 1}))

    assert node.together is not None
    assert node.together.reasons == ["machine_checks +1 on host"]
