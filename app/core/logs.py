"""Logs of the service and its libraries: one JSON object a line, without secrets."""

import logging
import re
from typing import TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

_SECRET = re.compile(r"(avk_(?:live|test)_|avs_|whsec_|Bearer )[\w+/=-]+")


def configure(level: str, file: TextIO) -> None:
    """Write lines of this level and above to ``file``; lines caused by a request carry its ``request_id``."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    rendered: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
        _without_secrets,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=file),
    )
    handler = logging.StreamHandler(file)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    # Below a warning, libraries log for their own developers.
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])


def _without_secrets(_logger: WrappedLogger, _method: str, line: EventDict | str) -> str:
    """Shorten API keys, session tokens and signing secrets to their prefix, anywhere in the line."""
    assert isinstance(line, str)
    return _SECRET.sub(r"\1…", line)
