"""A workflow: count the words of many texts side by side, then add the counts up.

emq-consumer words       # in one terminal
python words.py          # in another
"""

from __future__ import annotations

from collections import Counter

from tasks_emq import ChildFailure, chord, task


@task(queue="words")
def count(text: str) -> dict[str, int]:
    """Count the words of one text."""
    if not text:
        raise ValueError("there is no text")
    return dict(Counter(text.lower().split()))


@task(queue="words")
def most_common(parts: list[dict[str, int] | ChildFailure], n: int) -> list[tuple[str, int]]:
    """Add up what was counted; texts that failed are left out."""
    total: Counter[str] = Counter()
    for part in parts:
        if not isinstance(part, ChildFailure):
            total.update(part)
    return total.most_common(n)


if __name__ == "__main__":
    texts = ["to be or not to be", "", "to see or not to see"]
    job = chord([count.s(text) for text in texts], on_failure="ignore")(most_common.s(3)).delay()
    print(job.result(timeout=10))
    print(job.tree())
