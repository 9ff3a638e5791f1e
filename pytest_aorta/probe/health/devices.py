"""Health of GPUs: AMD's through files of ``/sys``, NVIDIA's through NVML. Neither creates a context on a device."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pytest_aorta.common.kfd_topology import kfd_address, kfd_nodes, kfd_properties
from pytest_aorta.probe.guard import keyed_lines, read_text
from pytest_aorta.probe.health.host import number_in, pci_address, reason_of
from pytest_aorta.probe.health.model import THROTTLED, HealthEvent, PartReading

_AMD = "0x1002"


# AMD.


def amd_devices(root: Path = Path("/")) -> list[Path]:
    """Their folders in ``/sys``, in the order in which ROCm numbers them, without those hidden from this container.

    Without ROCm's driver: graphics cards, in the order of their addresses.
    """
    folders = []
    for node in kfd_nodes(root):
        try:
            if int((node / "gpu_id").read_text(encoding="utf-8")) != 0:  # else a CPU
                folders.append(root / "sys/bus/pci/devices" / kfd_address(kfd_properties(node)))
        except (OSError, ValueError):
            continue
    if not folders:
        cards = [card / "device" for card in root.glob("sys/class/drm/card*") if card.name[4:].isdecimal()]
        folders = [card.resolve() for card in cards if read_text(card / "vendor").strip() == _AMD]
    return folders if not folders or folders[0].parent.name == "devices" else sorted(folders)


def read_amd(root: Path = Path("/")) -> list[PartReading]:
    """One reading for each AMD GPU, numbered from 0."""
    return [_amd(folder, number) for number, folder in enumerate(amd_devices(root))]


def _amd(device: Path, number: int) -> PartReading:
    facts = {"vendor": "AMD", "pci": pci_address(device.name) if ":" in device.name else ""}
    counters: dict[str, int] = {}
    gauges: dict[str, float] = {}
    unreadable: dict[str, str] = {}
    throttled: list[str] = []

    def identity() -> None:
        device.stat()
        facts["model"] = read_text(device / "product_name").strip()
        partitions = [read_text(device / f"current_{each}_partition").strip() for each in ("compute", "memory")]
        facts["partition"] = "/".join(filter(None, partitions))

    def ras() -> None:
        files = sorted((device / "ras").glob("*_err_count"))
        for file in files:
            for kind, value in keyed_lines(file).items():
                if kind in ("ue", "ce"):
                    block = file.name.removesuffix("_err_count")
                    counters[f"ras {block} {'un' * (kind == 'ue')}corrected"] = int(value)
        if not files:
            unreadable["RAS"] = "none"
        if pages := read_text(device / "ras/gpu_vram_bad_pages"):
            counters["retired_pages"] = len(pages.splitlines())

    def hwmon() -> None:
        for folder in device.glob("hwmon/hwmon*"):
            heat = {}
            for label in folder.glob("temp*_label"):
                if (milli := number_in(folder / label.name.replace("label", "input"))) is not None:
                    heat[read_text(label).strip()] = milli / 1000
            hottest = heat.get("junction", heat.get("edge"))
            for key, value, unit in (
                ("temperature_c", hottest, 1.0),
                ("memory_temperature_c", heat.get("mem"), 1.0),
                ("power_w", number_in(folder / "power1_average") or number_in(folder / "power1_input"), 1e-6),
                ("power_cap_w", number_in(folder / "power1_cap"), 1e-6),
                ("sm_mhz", number_in(folder / "freq1_input"), 1e-6),
                ("memory_mhz", number_in(folder / "freq2_input"), 1e-6),
            ):
                if value is not None:
                    gauges[key] = round(value * unit, 1)

    def clocks() -> None:
        for key, name in (("sm_mhz", "pp_dpm_sclk"), ("memory_mhz", "pp_dpm_mclk")):
            if key not in gauges and (now := re.search(r"(\d+)Mhz \*", read_text(device / name))):
                gauges[key] = float(now[1])

    def use() -> None:
        for key, name, unit in (
            ("utilisation_percent", "gpu_busy_percent", 1),
            ("memory_used_mib", "mem_info_vram_used", 1 << 20),
        ):
            if (value := number_in(device / name)) is not None:
                gauges[key] = value // unit
        if (replays := number_in(device / "pcie_replay_count")) is not None:
            counters["pcie_replays"] = replays

    def metrics() -> None:
        if (device / "gpu_metrics").exists():
            found, now = _throttling((device / "gpu_metrics").read_bytes())
            counters.update(found)
            throttled.extend(now)

    probes = {"all": identity, "RAS": ras, "hwmon": hwmon, "clocks": clocks, "use": use, "throttling": metrics}
    for name, read in probes.items():
        _attempt(name, read, unreadable, (OSError, ValueError, struct.error))
        if "all" in unreadable:
            break
    facts = {name: value for name, value in facts.items() if value}
    return PartReading(
        name=f"GPU {number}", facts=facts, counters=counters, gauges=gauges, throttled=throttled, unreadable=unreadable
    )


def _attempt(
    name: str,
    read: Callable[[], None],
    unreadable: dict[str, str],
    errors: type[Exception] | tuple[type[Exception], ...],
) -> None:
    """Note why something could not be read; nothing where NVML says that the device has no such thing."""
    try:
        read()
    except errors as error:
        code = getattr(error, "value", None)
        if code != _NOT_SUPPORTED:
            unreadable["all" if code == _LOST else name] = reason_of(error)


#: Bits of ``indep_throttle_status``: first and last of each group (``amdgpu_smu.h`` of Linux).
_AMD_BITS = {"power cap": (0, 7), "current limit": (16, 23), "heat": (32, 47)}

#: Where counters of throttling begin in ``gpu_metrics``, by its revision (``kgd_pp_interface.h`` of Linux).
_RESIDENCIES = {(1, 6): 36, (1, 7): 44, (1, 8): 44}

#: Which they are, in that order.
_RESIDENCY = ("processor hot", "power cap", "heat", "heat", "heat")


def _throttling(metrics: bytes) -> tuple[dict[str, int], list[str]]:
    """Counters of throttling, and reasons that hold now; both empty for a revision that has neither."""
    size, *revision = struct.unpack_from("<HBB", metrics)
    if size == 0xFFFF:
        raise ValueError("the device does not answer")
    counters: dict[str, int] = {}
    if (start := _RESIDENCIES.get((revision[0], revision[1]))) is not None:
        for name, value in zip(_RESIDENCY, struct.unpack_from("<5I", metrics, start), strict=True):
            counters[THROTTLED + name] = counters.get(THROTTLED + name, 0) + value
    if revision != [1, 3]:
        return counters, []
    [status] = struct.unpack_from("<Q", metrics, 112)
    status = 0 if status == (1 << 64) - 1 else status  # not supported
    return counters, [name for name, (low, high) in _AMD_BITS.items() if status >> low & ((1 << (high - low + 1)) - 1)]


# NVIDIA.


class Nvml(Protocol):
    """The module ``pynvml``, or what stands in for it: its functions and constants by their names."""

    def __getattr__(self, name: str) -> Any: ...


#: Fields that one call reads: key, and name of the field.
_FIELDS = (
    ("ecc_corrected", "ECC_SBE_VOL_TOTAL"),
    ("ecc_uncorrected", "ECC_DBE_VOL_TOTAL"),
    ("ecc_corrected_aggregate", "ECC_SBE_AGG_TOTAL"),
    ("ecc_uncorrected_aggregate", "ECC_DBE_AGG_TOTAL"),
    ("retired_pages_corrected", "RETIRED_SBE"),
    ("retired_pages_uncorrected", "RETIRED_DBE"),
    ("retired_pages_pending", "RETIRED_PENDING"),
    ("remapped_rows_corrected", "REMAPPED_COR"),
    ("remapped_rows_uncorrected", "REMAPPED_UNC"),
    ("remapped_rows_pending", "REMAPPED_PENDING"),
    ("remapped_rows_failed", "REMAPPED_FAILURE"),
    ("pcie_replays", "PCIE_REPLAY_COUNTER"),
    ("nvlink_flit_errors", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"),
    ("nvlink_data_errors", "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"),
    ("nvlink_replays", "NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
    ("nvlink_recoveries", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL"),
    (THROTTLED + "power cap", "PERF_POLICY_POWER"),
    (THROTTLED + "heat", "PERF_POLICY_THERMAL"),
    (THROTTLED + "sync boost", "PERF_POLICY_SYNC_BOOST"),
    (THROTTLED + "board limit", "PERF_POLICY_BOARD_LIMIT"),
    ("memory_temperature_c", "MEMORY_TEMP"),
)

#: Of the fields, those that are gauges.
_GAUGES = {"memory_temperature_c"}

#: Member of a field's value, by its type.
_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

#: Bits of the reasons for lower clocks; an idle GPU (1) is not throttled.
_REASONS = {
    0x2: "set clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat",
    0x80: "power brake",
}

#: NVML's codes of errors that say that a device has no such thing, and that it is lost.
_NOT_SUPPORTED, _LOST = 3, 15


class NvidiaReader:
    """Reads all GPUs through NVML, with Xids by its events; raises what ``nvmlInit`` raises."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._fields = [
            (key, getattr(nvml, f"NVML_FI_DEV_{name}")) for key, name in _FIELDS if hasattr(nvml, f"NVML_FI_DEV_{name}")
        ]
        #: Facts of each GPU that has answered once, by number: a lost one does not tell them any more.
        self._known: dict[int, dict[str, str]] = {}
        self._events: Any = None
        try:
            self._events = nvml.nvmlEventSetCreate()
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:  # not supported: the kernel log may have them
            self._events = None

    def read(self) -> tuple[list[PartReading], list[HealthEvent]]:
        nvml = self._nvml
        count = max(nvml.nvmlDeviceGetCount(), len(self._known))
        return [self._device(number) for number in range(count)], self._xids()

    def _xids(self) -> list[HealthEvent]:
        events: list[HealthEvent] = []
        while self._events is not None and len(events) < 100:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                pci = self._pci(data.device)
            except self._nvml.NVMLError:  # no more, or a device that does not even say who it is
                break
            events.append(HealthEvent(at=round(time.time(), 3), kind="Xid", code=int(data.eventData), device=pci))
        return events

    def _pci(self, handle: Any) -> str:
        return pci_address(_text(self._nvml.nvmlDeviceGetPciInfo(handle).busId))

    def _device(self, number: int) -> PartReading:
        nvml = self._nvml
        counters: dict[str, int] = {}
        gauges: dict[str, float] = {}
        unreadable: dict[str, str] = {}
        throttled: list[str] = []

        attempt = partial(_attempt, unreadable=unreadable, errors=nvml.NVMLError)
        handle: Any = None

        def identity() -> None:
            nonlocal handle
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            if number not in self._known:
                model, pci = _text(nvml.nvmlDeviceGetName(handle)), self._pci(handle)
                self._known[number] = {"vendor": "NVIDIA", "model": model, "pci": pci}

        def ecc_mode() -> None:
            self._known[number]["ecc"] = "on" if nvml.nvmlDeviceGetEccMode(handle)[0] else "off"

        def fields() -> None:
            values = nvml.nvmlDeviceGetFieldValues(handle, [field for _, field in self._fields])
            for (key, _), found in zip(self._fields, values, strict=True):
                if found.nvmlReturn == 0 and found.valueType < len(_TYPES):
                    value = getattr(found.value, _TYPES[found.valueType])
                    if key in _GAUGES:
                        gauges[key] = value
                    else:
                        counters[key] = int(value)

        def gauge(key: str, read: Callable[[], float], unit: float = 1.0) -> None:
            def into() -> None:
                gauges[key] = round(read() * unit, 1)

            attempt(key, into)

        def reasons() -> None:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            found = dict.fromkeys(name for bit, name in _REASONS.items() if bits & bit)
            if len(found) > 1:
                found.pop("hardware slowdown", None)  # heat, or the power brake
            throttled.extend(found)

        attempt("all", identity)
        if not unreadable:
            attempt("ECC mode", ecc_mode)
            attempt("counters", fields)
            gauge("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            gauge("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle), 1e-3)
            gauge("power_cap_w", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle), 1e-3)
            gauge("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            gauge("memory_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
            gauge("utilisation_percent", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            gauge("memory_used_mib", lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used // (1 << 20))
            attempt("throttling", reasons)
        if "all" in unreadable:
            unreadable = {"all": unreadable["all"]}
        return PartReading(
            name=f"GPU {number}",
            facts=dict(self._known.get(number, {"vendor": "NVIDIA"})),
            counters=counters,
            gauges=gauges,
            throttled=throttled,
            unreadable=unreadable,
        )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
