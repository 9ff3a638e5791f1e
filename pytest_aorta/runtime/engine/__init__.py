"""Dispatch of tasks to endpoints. Starts no process."""
