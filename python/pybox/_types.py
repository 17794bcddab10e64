"""What the arguments of a call can be."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Mapping, Tuple, Union

# Text, bytes, or a path of a file.
Content = Union[str, bytes, bytearray, memoryview, os.PathLike[str]]
Inputs = Union[Iterable[Tuple[str, Content]], Mapping[str, Content]]
Env = Union[Mapping[str, str], Iterable[str]]
OnOutput = Callable[[str, str], Any]
