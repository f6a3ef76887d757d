"""Running a real engine under load and keeping what it did: engine, schedule, client, power, run."""
