"""For tests of code that uses tasks: an app in memory, jobs run in the test, a clock that can be put forward."""

from tasks_emq.testing.clock import Clock
from tasks_emq.testing.running import assert_enqueued, moved_to, refute_enqueued, run_all

__all__ = ["Clock", "assert_enqueued", "moved_to", "refute_enqueued", "run_all"]
