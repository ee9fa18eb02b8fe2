"""What the README says of the OpenAI SDK is what its calls come to."""

from __future__ import annotations

import openai
import pytest

from tests.contract.gateway.compatibility import CALLS, World, methods, table, told_in_readme
from tests.contract.gateway.stack import Stack

pytestmark = pytest.mark.redis


def test_the_table_of_the_readme_is_what_calls_of_every_method_come_to(
    stack: Stack, sdk: openai.OpenAI
) -> None:
    assert {name.partition("(")[0] for name, _, _ in CALLS} == methods()
    assert table(World(stack, sdk)) == told_in_readme()


def test_the_openai_sdk_raises_its_typed_errors(stack: Stack, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="ftjob-none"):
        sdk.fine_tuning.jobs.retrieve("ftjob-none")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.fine_tuning.jobs.create(model="tiny", training_file="file-none")
    assert (caught.value.param, caught.value.code) == ("training_file", "file_not_found")
    assert caught.value.type == "invalid_request_error"
    stranger = openai.OpenAI(base_url=f"{stack.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="WEIR_API_KEYS"):
        stranger.fine_tuning.jobs.list()
