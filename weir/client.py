"""A client of the gateway: upload, submit, follow, cancel, fetch the model."""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
from protocol.recipe import Recipe

JOBS = "/v1/fine_tuning/jobs"
_AT_STEP = re.compile(r"(?P<job>ftjob-[0-9a-f]+)@(?P<step>[0-9]+)")
_PATIENCE_S = 60.0
_PAUSE_S = 1.0
_JOBS_A_PAGE, _EVENTS_A_PAGE = 100, 1000
_CHUNK = 2**18

Json = dict[str, Any]
OnProgress = Callable[[str, int, int], None]


class WeirError(Exception):
    """The gateway refused a request, or could not be reached (then ``status`` is None)."""

    def __init__(
        self, message: str, *, status: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class WeirClient:
    """Talks to one gateway, by its address with or without ``/v1``.

    Requests that fail in transit are repeated; nothing happens twice.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._clock, self._sleep = clock, sleep
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(30.0, connect=5.0),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def upload(self, path: Path) -> str:
        """Upload a task file; returns its id. The same file again has the same id.

        Raises:
            WeirError: naming the lines and fields that are wrong.
        """
        files, form = {"file": (path.name, path.read_bytes())}, {"purpose": "fine-tune"}
        return self._request("POST", "/v1/files", files=files, data=form)["id"]

    def submit(self, body: Mapping[str, Any]) -> Json:
        """Submit a job: ``model``, ``training_file``, ``recipe`` and so on, as in the REST body.

        Raises:
            WeirError: naming the field that is wrong.
        """
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        return self._request("POST", JOBS, json=body, headers=headers)

    def submit_recipe(self, recipe: Recipe, *, model: str | None = None) -> Json:
        """Upload the task files that a recipe names, relative to the current directory, and submit.

        ``model`` is how the gateway knows the model, if not by the recipe's ``model.path``. The
        recipe goes as a whole: the deployment's defaults change nothing of it.
        """
        tables = recipe.model_dump(mode="json")
        tasks = tables.pop("tasks")
        path = tables["model"].pop("path")
        body = {"model": model or path, "training_file": self.upload(Path(tasks["train"]))}
        if tasks.get("held_out"):
            body["validation_file"] = self.upload(Path(tasks["held_out"]))
        for other in ((tables.get("evaluation") or {}).get("others") or {}).values():
            other["held_out"] = self.upload(Path(other["held_out"]))
        return self.submit(body | {"recipe": tables})

    def submit_again(self, job_id: str, *, model: str) -> Json:
        """Submit a job by the recipe and the task files of another, which starts from ``model``."""
        job = self.job(job_id)
        if job["weir"]["recipe"].get("client"):
            raise WeirError(f"{job_id} is a client's, without a recipe to go on by; name a RECIPE")
        recipe = {name: table for name, table in job["weir"]["recipe"].items() if name != "tasks"}
        recipe["model"] = {key: v for key, v in recipe["model"].items() if key != "path"}
        files = {name: job[name] for name in ("training_file", "validation_file") if job[name]}
        return self.submit({"model": model, "recipe": recipe, **files})

    def job(self, job_id: str) -> Json:
        return self._request("GET", _path(job_id))

    def why(self, job_id: str) -> Json:
        """Whether a job moves, what it waits for, and who does what."""
        return self._request("GET", _path(job_id, "why"))

    def jobs(self, limit: int = 20, **query: Any) -> list[Json]:
        """The newest jobs that fit ``query``, which is that of the route."""
        return list(islice(self.all_jobs(min(limit, _JOBS_A_PAGE), **query), limit))

    def all_jobs(self, page: int = _JOBS_A_PAGE, **query: Any) -> Iterator[Json]:
        """Every job that fits ``query``, newest first, asked for by pages."""
        return self._pages(JOBS, {"limit": page, **query})

    def checkpoints(self, job_id: str) -> list[Json]:
        """The checkpoints that a job has kept, newest first."""
        return list(self._pages(_path(job_id, "checkpoints"), {}))

    def delete(self, job_id: str) -> Json:
        """Delete all of a job that has ended, the model that it has trained as well."""
        return self._request("DELETE", _path(job_id))

    def cancel(self, job_id: str) -> Json:
        return self._request("POST", _path(job_id, "cancel"))

    def cancel_all(self, **query: Any) -> Iterator[Json]:
        """End every job that fits ``query``, which is that of the list of jobs."""
        return self._until_none("POST", f"{JOBS}/cancel", query)

    def delete_all(self, **query: Any) -> Iterator[Json]:
        """Delete all of every job that has ended and fits ``query``."""
        return self._until_none("DELETE", JOBS, query)

    def pause(self, job_id: str) -> Json:
        """Ask a job to write a checkpoint and rest."""
        return self._request("POST", _path(job_id, "pause"))

    def resume(self, job_id: str) -> Json:
        return self._request("POST", _path(job_id, "resume"))

    def past_events(self, job_id: str, *, after: str | None = None) -> Iterator[Json]:
        """A job's events until now, oldest first."""
        query = {"order": "asc", "limit": _EVENTS_A_PAGE} | ({"after": after} if after else {})
        return self._pages(_path(job_id, "events"), query)

    def samples(self, job_id: str, **query: Any) -> Iterator[Json]:
        """A job's samples, newest first; ``query`` is that of the route, its ``limit`` of a page.

        Raises:
            WeirError: naming the part of the query that is wrong.
        """
        return self._pages(_path(job_id, "samples"), query)

    def sample_group(self, job_id: str, key: str) -> Json:
        """A group such as ``train:17``, with the text and the numbers of every token."""
        return self._request("GET", _path(job_id, "samples", key))

    def events(self, job_id: str, *, after: str | None = None) -> Iterator[Json]:
        """A job's events as they happen, until it has ended; goes on by itself where a line broke.

        Raises:
            WeirError: if there is no such job, or the gateway was away for a minute.
        """
        last_heard = self._clock()
        while self._clock() - last_heard < _PATIENCE_S:
            try:
                for line in self._stream(job_id, after):
                    last_heard = self._clock()
                    if line == "data: [DONE]":
                        return
                    if not line.startswith("data: "):
                        continue  # a sign of life
                    event = json.loads(line.removeprefix("data: "))
                    after = event["id"]
                    yield event
            except httpx.TransportError:
                pass  # the next round goes on after the last event
            self._sleep(_PAUSE_S)
        raise self._silent()

    def chat(
        self, body: Mapping[str, Any], on_wait: Callable[[str], None] = lambda _: None
    ) -> Iterator[Json]:
        """The chunks of a chat completion as they come; ``body`` is that of the route.

        Args:
            on_wait: told what the answer waits for, in words.

        Raises:
            WeirError: naming the field that is wrong, or saying why there is no answer.
        """
        content = {**body, "stream": True}
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=content) as reply:
                if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                    reply.read()
                    raise _refused(reply)
                for line in reply.iter_lines():
                    if line.startswith(":"):
                        on_wait(line.removeprefix(":").strip())
                    elif line.startswith("data: {"):
                        yield _chunk(line.removeprefix("data: "))
        except httpx.ConnectError as error:
            raise self._nobody(error) from error
        except httpx.TransportError as error:
            raise WeirError(f"{self.url}: {error}") from error

    def model_files(self, made_by: str) -> list[Json]:
        """The files of the model of a job that has succeeded, or of ``JOB@STEP``."""
        return self._request("GET", _path(made_by, "model"))["data"]

    def fetch_model(
        self, made_by: str, folder: Path, on_progress: OnProgress = lambda *_: None
    ) -> None:
        """Bring a job's model here. A fetch that was interrupted goes on where it was.

        Args:
            made_by: a job that has succeeded, or ``JOB@STEP``: a checkpoint that it has kept.
            folder: made if it is missing; a file in it is replaced when the new one is whole.
            on_progress: told the file at hand, the bytes that are here, the bytes of the model.

        Raises:
            WeirError: saying why the job has no model, why the disk does not take it, or that the
                gateway was away for a minute.
        """
        listed = self.model_files(made_by)
        total, before = sum(file["bytes"] for file in listed), 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in listed:
                part = PartFile(_within(folder, file["name"]), file["bytes"], file["modified_us"])
                for here in self._download(_path(made_by, "model", file["name"]), part):
                    on_progress(file["name"], before + here, total)
                before += part.size
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise WeirError(f"{error.filename}: {error.strerror}; name another folder") from error
        except OSError as error:
            raise WeirError(
                f"{folder}: {error.strerror}; what has arrived stays there, and the next fetch "
                "goes on from it"
            ) from error

    def _download(self, url: str, part: PartFile) -> Iterator[int]:
        if part.is_complete:
            yield part.size
            return
        furthest, last_gain = -1, self._clock()
        while self._clock() - last_gain < _PATIENCE_S:
            try:
                for here in self._pieces(url, part):
                    if here > furthest:
                        furthest, last_gain = here, self._clock()
                    yield here
            except httpx.TransportError:
                pass  # the next round goes on after the last piece
            if part.here == part.size:
                part.finish()
                return
            self._sleep(_PAUSE_S)
        raise self._silent()

    def _pieces(self, url: str, part: PartFile) -> Iterator[int]:
        start = part.here
        if start == part.size:
            yield start
            return
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": part.last_modified}
        with self._http.stream("GET", url, headers=headers) as reply:
            if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            if reply.is_error:
                reply.read()
                raise _refused(reply)
            if reply.status_code == httpx.codes.PARTIAL_CONTENT:
                here = f"bytes {start}-{part.size - 1}/{part.size}"
                is_listed = reply.headers.get("content-range") == here
            else:
                start = 0
                is_listed = reply.headers.get("content-length", str(part.size)) == str(part.size)
            if not is_listed:
                raise WeirError(f"{reply.url} has changed since it was listed; fetch it again")
            yield from part.write(reply.iter_raw(_CHUNK), start)

    def _nobody(self, error: httpx.ConnectError) -> WeirError:
        return WeirError(f"nothing answers at {self.url} ({error}); `weir up` starts a stack")

    def _silent(self) -> WeirError:
        return WeirError(f"{self.url} has not answered for {_PATIENCE_S:g} s")

    def _stream(self, job_id: str, after: str | None) -> Iterator[str]:
        headers = {"Last-Event-ID": after} if after else {}
        url, query = _path(job_id, "events"), {"stream": "true"}
        with self._http.stream("GET", url, params=query, headers=headers) as reply:
            if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                reply.read()
                raise _refused(reply)
            yield from reply.iter_lines()

    def _pages(self, url: str, query: Json) -> Iterator[Json]:
        """What a list holds, from the place of ``query`` on."""
        while True:
            page = self._request("GET", url, params=query)
            yield from page["data"]
            if not page["has_more"] or page["last_id"] == query.get("after"):
                return
            query = query | {"after": page["last_id"]}

    def _until_none(self, method: str, url: str, query: Json) -> Iterator[Json]:
        page: Json = {"has_more": True}
        while page["has_more"]:
            page = self._request(method, url, params=query)
            yield from page["data"]

    def _request(self, method: str, path: str, *, tries: int = 3, **content: Any) -> Json:
        try:
            reply = self._http.request(method, path, **content)
        except httpx.ConnectError as error:
            raise self._nobody(error) from error
        except httpx.TransportError as error:
            if tries == 1:
                raise WeirError(f"{self.url}: {error}") from error
        else:
            if reply.is_success:
                return _content(reply)
            if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE or tries == 1:
                raise _refused(reply)
        self._sleep(_PAUSE_S)
        return self._request(method, path, tries=tries - 1, **content)


