"""GPU telemetry by NVML, where a device and its Python binding are found."""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from harness.promtext import SeriesKey
from harness.telemetry import Telemetry

PERIOD_S = 1.0
MIB = 1 << 20
# NVML's enumeration values
_SM_CLOCK, _GPU_TEMPERATURE, _PCIE_TX, _PCIE_RX = 1, 0, 0, 1

Reading = Callable[[Any, Any], float]
_READINGS: dict[str, Reading] = {
    "gpu:utilization_percent": lambda n, g: n.nvmlDeviceGetUtilizationRates(g).gpu,
    "gpu:memory_used_mib": lambda n, g: n.nvmlDeviceGetMemoryInfo(g).used / MIB,
    "gpu:power_w": lambda n, g: n.nvmlDeviceGetPowerUsage(g) / 1e3,
    "gpu:sm_clock_mhz": lambda n, g: n.nvmlDeviceGetClockInfo(g, _SM_CLOCK),
    "gpu:temperature_c": lambda n, g: n.nvmlDeviceGetTemperature(g, _GPU_TEMPERATURE),
    "gpu:throttle_reasons": lambda n, g: n.nvmlDeviceGetCurrentClocksThrottleReasons(g),
    "gpu:pcie_tx_kib_s": lambda n, g: n.nvmlDeviceGetPcieThroughput(g, _PCIE_TX),
    "gpu:pcie_rx_kib_s": lambda n, g: n.nvmlDeviceGetPcieThroughput(g, _PCIE_RX),
}


class Gpus:
    """All devices that NVML shows. What one of them does not support is left out for it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._devices = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        self._supported = {
            (index, name)
            for index in range(len(self._devices))
            for name in _READINGS
            if self._read(index, name) is not None
        }

    def read(self) -> dict[SeriesKey, float]:
        """One value per device and supported reading."""
        found: dict[SeriesKey, float] = {}
        for index, name in sorted(self._supported):
            value = self._read(index, name)
            if value is not None:
                found[name, (("gpu", str(index)),)] = value
        return found

    def _read(self, index: int, name: str) -> float | None:
        try:
            return float(_READINGS[name](self._nvml, self._devices[index]))
        except self._nvml.NVMLError:
            return None


def find_gpus() -> Gpus | None:
    """The machine's GPUs; None without the binding (package nvidia-ml-py), a driver or a device."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        gpus = Gpus(nvml)
    except nvml.NVMLError:
        return None
    return gpus if gpus.read() else None


@asynccontextmanager
async def watching_gpus(gpus: Gpus | None, period_s: float = PERIOD_S) -> AsyncIterator[Telemetry]:
    """Sample for the length of the block; without GPUs the telemetry stays empty."""
    telemetry = Telemetry()

    async def repeat() -> None:
        while gpus is not None:
            # NVML measures PCIe traffic over 20 ms, too long for the load's own loop
            samples = await asyncio.to_thread(gpus.read)
            telemetry.add(time.perf_counter_ns(), samples)
            await asyncio.sleep(period_s)

    task = asyncio.create_task(repeat())
    try:
        yield telemetry
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        telemetry.complete = bool(telemetry.t_ns)
