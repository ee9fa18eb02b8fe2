"""``python3 -m services.chassis.health``: does the service of this container answer?

The exit status is 0 if /healthz on WEIR_PORT answers 200, else 1, with the reason on one line.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

_TIMEOUT_S = 2.0
_opener = build_opener(ProxyHandler({}))  # the answer is on this machine, whatever HTTP_PROXY says


def main() -> int:
    if not (port := os.environ.get("WEIR_PORT")):
        print("WEIR_PORT is not set; set it to the port of the service")
        return 1
    url = f"http://127.0.0.1:{port}/healthz"
    try:
        with _opener.open(url, timeout=_TIMEOUT_S):
            print(f"{url} answers")
            return 0
    except (OSError, HTTPException, ValueError) as error:
        print(f"{url}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
