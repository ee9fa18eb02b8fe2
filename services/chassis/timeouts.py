"""How long anything in the chassis may take, in seconds, and why. Deployments set the others."""

# --- The work loop ---
# No event announces that a consumer opens or has room.
POLL_S = 0.1
# A claim that waits cannot be cancelled: a stop, or a released entry, is seen this much later.
CLAIM_WAIT_S = 0.5
# A worker that leaves must not wait long for an exchange that is away.
RELEASE_TIMEOUT_S = 5.0

# --- The end of a process ---
# A service gets this long beyond WEIR_DRAIN_S, for cleaning up; then it is cancelled.
CLEANUP_TIMEOUT_S = 10.0
# The last status and a cancelled task get this long.
FAREWELL_TIMEOUT_S = 2.0
# After that asyncio and Python join threads, which may hang.
EXIT_TIMEOUT_S = 3.0

# --- HTTP ---
HEADERS_TIMEOUT_S = 10.0
# Responses under way when the server stops.
SHUTDOWN_TIMEOUT_S = 3
# Longer than clients reuse a connection: httpx does for 5 s.
KEEP_ALIVE_S = 15
# A health check is on the same machine.
HEALTH_TIMEOUT_S = 2.0

# --- The pool ---
# A call may last twice its CPU time and this, or a set-up its CPU time and this: it sleeps or the
# machine starves it.
STALL_GRACE_S = 10.0
# From the order to fork a worker until it is ready, including all warm-ups.
FORK_TIMEOUT_S = 300.0
# CPU time of one call of a tokenizer or template, and of loading a tokenizer.
TOKENIZER_CPU_S = 10.0

# --- Turns on a GPU ---
# `flock` has no timeout and no event, so locks are tried again.
LOCK_POLL_S = 0.02
