"""How long anything in the grader may take, in seconds, and why; see also `JudgeSettings`."""

# --- Verifiers: CPU time of a call in the pool ---
# The first try of a comparison, and the second in a fresh worker.
QUICK_COMPARISON_S = 0.3
COMPARISON_S = 0.7
DERIVATION_S = 20.0
# Several times the need of the slowest metric with the longest texts allowed.
SIMILARITY_S = 60.0
CLIENT_CODE_S = 10.0

# --- The worker ---
# The state of judges and the active job have no event for it.
POLL_S = 1.0
# A group waits this long for a missing verifier or judge before other graders get it.
ADMISSION_TIMEOUT_S = 20.0
# A trial, for a client that waits.
TRIAL_TIMEOUT_S = 120.0
# One blocking read of the list of trials.
TRIAL_READ_S = 5.0

# --- The judge ---
CONNECT_TIMEOUT_S = 10.0
