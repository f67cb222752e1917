"""Transactions of real clients, held against Apache Kafka and against three Penstock brokers.

transactions            every client commits, aborts, times out and is fenced; every client reads the result
transactions.chains     consume-transform-produce under kills, pauses and hand-overs; the history is checked
transactions.copier     Kafka's TransactionalMessageCopier, in two stages
transactions.streams    Kafka Streams with exactly_once_v2: StreamsSmokeTest and StreamsEosTest
transactions.etl        franz-go's TestTxnEtl with its chaos
transactions.tools      kafka-transactions
transactions.flink      the producer of Flink's sink resumes a transaction and commits it
"""
