"""The states of a job and what moves it, as a table; the diagram in the docs is drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A job that is not there, yet or any more.
NOWHERE: Final = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """One arrow: from a state to another, why, and the scripts that do it."""

    source: str
    target: str
    why: str
    scripts: tuple[str, ...]


_ADD, _ADD_PRIORITIZED, _ADD_DELAYED = "addStandardJob-9", "addPrioritizedJob-9", "addDelayedJob-6"
_ENDS = ("moveToFinished-14", "finishMany-15")
_FETCHES = ("moveToActive-11", *_ENDS, "moveToDelayed-12")
_SCHEDULES = ("addJobScheduler-11", "updateJobScheduler-12")
#: An end brings jobs along: the next step of a chain, or the one that its deduplication id held back.
_FOLLOW = (*_ENDS, "cancelJob-2")
#: Whatever ends, removes or detaches a child can be the last thing its parent waited for.
_CHILD_ENDS = (
    *_ENDS, "cancelJob-2", "removeChildDependency-1", "removeJob-2", "cleanJobsInSet-3", "drain-5", "obliterate-2",
    "moveStalledJobsToWait-9", _ADD, _ADD_PRIORITIZED, _ADD_DELAYED, "addParentJob-6",
)  # fmt: skip
_DUE = (*_FETCHES, "retryJob-11", "promote-9", "moveJobsToWait-8", *_CHILD_ENDS[2:])
_BACK = ("retryJob-11", "moveJobFromActiveToWait-9")
_LOST = (*_BACK, "moveStalledJobsToWait-9", "loseJob-6")
_CANCELLED = tuple(
    Transition(source, "failed", "cancelled", ("cancelJob-2",))
    for source in ("waiting", "prioritized", "delayed", "waiting-children")
)
_DEDUP = (_ADD, _ADD_PRIORITIZED, _ADD_DELAYED)

#: Source: lua/README.md, protocol §4
TRANSITIONS: Final = (
    Transition(NOWHERE, "waiting", "added", (_ADD, "addMany-10", *_FOLLOW, *_SCHEDULES)),
    Transition(NOWHERE, "prioritized", "added, priority", (_ADD_PRIORITIZED, "addMany-10", *_FOLLOW, *_SCHEDULES)),
    Transition(NOWHERE, "delayed", "added, delay", (_ADD_DELAYED, "addMany-10", *_FOLLOW, *_SCHEDULES)),
    Transition(NOWHERE, "waiting-children", "added as a parent", ("addParentJob-6", "moveToFinished-14")),
    Transition("delayed", "waiting", "due, promoted, or a child failed", _DUE),
    Transition("delayed", "prioritized", "the same, with a priority", _DUE),
    Transition("waiting", "prioritized", "given a priority", ("changePriority-7",)),
    Transition("prioritized", "waiting", "priority taken off", ("changePriority-7",)),
    Transition("waiting", "active", "fetched", _FETCHES),
    Transition("prioritized", "active", "fetched", _FETCHES),
    Transition("active", "completed", "returned", _ENDS),
    Transition("active", "failed", "out of tries", _ENDS),
    Transition("active", "waiting", "next try, handed back, owner lost", _LOST),
    Transition("active", "prioritized", "the same, with a priority", _BACK),
    Transition("active", "delayed", "next try after a wait", ("moveToDelayed-12",)),
    Transition("active", "waiting-children", "waits for children", ("moveToWaitingChildren-7",)),
    Transition("waiting-children", "waiting", "last child ended", _CHILD_ENDS),
    Transition("waiting-children", "prioritized", "the same, with a priority", _CHILD_ENDS),
    Transition("waiting-children", "delayed", "the same, with a delay", _CHILD_ENDS),
    *_CANCELLED,
    Transition("completed", "waiting", "run again", ("reprocessJob-8", "moveJobsToWait-8", _ADD)),
    Transition("failed", "waiting", "run again", ("reprocessJob-8", "moveJobsToWait-8", _ADD)),
    *(
        Transition(source, target, "run again by an add", (script,))
        for source in ("completed", "failed")
        for target, script in (
            ("prioritized", _ADD_PRIORITIZED), ("delayed", _ADD_DELAYED), ("waiting-children", "addParentJob-6")
        )
    ),
    Transition("completed", NOWHERE, "forgotten, or not kept", (*_ENDS, "moveStalledJobsToWait-9")),
    Transition("failed", NOWHERE, "forgotten, or not kept", (*_ENDS, "moveStalledJobsToWait-9")),
    Transition("delayed", NOWHERE, "replaced by a duplicate", _DEDUP),
)  # fmt: skip

_HEAD = """# States

A job's state is the key its id lives in. This page is drawn from the table in
`tasks_emq/core/model/transitions.py`: `python -m tasks_emq.core.model.transitions > docs/states.md`. The tests
hold every step of the scripts against it; one call may take several, e.g. promote a job and fetch it.

Beside these arrows a job that is not running can be removed from any state (removeJob, clean, drain, obliterate);
`obliterate(force=True)` removes those that run too.

```mermaid
stateDiagram-v2
"""


def page() -> str:
    """The page of the docs: the diagram and the scripts behind each arrow."""
    arrows = "".join(f"    {_drawn(t.source)} --> {_drawn(t.target)}: {t.why}\n" for t in TRANSITIONS)
    rows = "".join(
        f"| {t.source or 'none'} | {t.target or 'none'} | {t.why} | {', '.join(_short(s) for s in t.scripts)} |\n"
        for t in TRANSITIONS
    )
    return f"{_HEAD}{arrows}```\n\n| From | To | When | Script |\n|---|---|---|---|\n{rows}"


def _drawn(state: str) -> str:
    return state.replace("-", "_") or "[*]"


def _short(script: str) -> str:
    return script.rpartition("-")[0]


if __name__ == "__main__":
    print(page(), end="")
