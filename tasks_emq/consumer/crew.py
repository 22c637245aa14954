"""The answers of a supervisor: it asks each of its processes, and answers for all."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

from tasks_emq.consumer.http import NO_METRICS, NOT_FOUND, Answer, verdict

#: What a process gets to answer, s: it may have to ask the server itself.
_ANSWER_S: Final = 3.0


class OfCrew:
    """The answers of a supervisor.

    Red is what holds for any of its processes: one that is blocked, or that is starting. One that has died is red
    until it is replaced, since its jobs are not lost but its slots are.

    Args:
        name: of the supervisor. size: how many processes there should be.
        faces: gives where each process answers, by its name; empty for one that does not serve yet.
    """

    def __init__(self, name: str, size: int, faces: Callable[[], Mapping[str, str]]) -> None:
        self._name = name
        self._size = size
        self._faces = faces
        self._pool = ThreadPoolExecutor(max_workers=min(32, size + 1), thread_name_prefix="emq-ask")

    def answer(self, path: str) -> Answer:
        """Of /healthz, /readyz and /metrics."""
        if path not in ("/healthz", "/readyz", "/metrics"):
            return NOT_FOUND
        faces = dict(self._faces())
        asked = {name: self._pool.submit(_ask, face, path) for name, face in faces.items() if face}
        answers = {name: future.result() for name, future in asked.items()}
        if path == "/metrics":
            return _merged({name: text for name, (status, text) in answers.items() if status == HTTPStatus.OK})
        wrong = [f"{name}: {reason}" for name, (_, text) in answers.items() for reason in _reasons(text)]
        if path == "/readyz":
            wrong += [f"{name}: it starts" for name, face in faces.items() if not face]
            if len(faces) < self._size:
                wrong.append(f"{self._size - len(faces)} of {self._size} processes are not there")
        return verdict(self._name, wrong)

    def close(self) -> None:
        """Ask no more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _ask(face: str, path: str) -> tuple[int, str]:
    """The status and body of a process's own answer; 0 and why for one that gives none."""
    connection = http.client.HTTPConnection(face, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, json.dumps({"reasons": [f"it does not answer: {error}"]})
    finally:
        connection.close()


def _reasons(text: str) -> list[str]:
    try:
        return [str(reason) for reason in json.loads(text)["reasons"]]
    except (ValueError, KeyError, TypeError):
        return ["its answer is none"]


def _merged(texts: Mapping[str, str]) -> Answer:
    """The metrics of all processes; those of a process get its name, those of a queue are there once."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        return NO_METRICS
    families: dict[str, Any] = {}
    for name, text in texts.items():
        for family in text_string_to_metric_families(text):
            first = family.name not in families
            kept = families.setdefault(family.name, family)
            if family.name.startswith("emq_queue_"):
                continue
            labelled = [s._replace(labels={**s.labels, "process": name}) for s in family.samples]
            kept.samples = labelled if first else [*kept.samples, *labelled]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Kept(list(families.values())))
    return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)


class _Kept:
    """A collector of families that are there already."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> list[Any]:
        """All of them."""
        return self._families
