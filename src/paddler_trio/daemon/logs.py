"""Structured logs on standard error: JSON lines for machines, columns for a terminal.

Names of requests and agents are bound to each record; prompts, answers and keys never are.
"""

from __future__ import annotations

import logging
import sys

import structlog

LEVELS = ("debug", "info", "warning", "error")


def configure_logs(*, level: str, as_json: bool | None = None) -> None:
    """Send structlog's and the standard library's records to standard error in one shape.

    Args:
      level: one of :data:`LEVELS`.
      as_json: None chooses JSON unless standard error is a terminal.
    """
    if as_json is None:
        as_json = not sys.stderr.isatty()
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if as_json:
        shared.append(structlog.processors.format_exc_info)
    # its usual tracebacks show local variables: requests, with their prompts and keys
    columns = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer() if as_json else columns
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
