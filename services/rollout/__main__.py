"""``python -m services.rollout``."""

from services.chassis.service import run_service


def main() -> None:
    """Run the rollout service."""
    from services.rollout.worker import sample_groups

    run_service("rollout", sample_groups)


# The engine's processes import this file again.
if __name__ == "__main__":
    main()
