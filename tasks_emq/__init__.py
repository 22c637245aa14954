"""Tasks on Redis or Valkey that are never lost: a job's state is the key its id lives in."""

from tasks_emq.app import App, default_app, task
from tasks_emq.context import JobContext, current_job
from tasks_emq.core.job import JobData
from tasks_emq.core.reading_replies import ChildrenCounts, Metrics, Worker
from tasks_emq.core.runs import Retention
from tasks_emq.core.schedule import ScheduleData
from tasks_emq.errors import (
    BrokerError,
    CannotSerialize,
    ConfigError,
    DuplicateTask,
    EmqError,
    GiveUp,
    JobCancelled,
    JobError,
    JobExists,
    JobFailed,
    JobLocked,
    JobNotFound,
    JobNotInState,
    JobTimeout,
    NotReplicated,
    OutcomeUnknown,
    PayloadError,
    PayloadTooLarge,
    QueueFull,
    RateLimited,
    RegistryError,
    Reschedule,
    Retry,
    StaleLease,
    TaskTimeout,
    UnknownTask,
    WaitForChildren,
)
from tasks_emq.events import QueueEvent
from tasks_emq.job import Job
from tasks_emq.queue import AsyncQueue, Queue
from tasks_emq.task import Task
from tasks_emq.tree import JobTree
from tasks_emq.version import __version__
from tasks_emq.workflow import ChildFailure, GroupResult, Signature, chain, chord, group

__all__ = [
    "App",
    "AsyncQueue",
    "BrokerError",
    "CannotSerialize",
    "ChildFailure",
    "ChildrenCounts",
    "ConfigError",
    "DuplicateTask",
    "EmqError",
    "GiveUp",
    "GroupResult",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobData",
    "JobError",
    "JobExists",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "JobNotInState",
    "JobTimeout",
    "JobTree",
    "Metrics",
    "NotReplicated",
    "OutcomeUnknown",
    "PayloadError",
    "PayloadTooLarge",
    "Queue",
    "QueueEvent",
    "QueueFull",
    "RateLimited",
    "RegistryError",
    "Reschedule",
    "Retention",
    "Retry",
    "ScheduleData",
    "Signature",
    "StaleLease",
    "Task",
    "TaskTimeout",
    "UnknownTask",
    "WaitForChildren",
    "Worker",
    "__version__",
    "chain",
    "chord",
    "current_job",
    "default_app",
    "group",
    "task",
]
