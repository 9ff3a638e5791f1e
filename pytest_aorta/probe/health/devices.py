"""Health of GPUs: AMD's through files of ``/sys``, NVIDIA's through NVML. Neither creates a context on a device."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pytest_aorta.common.kfd_topology import kfd_address, kfd_nodes, kfd_properties
from pytest_aorta.probe.guard import keyed_lines, read_text
from pytest_aorta.probe.health.host import Found, Number, number_in, numbers, pci_address, read_part
from pytest_aorta.probe.health.model import THROTTLED, HealthEvent, PartReading

_AMD = "0x1002"


# AMD.


def amd_devices(root: Path = Path("/")) -> list[Path]:
    """Their folders in ``/sys``, in the order in which ROCm numbers them, without those hidden from this container.

    Without ROCm's driver: graphics cards, in the order of their addresses.
    """
    folders = []
    for node in kfd_nodes(root):
        with suppress(OSError, ValueError):
            if int((node / "gpu_id").read_text(encoding="utf-8")) != 0:  # else a CPU
                folders.append(root / "sys/bus/pci/devices" / kfd_address(kfd_properties(node)))
    if folders:
        return folders
    cards = [card / "device" for card in root.glob("sys/class/drm/card*") if card.name[4:].isdecimal()]
    return sorted(card.resolve() for card in cards if read_text(card / "vendor").strip() == _AMD)


def read_amd(root: Path = Path("/")) -> list[PartReading]:
    """One reading for each AMD GPU, numbered from 0."""
    return [_amd(folder, number) for number, folder in enumerate(amd_devices(root))]


_AMD_NUMBERS = {
    "hwmon": (
        Number("gauges", "power_w", "hwmon/hwmon*/power1_average", unit=1e-6),
        Number("gauges", "power_w", "hwmon/hwmon*/power1_input", unit=1e-6),
        Number("gauges", "power_cap_w", "hwmon/hwmon*/power1_cap", unit=1e-6),
        Number("gauges", "sm_mhz", "hwmon/hwmon*/freq1_input", unit=1e-6),
        Number("gauges", "memory_mhz", "hwmon/hwmon*/freq2_input", unit=1e-6),
    ),
    "clocks": (
        Number("gauges", "sm_mhz", "pp_dpm_sclk", r"(\d+)Mhz \*"),
        Number("gauges", "memory_mhz", "pp_dpm_mclk", r"(\d+)Mhz \*"),
    ),
    "use": (
        Number("gauges", "utilisation_percent", "gpu_busy_percent"),
        Number("gauges", "memory_used_mib", "mem_info_vram_used", unit=2**-20),
        Number("counters", "pcie_replays", "pcie_replay_count"),
    ),
}


def _amd(device: Path, number: int) -> PartReading:
    def identity() -> Found:
        yield "facts", "vendor", "AMD"
        yield "facts", "pci", pci_address(device.name) if ":" in device.name else None
        device.stat()
        yield "facts", "model", read_text(device / "product_name").strip() or None
        partitions = [read_text(device / f"current_{each}_partition").strip() for each in ("compute", "memory")]
        yield "facts", "partition", "/".join(filter(None, partitions)) or None

    def ras() -> Found:
        for file in sorted((device / "ras").glob("*_err_count")):
            for kind, value in keyed_lines(file).items():
                if kind in ("ue", "ce"):
                    yield "counters", f"ras {file.name[:-10]} {'un' * (kind == 'ue')}corrected", value
        if pages := read_text(device / "ras/gpu_vram_bad_pages"):
            yield "counters", "retired_pages", len(pages.splitlines())

    def heat() -> Found:
        for folder in device.glob("hwmon/hwmon*"):
            heat = {}
            for label in folder.glob("temp*_label"):
                if (milli := number_in(folder / label.name.replace("label", "input"))) is not None:
                    heat[read_text(label).strip()] = milli / 1000
            yield "gauges", "temperature_c", heat.get("junction", heat.get("edge"))
            yield "gauges", "memory_temperature_c", heat.get("mem")

    readers: dict[str, Callable[[], Found]] = {"all": identity, "RAS": ras, "heat": heat}
    readers |= {what: partial(numbers, device, table) for what, table in _AMD_NUMBERS.items()}
    readers["throttling"] = partial(_throttling, device / "gpu_metrics")
    return read_part(f"GPU {number}", readers, (OSError, ValueError, struct.error), wanted=["RAS"])


#: Bits of ``indep_throttle_status``: first and last of each group (``amdgpu_smu.h`` of Linux).
_AMD_BITS = {"power cap": (0, 7), "current limit": (16, 23), "heat": (32, 47)}

#: Where counters of throttling begin in ``gpu_metrics``, by its revision (``kgd_pp_interface.h`` of Linux).
_RESIDENCIES = {(1, 6): 36, (1, 7): 44, (1, 8): 44}

#: Which they are, in that order.
_RESIDENCY = ("processor hot", "power cap", "heat", "heat", "heat")


def _throttling(file: Path) -> Found:
    """Counters of throttling, and reasons that hold now; nothing for a revision that has neither."""
    if not file.exists():
        return
    metrics = file.read_bytes()
    size, *revision = struct.unpack_from("<HBB", metrics)
    if size == 0xFFFF:
        raise ValueError("the device does not answer")
    if (start := _RESIDENCIES.get((revision[0], revision[1]))) is not None:
        for name, value in zip(_RESIDENCY, struct.unpack_from("<5I", metrics, start), strict=True):
            yield "counters", THROTTLED + name, value
    if revision == [1, 3]:
        [status] = struct.unpack_from("<Q", metrics, 112)
        for name, (low, high) in _AMD_BITS.items():
            if status != (1 << 64) - 1 and status >> low & ((1 << (high - low + 1)) - 1):  # else not supported
                yield "throttled", name, True


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

#: Of the others, how each is read of a GPU.
_GAUGES: dict[str, Callable[[Any, Any], float]] = {
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "power_cap_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "sm_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "utilisation_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory_used_mib": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used // (1 << 20),
}

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
        gpu: Any = None

        def identity() -> Found:
            nonlocal gpu
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            yield "facts", "model", _text(nvml.nvmlDeviceGetName(gpu))
            yield "facts", "pci", self._pci(gpu)

        def ecc_mode() -> Found:
            yield "facts", "ecc", "on" if nvml.nvmlDeviceGetEccMode(gpu)[0] else "off"

        def fields() -> Found:
            values = nvml.nvmlDeviceGetFieldValues(gpu, [field for _, field in self._fields])
            for (key, _), found in zip(self._fields, values, strict=True):
                if found.nvmlReturn == 0 and found.valueType < len(_TYPES):
                    field = "gauges" if key == "memory_temperature_c" else "counters"
                    yield field, key, getattr(found.value, _TYPES[found.valueType])

        def gauge(key: str, read: Callable[[Any, Any], float]) -> Found:
            yield "gauges", key, round(read(nvml, gpu), 1)

        def reasons() -> Found:
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            found = dict.fromkeys(name for bit, name in _REASONS.items() if bits & bit)
            for name in found:
                if name != "hardware slowdown" or len(found) == 1:  # else heat, or the power brake
                    yield "throttled", name, True

        readers: dict[str, Callable[[], Found]] = {"all": identity, "ECC mode": ecc_mode, "counters": fields}
        readers |= {key: partial(gauge, key, read) for key, read in _GAUGES.items()}
        part = read_part(f"GPU {number}", {**readers, "throttling": reasons}, nvml.NVMLError)
        known = self._known.setdefault(number, {"vendor": "NVIDIA"})
        known.update(part.facts)
        return part.model_copy(update={"facts": dict(known)})


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
