"""The ``weir`` command: a stack on this machine, and jobs on any stack.

Exit status: 0 the job succeeded (or the command did its work), 1 it failed or was cancelled, 2 the
input was wrong or no gateway answered, 130 Ctrl-C, which leaves the job running, 141 nobody reads
the output any more.
"""

import sys
from collections.abc import Sequence

from services.chassis.command import run_command
from services.chassis.secret_variables import hide_secrets

# What this command reads; trackers' libraries look for others in the environment.
_SECRETS = ("WEIR_API_KEY", "WEIR_API_KEYS", "WANDB_API_KEY")


def main(arguments: Sequence[str] | None = None) -> int:
    hide_secrets(_SECRETS)
    words = sys.argv[1:] if arguments is None else arguments
    return run_command("weir.verbs", words)


if __name__ == "__main__":
    sys.exit(main())
