"""Group commit: outcomes that gathered while a round trip was under way leave together."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks_emq.consumer.outcome import AwaitChildren, Crashed, HandBack, Outcome, Running
from tasks_emq.core import runs
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Fetched, Finished
from tasks_emq.core.runs import Ended, PutOff, Retention, Take
from tasks_emq.core.text import printable
from tasks_emq.errors import BrokerError, EmqError

log = logging.getLogger("tasks_emq.consumer")


@dataclass(slots=True)
class Pending:
    """A run that has ended here, and its outcome, not yet written; `resent`: its first write was lost."""

    run: Running
    outcome: Outcome
    resent: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """One write: the calls, and which of the pending each of them carries."""

    calls: Sequence[Call[Any]]
    carried: Sequence[Sequence[Pending]]
    take: Take | None


@dataclass(frozen=True, slots=True)
class Written:
    """What one call answered: the code of each pending it carried, and what was fetched on the way."""

    codes: Sequence[int]
    fetched: Fetched | None


def plan(
    keys: QueueKeys,
    pending: Sequence[Pending],
    take: Take | None,
    retention: Retention,
    metrics: int | None,
    max_stalled: int,
) -> Commit:
    """Turn outcomes into calls, the fetch in the last of them.

    A lone end runs moveToFinished-14, two or more finishMany-15, none of them moveToActive-11.
    """
    made: list[Call[Any]] = []
    carried: list[list[Pending]] = []
    ends: list[Pending] = []
    for item in pending:
        if isinstance(item.outcome, Ended) and not item.outcome.follow:
            ends.append(item)
        elif isinstance(item.outcome, Crashed):
            lost = item.outcome
            made.append(
                runs.lose_job(keys, lost.id, lost.token, lost.ats, max_stalled=max_stalled, reason=lost.reason)
            )
            carried.append([item])
        else:
            made.append(_single(keys, item.outcome, retention, metrics))
            carried.append([item])
    outcomes = [item.outcome for item in ends if isinstance(item.outcome, Ended)]
    if len(outcomes) == 1:
        made.append(runs.move_to_finished(keys, outcomes[0], take, retention, metrics=metrics))
        carried.append(ends)
    elif outcomes:
        made.append(runs.finish_many(keys, outcomes, take, retention, metrics=metrics))
        carried.append(ends)
    elif take:
        made.append(runs.move_to_active(keys, take))
        carried.append([])
    return Commit(made, carried, take)


def _single(keys: QueueKeys, outcome: Outcome, retention: Retention, metrics: int | None) -> Call[Any]:
    if isinstance(outcome, Ended):
        return runs.move_to_finished(keys, outcome, None, retention, metrics=metrics)
    if isinstance(outcome, AwaitChildren):
        return runs.move_to_waiting_children(
            keys, outcome.id, outcome.token, outcome.ats, added=outcome.added, begun=outcome.begun
        )
    if isinstance(outcome, HandBack):
        return runs.hand_back(keys, outcome.id, outcome.token, outcome.ats, limit_ms=outcome.limit_ms)
    assert isinstance(outcome, PutOff)
    if outcome.counted and outcome.delay_ms == 0 and outcome.eta_ms is None:
        return runs.retry_job(keys, outcome)
    return runs.move_to_delayed(keys, outcome)


def once_more(item: Pending, problem: EmqError) -> Pending:
    """What is written after an error: the same, or a failure where the server refuses what follows the run.

    Such an end would be refused for ever.
    """
    outcome = item.outcome
    if isinstance(problem, BrokerError) and problem.reached and isinstance(outcome, Ended) and outcome.follow:
        return Pending(item.run, item.run.failed(problem, "follow"))
    return replace(item, resent=True)


def written(answer: Any) -> Written:
    """Read a call's answer, whichever script gave it."""
    if isinstance(answer, Finished):
        return Written(answer.codes, answer.fetched)
    if isinstance(answer, Fetched):
        return Written((), answer)
    return Written((answer,), None)


def tell(item: Pending) -> None:
    """Log an end that was written, where a try has failed: one line, with the text of the error made harmless."""
    run, outcome = item.run, item.outcome
    if isinstance(outcome, Ended):
        if outcome.field == "failedReason":
            log.warning("job %s (%s) failed: %s", run.context.id, _name(run), printable(str(outcome.value)))
    elif isinstance(outcome, PutOff) and outcome.counted and outcome.extra:
        reason = printable(outcome.extra["failedReason"])
        tries, wait = f"try {run.attempt} of {run.attempts}", outcome.delay_ms / 1000
        log.info("job %s (%s): %s failed, the next in %.3g s: %s", run.context.id, _name(run), tries, wait, reason)


def _name(run: Running) -> str:
    return printable(run.context.name)
