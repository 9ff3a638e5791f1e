"""What is read of the health of devices and hosts: recorded trees of ``/sys``, a double of NVML, and this machine."""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import wait_until_gone

from pytest_aorta.probe.health import reading as health_reading
from pytest_aorta.probe.health.devices import NvidiaReader, read_amd
from pytest_aorta.probe.health.host import KernelLog, read_host
from pytest_aorta.probe.health.model import MOST_BYTES, HealthReading, PartReading, difference
from pytest_aorta.probe.health.reading import combined, read_health


def put(root: Path, **files: object) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(f"{text}\n")


def tree(root: Path, files: dict[str, object]) -> Path:
    put(root, **files)
    return root


def read_tree(root: Path, nvml: Any = None) -> HealthReading:
    """The health that a recorded tree shows, and a double of NVML."""

    class Reader:
        def __init__(self, vendor: str) -> None:
            self.vendor = vendor

        def ask(self) -> None: ...

        def answer(self, patience: float) -> Any:
            return (read_amd(root), []) if self.vendor == "AMD" else NvidiaReader(nvml).read()

    readers: Any = [Reader(vendor) for vendor in ["AMD", *["NVIDIA"] * (nvml is not None)]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health_reading, "read_host", lambda: read_host(root))
        return health_reading.read_all(KernelLog(root), readers)


def amd_gpu(number: int, uncorrected: int = 0, heat_ticks: int = 0) -> dict[str, object]:
    """The files of one MI300X, as amdgpu shows them."""
    node, pci = f"sys/class/kfd/kfd/topology/nodes/{number + 1}", f"sys/bus/pci/devices/0000:{number + 5:02x}:00.0"
    metrics = struct.pack("<HBB", 1664, 1, 6).ljust(36, b"\0") + struct.pack("<5I", 0, 0, heat_ticks, 0, 0)
    return {
        f"{node}/gpu_id": 4711 + number,
        f"{node}/properties": f"domain 0\nlocation_id {(number + 5) << 8}",
        f"{pci}/ras/umc_err_count": f"ue: {uncorrected}\nce: 7",
        f"{pci}/ras/gfx_err_count": "ue: 0\nce: 0",
        f"{pci}/hwmon/hwmon3/temp1_label": "junction",
        f"{pci}/hwmon/hwmon3/temp1_input": 61000,
        f"{pci}/hwmon/hwmon3/power1_input": 310_000_000,
        f"{pci}/hwmon/hwmon3/power1_cap": 750_000_000,
        f"{pci}/pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *",
        f"{pci}/gpu_busy_percent": 98,
        f"{pci}/gpu_metrics": metrics.ljust(1664, b"\0"),
    }


HOST: dict[str, object] = {
    "sys/devices/system/edac/mc/mc0/ce_count": 3,
    "sys/devices/system/edac/mc/mc0/ue_count": 0,
    "proc/interrupts": "           CPU0       CPU1\n  MCE:          0          0   Machine check exceptions",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 5,
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": 2_400_000,
    "proc/pressure/memory": "some avg10=0.00 total=100\nfull avg10=0.00 total=40",
    "proc/vmstat": "oom_kill 2",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": 0,
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": 12345,
    "sys/class/net/eth0/statistics/rx_dropped": 9,
}


def test_the_files_of_a_host_are_counters_and_gauges(tmp_path: Path) -> None:
    before = read_tree(tree(tmp_path, HOST))
    assert before.host.counters == {
        "edac_corrected": 3,
        "edac_uncorrected": 0,
        "machine_checks": 0,
        "cpu_throttled": 5,
        "memory_stalled_us": 100,
        "memory_all_stalled_us": 40,
        "oom_kills": 2,
        "fabric mlx5_0/1 symbol_error": 0,
        "net rx_dropped": 9,
    }
    assert before.host.gauges == {"cpu_least_mhz": 2400.0, "cpu_most_mhz": 2400.0}
    changed = {"sys/devices/system/edac/mc/mc0/ue_count": 1, "sys/class/net/eth0/statistics/rx_dropped": 4}
    after = read_tree(tree(tmp_path, {**HOST, **changed}))
    host = difference(before, after).host
    assert host is not None
    assert host.counters == {"edac_uncorrected": 1}  # what has not grown is left out
    assert host.reset == ["net rx_dropped"]  # and what went backwards has no difference


