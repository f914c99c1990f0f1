"""Files and batches: uploads, and the process that answers them from the store.

The routes only write down what is asked. `runner.py` answers the lines, one process for all ingresses, by the
same handlers that answer a live request of the same body.
"""
