"""Sick stores: an acknowledged record is read, or is reported as hurt, whatever the store does.

    python -m conformance.sick               every scene (under ten minutes; needs Go for the S3 server)
    python -m conformance.sick --short       those that need a directory only, for CI
    python -m conformance.sick --list        their names
    python -m conformance.sick --only wal    those whose name contains a word

Each scene runs real broker processes on a store of its own: a directory, a small file system that is full,
cut off or gone with the power, or an S3 server behind a proxy that delays, repeats, drops, refuses, cuts,
flips and reorders. Clients write before, while and after it is sick, and keep the answers that they got. The
verdict:

    every acknowledged record is read as it was written, or its readers get an error code
    no offset is given twice
    a healed object is whole again

`stage.py` is a cluster with its store and its clients, `rich.py` one with transactions and groups, `verdict.py`
decides, `proxy.py` and `disks.py` make stores sick, `rot.py` knows where to flip a bit, `hurts.py` what else can
happen to a file, and `scenes_*.py` are the scenes.
"""
