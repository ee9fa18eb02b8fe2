"""The gateway that a verb talks to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from services.gateway.client.client import WeirClient, WeirError
from services.gateway.client.stack import NoStack, Stack, find_stack

# What reading an answer ends in that has another shape than a gateway's.
_ODD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


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
