"""The rollout service samples the learner's groups with the newest weights."""

import os

# vLLM reads these when it is imported. An environment that sets them wins.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A forked engine would inherit the service's sockets and hold its port after the service died.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
# On one device the engine's worker shares a process with its scheduler, which would otherwise
# spin on a second core; the engine itself stays a process of its own.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
