# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""A taskset of `verifiers` for the tests, whose tasks say how their episodes end."""

import asyncio
import gc
from collections.abc import Iterable

import httpx
import verifiers.v1 as vf

num_come = num_waiting = 0


class Data(vf.TaskData):
    ends: str = "well"
    answer: str = ""
    crowd: int = 0


class Counting(vf.Task[Data]):
    @vf.reward
    async def counted(self, trace: vf.Trace) -> float | dict[str, float]:
        if self.data.ends == "raises":
            raise KeyError("no such row")
        if self.data.ends == "alone":
            clients = [
                client for client in gc.get_objects() if isinstance(client, httpx.AsyncClient)
            ]
            return float(sum(not client.is_closed for client in clients) == 1)
        return {} if self.data.ends == "unpaid" else float(trace.last_reply == self.data.answer)


class Tasks(vf.Taskset[Counting, vf.TasksetConfig]):
    def load(self) -> Iterable[Counting]:
        yield Counting(Data(name="first", prompt="Count."), self.config.task)


class Twice(vf.Harness[vf.HarnessConfig]):
    """Asks twice, in this process."""

    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            for _ in range(2):
                body = {"model": ctx.model, "messages": messages}
                reply = await http.post(f"{endpoint}/chat/completions", json=body)
                reply.raise_for_status()
                content = reply.json()["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": content})
                messages.append({"role": "user", "content": "Go on."})
        if data.crowd:
            await wait_for_crowd(data.crowd)
        return vf.ProgramResult(0, "", "")


async def wait_for_crowd(size: int) -> None:
    """Wait until as many episodes have come, or twice as many, and so on; fail if more wait."""
    global num_come, num_waiting
    num_come += 1
    num_waiting += 1
    assert num_waiting <= size
    target = -(-num_come // size) * size
    while num_come < target:
        await asyncio.sleep(0.02)
    num_waiting -= 1


__all__ = ["Tasks", "Twice"]
