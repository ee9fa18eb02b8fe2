# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""*Sum, then check* as a taskset of `verifiers`, with a harness of its own.

The harnesses of `verifiers` start a program for each episode, which takes longer than two short
turns. This one calls the model from the worker's own process.
Tasks are lines of a file with a prompt and an answer, such as those of `examples/arithmetic`.
"""

from collections.abc import Iterable

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

from examples.environments.sums import check, is_answer, reward

__all__ = ["AnswersAfterACheck", "Sums"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return reward(trace.last_reply, self.data.answer)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterable[SumTask]:
        """Yield one task as an example; a recipe names its own."""
        yield SumTask(SumData(prompt="47+8-6+7=?", answer="56"), self.config.task)


class AnswersAfterACheck(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data) -> ProgramResult:
        """Play a turn and, unless that was the answer, the tool's reply and a second turn."""
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        # Plain HTTP on this machine: certificates would only cost time.
        async with httpx.AsyncClient(headers=headers, timeout=None, verify=False) as http:

            async def turn() -> str:
                body = {"model": ctx.model, "messages": messages}
                reply = await http.post(f"{endpoint}/chat/completions", json=body)
                return reply.raise_for_status().json()["choices"][0]["message"]["content"]

            text = await turn()
            if not is_answer(text):
                messages += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": check(text)},
                ]
                await turn()
        return ProgramResult(0, "", "")
