"""Numbers as people write them: 100k, 2M, 1e5, 1_000_000."""

from decimal import Decimal, InvalidOperation, Overflow

UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
EXAMPLES = "100000, 100k, 1e5, 0.1M or 100_000"
MOST = 10**30  # larger numbers are surely a mistake, and 1e999999999 would fill the memory


def whole_number(text: str) -> int:
    """The whole number that this text writes; ValueError if it writes none."""
    value = _decimal(text)
    if value is None or not value.is_finite():
        raise ValueError(f"{text!r} is not a whole number; write it like {EXAMPLES}")
    if abs(value) > MOST:
        raise ValueError(f"{text!r} is too large")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number; use {value:.0f}")
    return int(value)


def real_number(text: str) -> float:
    """The number that this text writes; ValueError if it writes none."""
    value = _decimal(text)
    if value is None:
        raise ValueError(f"{text!r} is not a number; write it like 0.5, 3e-4 or 2.5k")
    return float(value)


def short_number(value: int) -> str:
    """A whole number as `whole_number` reads it, with a unit if that is exact: 500k, 1.5M."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= unit and value % (unit // 100) == 0:
            return f"{value / unit:g}{name}"
    return str(value)


def _decimal(text: str) -> Decimal | None:
    """The exact value of a number with or without a unit; None if the text is no number."""
    text = text.strip()
    unit = UNITS.get(text[-1:], 1)
    try:
        return Decimal(text[:-1] if unit > 1 else text) * unit
    except InvalidOperation:
        return None
    except Overflow:
        return Decimal("inf")
