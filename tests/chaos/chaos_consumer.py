"""A consumer process of the chaos suite: `python chaos_consumer.py '{"lock": 1}'`; the options are Settings."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from dataclasses import replace

import chaos_tasks

from tasks_emq.cli.consumer import set_up_logging
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.targets import recipe_of


def leave_with(parent: int) -> None:
    """End when the harness has ended: nobody else would end this process then."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    options = json.loads(sys.argv[1])
    queues = options.pop("queues", None)
    skew_s = options.pop("skew", 0.0)
    if skew_s:
        real = time.time
        time.time = lambda: real() + skew_s
    chaos_tasks.here()  # while it may still open files
    set_up_logging("info", "text")
    consumer = Consumer(chaos_tasks.app, queues, **options)
    if consumer.settings.processes and (recipe := recipe_of(chaos_tasks.app)):
        consumer.recipe = replace(recipe, log_level="info")
    consumer.run()
    if consumer.stuck_threads:
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    main()
