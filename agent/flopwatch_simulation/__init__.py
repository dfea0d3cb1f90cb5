"""A GPU cluster that is not there: for the first run, benchmarks, and tests of what a reader sees.

It enters by the real doors only, HTTP batches and the scheduler feed, and keeps a ledger of truth.
"""
