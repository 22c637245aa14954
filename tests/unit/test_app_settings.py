"""What an App is made with is checked when it is made, and named: nothing breaks in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tasks_emq import App, ConfigError, Retention


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("url", redis.Redis(), "url=Redis: a text"),
        ("url", b"redis://h", "url=bytes: a text"),
        ("url", 7, "url=int: a text"),
        ("codec", ["json"], "codec ['json'] is not known"),
        ("codecs", "json", "codecs='json': a mapping"),
        ("codecs", {1: "json"}, "queue name"),
        ("codecs", {"q": {}}, "codec {} is not known"),
        ("default_queue", 7, "queue name"),
        ("retention", 3600, "retention=3600: a Retention"),
        ("retention", {}, "retention={}: a Retention"),
        ("retention", 0, "retention=0: a Retention"),
        ("retentions", ["q"], "retentions=['q']: a mapping"),
        ("retentions", {"a b": Retention()}, "queue name"),
        ("retentions", {"q": 60}, "retentions['q']=60: a Retention"),
        ("enqueue_timeout", "2", "enqueue_timeout='2'"),
        ("enqueue_timeout", None, "enqueue_timeout=None"),
        ("metrics", 1.5, "metrics=1.5"),
        ("durability", 7, "durability"),
    ],
)
def test_a_setting_that_cannot_be(name: str, value: Any, told: str) -> None:
    settings: dict[str, Any] = {"url": "redis://h", name: value}
    with pytest.raises(ConfigError) as raised:
        App(**settings)
    assert told in str(raised.value)


@pytest.mark.parametrize("value", [60.5, -1, "60", True, 2**53])
@pytest.mark.parametrize("name", ["completed_age_s", "completed_count", "failed_age_s", "failed_count"])
def test_what_is_kept_is_a_whole_number(name: str, value: Any) -> None:
    """Anything else would reach the scripts as "not set": kept for ever."""
    with pytest.raises(ConfigError, match=name):
        Retention(**{name: value})


def test_settings_by_queue() -> None:
    few = Retention(failed_age_s=None, completed_count=0)
    app = App("redis://h", codecs={"a": "json"}, retentions={"a": few}, retention=Retention(completed_age_s=1))
    assert (app.codec("a").name, app.codec("b").name) == ("json", "msgpack")
    assert (app.retention("a"), app.retention("b")) == (few, Retention(completed_age_s=1))
