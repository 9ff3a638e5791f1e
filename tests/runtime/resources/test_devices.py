"""Device lists, and the GPUs of hosts that no machine here is: ``fake_nvidia`` and ``fake_amd`` are trees of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_aorta.runtime.resources.devices import (
    MAX_DEVICES,
    Devices,
    are_named_only,
    choose_devices,
    core_shares,
    device_variables,
    devices_text,
    equal_shares,
    find_devices,
    parse_devices,
    threads_of,
)


def fake_nvidia(root: Path, gpus: int, nodes: Sequence[int] | None = None) -> Path:
    """The files of NVIDIA's driver on a host with ``gpus`` GPUs; device nodes for all of them unless told which."""
    for gpu in range(gpus):
        folder = root / f"proc/driver/nvidia/gpus/0000:{16 * gpu + 1:02x}:00.0"
        folder.mkdir(parents=True)
        # The order of minor numbers is not the order of addresses.
        minor = gpus - 1 - gpu
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA FAKE\nGPU UUID: \t GPU-{gpu}aaaaaaa-0000-0000-0000-00000000000{gpu}\n"
            f"Device Minor: \t {minor}\n"
        )
    (root / "dev").mkdir()
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        *(f"nvidia{number}" for number in (range(gpus) if nodes is None else nodes)),
    ):
        (root / "dev" / name).touch()
    return root


def fake_amd(root: Path, simds: Sequence[int]) -> Path:
    """The KFD topology of a host: a node for each entry; 0 SIMD units are a CPU."""
    for number, simd in enumerate(simds):
        folder = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simd}\nunique_id {0xABC0 + number}\n")
    return root


# Lists.


def test_a_list_of_devices_becomes_ascending_ids_and_back() -> None:
    cases: list[tuple[str, tuple[int, ...]]] = [
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0,2-4", (0, 2, 3, 4)),
        ("4,1-2", (1, 2, 4)),
        (" 1 , 3 ", (1, 3)),
        ("7-7", (7,)),
        ("none", ()),
        (f"0-{MAX_DEVICES - 1}", tuple(range(MAX_DEVICES))),
    ]
    for text, devices in cases:
        assert parse_devices(text) == devices
        assert parse_devices(devices_text(devices)) == devices


def test_what_is_no_list_of_devices_is_refused_with_what_is_expected() -> None:
    for text in ["", ",", "1,", "a", "-1", "3-1", "0-", "1.0", "0x1", "none,1", "all", "٣", "1 2"]:
        with pytest.raises(ValueError, match=r"expected a list such as 0-3 or 0,2-4, or none$"):
            parse_devices(text)


@pytest.mark.parametrize("text", ["1,1", "0-3,2", "2-3,1-2"])
def test_a_device_that_is_named_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names device [12] twice"):
        parse_devices(text)


# Finding.


def test_a_host_without_gpu_has_none_and_any_ids_are_names_of_slots(tmp_path: Path) -> None:
    found = find_devices({"CUDA_VISIBLE_DEVICES": "0"}, tmp_path)

    assert found == Devices("none", ())
    assert are_named_only(found)
    assert choose_devices((5, 3), found) == (3, 5)
    assert choose_devices(None, found) == ()
    assert device_variables((3, 5), found) == dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "3,5"
    )
    assert device_variables((), found) == {}


@pytest.mark.parametrize(
    ("gpus", "nodes", "environ", "present", "visible"),
    [
        (4, None, {}, (0, 1, 2, 3), (0, 1, 2, 3)),
        (2, (), {}, (0, 1), (0, 1)),  # the nodes of a host that has just booted come with their first use
        (0, (0, 5), {}, (0, 1), (0, 1)),
        # In a container with two of four; minor 1 is the third GPU of the host, and the first here.
        (4, (0, 1), {"CUDA_VISIBLE_DEVICES": "GPU-2aaaaaaa"}, (0, 1), (0,)),
    ],
)
def test_nvidia_gpus_are_found(
    tmp_path: Path,
    gpus: int,
    nodes: Sequence[int] | None,
    environ: dict[str, str],
    present: tuple[int, ...],
    visible: tuple[int, ...],
) -> None:
    found = find_devices(environ, fake_nvidia(tmp_path, gpus, nodes))

    assert (found.vendor, found.present, found.visible) == ("nvidia", present, visible)
    assert not are_named_only(found)


def test_amd_gpus_are_nodes_with_simd_units_in_the_order_of_numbers(tmp_path: Path) -> None:
    root = fake_amd(tmp_path / "gpus", [0, 0, *[304] * 9])

    assert find_devices({}, root) == Devices("amd", tuple(range(9)))
    assert find_devices({"ROCR_VISIBLE_DEVICES": f"GPU-{0xABC0 + 10:016x}"}, root).visible == (8,)
    assert are_named_only(find_devices({}, fake_amd(tmp_path / "processors", [0, 0])))


# Variables that hide devices.


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("2,0", (0, 2)),
        ("", ()),
        ("-1", ()),
        ("0,2,-1,1", (0, 2)),
        ("1,9,2", (1,)),
        (" 1 , 2 ", (1, 2)),
        ("GPU-3aaaaaaa,GPU-0", (0, 3)),
        ("GPU-", ()),
        ("GPU-ffff,1", ()),
        ("1,MIG-0aaaaaaa/1/0", (1,)),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_visible_devices_hides_nvidia_gpus(tmp_path: Path, value: str, visible: tuple[int, ...]) -> None:
    found = find_devices({"CUDA_VISIBLE_DEVICES": value}, fake_nvidia(tmp_path, 4))

    assert found.present == (0, 1, 2, 3)
    assert found.visible == choose_devices(None, found) == visible


