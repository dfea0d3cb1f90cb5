"""What runs inside a training process.

A `Watcher` counts the FLOPs of a model's forward passes (`watch.py`, `counting.py`, `compiled.py`,
`formulas.py`) and a `Clock` the time between optimizer steps (`clock.py`); the `Session` adds them
up and sends a report to the node's agent once a second (`session.py`, `transport.py`). None of it
may harm the run: nothing raises out, blocks, waits for a device, or changes a number that the
training computes.
"""
