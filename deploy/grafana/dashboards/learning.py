"""Does a job learn, and is what it learns from sound?"""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import Limits, graph
from deploy.grafana.queries import of_evaluation, of_job, of_step
from deploy.grafana.shared import staleness

BOARD = board(
    "weir-learning",
    "Learning",
    "Does a job learn, and is what it learns from sound?",
    (
        "Is the reward gamed?",
        [
            graph(
                "Process, and accuracy on held-out tasks",
                "Mean process score of the correct and of the wrong responses of a step, the share "
                "of its groups whose outcomes are all the same, and avg@k of the last evaluation. "
                "Process that rises while accuracy falls is gamed; where outcomes are exhausted "
                "process alone is trained on.",
                "percentunit",
                of_evaluation("accuracy", "held-out accuracy"),
                of_step("process", "process of correct"),
                of_step("process_wrong", "process of wrong"),
                of_step("outcome_exhausted", "outcome exhausted"),
                alerts=("RewardGamed", "OutcomeExhausted"),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Response length",
                "Mean number of tokens of a response.",
                "none",
                of_step("length_correct", "correct"),
                of_step("length_wrong", "wrong"),
                of_evaluation("response_length", "held out"),
                minimum=0,
            ),
            graph(
                "Truncated",
                "Share of responses that reached their limit of tokens.",
                "percentunit",
                of_step("truncated", "trained"),
                of_evaluation("truncated", "held out"),
                alerts=("ResponsesAtTheLimit",),
                minimum=0,
            ),
        ],
    ),
    (
        "How good",
        [
            graph(
                "Reward",
                "Mean over the responses of a step of what the advantage compares.",
                "short",
                of_step("reward"),
            ),
            graph(
                "Accuracy",
                "Share of the sampled responses of a step that are correct.",
                "percentunit",
                of_step("accuracy"),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Held-out accuracy",
                "avg@k of the last evaluation, with its 95 % interval over tasks.",
                "percentunit",
                of_evaluation("accuracy"),
                of_evaluation("accuracy_low", "low"),
                of_evaluation("accuracy_high", "high"),
                minimum=0,
                maximum=1,
                stairs=True,
                faint="^(low|high) ",
            ),
            graph(
                "Held-out pass@k",
                "Share of held-out tasks of which at least one of k responses is correct.",
                "percentunit",
                of_job("weir_job_evaluation", 'name=~"pass@[0-9]+"', "{{name}}"),
                minimum=0,
                maximum=1,
                stairs=True,
            ),
            graph(
                "Held-out process score",
                "Mean process score of the correct and of the wrong responses of the last "
                "evaluation; no line where the recipe scores none.",
                "percentunit",
                of_evaluation("process", "correct"),
                of_evaluation("process_wrong", "wrong"),
                minimum=0,
                maximum=1,
                stairs=True,
            ),
        ],
    ),
    (
        "Is there something to learn from?",
        [
            graph(
                "Groups with a signal",
                "Share of a step's groups in which some response has an advantage. Where all "
                "responses of a group are equally good there is nothing to learn.",
                "percentunit",
                of_step("signal"),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Responses with a process advantage",
                "Share of responses whose A_proc is not 0.",
                "percentunit",
                of_step("active_process"),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Steps and groups without a signal",
                "So far: training groups whose responses all have advantage 0, and steps that "
                "made no update.",
                "none",
                of_job("weir_job_groups_without_signal_total", word="groups"),
                of_job("weir_job_empty_steps_total", word="steps"),
                minimum=0,
                stairs=True,
            ),
            graph(
                "Ungradable",
                "Share of a step's scores that could not be given. A job pauses above its "
                "reward.max_ungradable.",
                "percentunit",
                of_step("ungradable"),
                minimum=0,
            ),
        ],
    ),
    (
        "Updates",
        [
            graph(
                "Entropy",
                "Mean entropy per token, in nats. One that falls to 0 explores no more.",
                "short",
                of_step("entropy"),
                minimum=0,
                limits=Limits(0.05, 0.02, below=True),
                alerts=("EntropyCollapse",),
            ),
            graph(
                "Clipped tokens",
                "Share of tokens whose ratio left the clip range below or above.",
                "percentunit",
                of_step("clip_fraction_low", "low"),
                of_step("clip_fraction_high", "high"),
                minimum=0,
            ),
            graph(
                "Gradient norm",
                "Before it is clipped; the mean over a step's updates.",
                "short",
                of_step("grad_norm"),
                minimum=0,
            ),
            graph(
                "Loss",
                "Of the policy and, where there is one, of the critic.",
                "short",
                of_step("loss", "policy"),
                of_step("value_loss", "critic"),
            ),
            graph(
                "Divergence",
                "From the policy that sampled the tokens (mismatch), and, where the recipe has "
                "one, from the reference.",
                "short",
                of_step("mismatch_kl", "mismatch"),
                of_step("divergence", "reference"),
            ),
            graph(
                "Advantage",
                "Mean over tokens, and mean of the absolute value.",
                "short",
                of_step("advantage_mean", "mean"),
                of_step("advantage_abs_mean", "absolute"),
            ),
        ],
    ),
    (
        "Are engine and learner of one mind?",
        [
            graph(
                "Parity",
                "The largest and the mean gap between the log-probs of learner and engine at the "
                "same weights: in evaluations, and in steps that do not train on older ones. "
                "Where it is large, ratios mean nothing.",
                "short",
                of_step("parity_max", "largest"),
                of_step("parity_mean", "mean"),
                of_evaluation("parity_max", "largest, evaluation"),
                logarithmic=True,
                limits=Limits(0.02, 0.05),
                alerts=("EngineAndLearnerDisagree",),
            ),
            staleness(),
            graph(
                "Responses trained on, per second",
                "Of the last step, over the time that it took.",
                "short",
                of_step("samples_per_second"),
                minimum=0,
            ),
        ],
    ),
)
