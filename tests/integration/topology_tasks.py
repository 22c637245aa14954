"""A task of the tests on topologies, in a module of its own: its first run never ends by itself."""

import os
import time

from tasks_emq import App

app = App(os.environ.get("EMQ_URL", "redis://localhost"), enqueue_timeout=10.0)


@app.task(name="hold")
def hold(path: str) -> str:
    if os.path.exists(path):
        return "again"
    open(path, "w").close()
    time.sleep(60)
    return "never"
