"""JSON of the daemon, which may be of any length and shape: numbers are bounded, since
Python's integers are not, and whatever is no JSON is one error."""

from __future__ import annotations

import json
import math
from typing import Any


class BadJSON(ValueError):
    """It is no JSON, or none that anybody needs."""


def _integer(text: str) -> int:
    if len(text) > 20:  # more than 64 bits
        raise BadJSON(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJSON("a number that is not finite")
    return value


def _constant(text: str) -> Any:
    raise BadJSON(f"{text} is no number")


def loads(data: bytes) -> Any:
    """Reads UTF-8 JSON. The error is always BadJSON."""
    try:
        return json.loads(data.decode("utf-8"), parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except BadJSON:
        raise
    except (ValueError, RecursionError) as e:
        raise BadJSON(f"{type(e).__name__}: {e}") from None


def dumps(value: Any) -> bytes:
    """Writes JSON, in which text takes what it takes in UTF-8: ValueError for numbers that
    are none, and text that is none."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
