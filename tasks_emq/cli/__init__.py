"""The commands `emq` and `emq-consumer`."""
