"""What the clients' tests ask for and about."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

OSLO, BOTH = "What is the weather in Oslo?", "What is the weather in Oslo and Rome?"
ADA = "Ada is 36 years old. Answer in JSON."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
"""The tool of the fixture `weather`, as one writes it by hand."""


Short = Annotated[str, Field(max_length=20)]
"""Ends also where a model that has not learned to do so writes it."""


class Person(BaseModel):
    """Somebody."""

    name: Short
    age: int


class Report(BaseModel):
    """The weather of one city."""

    city: Short
    degrees: int


class Size(StrEnum):
    """How large."""

    SMALL = "small"
    LARGE = "large"


class Card(BaseModel):
    """Paid by card."""

    kind: Literal["card"]
    number: str = Field(pattern=r"^\d{4}$")


class Cash(BaseModel):
    """Paid in cash."""

    kind: Literal["cash"]
    amount: int = Field(ge=0, le=100)


class Order(BaseModel):
    """A bit of everything that programs put into schemas."""

    size: Size
    n_items: int = Field(ge=1, le=20)
    notes: list[Short] = Field(max_length=2)
    paid: Card | Cash
    owner: Person | None
    at: datetime
    sure: bool
