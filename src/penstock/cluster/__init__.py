"""Runs the metadata log that brokers share, and a broker's place in the cluster.

- `metadata_log` reads, follows and proposes; `snapshots` is the chain of snapshots that makes a start short
  and trimming safe; `reading` is for programs that only look.
- `membership` registers, heartbeats, fences the silent, balances leaders and leaves; `leases` judges silence.

Everything rests on one primitive of the store, create if absent. MetadataUnavailableError means that the
store failed and the outcome is unknown; a Refusal is an answer.
"""