@pytest.mark.parametrize(
    ("environ", "visible"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1,3"}, (1, 3)),
        ({"HIP_VISIBLE_DEVICES": "1,3"}, (1, 3)),
        ({"CUDA_VISIBLE_DEVICES": "1,3"}, (1, 3)),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, (0,)),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, (1,)),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, (0, 1, 2, 3)),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, (3,)),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "1"}, (2,)),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}, ()),
        ({"ROCR_VISIBLE_DEVICES": f"0,GPU-{0xABC0 + 3:016X}"}, (0, 3)),
    ],
)
def test_variables_hide_amd_gpus_one_behind_the_other(
    tmp_path: Path, environ: dict[str, str], visible: tuple[int, ...]
) -> None:
    assert find_devices(environ, fake_amd(tmp_path, [304] * 4)).visible == visible


# Choosing.


def test_a_device_that_the_host_has_not_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    found = find_devices({}, fake_nvidia(tmp_path, 2))

    assert choose_devices((1, 0), found) == (0, 1)
    assert choose_devices((), found) == ()
    with pytest.raises(ValueError, match=r"^no such device: 2-3; this host has nvidia devices 0-1$"):
        choose_devices((1, 2, 3), found)


def test_a_device_that_is_hidden_is_refused_with_the_variable_that_hides_it(tmp_path: Path) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0"}
    found = find_devices(environ, fake_amd(tmp_path, [304] * 4))

    with pytest.raises(
        ValueError,
        match=r"^device 2-3 is hidden by ROCR_VISIBLE_DEVICES=0,1,2 and HIP_VISIBLE_DEVICES=0,1; "
        r"this host has amd devices 0-3, of which 0-1 may be used$",
    ):
        choose_devices((1, 2, 3), found)


# What a process gets.


@pytest.mark.parametrize("inherited", [{}, {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "2,0"}])
@pytest.mark.parametrize("devices", [(), (1,), (1, 3)])
def test_a_process_with_the_variables_of_its_gpus_sees_these_and_no_others(
    tmp_path: Path, inherited: dict[str, str], devices: tuple[int, ...]
) -> None:
    """What is written is read back by the same rules, whatever the user has set before."""
    root = fake_nvidia(tmp_path / "nvidia", 4)
    variables = device_variables(devices, find_devices(inherited, root))
    assert variables == {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)) or "-1"}
    assert find_devices({**inherited, **variables}, root).visible == devices

    root = fake_amd(tmp_path / "amd", [0, *[304] * 4])
    variables = device_variables(devices, find_devices(inherited, root))
    assert find_devices({**inherited, **variables}, root).visible == devices
    if devices:
        assert variables["ROCR_VISIBLE_DEVICES"] == ",".join(map(str, devices))
        assert variables["HIP_VISIBLE_DEVICES"] == variables["CUDA_VISIBLE_DEVICES"] == "0,1"[: 2 * len(devices) - 1]


def fake_topology(root: Path, *siblings: str) -> Path:
    """``/sys`` of a host whose cores have these hyper-threads, each as the kernel writes it: ``0,4`` or ``0-1``."""
    for text in siblings:
        low, separator, high = text.replace("-", ",").partition(",")
        for cpu in {low, high} if separator else {low}:
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{text}\n")
    return root


def test_shares_hold_every_cpu_once_are_contiguous_and_as_equal_as_possible(tmp_path: Path) -> None:
    assert core_shares(3, range(8), tmp_path) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert core_shares(2, {9, 1, 5, 3}, tmp_path) == [(1, 3), (5, 9)]
    root = fake_topology(tmp_path, *(f"{core},{core + 8}" for core in range(8)))
    for slots in range(1, 17):
        shares = core_shares(slots, range(16), root)
        assert sorted(cpu for share in shares for cpu in share) == list(range(16))
        assert len(shares) == slots
        assert all(shares)


def test_hyper_threads_of_a_core_stay_together_while_cores_suffice(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,4", "1,5", "2,6", "3,7")

    assert core_shares(2, range(8), root) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert core_shares(3, range(8), root) == [(0, 1, 4, 5), (2, 6), (3, 7)]
    assert core_shares(5, range(8), root) == [(0, 4), (1, 5), (2, 6), (3,), (7,)]


def test_equal_shares_leave_over_what_does_not_divide(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,4", "1,5", "2,6", "3,7")

    assert equal_shares(3, range(8), root) == [(0, 4), (1, 5), (2, 6)]
    assert equal_shares(2, range(8), root) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert equal_shares(5, range(8), root) is None


def test_the_number_of_threads_is_the_number_of_physical_cores(tmp_path: Path) -> None:
    root = fake_topology(tmp_path, "0,2", "1,3")

    assert threads_of((0, 1, 2, 3), root) == 2
    assert threads_of((0, 2), root) == 1
    assert threads_of((0, 1), root) == 2
    assert threads_of((3,), root) == 1
    assert threads_of((), root) == 1
    assert threads_of((0, 1, 2), tmp_path / "no such tree") == 3
