"""Files and batches: what a client leaves here and collects later, over the store; and what answers it.

The routes only write down what is asked. `runner.py` answers the lines, one process for all ingresses, by the
same handlers that answer a live request of the same body.
"""
