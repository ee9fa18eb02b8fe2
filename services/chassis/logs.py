"""One line of JSON per log record, on standard error."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Any

# The request that the current task serves.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
_STANDARD_FIELDS = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self.service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = REQUEST_ID.get()
        if request_id:
            line["request_id"] = request_id
        for name, value in vars(record).items():
            is_internal = name.startswith("_")  # Ray adds such fields
            if name not in _STANDARD_FIELDS and not is_internal:
                line[name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logs(service: str, level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("httpx", "uvicorn.access", "aiohttp.access", "verifiers", "filelock"):
        logging.getLogger(name).setLevel(logging.WARNING)
