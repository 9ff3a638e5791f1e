"""Another host, or another process of this one: a service there, reached through an execnet gateway.

No transport of our own and no port of ours: a ``popen`` gateway speaks over pipes, an ``ssh=`` one over those of the
``ssh`` command, a ``socket=`` one to a server that the user has started.
"""
