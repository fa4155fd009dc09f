"""Types that the tests of the codec pass around. Plain classes at the top of a module."""

import enum
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Size(enum.Enum):
    SMALL = (1, 2)


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Tree:
    name: str
    children: "tuple[Tree, ...]" = ()


@dataclass
class Page(Generic[T]):
    items: list[T]
    total: int = field(init=False, default=0)


@dataclass
class OtherLine:
    sku: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


class Order(BaseModel):
    id: UUID
    placed: datetime
    lines: list[str] = []
    labels: set[str] = set()
    colour: Colour = Colour.RED


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Express(Order):
    fee: Decimal = Decimal("1.50")


class Declined(Exception):
    """Its constructor wants something else than what it passes on."""

    def __init__(self, code: int, *, retry: bool) -> None:
        super().__init__(f"declined with {code}")
        self.code = code
        self.retry = retry


class Silent(Exception):
    """Whatever it is asked, it cannot be rebuilt."""

    def __new__(cls, *args: object) -> "Silent":
        if not args or args[0] != "secret word":
            raise TypeError("no")
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        super().__init__("silent", object())
