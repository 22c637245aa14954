"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, memory, system, and the load before anything is measured."""
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")]
    return {
        "cpu": cpu[0] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[0]) / 2**20, 1) if memory else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
        "log_on": file_system(Path(tempfile.gettempdir())),
    }


def file_system(path: Path) -> str:
    """The kind of file system that a path is on, e.g. `ext4`; a log on `tmpfs` costs no disk."""
    found = path.resolve()
    mounts = [line.split()[1:3] for line in _lines("/proc/mounts")]
    kinds = {Path(place): kind for place, kind in mounts if found.is_relative_to(place)}
    return kinds[max(kinds, key=lambda place: len(place.parts))] if kinds else "unknown"


def _lines(path: str) -> Sequence[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
