"""The processes behind dfq.worker: see ADR 014 for who starts, watches and ends whom."""
