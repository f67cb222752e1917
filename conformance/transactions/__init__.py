"""Transactions of real clients, held against Apache Kafka and against three Penstock brokers.

transactions            every client commits, aborts, times out and is fenced; every client reads the result
transactions.chains     consume-transform-produce under kills, pauses and hand-overs; the history is checked
transactions.kafka      Kafka's own: TransactionalMessageCopier, Streams with exactly_once_v2, kafka-transactions
transactions.etl        franz-go's TestTxnEtl with its chaos
"""
