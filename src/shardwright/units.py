"""SI constants, and the formatting of quantities for people. Binary units exist here alone."""

from __future__ import annotations

KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12
GIBIBYTE = 1024.0**3
SECONDS_PER_HOUR = 3600.0


def format_bytes(size_bytes: float) -> str:
    """Return a size in GiB (or MiB below one GiB), as memory tools print it."""
    if abs(size_bytes) >= GIBIBYTE:
        return f"{size_bytes / GIBIBYTE:.1f} GiB"
    return f"{size_bytes / 1024.0**2:.1f} MiB"


def format_seconds(seconds: float) -> str:
    """Return a duration with the unit that suits its size."""
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    hours = seconds / SECONDS_PER_HOUR
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} days"


def format_count(number: float) -> str:
    """Return a count with an SI suffix: 70.6 B, 15.0 T, 1.2 M."""
    for limit, suffix in ((TERA, "T"), (GIGA, "B"), (MEGA, "M"), (KILO, "k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g} {suffix}"
    return f"{number:.3g}"


def format_dollars(dollars: float) -> str:
    """Return an amount of money in US dollars."""
    if dollars >= 1e6:
        return f"${dollars / 1e6:,.2f} M"
    return f"${dollars:,.0f}" if dollars >= 100 else f"${dollars:,.2f}"


def clock(seconds: float, *, like: float, sign: str = "") -> str:
    """Return a time to the thousandth of the unit that suits `like`, so that times of one table share their unit."""
    return f"{seconds:{sign}.3f} s" if like >= 1.0 else f"{seconds * 1e3:{sign}.3f} ms"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 layer, 2 layers."""
    ending = "" if number == 1 else "es" if noun.endswith("h") else "s"
    return f"{number} {noun}{ending}"
