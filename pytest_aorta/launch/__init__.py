"""Running a TrialSpec on the runtime: in a single process, under torch's elastic agent or torchrun, or as a rank."""
