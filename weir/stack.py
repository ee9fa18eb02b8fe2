"""The gateway that the ``weir`` command talks to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from services.chassis.deployment import DeploymentError, home_dir, read_variable, split_list
from weir.client import WeirClient, WeirError

# What reading an answer ends in that has another shape than a gateway's.
_ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class NoStack(Exception):
    """No gateway is known; the text says how to start or name one."""


@dataclass(frozen=True)
class Stack:
    """A gateway's address and key; ``is_local`` if it shares this machine's folders."""

    url: str
    api_key: str
    is_local: bool


def find_stack(environment: Mapping[str, str] = os.environ) -> Stack:
    """The gateway of WEIR_URL, with or without ``/v1``, else the one of ``weir up`` here.

    The key of WEIR_URL is WEIR_API_KEY or in the file of WEIR_API_KEY_FILE, else, as on the
    gateway's own machine, the first plain one of WEIR_API_KEYS or of WEIR_API_KEYS_FILE's file.

    Raises:
        NoStack: if there is neither, or no key, or one of them cannot be used.
    """
    url = environment.get("WEIR_URL")
    if url:
        try:
            url = _address(url)
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
        known = json.loads(path.read_text(encoding="utf-8"))
        return Stack(_address(known["url"]), known["api_key"], is_local=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoStack(f"{path} is damaged ({error!r}); run `weir down` and `weir up`") from error


def _first_key(environment: Mapping[str, str], name: str) -> str | None:
    """The first plain key that a variable holds, or the file that ``<name>_FILE`` names."""
    try:
        keys = read_variable(environment, name) or ""
    except DeploymentError as error:
        raise NoStack(str(error)) from error
    key = next((key for key in split_list(keys) if ":" not in key), None)  # the others are hashes
    if key and not (key.isascii() and key.isprintable()):
        raise NoStack(f"{name} holds a key with characters that HTTP cannot carry")
    return key


def _address(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is no address: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"{text!r} is no address of a gateway, such as http://127.0.0.1:8000")
    return text


def model_for(stack: Stack, model: str) -> str:
    """How the stack knows a model: a folder of this machine by its full path, else as it is."""
    return str(Path(model).resolve()) if stack.is_local and Path(model).is_dir() else model


@contextmanager
def connected(stack: Stack | None = None) -> Iterator[WeirClient]:
    """A client of the stack, else of the one that is found; answers are to be read in its body.

    Raises:
        NoStack: if no gateway is known, or the environment does not allow a connection.
        WeirError: if an answer makes no sense.
    """
    stack = stack or find_stack()
    try:
        client = WeirClient(stack.url, stack.api_key)
    except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
        raise NoStack(
            f"no connection can be made: {error}; see the variables HTTP_PROXY, HTTPS_PROXY, "
            "ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
        ) from error
    with client:
        try:
            yield client
        except (*_ODD, httpx.HTTPError, httpx.InvalidURL) as error:
            raise WeirError(
                f"{stack.url} gave an answer that cannot be read ({type(error).__name__}: "
                f"{error}); is it a Weir gateway, and of this release?"
            ) from error
