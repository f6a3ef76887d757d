"""The first room: facts, records and one definition a metric."""