def test_an_amd_gpu_is_read_from_the_files_of_its_driver(tmp_path: Path) -> None:
    before = read_tree(tree(tmp_path, {**amd_gpu(0), **amd_gpu(1)}))
    assert [device.name for device in before.devices] == ["GPU 0", "GPU 1"]
    assert before.devices[1].facts == {"vendor": "AMD", "pci": "0000:06:00"}
    assert before.devices[0].gauges == {
        "temperature_c": 61.0,
        "power_w": 310.0,
        "power_cap_w": 750.0,
        "sm_mhz": 2100.0,
        "utilisation_percent": 98.0,
    }
    after = read_tree(tree(tmp_path, amd_gpu(1, uncorrected=2, heat_ticks=50)))
    changes = difference(before, after).devices
    assert changes["GPU 1"].counters == {"ras umc uncorrected": 2}
    assert changes["GPU 1"].throttled == {"heat": 0.5}
    assert changes["GPU 0"].counters == {} == changes["GPU 0"].throttled


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = amd_gpu(0)
    del files["sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count"]
    del files["sys/bus/pci/devices/0000:05:00.0/ras/gfx_err_count"]
    tree(tmp_path, {**files, "dev/kmsg": ""})
    refused = {str(tmp_path / "dev/kmsg"), str(tmp_path / "sys/bus/pci/devices/0000:05:00.0/gpu_busy_percent")}
    opened = os.open

    def no_permission(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path) in refused:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", no_permission)
    reading = read_tree(tmp_path)
    assert reading.host.unreadable["kernel log"] == "Permission denied"
    assert reading.host.unreadable["EDAC"] == "none"
    assert reading.devices[0].unreadable["RAS"] == "none"


class Nvml:
    """Stands in for ``pynvml``: GPUs with counters, one of which may be lost."""

    NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NVML_FI_DEV_PERF_POLICY_POWER = 4, 3, 74
    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
    NVML_CLOCK_MEM = 2
    nvmlEventTypeXidCriticalError = 8

    class NVMLError(Exception):
        def __init__(self, value: int, text: str) -> None:
            super().__init__(text)
            self.value = value

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.fields = {3: 0, 4: 0, 74: 0}
        self.lost: set[int] = set()
        self.xids: list[tuple[int, int]] = []
        self.reasons = 0x4

    def __getattr__(self, name: str) -> Any:
        if name.startswith("NVML_FI_"):
            raise AttributeError(name)
        answers: dict[str, Any] = {
            "nvmlDeviceGetName": "H200",
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetPowerUsage": 690_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=99),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 << 30),
            "nvmlDeviceGetCurrentClocksThrottleReasons": self.reasons,
        }

        def call(handle: int = 0, *_: object) -> Any:
            if handle in self.lost:
                raise self.NVMLError(15, "GPU is lost")
            if name not in answers:
                raise self.NVMLError(3, "Not Supported")
            return answers[name]

        return call

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        if number in self.lost:
            raise self.NVMLError(15, "GPU is lost")
        return number

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:{handle + 0x3B:02X}:00.0")

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        return [
            SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=self.fields[each]))
            for each in fields
        ]

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlDeviceRegisterEvents(self, *_: object) -> None: ...

    def nvmlEventSetWait_v2(self, *_: object) -> Any:
        if not self.xids:
            raise self.NVMLError(10, "Timeout")
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


def test_an_nvidia_gpu_is_read_through_nvml(tmp_path: Path) -> None:
    nvml = Nvml()
    before = read_tree(tmp_path, nvml)
    [device] = before.devices
    assert device.facts == {"vendor": "NVIDIA", "model": "H200", "pci": "0000:3b:00", "ecc": "on"}
    assert device.gauges["power_w"] == 690.5
    assert device.throttled == ["power cap"]
    nvml.fields[4], nvml.xids = 1, [(0, 94)]
    change = difference(before, read_tree(tmp_path, nvml)).devices["GPU 0"]
    assert change.counters == {"ecc_uncorrected": 1}
    assert [(event.kind, event.code) for event in change.events] == [("Xid", 94)]


