"""instructor: its modes, streams, and asking again after a wrong answer."""

from collections.abc import Iterable
from typing import Annotated

import instructor
import pytest
from instructor.core import InstructorRetryException
from openai import AsyncOpenAI, OpenAI
from pydantic import AfterValidator, BaseModel
from shapes import ADA, Order, Person

MODES = [
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.JSON,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.MD_JSON,
]


def born(age):
    if age < 0:
        raise ValueError("nobody is as old as that")
    return age


class Born(BaseModel):
    """Somebody who was born."""

    name: str
    age: Annotated[int, AfterValidator(born)]


@pytest.fixture
def ask(url, model):
    def go(mode, said, as_what, **more):
        client = instructor.from_openai(OpenAI(base_url=url, api_key="unused", max_retries=0), mode=mode)
        return client.chat.completions.create(
            model=model,
            temperature=0,
            messages=[{"role": "user", "content": said}],
            response_model=as_what,
            **{"max_retries": 0} | more,
        )

    return go


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_structured_output(ask, mode):
    assert isinstance(ask(mode, ADA, Person), Person)


@pytest.mark.scripted
@pytest.mark.parametrize("mode", MODES)
def test_structured_output_is_what_was_said(ask, mode):
    assert ask(mode, ADA, Person).model_dump() == {"name": "Ada", "age": 36}


@pytest.mark.scripted
@pytest.mark.parametrize("mode", MODES)
def test_a_stream_of_parts(ask, mode):
    parts = list(ask(mode, ADA, instructor.Partial[Person], stream=True))
    assert (parts[-1].name, parts[-1].age) == ("Ada", 36)
    assert len({part.model_dump_json() for part in parts}) > 2


@pytest.mark.scripted
@pytest.mark.parametrize("mode", MODES)
def test_what_is_wrong_is_said_again(ask, mode):
    assert ask(mode, "Ada is -36 years old. Answer in JSON.", Born, max_retries=2).age == 36


@pytest.mark.scripted
def test_an_error_is_the_packages_own(ask):
    with pytest.raises(InstructorRetryException, match="top_logprobs"):
        ask(instructor.Mode.TOOLS, ADA, Person, top_logprobs=-1)


@pytest.mark.scripted
async def test_parallel_calls(url, model):
    client = instructor.from_openai(
        AsyncOpenAI(base_url=url, api_key="unused", max_retries=0), mode=instructor.Mode.PARALLEL_TOOLS
    )
    found = await client.chat.completions.create(
        model=model,
        temperature=0,
        messages=[{"role": "user", "content": "Ada is 36 years old. Bob is 7 years old."}],
        response_model=Iterable[Person],
        max_retries=0,
    )
    assert [(one.name, one.age) for one in found] == [("Ada", 36), ("Bob", 7)]


@pytest.mark.scripted
@pytest.mark.parametrize(
    "mode", [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]
)
def test_a_schema_of_many_shapes(ask, mode):
    assert isinstance(ask(mode, "An order, please.", Order), Order)


def test_the_documented_example(run_example):
    assert "Ada" in run_example("instructor")
