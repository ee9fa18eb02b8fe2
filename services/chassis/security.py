"""What clients may do: which requests a role may make, and what a client's material can start.

Nothing else allows anything: the gateway looks up requests in `ACCESS`, and services take what they
allow from the variables of `ALLOWANCES`, with the defaults there.
"""

from __future__ import annotations

from typing import NamedTuple

from services.chassis.deployment import Reader, parse_switch, split_list
from services.chassis.secret_variables import is_secret

ENVIRONMENT, SESSION = "environment", "session"  # roles that WEIR_API_KEYS cannot give
READERS, WRITERS = ("read", "write", "admin"), ("write", "admin")
SESSION_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


class Access(NamedTuple):
    """Who may make some requests; of the rows that a request fits, the first one decides."""

    does: str
    methods: str  # separated by blanks; none: all
    paths: str  # a regular expression for the whole path
    roles: tuple[str, ...]


ACCESS = (
    Access("open a session", "PUT", f"/rollout/{SESSION_NAME}", ("admin", ENVIRONMENT)),
    # Those of the environment are the sessions that have terms: the routes look at that.
    Access("read a session", "GET", f"/rollout/{SESSION_NAME}", (*READERS, ENVIRONMENT)),
    Access("delete a session", "DELETE", f"/rollout/{SESSION_NAME}", ("admin", ENVIRONMENT)),
    Access("call a model in a session", "POST", f"/rollout/{SESSION_NAME}/.+", (*WRITERS, SESSION)),
    Access(
        "read what clients of Tinker ask with a body",
        "POST",
        "/api/v1/(client/config|client/dynamic_config|weights_info)",
        READERS,
    ),
    Access("read", "GET HEAD OPTIONS", ".*", READERS),
    Access("upload, submit, control and call", "POST", ".*", WRITERS),
    Access("delete, and all else", "", ".*", ("admin",)),
)


class Allowance(NamedTuple):
    """What an operator allows a kind of clients' material."""

    material: str
    default: str
    runs: str  # where and how it is interpreted


_WORKER = "in a confined process: nobody, no files, no network"
ALLOWANCES = {
    "WEIR_MODEL_ROOTS": Allowance(
        "the folder of a model",
        ".:models",
        f"weights as safetensors; tokenizer and chat template {_WORKER}, 10 s of CPU",
    ),
    "WEIR_MODEL_HUB": Allowance("the name of a model on the hub", "off", "as a folder's"),
    "WEIR_GRADER_PYTHON": Allowance(
        "the source of a `python` grader", "off", f"{_WORKER}, 10 s of CPU, 1 GiB, no threads"
    ),
    "WEIR_JUDGES": Allowance("the name of a judge", "", "its server is asked, within limits"),
    "WEIR_ENVIRONMENT_TASKSETS": Allowance(
        "`environment.taskset`, and the fields that its author declared",
        "examples.environments.sum_then_check",
        "in a jail, which starts no program",
    ),
    "WEIR_ENVIRONMENT_COMMANDS": Allowance(
        "`environment.command`, and fields and settings of `verifiers` itself",
        "off",
        "in a jail: nobody, its own processes, files and network",
    ),
    "WEIR_ENVIRONMENT_HOSTS": Allowance(
        "`environment.url`, and what a jail connects to",
        "",
        "public addresses alone where nothing is set; 16 MiB a message, no redirections",
    ),
}


def is_allowed(read: Reader, name: str) -> bool:
    """Return whether an operator has switched an allowance on."""
    return read(name, parse_switch, ALLOWANCES[name].default)


def allowed_names(read: Reader, name: str) -> tuple[str, ...]:
    """Return what an operator allows by name, and by default what the table says."""
    return read(name, split_list, ALLOWANCES[name].default)


def access_rows() -> list[tuple[str, ...]]:
    """Return a row for each kind of request: what it does, and who may make it."""
    heads = ("request", "methods", "paths", "roles")
    rows = ((row.does, row.methods or "any", row.paths, ", ".join(row.roles)) for row in ACCESS)
    return [heads, *rows]


def allowance_rows(read: Reader) -> list[tuple[str, ...]]:
    """Return a row for each allowance: what it is for, and its value where that is read."""
    heads = ("variable", "value", "lets a client give", "which is interpreted")
    rows: list[tuple[str, ...]] = [heads]
    for name, row in ALLOWANCES.items():
        value = read(name, str, row.default)
        shown = "(set)" if value and is_secret(name, value) else value
        rows.append((name, shown, row.material, row.runs))
    return rows
