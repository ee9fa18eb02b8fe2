"""The rights of clients: which requests a role may make, and which client material is used.

Nothing else grants a right. The gateway looks up requests in `ACCESS`, and services read the
variables of `ALLOWANCES`, with the defaults there.
"""

from __future__ import annotations

from typing import NamedTuple

from services.chassis.deployment import Reader, parse_switch, split_list
from services.chassis.secret_variables import is_secret

# WEIR_API_KEYS cannot give these two roles.
ENVIRONMENT = "environment"
SESSION = "session"
READERS = ("read", "write", "admin")
WRITERS = ("write", "admin")
SESSION_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"


class Access(NamedTuple):
    """The roles that may make some requests. The first row that a request matches decides."""

    action: str
    methods: str  # separated by blanks; empty: all
    paths: str  # a regular expression for the whole path
    roles: tuple[str, ...]


ACCESS = (
    Access("open a session", "PUT", f"/rollout/{SESSION_NAME}", ("admin", ENVIRONMENT)),
    # The routes limit the environment to sessions with terms.
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
    """A variable by which an operator allows one kind of client material."""

    material: str
    default: str
    interpreted: str  # where and how


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
        "`environment.url`, and the hosts that a jail connects to",
        "",
        "public addresses alone where nothing is set; 16 MiB a message, no redirections",
    ),
}


def is_allowed(read: Reader, name: str) -> bool:
    """Return whether an operator has switched an allowance on."""
    return read(name, parse_switch, ALLOWANCES[name].default)


def allowed_names(read: Reader, name: str) -> tuple[str, ...]:
    """Return the names that an operator allows."""
    return read(name, split_list, ALLOWANCES[name].default)


def access_rows() -> list[tuple[str, ...]]:
    """Return a table of the requests, and the roles that may make them."""
    heads = ("request", "methods", "paths", "roles")
    rows = ((row.action, row.methods or "any", row.paths, ", ".join(row.roles)) for row in ACCESS)
    return [heads, *rows]


def allowance_rows(read: Reader) -> list[tuple[str, ...]]:
    """Return a table of the allowances, with their values in this deployment."""
    heads = ("variable", "value", "lets a client give", "which is interpreted")
    rows: list[tuple[str, ...]] = [heads]
    for name, row in ALLOWANCES.items():
        value = read(name, str, row.default)
        if value and is_secret(name, value):
            value = "(set)"
        rows.append((name, value, row.material, row.interpreted))
    return rows
