"""Hypothesis without deadlines: torch's first call takes long, and the machine may be busy.

``WEIR_HYPOTHESIS_PROFILE=mutants`` is for the many runs of `make mutants`: few examples, and a
failure is not made smaller.
"""

import os

from hypothesis import Phase, settings

settings.register_profile("no deadline", deadline=None)
settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    max_examples=30,
    phases=(Phase.explicit, Phase.generate),
    database=None,
)
settings.load_profile(os.environ.get("WEIR_HYPOTHESIS_PROFILE", "no deadline"))
