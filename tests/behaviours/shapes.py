"""Types whose values travel through workflows in these tests."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Cat(BaseModel):
    """One kind of pet."""

    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    """Another."""

    kind: Literal["dog"] = "dog"
    tricks: list[str | None] = []


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class Box(BaseModel, Generic[T]):
    """Something inside something."""

    inside: T
    label: str | None = None


class Size(NamedTuple):
    """A pair with names."""

    width: int
    height: int


class Colour(Enum):
    """One of two."""

    RED = "r"
    BLUE = "b"


@dataclass
class Shelf:
    """A data class of the others."""

    boxes: list[Box[Cat | Dog]]
    size: Size
    colours: set[Colour] = field(default_factory=set)


class OrderV1(BaseModel):
    """An order, as the first release had it."""

    id: int
    customer: str
    legacy: str = "x"


class OrderV2(BaseModel):
    """The same a year later: one field renamed, one gone, one more."""

    model_config = ConfigDict(populate_by_name=True, extra="ignore")
    id: int
    buyer: str = Field(alias="customer")
    note: str | None = None
