"""Local runs: process trees on GPUs of machines that no scheduler shares out.

They stand in the tables of any scheduler's runs, with `Run.local` set: what follows (pages, MFU,
idle minutes) need not know the difference, and fair use stays away from them.
"""
