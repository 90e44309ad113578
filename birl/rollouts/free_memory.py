"""How much memory is free, so that a replay that does not fit is refused at once."""

from pathlib import Path


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes of memory that are still free on Linux, within a container's limit; None elsewhere."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        free.append(_left_in_group(groups, "memory.max", "memory.current"))
        free.append(_left_in_group(groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))  # version 1
        return min(free)
    except OSError:
        return None


def _left_in_group(group: Path, limit: str, used: str) -> int:
    """Bytes that a container's limit leaves; a very large number if it has none."""
    if not (group / limit).exists() or (most := (group / limit).read_text().strip()) == "max":
        return 2**63
    sizes = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    # Cached files count as used, but they are given up as soon as memory is needed.
    files = int(sizes["active_file"]) + int(sizes["inactive_file"])
    return int(most) - int((group / used).read_text()) + files
