"""Where jobs run: clusters, their partitions and launchers, scripts, and what the scheduler says of jobs."""
