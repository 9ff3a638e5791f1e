"""Which task may run when: accesses to memory, the dependencies that follow from them, states, poison. No processes."""
