"""How a consumer logs: to standard error, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import time


class JsonLines(logging.Formatter):
    """One JSON object a line.

    Args:
        who: the process, where there are several.
    """

    def __init__(self, who: str = "") -> None:
        super().__init__()
        self._who = who

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._who:
            told["process"] = self._who
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up_logging(level: str, form: str, who: str = "") -> None:
    """Log to standard error.

    Args:
        level: e.g. `info`. form: `text` or `json`. who: the process, where there are several.
    """
    handler = logging.StreamHandler()
    shown = who.replace("%", "%%")
    text = f"%(asctime)s %(levelname)-7s {f'[{shown}] ' if who else ''}%(message)s"
    handler.setFormatter(JsonLines(who) if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
