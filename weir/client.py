"""A client of the gateway: uploads, jobs, their events and samples, chats, and models."""

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
_JOB_AT_STEP = re.compile(r"(?P<job>ftjob-[0-9a-f]+)@(?P<step>[0-9]+)")
# A stream or a download fails after this long without progress.
_SILENCE_TIMEOUT_S = 60.0
# The file in a fetched folder with the name of its model.
_SOURCE = ".weir-model"
_RETRY_S = 1.0
_MAX_TRIES = 3
_JOBS_PER_PAGE = 100
_EVENTS_PER_PAGE = 1000
_CHUNK_BYTES = 2**18

Json = dict[str, Any]
# Called with a file's name, the bytes of the model that are here, and all its bytes.
OnProgress = Callable[[str, int, int], None]


class WeirError(Exception):
    """The gateway refused a request, or did not respond (then ``status`` is None)."""

    def __init__(
        self, message: str, *, status: int | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class WeirClient:
    """A client of the gateway at an address with or without ``/v1``.

    Requests that fail in transit are repeated, and take effect once.
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
        self._clock = clock
        self._sleep = sleep
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
        """Upload a task file, and return its id. The same file always has the same id.

        Raises:
            WeirError: if lines or fields are wrong; the message names them.
        """
        files = {"file": (path.name, path.read_bytes())}
        form = {"purpose": "fine-tune"}
        return self._request("POST", "/v1/files", files=files, data=form)["id"]

    def submit(self, body: Mapping[str, Any], key: str | None = None) -> Json:
        """Submit a job; ``body`` is that of the route: ``model``, ``training_file``, ``recipe``…

        The same ``key`` and body return the same job.

        Raises:
            WeirError: if a field is wrong; ``param`` names it.
        """
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        return self._request("POST", JOBS, json=body, headers=headers)

    def submit_recipe(self, recipe: Recipe, *, model: str | None = None) -> Json:
        """Upload the task files of a recipe, relative to the current directory, and submit it.

        ``model`` is the gateway's name of the model, by default the recipe's ``model.path``. The
        recipe is sent complete, so the deployment's defaults do not change it.
        """
        tables = recipe.model_dump(mode="json")
        tasks = tables["tasks"]
        path = tables["model"].pop("path")
        body: dict[str, Any] = {"model": model or path}
        for field, name in (("training_file", "train"), ("validation_file", "held_out")):
            if file := tasks.pop(name, None):
                body[field] = self.upload(Path(file))
        for source in tasks["sources"]:
            source["train"] = self.upload(Path(source["train"]))
        evaluation = tables.get("evaluation") or {}
        for other in (evaluation.get("others") or {}).values():
            other["held_out"] = self.upload(Path(other["held_out"]))
        return self.submit({**body, "recipe": tables})

    def submit_again(self, job_id: str, *, model: str) -> Json:
        """Submit a job with the recipe and task files of another, which starts from ``model``."""
        job = self.job(job_id)
        recipe = job["weir"]["recipe"]
        if recipe.get("client"):
            raise WeirError(f"{job_id} is a session and has no recipe to repeat; name a RECIPE")
        del recipe["model"]["path"]
        for name in ("train", "held_out"):
            recipe["tasks"].pop(name, None)
        body = {"model": model, "recipe": recipe}
        for name in ("training_file", "validation_file"):
            if job[name]:
                body[name] = job[name]
        return self.submit(body)

    def job(self, job_id: str) -> Json:
        return self._request("GET", _job_url(job_id))

    def why(self, job_id: str) -> Json:
        """Return whether a job moves, its reason to wait, and the activity of each process."""
        return self._request("GET", _job_url(job_id, "why"))

    def jobs(self, limit: int = 20, **query: Any) -> list[Json]:
        """Return the newest jobs that match the route's ``query``."""
        return list(islice(self.all_jobs(min(limit, _JOBS_PER_PAGE), **query), limit))

    def all_jobs(self, page_size: int = _JOBS_PER_PAGE, **query: Any) -> Iterator[Json]:
        """Yield every job that matches ``query``, newest first."""
        return self._pages(JOBS, {"limit": page_size, **query})

    def checkpoints(self, job_id: str) -> list[Json]:
        """Return a job's checkpoints, newest first."""
        return list(self._pages(_job_url(job_id, "checkpoints"), {}))

    def delete(self, job_id: str) -> Json:
        """Delete all data of a job that has ended, including its model."""
        return self._request("DELETE", _job_url(job_id))

    def cancel(self, job_id: str) -> Json:
        return self._request("POST", _job_url(job_id, "cancel"))

    def cancel_all(self, **query: Any) -> Iterator[Json]:
        """Cancel every job that matches the ``query`` of the list of jobs, and yield them."""
        return self._repeat("POST", f"{JOBS}/cancel", query)

    def delete_all(self, **query: Any) -> Iterator[Json]:
        """Delete every job that has ended and matches ``query``, and yield them."""
        return self._repeat("DELETE", JOBS, query)

    def pause(self, job_id: str) -> Json:
        """Request that a job writes a checkpoint and pauses."""
        return self._request("POST", _job_url(job_id, "pause"))

    def resume(self, job_id: str, budget_gpu_hours: float | None = None) -> Json:
        """Queue a paused or failed job again; a budget replaces the job's."""
        body = {"budget_gpu_hours": budget_gpu_hours}
        return self._request("POST", _job_url(job_id, "resume"), json=body)

    def past_events(self, job_id: str, *, after: str | None = None) -> Iterator[Json]:
        """Yield a job's events until now, oldest first."""
        query: Json = {"order": "asc", "limit": _EVENTS_PER_PAGE}
        if after:
            query["after"] = after
        return self._pages(_job_url(job_id, "events"), query)

    def samples(self, job_id: str, **query: Any) -> Iterator[Json]:
        """Yield a job's samples, newest first; the ``limit`` of the ``query`` is that of a page.

        Raises:
            WeirError: if the query is wrong; ``param`` names the part.
        """
        return self._pages(_job_url(job_id, "samples"), query)

    def sample_group(self, job_id: str, key: str) -> Json:
        """Return a group such as ``train:17``, with the text and the numbers of every token."""
        return self._request("GET", _job_url(job_id, "samples", key))

    def events(self, job_id: str, *, after: str | None = None) -> Iterator[Json]:
        """Yield a job's events as they happen until it has ended; broken connections resume.

        Raises:
            WeirError: if there is no such job, or the gateway does not respond for a minute.
        """
        url = _job_url(job_id, "events")
        last_line_at = self._clock()
        while self._clock() - last_line_at < _SILENCE_TIMEOUT_S:
            headers = {"Last-Event-ID": after} if after else {}
            try:
                for line in self._stream("GET", url, params={"stream": "true"}, headers=headers):
                    last_line_at = self._clock()
                    if line == "data: [DONE]":
                        return
                    # Other lines are comments, which keep the connection open.
                    if line.startswith("data: "):
                        event = json.loads(line.removeprefix("data: "))
                        after = event["id"]
                        yield event
            except httpx.TransportError:
                pass
            except WeirError as error:
                if error.status != httpx.codes.SERVICE_UNAVAILABLE:
                    raise
            self._sleep(_RETRY_S)
        raise self._timeout()

    def chat(
        self, body: Mapping[str, Any], on_wait: Callable[[str], None] = lambda _: None
    ) -> Iterator[Json]:
        """Yield the chunks of a chat completion as they come; ``body`` is that of the route.

        Args:
            on_wait: called with the reason while the answer waits.

        Raises:
            WeirError: if a field is wrong, or there is no answer.
        """
        content = {**body, "stream": True}
        try:
            for line in self._stream("POST", "/v1/chat/completions", json=content):
                if line.startswith(":"):
                    on_wait(line.removeprefix(":").strip())
                elif line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    error = chunk.get("error")
                    if error:
                        raise WeirError(error["message"], param=error.get("param"))
                    yield chunk
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def has_model(self, name: str) -> bool:
        """Whether the gateway lists a model of this name, from which jobs can start."""
        try:
            self._request("GET", f"/v1/models/{quote(name)}")
        except WeirError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            return False
        return True

    def model_files(self, name: str) -> list[Json]:
        """Return the files of the model of ``JOB`` or ``JOB@STEP``."""
        return self._request("GET", _job_url(name, "model"))["data"]

    def fetch_model(
        self, name: str, folder: Path, on_progress: OnProgress = lambda *_: None
    ) -> None:
        """Download a model; an interrupted download resumes.

        Args:
            name: ``JOB``, which has succeeded, or ``JOB@STEP``, one of its checkpoints.
            folder: created if missing; it must not hold the model of another name.

        Raises:
            WeirError: if the job has no model, the folder holds another, the disk refuses it, or
                the gateway does not respond for a minute.
        """
        files = self.model_files(name)
        total = sum(file["bytes"] for file in files)
        num_done = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _claim_folder(folder, name)
            for file in files:
                path = _path_in_folder(folder, file["name"])
                part = PartFile(path, file["bytes"], file["modified_us"])
                for num_received in self._download(_job_url(name, "model", file["name"]), part):
                    on_progress(file["name"], num_done + num_received, total)
                num_done += part.size
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise WeirError(f"{error.filename}: {error.strerror}; name another folder") from error
        except OSError as error:
            raise WeirError(
                f"{folder}: {error.strerror}; the received part stays, and the next fetch resumes"
            ) from error

    def _download(self, url: str, part: PartFile) -> Iterator[int]:
        """Yield the number of received bytes until the file is complete."""
        if part.is_complete:
            yield part.size
            return
        max_received = -1
        last_gain_at = self._clock()
        while self._clock() - last_gain_at < _SILENCE_TIMEOUT_S:
            try:
                for num_received in self._receive(url, part):
                    if num_received > max_received:
                        max_received = num_received
                        last_gain_at = self._clock()
                    yield num_received
            except httpx.TransportError:
                pass
            if part.num_received == part.size:
                part.finish()
                return
            self._sleep(_RETRY_S)
        raise self._timeout()

    def _receive(self, url: str, part: PartFile) -> Iterator[int]:
        start = part.num_received
        if start == part.size:
            yield start
            return
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            headers["If-Range"] = part.last_modified
        with self._http.stream("GET", url, headers=headers) as reply:
            if reply.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return
            if reply.is_error:
                reply.read()
                raise _refusal(reply)
            if reply.status_code == httpx.codes.PARTIAL_CONTENT:
                content_range = f"bytes {start}-{part.size - 1}/{part.size}"
                is_unchanged = reply.headers.get("content-range") == content_range
            else:
                start = 0
                is_unchanged = reply.headers.get("content-length") in {None, str(part.size)}
            if not is_unchanged:
                raise WeirError(f"{reply.url} has changed since it was listed; fetch it again")
            yield from part.write(reply.iter_raw(_CHUNK_BYTES), start)

    def _unreachable(self, error: httpx.TransportError) -> WeirError:
        if isinstance(error, httpx.ConnectError):
            return WeirError(f"nothing responds at {self.url} ({error}); `weir up` starts a stack")
        return WeirError(f"{self.url}: {error}")

    def _timeout(self) -> WeirError:
        return WeirError(f"{self.url} has not responded for {_SILENCE_TIMEOUT_S:g} s")

    def _stream(self, method: str, url: str, **content: Any) -> Iterator[str]:
        """Yield the lines of an event stream; raises `WeirError` if the response is none."""
        with self._http.stream(method, url, **content) as reply:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                reply.read()
                raise _refusal(reply)
            yield from reply.iter_lines()

    def _pages(self, url: str, query: Json) -> Iterator[Json]:
        """Yield the entries of all pages of a list."""
        while True:
            page = self._request("GET", url, params=query)
            yield from page["data"]
            if not page["has_more"] or page["last_id"] == query.get("after"):
                return
            query = {**query, "after": page["last_id"]}

    def _repeat(self, method: str, url: str, query: Json) -> Iterator[Json]:
        """Repeat a request until it has no more entries, and yield them all."""
        has_more = True
        while has_more:
            page = self._request(method, url, params=query)
            yield from page["data"]
            has_more = page["has_more"]

    def _request(self, method: str, path: str, **content: Any) -> Json:
        for number in range(1, _MAX_TRIES + 1):
            is_last = number == _MAX_TRIES
            try:
                reply = self._http.request(method, path, **content)
            except httpx.TransportError as error:
                if is_last or isinstance(error, httpx.ConnectError):
                    raise self._unreachable(error) from error
            else:
                if reply.is_success:
                    return _parse_json(reply)
                if is_last or reply.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    raise _refusal(reply)
            self._sleep(_RETRY_S)
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class PartFile:
    """The received part of ``target``.

    Its name has the time when the original was modified, so parts of two originals never mix.
    """

    target: Path
    size: int
    modified_us: int

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.{self.modified_us}.part")

    @property
    def last_modified(self) -> str:
        """The time of the original's last change, as HTTP writes it."""
        return formatdate(self.modified_us / 1e6, usegmt=True)

    @property
    def is_complete(self) -> bool:
        """Whether the target is a complete copy of this original."""
        if not self.target.exists():
            return False
        status = self.target.stat()
        return status.st_size == self.size and status.st_mtime_ns == self.modified_us * 1000

    @property
    def num_received(self) -> int:
        """Received bytes; 0 if there are more than the original has."""
        size = self.path.stat().st_size if self.path.exists() else 0
        return size if size <= self.size else 0

    def write(self, chunks: Iterable[bytes], start: int) -> Iterator[int]:
        """Write from byte ``start`` on, and yield the number of received bytes after each chunk.

        Two simultaneous downloads write the same bytes to the same positions.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(descriptor, "r+b") as out:
            if os.fstat(descriptor).st_size > self.size:
                out.truncate(0)
            out.seek(start)
            for chunk in chunks:
                out.write(chunk)
                out.flush()
                yield out.tell()

    def finish(self) -> None:
        try:
            with self.path.open("r+b" if self.size else "ab") as out:
                os.fsync(out.fileno())
        except FileNotFoundError:
            # Another download has finished it.
            return
        os.utime(self.path, ns=(self.modified_us * 1000, self.modified_us * 1000))
        self.path.replace(self.target)
        for part in self.target.parent.glob(f"{glob.escape(self.target.name)}.[0-9]*.part"):
            part.unlink(missing_ok=True)


def _job_url(name: str, *parts: str) -> str:
    """Return the URL of a job, or of the checkpoint ``JOB@STEP``, or of a part of it."""
    checkpoint = _JOB_AT_STEP.fullmatch(name)
    if checkpoint:
        name = f"ftckpt-{checkpoint['job']}-{int(checkpoint['step'])}"
    # A server would take such a name for another path.
    if "/" in name or name in {"", ".", ".."}:
        raise WeirError(f"{name!r} is no id of a job; `weir jobs` lists them")
    quoted = [quote(part, safe="") for part in (name, *parts)]
    return "/".join([JOBS, *quoted])


def _claim_folder(folder: Path, name: str) -> None:
    """Note whose model a folder holds, so that the files of two models never mix."""
    note = folder / _SOURCE
    if note.exists():
        owner = note.read_text(encoding="utf-8").strip()
        if owner != name:
            raise WeirError(f"{folder} holds the model of {owner}; name another folder")
    elif (folder / "config.json").exists() or any(folder.glob("*.safetensors")):
        raise WeirError(f"{folder} holds a model already; name another folder")
    note.write_text(f"{name}\n", encoding="utf-8")


def _path_in_folder(folder: Path, name: str) -> Path:
    if name in {"", ".."} or Path(name).name != name or "\0" in name:
        raise WeirError(f"the gateway lists a file {name!r}, which would lie outside {folder}")
    return folder / name


def _parse_json(reply: httpx.Response) -> Json:
    try:
        return reply.json()
    except ValueError as error:
        raise WeirError(f"{reply.url} sent no JSON; is it a Weir gateway?") from error


def _refusal(reply: httpx.Response) -> WeirError:
    status = reply.status_code
    try:
        error = reply.json()["error"]
        return WeirError(error["message"], status=status, param=error["param"])
    except (ValueError, KeyError, TypeError):
        return WeirError(f"{reply.url} responded {status}; is it a Weir gateway?", status=status)
