"""Renders the prompts of a model in a sandbox, since its template and tokenizer are programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from protocol.messages import Task
from protocol.recipe import Model

from services.chassis.faults import Unworkable, WorkerFault
from services.chassis.pool import Cause, Failed, Pool, SetUp, SetUpError
from services.chassis.prompts import PromptError, UnknownToken
from services.chassis.timeouts import TOKENIZER_CPU_S

_MODULE = "services.chassis.tokenizer_worker"
_BATCH_SIZE = 64  # prompts a call
_TEMPLATE = "the model's chat template", "use another model or set model.prompt_template"
_TOKENIZER = "the model's tokenizer", "use another model"
_PROBLEMS = {
    Cause.TIMEOUT: "did not end within {cpu_s:g} s of CPU time",
    Cause.MEMORY: "takes more than 1 GiB of memory",
    Cause.CRASH: "crashed, perhaps for lack of memory: {detail}",
    Cause.ERROR: "failed: {detail}",
}


class LimitExceeded(Unworkable):
    """A model's template or tokenizer exceeds a limit, probably with any prompt."""


class Vocabulary(NamedTuple):
    digest: str
    max_id: int  # the largest id with a row in the model
    end_id: int | None


class PromptRenderer:
    """A model's chat template and tokenizer, in confined processes with limits.

    ``async with`` starts them, and `open` loads a model. All methods raise `LimitExceeded` if the
    model uses too much CPU time or memory or crashes, `PromptError` if it refuses the prompt, and
    `WorkerFault` if the machine is at fault.
    """

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers
        self._pool = self._new_pool()

    def _new_pool(self) -> Pool:
        return Pool(self._workers, warm_ups=[f"{_MODULE}:import_libraries"], confined=True)

    async def __aenter__(self) -> Self:
        self._pool.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._pool.__aexit__()

    async def open(self, folder: Path) -> None:
        """Load the tokenizer of a model's folder."""
        self._pool.set_up = SetUp(f"{_MODULE}:load", [str(folder)], TOKENIZER_CPU_S)
        try:
            await self._pool.__aenter__()
        except SetUpError as error:
            self._pool = self._new_pool()
            raise _make_error(_TOKENIZER, error.failed) from error

    async def render(
        self, task: Task, template: str | None, options: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Return the token ids of `prompts.encode_prompt`."""
        part = _TOKENIZER if template else _TEMPLATE
        fields = task.model_dump(mode="json")
        return await self._call(part, "render", fields, template, options)

    async def digest(
        self, tasks: Sequence[Task], template: str | None, options: Mapping[str, Any]
    ) -> str:
        """Return the digest of `parity.digest_prompts`."""
        fields = [task.model_dump(mode="json") for task in tasks]
        return await self._call(_TEMPLATE, "digest_prompts", fields, template, options)

    async def find_problems(
        self, tasks: Sequence[Task], model: Model, max_tokens: int
    ) -> list[str]:
        """Return the problem of each prompt that leaves no room for a response."""
        fields = [task.model_dump(mode="json") for task in tasks]
        return await self._call(
            _TEMPLATE,
            "find_problems",
            fields,
            model.prompt_template,
            model.chat_template_options,
            model.max_context,
            max_tokens,
        )

    async def chat(
        self,
        turns: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        prefix: tuple[Sequence[int], int] | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation, up to the assistant's turn.

        Args:
            prefix: the token ids of the first turns, up to a reply, and how many turns they are.
        """
        return await self._call(_TEMPLATE, "render_chat", turns, options, tools, prefix)

    async def encode(self, text: str, **options: Any) -> list[int]:
        return await self._call(_TOKENIZER, "encode", text, options)

    async def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts, without special tokens."""
        return await self._call(_TOKENIZER, "decode", sequences)

    async def describe(self) -> Vocabulary:
        return Vocabulary(*await self._call(_TOKENIZER, "describe"))

    async def _call(self, part: tuple[str, str], function: str, *args: Any) -> Any:
        try:
            outcome = await self._pool.run(
                f"{_MODULE}:{function}", *args, deadline_s=TOKENIZER_CPU_S
            )
        except ValueError as error:
            raise PromptError(f"the prompt cannot be sent to the tokenizer: {error}") from error
        if isinstance(outcome, Failed):
            raise _make_error(part, outcome)
        return outcome.value


def _make_error(part: tuple[str, str], failed: Failed) -> Exception:
    name, remedy = part
    if failed.is_machine_fault:
        return WorkerFault(f"{name} was not run to its end: {failed.detail}")
    kind, _, words = failed.detail.partition(": ")
    for refusal in (PromptError, UnknownToken):
        if kind == refusal.__name__:
            return refusal(words)
    problem = _PROBLEMS[failed.cause].format(cpu_s=TOKENIZER_CPU_S, detail=failed.detail)
    error = PromptError if failed.cause is Cause.ERROR else LimitExceeded
    return error(f"{name} {problem}; {remedy}")


async def check_prompts(
    tasks: Sequence[Task], folder: Path, model: Model, max_tokens: int
) -> str | None:
    """Return how many prompts leave no room for a response, as a sentence; None if all do."""
    problems: list[str] = []
    try:
        async with PromptRenderer(1) as prompts:
            await prompts.open(folder)
            for start in range(0, len(tasks), _BATCH_SIZE):
                problems += await prompts.find_problems(
                    tasks[start : start + _BATCH_SIZE], model, max_tokens
                )
    except (Unworkable, WorkerFault) as error:
        return f"the prompts were not measured: {error}"
    if not problems:
        return None
    return f"{len(problems)} of {len(tasks)} prompts do not fit; the first one: {problems[0]}"
