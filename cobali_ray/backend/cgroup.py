"""What Linux control groups leave to this process: memory, and CPUs per period. Versions 1 and 2.

A limit anywhere above binds too, so each question is asked of the process's own group and of all its parents.
`root` is the folder below which /proc and /sys lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def free_bytes(root: Path = ROOT) -> int | None:
    """Return how much the tightest group may still take; None where there is no limit.

    File cache counts as free, as in MemAvailable: the kernel drops it before it kills anybody.
    """
    free = (_free_bytes(folder) for folder in _folders("memory", root))
    return min((n for n in free if n is not None), default=None)


def most_bytes(root: Path = ROOT) -> int | None:
    """Return how much the tightest group may take in all; None where there is no limit."""
    limits = (
        _number(folder / name)
        for folder in _folders("memory", root)
        for name in ("memory.max", "memory.limit_in_bytes")
    )
    return min((n for n in limits if n is not None), default=None)


def n_cpus(root: Path = ROOT) -> float | None:
    """Return the CPU seconds per second that the tightest group allows; None where there is no quota."""
    quotas = (_n_cpus(folder) for folder in _folders("cpu", root))
    return min((n for n in quotas if n is not None), default=None)


def _free_bytes(folder: Path) -> int | None:
    limit, used, prefix = _number(folder / "memory.max"), _number(folder / "memory.current"), ""
    if used is None:
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        prefix = "total_"  # with the children, as version 2 counts anyway
    if limit is None or used is None:
        return None
    stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    n_cached = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(limit - max(used - n_cached, 0), 0)


def _n_cpus(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    # "max" and -1 mean none.
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _folders(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the groups this process is in, its own first, up to what is mounted."""
    groups: dict[str, PurePosixPath] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), PurePosixPath(path))  # version 2 has no names
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        name = {"cgroup": controller, "cgroup2": ""}.get(kind)
        if name is None or name not in groups or (name and name not in options.split(",")):
            continue
        top, point = mount.split(" ")[3:5]
        folder = highest = root / point.lstrip("/")
        # A container may see its group's path, but no folders on the way: what is mounted is its own then.
        if ".." not in groups[name].parts and groups[name].is_relative_to(top):
            folder = highest / groups[name].relative_to(top)
        yield folder
        while folder != highest:
            folder = folder.parent
            yield folder


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""
