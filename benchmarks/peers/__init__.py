"""One module per peer, each with the same face.

    PACKAGES            what is installed, pinned
    SETTINGS            what was set, in words, for the report
    BULK                whether it has a bulk call; else `many` is the fastest loop over single calls
    MOST_JOBS           optional: jobs of a throughput at the most, where it would not get more done in time
    NO_IO               optional: why it cannot run 100 I/O jobs at once
    producer(url)       awaited, gives a `benchmarks.drive.Producer`
    consume(url, n)     runs a consumer until the process is ended; n jobs at once, 0: what suits its no-ops best

The module of a peer imports that peer inside its functions only, since it is also read without it.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "tasks_emq", "tasks_emq_threads", "celery", "dramatiq", "rq", "huey", "arq", "taskiq", "saq", "streaq",
    "pydocket", "bullmq", "bullmq_node",
)  # fmt: skip
