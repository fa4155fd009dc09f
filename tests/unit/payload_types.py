"""Types that hooks may wait for, and JSON that fits them or does not."""

from __future__ import annotations

import enum
import ipaddress
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired
from uuid import UUID

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    SecretStr,
    StringConstraints,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rate(enum.Enum):
    HALF = Decimal("0.5")


class Lenient(enum.Enum):
    YES = "yes"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.YES


class Point(NamedTuple):
    x: int
    label: str = "here"


@dataclass
class Line:
    """A line of an order."""

    name: str
    cents: int
    at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    seen: int = field(default=0, init=False)


class Approval(BaseModel):
    ok: bool
    amount: Annotated[Decimal, Field(gt=0, le=100)] = Decimal(1)
    note: Annotated[str, Field(min_length=2, max_length=5, pattern="^[a-z]*$")] = "ab"


class Tree(BaseModel):
    value: int
    children: list[Tree] = []
    line: Line | None = None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["closed"]
    n: Annotated[int, Field(ge=1, lt=10, multiple_of=2)]


class Other(BaseModel):
    kind: Literal["other"]
    at: date


class Camel(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="forbid")
    first_name: str = Field(alias="firstName")
    age: int = Field(validation_alias=AliasChoices("age", "years"))


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName")


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, coerce_numbers_to_str=True)
    code: Annotated[str, Field(max_length=3)]


class Whatever(BaseModel):
    ok: bool

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"ok": True}


class Form(TypedDict):
    name: str
    age: NotRequired[int]


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "short bytes": Annotated[bytes, Field(min_length=2, max_length=3)],
    "none": None,
    "datetime": datetime,
    "date": date,
    "time": time,
    "timedelta": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
    "colour": Colour,
    "level": Level,
    "rate": Rate,
    "lenient": Lenient,
    "literal": Literal["a", 1, True, None],
    "literal member": Literal[Level.LOW],
    "optional": int | None,
    "union": int | list[str] | Line,
    "tagged": Annotated[Closed | Other, Field(discriminator="kind")],
    "list": list[int],
    "short list": Annotated[list[int], Field(min_length=1, max_length=2)],
    "set": set[int],
    "small set": Annotated[set[int], Field(min_length=1, max_length=2)],
    "frozenset": frozenset[str],
    "tuple": tuple[int, str],
    "tuple of any length": tuple[int, ...],
    "no tuple": tuple[()],
    "dict": dict[str, int],
    "dict by number": dict[int, str],
    "bare dict": dict,
    "named tuple": Point,
    "dataclass": Line,
    "model": Approval,
    "recursive model": Tree,
    "list of models": list[Approval],
    "closed model": Closed,
    "model with aliases": Camel,
    "model with an alias": Aliased,
    "model that strips": Stripped,
    "model that reads before": Whatever,
    "root model": RootModel[list[int]],
    "typed dict": Form,
    "stripped": Annotated[str, StringConstraints(strip_whitespace=True, max_length=2)],
    "lowered": Annotated[str, StringConstraints(to_lower=True, pattern="^[a-z]+$")],
    "pattern": Annotated[str, StringConstraints(pattern=r"^\d{2}$")],
    "bounded float": Annotated[float, Field(gt=0.5, le=2.5)],
    "before": Annotated[list[str], BeforeValidator(_split)],
    "after": Annotated[int, AfterValidator(lambda value: value + 1)],
    "secret": SecretStr,
    "path": Path,
    "url": HttpUrl,
    "address": ipaddress.IPv4Address,
    "size": ByteSize,
    "deque": deque[int],
    "sequence": Sequence[int],
}
"""Every sort of type that a workflow can wait for, by name."""

