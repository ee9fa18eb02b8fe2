"""Parts of OpenAI's API that are not here, and what to do instead."""

from __future__ import annotations

_SERVE = (
    "this gateway trains models and does not serve them; `weir fetch JOB DIR` brings a trained "
    "model, which vLLM serves in OpenAI's shape"
)
_FEATURES = {
    "chat/completions": _SERVE,
    "completions": _SERVE,
    "responses": _SERVE,
    "embeddings": _SERVE,
    "uploads": "a file has at most 100 MiB; send it whole with POST /v1/files",
    "batches": "each request is answered at once; send them one by one",
    "evals": "give the job a validation_file; its evaluations are among its events",
    "fine_tuning/checkpoints": "a gateway has no projects to share one with; each of its keys "
    "reads every checkpoint",
}


def remedy_for(path: str) -> str | None:
    """What to do instead, for a path below /v1 of OpenAI's API that has no route; else None."""
    own = path.removeprefix("/v1/")
    features = (name for name in _FEATURES if own == name or own.startswith(f"{name}/"))
    feature = next(features, None)
    return f"{feature} is not supported: {_FEATURES[feature]}" if feature else None
