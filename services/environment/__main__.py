"""Run an environment worker: ``python -m services.environment``."""

from services.chassis.service import run_service
from services.environment import worker

if __name__ == "__main__":
    run_service("environment", worker.run)
