"""An effect outside Redis that happens once: the fence of a run stands beside what it wrote, in one transaction.

A job runs at least once. When its consumer is paused for longer than its lock, another consumer runs it again, and
then the first one wakes up and writes too. Its result is refused by the queue; its row is refused here, because
`fence` grows with every start.

    emq-consumer invoices    # in one terminal
    python invoices.py       # in another
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from tasks_emq import GiveUp, JobContext, task

BOOKS = os.environ.get("BOOKS", "books.sqlite")


@task(queue="invoices", attempts=3)
def book(ctx: JobContext, customer: str, cents: int) -> int:
    """Write one invoice; return the sum of all of this customer's."""
    with closing(sqlite3.connect(BOOKS, timeout=10)) as books:
        with books:
            books.execute("CREATE TABLE IF NOT EXISTS invoices (job PRIMARY KEY, fence, customer, cents)")
            if not write(books, ctx.id, ctx.fence, customer, cents):
                raise GiveUp("a later run of this job has written already")
        return int(books.execute("SELECT sum(cents) FROM invoices WHERE customer = ?", (customer,)).fetchone()[0])


def write(books: sqlite3.Connection, job: str, fence: int, customer: str, cents: int) -> bool:
    """Write the row of a job unless a later run of it has; say whether it was written."""
    row = books.execute(
        "INSERT INTO invoices VALUES (?, ?, ?, ?) "
        "ON CONFLICT (job) DO UPDATE "
        "SET fence = excluded.fence, customer = excluded.customer, cents = excluded.cents "
        "WHERE excluded.fence >= invoices.fence",
        (job, fence, customer, cents),
    )
    return row.rowcount == 1


if __name__ == "__main__":
    # The id comes from the order: whoever asks a second time gets the job that is there.
    first = book.options(job_id="order:42").delay("ada", 1_250)
    again = book.options(job_id="order:42").delay("ada", 1_250)
    print(first.result(timeout=10), "cents booked;", "one job" if first.id == again.id else "two jobs")
