"""What a check needs of the graders, and what to do where they lack it. Pure."""

from __future__ import annotations

from protocol.messages import Capabilities
from protocol.rewards import AskedOfAJudge, Check, MathAnswer, ModelJudge


def lacking(capabilities: Capabilities, check: Check) -> str | None:
    """What graders with these capabilities lack for a check, and the remedy; None if nothing."""
    if check.verifier == "python" and "python" not in capabilities.verifiers:
        return (
            "the graders run no client's code; set WEIR_GRADER_PYTHON=on where they run, or use "
            "string_check, text_similarity, score_model or a multi of them"
        )
    if check.verifier not in capabilities.verifiers:
        return (
            f"no verifier is called {check.verifier!r}; name the module that adds it in "
            "WEIR_GRADER_EXTENSIONS where the graders run"
        )
    if isinstance(check, MathAnswer) and check.unknown == "judge":
        check = ModelJudge()
    if not isinstance(check, AskedOfAJudge) or check.model in capabilities.judges:
        return None
    if not capabilities.judges:
        return (
            "the recipe asks a model to grade, but the graders know none; set WEIR_JUDGE_URL and "
            "WEIR_JUDGE_MODEL where they run"
        )
    known = ", ".join(map(repr, capabilities.judges))
    return (
        f"the graders know no model {check.model!r}, but {known}; "
        "use one of these, or name it in WEIR_JUDGES where they run"
    )
