"""The gateway of the ``weir`` command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from services.chassis.deployment import DeploymentError, home_dir, read_variable, split_list
from weir.client import WeirClient, WeirError

# Errors of reading an answer that no gateway would send.
_UNEXPECTED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class NoStack(Exception):
    """No gateway is known; the text says how to start or name one."""


@dataclass(frozen=True)
class Stack:
    """A gateway's address and key; ``is_local`` if it shares this machine's folders."""

    url: str
    api_key: str
    is_local: bool


def find_stack(environment: Mapping[str, str] = os.environ) -> Stack:
    """Return the gateway of WEIR_URL, with or without ``/v1``, else that of ``weir up`` here.

    The key for WEIR_URL is WEIR_API_KEY, else the first plain one of WEIR_API_KEYS, as on the
    gateway's machine. Each may be in a file that the variable with ``_FILE`` names.

    Raises:
        NoStack: if there is no gateway or key, or one of them is invalid.
    """
    url = environment.get("WEIR_URL")
    if url:
        try:
            _check_url(url)
        except ValueError as error:
            raise NoStack(f"WEIR_URL={error}") from error
        key = _first_key(environment, "WEIR_API_KEY") or _first_key(environment, "WEIR_API_KEYS")
        if key is None:
            raise NoStack(
                "WEIR_URL is set, but WEIR_API_KEY is not; set it to a key of the gateway, or "
                "WEIR_API_KEY_FILE to a file that holds one in plain text"
            )
        return Stack(url, key, is_local=False)
    path = home_dir(environment).absolute() / "stack.json"
    if not path.is_file():
        raise NoStack(
            f"no stack runs here ({path} does not exist); start one with `weir up`, go where one "
            "was started, or set WEIR_URL and WEIR_API_KEY"
        )
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        stack = Stack(_check_url(fields["url"]), fields["api_key"], is_local=True)
        is_stale = "pid" in fields and _has_ended(fields["pid"], path.with_name("supervisor"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoStack(f"{path} is damaged ({error!r}); run `weir down` and `weir up`") from error
    if is_stale:
        raise NoStack(
            f"the stack of {path} was killed (process {fields['pid']} is gone); `weir up` starts "
            "it, and its jobs continue"
        )
    return stack


def _has_ended(process_id: int, supervisor: Path) -> bool:
    """Whether a process does not have the supervisor's file open. Another may have its id."""
    files = Path(f"/proc/{process_id}/fd")
    try:
        links = list(files.iterdir())
    except PermissionError:
        return False
    except FileNotFoundError:
        return True
    targets: list[str] = []
    for link in links:
        with suppress(OSError):
            targets.append(os.readlink(link))
    return str(supervisor.resolve()) not in targets


def _first_key(environment: Mapping[str, str], name: str) -> str | None:
    """Return the first plain key of a variable, or of the file that ``<name>_FILE`` names."""
    try:
        keys = read_variable(environment, name) or ""
    except DeploymentError as error:
        raise NoStack(str(error)) from error
    # Entries with colons are hashes of keys.
    key = next((key for key in split_list(keys) if ":" not in key), None)
    if key and not (key.isascii() and key.isprintable()):
        raise NoStack(f"{name} has a key with characters that HTTP does not allow")
    return key


def _check_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is no URL: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"{text!r} is no URL of a gateway, such as http://127.0.0.1:8000")
    return text


def model_name(stack: Stack, model: str) -> str:
    """Return a stack's name of a model: a folder's full path if it runs here, else unchanged."""
    is_folder = stack.is_local and Path(model).is_dir()
    return str(Path(model).resolve()) if is_folder else model


@contextmanager
def connected(stack: Stack | None = None) -> Iterator[WeirClient]:
    """Yield a client of the stack, by default `find_stack`'s.

    Raises:
        NoStack: if there is no gateway, or the environment does not allow a connection.
        WeirError: if an answer that is read in the body cannot be understood.
    """
    stack = stack or find_stack()
    try:
        client = WeirClient(stack.url, stack.api_key)
    except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
        raise NoStack(
            f"no connection is possible: {error}; check the variables HTTP_PROXY, HTTPS_PROXY, "
            "ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error
    with client:
        try:
            yield client
        except (*_UNEXPECTED, httpx.HTTPError, httpx.InvalidURL) as error:
            raise WeirError(
                f"{stack.url} sent an unexpected answer ({type(error).__name__}: {error}); is it a "
                "Weir gateway of this release?"
            ) from error
