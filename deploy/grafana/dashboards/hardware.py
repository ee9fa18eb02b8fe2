"""GPUs, disks, memory, processes and Redis."""

from __future__ import annotations

from deploy.grafana.board import board
from deploy.grafana.panels import Limits, graph, number, states
from deploy.grafana.queries import WINDOW, increase, of_step, quantile, rate

_SERVICE = 'service=~"$service"'
_GPU = "GPU {{gpu}} {{Hostname}}"

BOARD = board(
    "weir-hardware",
    "Hardware",
    "GPUs, disks, memory, processes and Redis.",
    (
        "Processes",
        [
            states(
                "Ready",
                "Whether each process does its work; its /readyz says why not.",
                (f"weir_ready{{{_SERVICE}}}", "{{service}} {{instance}}"),
                names={0: ("cannot work", "orange"), 1: ("works", "green")},
                alerts=("GraderWaits",),
            ),
            graph(
                "Memory",
                "Resident memory of the main process of each service.",
                "bytes",
                (f"process_resident_memory_bytes{{{_SERVICE}}}", "{{service}} {{instance}}"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "CPU",
                "Cores that the main process of each service uses.",
                "short",
                (
                    f"rate(process_cpu_seconds_total{{{_SERVICE}}}{WINDOW})",
                    "{{service}} {{instance}}",
                ),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Starts",
                "Processes of a service that have started. A learner starts anew for each job.",
                "none",
                increase("weir_service_starts_total", "service", _SERVICE),
                minimum=0,
                alerts=("CrashLoop",),
            ),
            graph(
                "Requests per second",
                "Answers of the gateway, by status.",
                "reqps",
                rate("weir_requests_total", "status"),
                minimum=0,
                stacked=True,
            ),
            graph(
                "Seconds per request",
                "Until the gateway's answer began.",
                "s",
                (quantile(0.5, "weir_request_seconds"), "median"),
                (quantile(0.99, "weir_request_seconds"), "99 %"),
                minimum=0,
            ),
            graph(
                "Free room on the disk",
                "Of the file system that holds logs, checkpoints and models.",
                "percentunit",
                ("weir_data_free_bytes / weir_data_size_bytes", "free"),
                minimum=0,
                maximum=1,
                limits=Limits(0.2, 0.1, below=True),
                alerts=("DataDiskFull",),
            ),
        ],
    ),
    (
        "GPUs",
        [
            graph(
                "Active",
                "Share of the time in which a GPU computed anything.",
                "percentunit",
                ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _GPU),
                minimum=0,
                maximum=1,
                alerts=("GpuIdle",),
            ),
            graph(
                "Memory of GPUs",
                "Share that is taken. Engines take theirs at the start.",
                "percentunit",
                (
                    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
                    _GPU,
                ),
                minimum=0,
                maximum=1,
            ),
            graph(
                "Model FLOPs used",
                "Share of the peak of the learner's GPUs while it trains.",
                "percentunit",
                of_step("mfu"),
                minimum=0,
                maximum=1,
            ),
            graph("Power", "What each GPU draws.", "watt", ("DCGM_FI_DEV_POWER_USAGE", _GPU)),
            graph("Temperature", "Of each GPU.", "celsius", ("DCGM_FI_DEV_GPU_TEMP", _GPU)),
            graph(
                "Errors",
                "The last XID error of each GPU; 0 is none.",
                "none",
                ("DCGM_FI_DEV_XID_ERRORS", _GPU),
                minimum=0,
                stairs=True,
                limits=Limits(1, 1),
            ),
        ],
    ),
    (
        "Redis",
        [
            number(
                "Not safe",
                "Settings with which Redis can lose jobs or work; the log of the gateway has the "
                "remedy.",
                "none",
                ("sum(weir_server_unsafe) or vector(0)", "settings"),
                width=8,
                limits=Limits(1, 1),
                alerts=("ServerNotSafe",),
            ),
            graph(
                "Memory of Redis",
                "Share of maxmemory. When it is full, whoever adds work waits.",
                "percentunit",
                ("redis_memory_used_bytes / redis_memory_max_bytes", "used"),
                minimum=0,
                maximum=1,
                limits=Limits(0.7, 0.9),
            ),
            graph(
                "Commands per second",
                "That Redis has carried out.",
                "ops",
                (rate("redis_commands_processed_total")[0], "commands"),
                minimum=0,
            ),
        ],
    ),
    variables=("job", "service"),
)
