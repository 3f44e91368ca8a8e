"""Logs of the service and its libraries: one JSON object per line, without secrets."""

import atexit
import io
import json
import logging
import os
import re
from contextlib import suppress
from queue import Full, Queue
from threading import Lock, Thread
from typing import Protocol, TextIO, cast

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

_SECRET = re.compile(r"(avk_(?:live|test)_|avs_|whsec_|Bearer )[\w+/=-]+")


_TIMESTAMP = structlog.processors.TimeStamper(fmt="iso")
_QUEUED = 2_000
"""Maximum number of lines that wait to be written. Further lines are dropped and counted."""
_LAST_WRITE = 1.0
"""Maximum seconds for each of two waits at the end of the process: for space in a full queue, and for the last write.
"""


def configure(level: str, file: TextIO | None) -> None:
    """Write lines of this level and above to ``file``. Lines caused by a request have its ``request_id``.

    Lines of libraries are written only from the level warning upwards. A thread writes to the file, so that no caller
    waits. Without a file, for example after `2>&-`, the lines are lost.
    """
    lines = _lines_of(file)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _TIMESTAMP,
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
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, lines)),
    )
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    # Below the level warning, libraries log for their own developers.
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler])


class _Lines(Protocol):
    def write(self, text: str, /) -> object:
        """Write `text`, which consists of whole lines."""

    def flush(self) -> object:
        """Flush a file. A queue does nothing here, because it writes its lines as soon as possible."""


def _lines_of(file: TextIO | None) -> _Lines:
    if file is None:
        return _Queued(os.open(os.devnull, os.O_WRONLY))
    try:
        return _Queued(os.dup(file.fileno()))
    except io.UnsupportedOperation:
        return file  # in memory, so writing does not wait


class _Queued:
    """Queues lines for a file that may fail or block, so that a full disk or a stopped reader delays no other work.

    The thread writes to the file's descriptor. Python's file object has a lock. If a blocked write held this lock, the
    process could not end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: Queue[str | None] = Queue(_QUEUED)
        self._dropped = 0
        self._counting = Lock()
        self._thread = Thread(target=self._write_all, name="logs", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, text: str) -> None:
        try:
            self._queue.put_nowait(text)
        except Full:
            with self._counting:
                self._dropped += 1

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Write the queued lines that the file accepts in time."""
        with suppress(Full):
            self._queue.put(None, timeout=_LAST_WRITE)
            self._thread.join(_LAST_WRITE)

    def _write_all(self) -> None:
        while (text := self._queue.get()) is not None:
            self._write(text)
            with self._counting:
                dropped, self._dropped = self._dropped, 0
            if dropped:
                line = {"lines": dropped, "event": "log_lines_dropped", "level": "warning"}
                self._write(json.dumps(_TIMESTAMP(None, "", line)) + "\n")

    def _write(self, text: str) -> None:
        rest = text.encode(errors="backslashreplace")
        with suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


def _without_secrets(_logger: WrappedLogger, _method: str, line: EventDict | str) -> str:
    """Shorten API keys, session tokens, signing secrets and bearer tokens anywhere in the line to their prefix."""
    assert isinstance(line, str)
    return _SECRET.sub(r"\1…", line)
