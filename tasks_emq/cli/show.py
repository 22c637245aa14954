"""`emq show`: everything of one job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks_emq.cli.printing import echo_facts, echo_lines, moment, shortened
from tasks_emq.core.codec import codec_of
from tasks_emq.core.job import JobData
from tasks_emq.core.states import State
from tasks_emq.core.text import printable
from tasks_emq.errors import PayloadError

_SHOWN = 2000
#: Fields that have a place of their own below; any other is shown as it is.
_KNOWN = frozenset(
    b"name args data opts timestamp delay priority atm attemptsMade ats stc progress failedReason err stacktrace "
    b"processedOn finishedOn pb processedBy result returnvalue".split()
)


def job_facts(data: JobData, state: State, queue: str, logs: Sequence[str]) -> dict[str, Any]:
    """What is known of a job, by name; times as text in UTC, bytes that do not decode as what is wrong with them.

    Args:
        data: its hash. state: where its id stands. queue: name. logs: oldest first.
    """
    codec = codec_of(data.fields)
    arguments = _decoded(lambda: codec.unpack_call(data.fields.get(codec.payload_field.encode())))
    facts: dict[str, Any] = {
        "id": data.id,
        "queue": queue,
        "name": data.name,
        "state": state,
        "added": moment(data.timestamp_ms),
        "started": moment(data.processed_ms),
        "ended": moment(data.finished_ms),
        "worker": data.worker,
        "attempts_made": data.attempts_made,
        "attempts": data.opts.get("attempts", 1),
        "starts": data.attempts_started,
        "recoveries": data.stalled,
        "delay": data.delay_ms / 1000,
        "priority": data.priority,
        "options": data.opts,
        "progress": data.progress,
    }
    if isinstance(arguments, tuple):
        facts["args"], facts["kwargs"] = arguments
    else:
        facts["payload"] = arguments
    if (stored := data.fields.get(codec.result_field.encode())) is not None:
        facts["result"] = _decoded(lambda: codec.unpack_value(stored))
    facts["reason"] = data.failed_reason
    facts["error"] = data.error
    facts["stacktrace"] = list(data.stacktrace)
    facts["log"] = list(logs)
    facts["other"] = {_text(name): _text(value) for name, value in data.fields.items() if name not in _KNOWN}
    return facts


def _decoded(unpack: Callable[[], Any]) -> Any:
    try:
        return unpack()
    except PayloadError as error:
        return f"cannot be decoded: {error}"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def print_job(facts: Mapping[str, Any]) -> None:
    """Print the facts for a reader: what is empty is left out, what is long is cut."""
    lines = {name: facts[name] for name in ("stacktrace", "log")}
    plain = {
        "id",
        "queue",
        "name",
        "state",
        "added",
        "started",
        "ended",
        "worker",
        "attempts",
        "reason",
        "payload",
    }
    rest = {name: value for name, value in facts.items() if name not in lines}
    brief = {name: _brief(value, quoted=name not in plain) for name, value in rest.items()}
    if "result" in facts:
        brief["result"] = brief["result"] or "None"
    echo_facts(brief)
    for name, value in lines.items():
        if value:
            echo_lines(name, (line for item in value for line in item.rstrip("\n").split("\n")))


def _brief(value: object, *, quoted: bool) -> str | None:
    if value is None or value == {}:
        return None
    try:
        text = repr(value) if quoted else str(value)
    except RecursionError:
        return "nested too deep to show"
    return printable(shortened(text, _SHOWN))