FITTING: dict[str, list[Any]] = {
    "bool": [True, "yes", 0],
    "int": [1, "1", 1.0, True],
    "float": [1, "1.5", 0.5],
    "str": ["", "x"],
    "bytes": ["x"],
    "short bytes": ["é"],
    "none": [None],
    "datetime": ["2026-01-31T12:00:00Z", "2026-01-31", 1769860800],
    "date": ["2026-01-31", "2026-01-31T00:00:00", 86400],
    "time": ["12:00", 3600],
    "timedelta": ["PT30S", "00:00:30", 30, 1.5],
    "uuid": [
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    ],
    "decimal": ["1.50", 1, 1.5, " 1e2 "],
    "colour": ["red"],
    "level": [1, "2", 1.0],
    "rate": [0.5],
    "lenient": ["yes", "no", None],
    "literal": ["a", 1, True, None],
    "optional": [None, 1, "1"],
    "union": [1, ["a"], {"name": "x", "cents": 5}],
    "tagged": [{"kind": "closed", "n": 2}, {"kind": "other", "at": "2026-01-31"}],
    "list": [[], [1, "2"]],
    "short list": [[1]],
    "set": [[1, 1, 2]],
    "small set": [[1, 1, 1, 2]],
    "frozenset": [["a", "a"]],
    "tuple": [[1, "x"]],
    "tuple of any length": [[], [1, 2, 3]],
    "no tuple": [[]],
    "dict": [{}, {"a": "1"}],
    "dict by number": [{"1": "x"}],
    "bare dict": [{"a": []}],
    "named tuple": [[1], [1, "x"], {"x": 1}],
    "dataclass": [{"name": "x", "cents": "5", "more": 1}],
    "model": [{"ok": True, "amount": "99.5", "note": "abc"}],
    "recursive model": [{"value": 1, "children": [{"value": 2, "line": None}]}],
    "list of models": [[], [{"ok": "no"}]],
    "closed model": [{"kind": "closed", "n": "4"}],
    "model with aliases": [{"firstName": "x", "years": 1}, {"first_name": "x", "age": "1"}],
    "model with an alias": [{"firstName": "x"}],
    "model that strips": [{"code": "  abc  "}, {"code": 123}],
    "model that reads before": [{"ok": True}, "ok"],
    "root model": [[1, 2]],
    "typed dict": [{"name": "x"}],
    "stripped": ["   ab   "],
    "lowered": ["abc"],
    "pattern": ["12"],
    "bounded float": ["2.5", 1],
    "before": ["a,b", ["a"]],
    "after": [1],
    "secret": ["x"],
    "path": ["/x"],
    "url": ["https://example.com"],
    "address": ["127.0.0.1", 2130706433],
    "size": ["1KB", 5],
    "deque": [[1]],
    "sequence": [[1]],
}
"""What senders may well send, and workflows read."""

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, 2, 5, -1, 10**20, 0.0, 0.5, 1.0, 1.5, 2.0, -0.0, 1e300),
    *("", " ", "a", "ab", "abcdef", "A", "1", "01", " 1 ", "1.0", "1.5", "1e2", "NaN", "inf", "-3"),
    *("true", "yes", "off", "red", "blue", "yes ", "here", "closed", "other", "é", "a,b", "12"),
    *("2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31 12:00", "1769860800", "12:00", "12:00:00Z"),
    *("P1D", "PT30S", "1 day, 00:00:01", "00:01", "{6ba7b8109dad11d180b400c04fd430c8}"),
    *("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    *(1769860800, 1769860800.5, 86400, "127.0.0.1", 2130706433, "https://example.com", "1KB"),
    *("0.5", "0.1000000000000000055", "100.0", 100, 101, "1_000", "\ud800", "a\n", "12\n", "\x00"),
]
"""Values without members, chosen so that each sort of type takes some and refuses others."""

NAMES = (
    *("ok", "amount", "note", "name", "cents", "at", "tags", "seen", "x", "label", "value"),
    *("children", "line", "kind", "n", "age", "years", "firstName", "first_name", "code", "root"),
    *("1", "secret"),
)
"""Names of members, most of them known to one of the types."""
