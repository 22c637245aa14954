"""BullMQ for Node, the first implementation of the protocol; driven by `bullmq_node.cjs`."""

from __future__ import annotations

#: npm packages.
PACKAGES = ("bullmq@6.7.0", "ioredis@6.0.0")
SETTINGS = "300 jobs at once for no-ops, 100 for I/O; completed jobs kept (the default)"
BULK = True
#: What Node runs instead of `benchmarks.drive`.
NODE = "bullmq_node.cjs"
