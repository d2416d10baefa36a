"""The number of processors that this process may really use."""

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Processors that the cgroup's CPU quota allows (version 2, else 1), None when there is no quota."""
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
    """Facts about the first processor, by the names in /proc/cpuinfo; nothing without it."""
    try:
        first = cpuinfo.read_text(encoding="ascii", errors="replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    parted = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in parted}


def available(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Whole processors: the affinity mask, cut by the cgroup's quota, at least one.

    A quota of 1.5 gives one: a second thread would be throttled half of the time, and every batch that
    waits for it with it.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = quota(root)
    return max(1, allowed if limit is None else min(allowed, int(limit)))
