"""The adds that most are: of a task whose jobs want nothing special."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks_emq.core import replies
from tasks_emq.core.calls import ADD_STANDARD, Call, Word, pack
from tasks_emq.core.keys import ID_LENGTH, QueueKeys


class PlainAdd:
    """Adds jobs of one task that differ only by id and payload.

    Everything else is packed once: packing sixteen words costs as much as making the job.

    Args:
        keys: of the queue. name, field, opts, kept: as in `NewJob`.
    """

    __slots__ = ("_after", "_around_id", "_before", "_between", "_kept", "_keys", "_rest")

    def __init__(self, keys: QueueKeys, name: str, field: str, opts: Mapping[str, object], *, kept: bool) -> None:
        self._keys = keys.of(ADD_STANDARD)
        self._kept = kept
        #: Of the script's first argument, `[prefix, id, name, ""]`.
        self._around_id = b"\x94" + pack(keys.prefix) + bytes([0xA0 + ID_LENGTH]), pack(name) + pack("")
        self._rest: tuple[Word, ...] = (pack(opts), field, "")
        words: tuple[Word, ...] = ("EVALSHA", ADD_STANDARD.sha, len(self._keys), *self._keys)
        start, end = self._around_id
        self._before = b"*%d\r\n%b$%d\r\n%b" % (
            len(words) + 5,
            _bulks(words),
            len(start) + ID_LENGTH + len(end),
            start,
        )
        self._between = end + b"\r\n$"
        self._after = b"\r\n" + _bulks(self._rest)

    def call(self, job_id: str, payload: bytes) -> Call[replies.Added]:
        """The same call as `calls.add_job` makes, for an id of `new_job_id`.

        Script: addStandardJob-9
        """
        wire = job_id.encode()
        start, end = self._around_id
        line = b"%b%b%b%d\r\n%b%b" % (self._before, wire, self._between, len(payload), payload, self._after)
        args = (start + wire + end, payload, *self._rest)
        return Call(ADD_STANDARD, self._keys, args, replies.added, self._kept, line)


def _bulks(words: Sequence[Word]) -> bytes:
    """Words as the server reads them."""
    data = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in data])
