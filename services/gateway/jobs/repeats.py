"""Whether a submission is an earlier one, sent again."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class Repeat:
    """What a submission says about being a repeat of an earlier one."""

    key: str | None = None  # the Idempotency-Key
    caller: str = ""  # whose key it is
    retry_count: int = 0  # x-stainless-retry-count, from the OpenAI SDK

    @property
    def job_id(self) -> str:
        """The id of the job: the same one for the same key, else a new one."""
        if self.key is None:
            return f"ftjob-{secrets.token_hex(12)}"
        digest = hashlib.sha256(f"{self.caller}\0{self.key}".encode()).hexdigest()
        return f"ftjob-{digest[:24]}"
