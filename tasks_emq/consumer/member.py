"""One of the consumers under a supervisor: `python -m tasks_emq.consumer.member FD PID`."""

from __future__ import annotations

import logging
import os
import sys

from tasks_emq.consumer.channel import Pipe
from tasks_emq.consumer.child import end_with_parent
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.targets import Recipe
from tasks_emq.errors import ConfigError, EmqError


def main() -> None:
    """Serve queues for the supervisor whose socket and process id are the arguments."""
    end_with_parent(int(sys.argv[2]))
    pipe = Pipe(int(sys.argv[1]))
    message = pipe.receive()
    if message is None:
        return
    _, who, recipe, queues, options = message
    made = Recipe(**recipe)
    try:
        app = made.app(who)
        if app.server.memory:
            raise ConfigError("processes: each of them would have a memory:// of its own; give them a server")
        if options.get("rate_limit"):
            options["rate_limit"] = tuple(options["rate_limit"])
        consumer = Consumer(app, queues, **options)
    except ConfigError as error:
        pipe.send("refused", 2, str(error))
        sys.exit(2)
    except BaseException as error:
        # Importing a module runs its code, which may do anything.
        pipe.send("refused", 1, f"{type(error).__name__}: {error}")
        raise
    consumer.recipe = Recipe(
        made.targets, made.modules, app.server.url, made.path, made.log_level, made.log_format
    )
    consumer.supervised = pipe.sock
    try:
        consumer.run()
    except EmqError as error:
        pipe.send("refused", 1, str(error))
        sys.exit(1)
    if consumer.stuck_threads:
        # Their jobs are handed back; only the process can end these threads.
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    main()
