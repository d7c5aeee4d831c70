"""The log: one JSON object a line, written by a thread; prompts and replies are never in it unless asked for.

A pipe that nobody reads, or a full disk, costs lines but holds up no request: lines that do not fit are dropped, and a
later line says how many.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from typing import TextIO

_log = logging.getLogger("serve")
_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON, its extra fields as they are; line breaks in values cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


MAX_UNWRITTEN = 1 << 23
"""Characters of log lines that wait to be written; what comes while there are more is lost, and counted."""
LAST_LINES_S = 1.0
"""How long the lines that wait may take to be written when the server ends."""


class LineHandler(logging.Handler):
    """Hands lines to a thread that writes them, so that no reader of the log holds the event loop up."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`; past its buffer where it is a file: a write that hangs would keep its lock at the end."""
        super().__init__()
        self.setFormatter(JsonLines())
        self._stream, self._fd = stream, _fd_of(stream)
        self._lines: deque[str] = deque()
        self._size = self._num_lost = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line, where there is room for it."""
        try:
            line = self.format(record) + "\n"
        except Exception as exc:  # a mistake in somebody's message, which is no reason to fail there
            line = self._own("a line of this log has no form", line=repr(record.msg), error=repr(exc))
        with self._changed:
            if self._size > MAX_UNWRITTEN:
                self._num_lost += 1
                return
            self._lines.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, LAST_LINES_S)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                line = self._lines.popleft()
            is_written = self._write(line)
            with self._changed:
                self._size -= len(line)
                self._num_lost += not is_written
                num_lost, self._num_lost = (self._num_lost, 0) if is_written else (0, self._num_lost)
                self._changed.notify_all()
            if num_lost and not self._write(self._own("lines of this log were lost", lost=num_lost)):
                with self._changed:
                    self._num_lost += num_lost

    def _own(self, text: str, **fields: object) -> str:
        """A line about the log itself."""
        return self.format(_log.makeRecord("serve", logging.WARNING, "", 0, text, (), None, extra=fields)) + "\n"

    def _write(self, line: str) -> bool:
        """Write a line; False where the file does not take it, which is told once it does."""
        try:
            if self._fd is None:
                self._stream.write(line)
                self._stream.flush()
                return True
            rest = line.encode()
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except (OSError, ValueError):  # its reader is gone, its disk full, or it was closed
            return False
        return True


def _fd_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        return None


def configure_logs(stream: TextIO) -> None:
    """Write all logs, and python's warnings, to `stream`: those of this package from INFO on, others from WARNING."""
    root = logging.getLogger()
    root.handlers = [LineHandler(stream)]
    root.setLevel(logging.WARNING)
    logging.getLogger("serve").setLevel(logging.INFO)
    logging.captureWarnings(True)
