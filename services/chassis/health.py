"""``python3 -m services.chassis.health``: check that the service of this container answers.

The exit status is 0 if /healthz on WEIR_PORT answers 200, else 1, with the reason on one line.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from services.chassis.timeouts import HEALTH_TIMEOUT_S

# HTTP_PROXY does not apply to this machine.
_opener = build_opener(ProxyHandler({}))


def main() -> int:
    port = os.environ.get("WEIR_PORT")
    if not port:
        print("WEIR_PORT is not set; set it to the port of the service")
        return 1
    url = f"http://127.0.0.1:{port}/healthz"
    try:
        with _opener.open(url, timeout=HEALTH_TIMEOUT_S):
            print(f"{url} answers")
            return 0
    except (OSError, HTTPException, ValueError) as error:
        print(f"{url}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
