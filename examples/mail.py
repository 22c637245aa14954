"""The first task of the README, with retries: each failure makes it wait longer.

emq-consumer mail        # in one terminal
python mail.py           # in another
"""

from __future__ import annotations

from tenacity import wait_exponential_jitter

from tasks_emq import task


@task(queue="emails", attempts=5, backoff=wait_exponential_jitter(initial=1, max=60), timeout=30)
def send_welcome(user_id: int, *, lang: str = "en") -> str:
    """Return what was sent; raise, and it is tried again."""
    return f"welcome mail in {lang} sent to user {user_id}"


if __name__ == "__main__":
    print(send_welcome.delay(42, lang="fr").result(timeout=10))
    jobs = send_welcome.delay_many([(user,) for user in range(100)])
    print(len([job.result(timeout=10) for job in jobs]), "mails sent")
