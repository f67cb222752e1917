"""The cluster as a fold of commands, without input, output or time.

- `image` is the cluster as one immutable value. `commands` are what can change it, `preconditions` when each
  may, `apply` what it does: three lists in one order. `draft` is how `apply` builds the next image cheaply.
- `codec` has the stored forms of entries and snapshots.
- `placement` decides who leads what; `names` what a topic may be called and where a group belongs.
- `definitions` says what a setting is, `topic_configs`, `broker_configs` and `group_configs` which there are,
  `configs` which values are in force and how they are described to clients.

A `Refusal` is an answer for a client; an exception here is a bug, except FormatError for stored bytes that
cannot be read and ValueProblem for a value that a setting cannot have.
"""