def test_an_nvidia_gpu_that_is_lost_in_a_trial_is_known_by_what_it_was(tmp_path: Path) -> None:
    nvml = Nvml(2)
    reader, host = NvidiaReader(nvml), PartReading(name="host")
    before = combined(host, {"NVIDIA": reader.read()[0]}, [])
    nvml.lost, nvml.xids = {1}, [(0, 45)]
    devices, events = reader.read()
    change = difference(before, combined(host, {"NVIDIA": devices}, events)).devices
    assert change["GPU 1"].unreadable == {"all": "GPU is lost"}
    assert change["GPU 1"].facts["pci"] == "0000:3c:00"
    assert change["GPU 1"].gauges["temperature_c"] == (55.0, 55.0)
    assert change["GPU 0"].unreadable == {}
    assert [event.code for event in change["GPU 0"].events] == [45]


def test_an_xid_that_nvml_and_the_kernel_log_tell_is_one_event(tmp_path: Path) -> None:
    nvml = Nvml()
    nvml.xids = [(0, 79)]
    line = "4,1,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."
    reading = read_tree(tree(tmp_path, {"dev/kmsg": line}), nvml)
    [event] = reading.events
    assert (event.code, event.text) == (79, "pid='<unknown>', GPU has fallen off the bus.")


def test_two_vendors_in_one_host_are_told_apart(tmp_path: Path) -> None:
    reading = read_tree(tree(tmp_path, amd_gpu(0)), Nvml())
    assert [device.name for device in reading.devices] == ["AMD GPU 0", "NVIDIA GPU 0"]


@pytest.fixture
def hanging_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A double of ``pynvml`` whose second call never returns; the file that has the pids of those who called."""
    pids = tmp_path / "pids"
    pids.touch()
    (tmp_path / "pynvml.py").write_text(
        f"import os, time\n"
        f"class NVMLError(Exception): ...\n"
        f"def nvmlInit(): open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        f"def nvmlEventSetCreate(): time.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(health_reading, "vendors", lambda: ["NVIDIA"])
    return pids


def test_a_driver_that_hangs_is_killed_and_the_rest_is_read(hanging_nvml: Path) -> None:
    reading = read_health(patience=3.0)
    assert reading.devices[0].unreadable == {"all": "its driver did not answer"}
    assert "memory_stalled_us" in reading.host.counters or "memory" in reading.host.unreadable
    wait_until_gone(map(int, hanging_nvml.read_text().split()))


def test_a_reader_that_hung_is_left_alone_for_a_while_and_then_replaced(hanging_nvml: Path) -> None:
    reader = health_reading.DeviceReader("NVIDIA")
    for again in (60.0, 0.0):
        reader._AGAIN = again
        reader.ask()
        assert reader.answer(3.0)[0][0].unreadable == {"all": "its driver did not answer"}
        reader.ask()
        assert (reader._process is not None) is (again == 0.0)
        reader._not_before = 0.0
    reader.close()
    wait_until_gone(map(int, hanging_nvml.read_text().split()))


def reading_of(*devices: PartReading, at: float = 0.0) -> HealthReading:
    return HealthReading(at=at, host=PartReading(name="host"), devices=list(devices))


def test_a_gpu_that_falls_off_the_bus_keeps_what_was_known_of_it() -> None:
    before = reading_of(PartReading(name="GPU 0", gauges={"temperature_c": 60}), PartReading(name="GPU 1"))
    after = reading_of(PartReading(name="GPU 1"))
    change = difference(before, after).devices["GPU 0"]
    assert change.gauges == {"temperature_c": (60.0, 60.0)}
    assert change.unreadable == {"all": "it is not there any more"}


def test_a_change_of_many_devices_fits_into_a_record() -> None:
    gauges = {f"gauge_{number}": 1234.5 for number in range(8)}

    def devices(errors: int) -> list[PartReading]:
        return [
            PartReading(name=f"GPU {number}", gauges=gauges, counters={"ecc_uncorrected": errors * (number == 5)})
            for number in range(16)
        ]

    change = difference(reading_of(*devices(0)), reading_of(*devices(1)))
    assert len(change.model_dump_json().encode()) <= MOST_BYTES
    assert change.devices["GPU 5"].counters == {"ecc_uncorrected": 1}
    assert change.left_out


def test_this_machine_is_read() -> None:
    before = read_health()
    assert abs(before.at - time.time()) < 3600
    assert set(itertools.chain(before.host.counters, before.host.unreadable))
    assert difference(before, read_health()).readings == 2
