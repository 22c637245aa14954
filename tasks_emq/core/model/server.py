"""A server that is a Python object: it answers every call as the real one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tasks_emq.core.model import adding, control, fetching, finishing, jobs, moving, reading, schedules
from tasks_emq.core.model.commands import COMMANDS
from tasks_emq.core.model.keyspace import Keyspace, ModelError, raw, text_of
from tasks_emq.core.scripts import all_scripts

_Arguments = Callable[[Keyspace, list[str]], object]
_Both = Callable[[Keyspace, list[str], list[str]], object]

#: Scripts that take all they need from their arguments.
BY_ARGUMENTS: dict[str, _Arguments] = {
    "addStandardJob-9": lambda keys, args: adding.add_one(keys, args, "wait"),
    "addDelayedJob-6": lambda keys, args: adding.add_one(keys, args, "delayed"),
    "addPrioritizedJob-9": lambda keys, args: adding.add_one(keys, args, "prioritized"),
    "addParentJob-6": lambda keys, args: adding.add_one(keys, args, "waiting-children"),
    "addMany-10": adding.add_many,
    "moveToActive-11": fetching.move_to_active,
    "moveToFinished-14": finishing.move_to_finished,
    "finishMany-15": finishing.finish_many,
    "moveToDelayed-12": moving.move_to_delayed,
    "retryJob-11": moving.retry_job,
    "moveToWaitingChildren-7": moving.move_to_waiting_children,
    "moveStalledJobsToWait-9": moving.recover_stalled,
    "promote-9": moving.promote,
    "extendLocks-1": jobs.extend_locks,
    "reclaim-1": jobs.reclaim,
    "getOwned-1": jobs.owned,
    "changePriority-7": jobs.change_priority,
    "removeJob-2": jobs.remove,
    "removeChildDependency-1": jobs.detach,
    "cancelJob-2": control.cancel,
    "cleanJobsInSet-3": control.clean,
    "drain-5": control.drain,
    "addJobScheduler-11": schedules.add,
    "updateJobScheduler-12": schedules.update,
    "removeJobScheduler-3": schedules.remove,
}
#: Scripts that know their queue by their keys.
BY_KEYS: dict[str, _Both] = {
    "moveJobFromActiveToWait-9": moving.hand_back,
    "loseJob-6": moving.lose,
    "reprocessJob-8": moving.reprocess,
    "pause-7": moving.pause,
    "extendLock-2": jobs.extend_lock,
    "releaseLock-1": jobs.release_lock,
    "updateProgress-3": jobs.update_progress,
    "addLog-2": jobs.add_log,
    "updateData-1": jobs.update_data,
    "changeDelay-4": jobs.change_delay,
    "isFinished-3": reading.is_finished,
    "getStateV2-8": reading.state_of,
    "getCounts-1": reading.counts,
    "getCountsPerPriority-2": reading.counts_per_priority,
    "getJobs-1": reading.jobs,
    "getRanges-1": reading.ranges,
    "getMetrics-2": reading.metrics,
    "getDependencyCounts-4": reading.dependency_counts,
    "getCancelled-1": reading.cancelled,
    "getJobScheduler-1": reading.schedules,
    "setLimits-4": control.set_limits,
    "moveJobsToWait-8": control.move_jobs,
    "obliterate-2": control.obliterate,
}


class Model:
    """Keys, and everything that can be done to them.

    `keys.clock_ms` is its clock; whoever asks sets it before.
    """

    def __init__(self) -> None:
        self.keys = Keyspace()
        self._scripts = {script.sha: script.name for script in all_scripts()}

    def answer(self, words: Sequence[str | bytes | int | float]) -> Any:
        """The reply to one command, as redis-py gives it: bytes, whole numbers, lists and None.

        Raises:
            ModelError: the server would answer with an error.
        """
        name, *args = map(text_of, words)
        try:
            if name == "EVALSHA":
                count = int(args[1])
                return wire(self._run(self._scripts[args[0]], args[2 : 2 + count], args[2 + count :]))
            command = COMMANDS.get(name.upper())
            if command is None:
                raise ModelError(f"ERR unknown command '{name}': the model of a server has no such command")
            return wire(command(self.keys, args))
        finally:
            self.keys.settle()

    def _run(self, script: str, names: list[str], args: list[str]) -> object:
        if script in BY_ARGUMENTS:
            return BY_ARGUMENTS[script](self.keys, args)
        if script in BY_KEYS:
            return BY_KEYS[script](self.keys, names, args)
        raise ModelError(f"ERR the model of a server has no script {script}")


def wire(value: object) -> Any:
    """A reply as redis-py hands it over: texts as bytes."""
    if isinstance(value, str):
        return raw(value)
    if isinstance(value, (list, tuple)):
        return [wire(item) for item in value]
    return value
