"""Bytes to values and back: frames, headers, messages and records of the Kafka protocol.

- `schema` is the language of message classes; `api` has them, a module per API; `schemas` has those that are
  kept in records or inside other messages.
- `codec` encodes and decodes them at any version, with code that `decoding` and `encoding` write from what
  `layout` reads out of the classes.
- `headers` frames them, `exchange` is how the server and the broker hand them to each other.
- `batch` is the record batch; `validation` looks at its records, `legacy` converts the formats before it,
  `compression` has the codecs, `markers` the batches that end transactions.

WireError means that a peer sent something malformed, ValueError that we tried to.
"""
