"""Load test over HTTP: the same workload against two or more servers, in interleaved pairs.

Nothing here imports the plugin or the engine: a server is a command, a port and its answers.
"""
