"""A machine as files: the parts of /proc and /sys that say what a process may use."""

from __future__ import annotations

GB = 10**9
FREE_KIB = 64 * GB // 1024
V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "31 23 0:27 {top} /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"


def v2(top="/"):
    """Return the mount of version 2."""
    return V2.format(top=top)


def v1(name, top="/"):
    """Return the mount of one controller (or several: `cpu,cpuacct`) of version 1."""
    return V1.format(name=name, top=top)


def write(root, own, mount, groups):
    """Write a machine with 64 GB free below `root`, its process in the group `own`; return `root`.

    `groups` has the files of each folder below /sys/fs/cgroup.
    """
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    (proc.parent / "meminfo").write_text(f"MemTotal: {FREE_KIB} kB\nMemAvailable: {FREE_KIB} kB\n")
    (proc / "cgroup").write_text(f"{own}\n")
    (proc / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{mount}\n")
    for folder, files in groups.items():
        path = root / "sys/fs/cgroup" / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (path / name).write_text(f"{text}\n")
    return root
