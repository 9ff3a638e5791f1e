"""A TrialSpec onto the runtime: single process, elastic agent, torchrun, external (we are already a rank)."""
