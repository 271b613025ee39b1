"""Who is fed with what."""

from __future__ import annotations

from hostile import configs, messages, runs, sets
from hostile.watch import Target

TARGETS = {
    "config": Target(configs.seeds, configs.changed, configs.feed),
    "data": Target(sets.seeds, sets.changed, sets.feed),
    "inspect": Target(runs.seeds, runs.changed, runs.feed_inspect),
    "resume": Target(runs.seeds, runs.changed, runs.feed_resume),
    "replay": Target(runs.seeds, runs.changed, runs.feed_replay),
    "messages": Target(messages.seeds, messages.changed, messages.feed, ValueError),
}
