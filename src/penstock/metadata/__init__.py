"""The cluster as a fold of commands, without input, output or time.

- `image` is the cluster as one immutable value. `commands` can change it, `preconditions` say when each may,
  `apply` says what it does: three lists in one order. With `draft`, `apply` builds the next image cheaply.
- `codec` and `snapshot` have the stored forms of entries and snapshots, `levels` the forms that all brokers
  can read.
- `placement` decides which broker leads which partition; `names` has the rules for the names of topics.
- `configs` says which settings are in force, `config_changes` how a request changes them, `config_entries`
  how clients are shown them.

A `Refusal` is an answer for a client; an exception here is a bug, except FormatError for stored bytes that
cannot be read and ValueProblem for a value that a setting cannot have.
"""
