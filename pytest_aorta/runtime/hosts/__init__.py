"""Another host, or another process of this one: a service there, reached through an execnet gateway.

There is no transport and no port besides execnet's: a ``popen`` gateway uses pipes, an ``ssh=`` one over those of the
``ssh`` command, a ``socket=`` one to a server that the user has started.
"""
