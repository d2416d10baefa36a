"""Counts the processors that this process may use. Start at `available`."""

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Returns the CPU quota of the cgroup (version 2 or 1) in processors, or None without a quota."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if limit in {"max", "-1"}:
        return None
    return int(limit) / int(period)


def facts(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """Returns the fields of the first processor in /proc/cpuinfo, or an empty dict without that file."""
    try:
        first = cpuinfo.read_text(encoding="ascii", errors="replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    parted = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in parted}


def available(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the number of processors that this process may use, at least 1.

    This is the size of the affinity mask, limited by the cgroup's quota. A quota is rounded down, because a
    throttled thread would delay every batch.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = quota(root)
    return max(1, allowed if limit is None else min(allowed, int(limit)))
