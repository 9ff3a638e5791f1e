"""Processes that run tasks: a zygote prepares once and forks one fresh child per task.

A *zygote* is a single-threaded process, started with its environment variables already set, that prepares once (an
import, usually) and then forks one fresh child per task. A separate channel connects the child with the
submitter of the task; the zygote adopts, ends and reaps all processes that the task leaves behind.
"""
