"""Sizes and times as text for people."""

GIB = 2**30


def format_bytes(number: float) -> str:
    """
    >>> format_bytes(3 * 2**30), format_bytes(5)
    ('3.0 GiB', '5 bytes')
    """
    for name, unit in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} bytes"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(36.94), format_seconds(1880.0), format_seconds(82_523.0)
    ('36.9 s', '31 min', '23 h')
    >>> format_seconds(14_631_019.0)
    '169 days'
    """
    for minimum, unit, name in ((172_800, 86_400, "days"), (7200, 3600, "h"), (600, 60, "min")):
        if seconds >= minimum:
            return f"{seconds / unit:,.{int(seconds < 10 * unit)}f} {name}"
    return f"{seconds:,.1f} s"


def format_range(low: float, high: float) -> str:
    """
    >>> format_range(58.0, 95.0), format_range(5400.0, 9000.0)
    ('58.0 to 95.0 s', '90 min to 2.5 h')
    """
    start, end = map(format_seconds, (low, high))
    number, unit = start.split()
    return f"{number if end.endswith(f' {unit}') else start} to {end}"