@dataclass(frozen=True)
class PartFile:
    """``target`` while it arrives, under a name that has the time of the original's last change.

    So the pieces of another original are never taken for its own.
    """

    target: Path
    size: int
    modified_us: int

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.{self.modified_us}.part")

    @property
    def last_modified(self) -> str:
        """The original's last change, as HTTP writes it."""
        return formatdate(self.modified_us / 1e6, usegmt=True)

    @property
    def is_complete(self) -> bool:
        """If the target is here, whole, and of this original."""
        return self.target.exists() and (
            (found := self.target.stat()).st_size == self.size
            and found.st_mtime_ns == self.modified_us * 1000
        )

    @property
    def here(self) -> int:
        """Bytes that have arrived of this original."""
        found = self.path.stat().st_size if self.path.exists() else 0
        return found if found <= self.size else 0

    def write(self, chunks: Iterable[bytes], start: int) -> Iterator[int]:
        """Write from byte ``start`` on, which is 0 or where the file ends.

        Yields after each chunk how many bytes are here.
        """
        # Two fetches at once write the same bytes to the same places.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as out:
            if os.fstat(descriptor).st_size > self.size:
                out.truncate(0)
            out.seek(start)
            for chunk in chunks:
                while chunk:  # a disk that is nearly full takes less than it is given
                    chunk = chunk[out.write(chunk) :]
                yield out.tell()

    def finish(self) -> None:
        try:
            with self.path.open("r+b" if self.size else "ab") as out:
                os.fsync(out.fileno())
        except FileNotFoundError:  # another fetch has put it in place
            return
        os.utime(self.path, ns=(self.modified_us * 1000, self.modified_us * 1000))
        self.path.replace(self.target)
        for left in self.target.parent.glob(f"{glob.escape(self.target.name)}.[0-9]*.part"):
            left.unlink(missing_ok=True)


