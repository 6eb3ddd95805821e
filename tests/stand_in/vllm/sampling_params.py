from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class RequestOutputKind(Enum):
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(kw_only=True)
class StructuredOutputsParams:
    json: Any
