"""The pure part: keys, calls, codecs and policies; no Redis, no clock, no threads."""
