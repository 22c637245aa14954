"""Checking a queue for damage and mending it. Source: reliability §3.3"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tasks_emq.core.control_flows import Progress
from tasks_emq.core.doctor.examine import Options, Steps, Told, examine
from tasks_emq.core.doctor.findings import Violation
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.options import seconds, whole
from tasks_emq.errors import ConfigError

if TYPE_CHECKING:
    from tasks_emq.app import App

__all__ = ["Report", "Violation"]


@dataclass(slots=True)
class Report:
    """What a check has found.

    Args:
        queue: name. violations: in the order in which they were found, those that were mended too.
        checked: jobs and keys that were looked at. cursor: where to go on, empty when all was seen.
    """

    queue: str
    violations: list[Violation] = field(default_factory=list)
    checked: int = 0
    cursor: str = ""

    @property
    def left(self) -> list[Violation]:
        """The violations that are not mended."""
        return [violation for violation in self.violations if not violation.mended]

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    def take(self, told: Told, progress: Progress) -> None:
        """Note one thing that the check tells."""
        if isinstance(told, Violation):
            self.violations.append(told)
            return
        self.checked, self.cursor = told.count, told.cursor
        if progress is not None:
            progress(told.count)


class _Doctor:
    """What both colours ask."""

    app: App
    name: str
    _keys: QueueKeys

    def _examine(
        self, repair: bool, patience: float | timedelta, retention: bool, cursor: str, limit: int | None
    ) -> Steps:
        if self.app.server.memory:
            raise ConfigError("the doctor looks at keys of a server; memory:// has none that could be damaged")
        options = Options(
            repair=repair,
            patience_s=seconds("patience", patience),
            retention=self.app.retention(self.name) if retention else None,
            cursor=cursor,
            limit=0 if limit is None else whole("limit", limit, 1, 2**53),
        )
        return examine(self._keys, options)


class QueueDoctor(_Doctor):
    """The doctor of a `Queue`, blocking."""

    def doctor(
        self,
        *,
        repair: bool = False,
        patience: float | timedelta = 9.0,
        retention: bool = False,
        cursor: str = "",
        limit: int | None = None,
        progress: Progress = None,
    ) -> Report:
        """Check the conservation rules on this queue while it works, and mend what is broken when asked.

        Each call to the server is bounded, and what is reported was true at one moment. A repair compares the
        facts once more before it writes, and deletes no job that has a hash and a name.

        Args:
            repair: mend what needs no guess.
            patience: seconds that are waited, once, when something is seen that a healthy queue shows for a moment
                too, e.g. a job whose consumer has just died; two intervals of the recovery pass and a little.
            retention: check the bounds of this app for finished jobs too; `repair` then forgets what is beyond.
            cursor: of an earlier report, to go on from there. limit: look at so many jobs, about; None for all.
            progress: called with the number of jobs and keys so far.

        Returns:
            What is wrong; `report.left` is what still is.

        Raises:
            ConfigError: an option breaks a rule, or the app is in memory.

        Script: getFacts-1, getStrays-1, mend-1
        """
        report = Report(self.name)
        for told in self.app.client.stream(self._examine(repair, patience, retention, cursor, limit)):
            report.take(told, progress)
        return report


class AsyncQueueDoctor(_Doctor):
    """The doctor of an `AsyncQueue`, awaited."""

    async def doctor(
        self,
        *,
        repair: bool = False,
        patience: float | timedelta = 9.0,
        retention: bool = False,
        cursor: str = "",
        limit: int | None = None,
        progress: Progress = None,
    ) -> Report:
        """`Queue.doctor`, awaited."""
        report = Report(self.name)
        async for told in self.app.aclient.stream(self._examine(repair, patience, retention, cursor, limit)):
            report.take(told, progress)
        return report
