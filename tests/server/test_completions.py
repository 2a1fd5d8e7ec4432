"""/v1/completions through the official client and by hand, compared with LLM in one process."""

from collections.abc import Iterator

import openai
import pytest
from tests.server.conftest import Running

PROMPT = "Once upon a time"


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.idle()


def test_default_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tales", prompt=PROMPT, temperature=0)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")
