"""Run an environment worker, ``python -m services.environment``, or print a taskset's tasks.

``python -m services.environment tasks TASKSET [SETTINGS]`` prints the lines of a task file;
SETTINGS is JSON, as in a recipe's ``[environment]``.
"""

import json
import sys

from services.chassis.service import run_service
from services.environment import worker
from services.environment.taskset import render_tasks


def main(arguments: list[str]) -> None:
    if not arguments:
        return run_service("environment", worker.run)
    if arguments[0] != "tasks" or len(arguments) not in (2, 3):
        sys.exit(__doc__)
    try:
        for line in render_tasks(arguments[1], json.loads("".join(arguments[2:]) or "{}")):
            print(line)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"environment: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