def _path(job_id: str, *parts: str) -> str:
    """Where a job is, or the checkpoint that ``JOB@STEP`` names."""
    if named := _AT_STEP.fullmatch(job_id):
        job_id = f"ftckpt-{named['job']}-{int(named['step'])}"
    if "/" in job_id or job_id in {"", ".", ".."}:  # a server would take it for another path
        raise WeirError(f"{job_id!r} is no id of a job; `weir jobs` lists those there are")
    return "/".join([JOBS, *(quote(part, safe="") for part in (job_id, *parts))])


def _within(folder: Path, name: str) -> Path:
    if name in {"", ".."} or Path(name).name != name or "\0" in name:
        raise WeirError(f"the gateway lists a file {name!r}, which would not lie in {folder}")
    return folder / name


def _content(reply: httpx.Response) -> Json:
    try:
        return reply.json()
    except ValueError as error:
        raise WeirError(f"{reply.url} answered no JSON; is it a Weir gateway?") from error


def _chunk(text: str) -> Json:
    chunk = json.loads(text)
    if error := chunk.get("error"):
        raise WeirError(error["message"], param=error.get("param"))
    return chunk


def _refused(reply: httpx.Response) -> WeirError:
    try:
        error = reply.json()["error"]
        message, param = error["message"], error["param"]
    except (ValueError, KeyError, TypeError):
        message, param = f"{reply.url} answered {reply.status_code}; is it a Weir gateway?", None
    return WeirError(message, status=reply.status_code, param=param)
