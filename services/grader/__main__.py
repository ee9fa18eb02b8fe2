"""Run the grader: ``python -m services.grader``."""

from services.chassis.service import run_service
from services.grader import worker

if __name__ == "__main__":
    run_service("grader", worker.run)
