"""Broker settings that nothing here reads, and what becomes of them when a tool sets them.

Kafka takes any name that it does not define itself, because it may be a setting of a plugin, and shows that
it is set but not its value. Tools and clients' own tests rely on it, so it is the same here. Of the settings
that Kafka does define:

- those that tune parts which Penstock does not have (threads, buffers, tiered storage) are checked for their
  type, kept and shown;
- those that would make somebody believe in a protection or an observer that is not there, and those that
  Kafka cannot change either while it runs, are refused.
"""

from penstock.metadata.definitions import Definition, Kind

UNDEFINED_MAX = 200
"""Settings without a definition that one resource can have. Every broker keeps them in memory."""

_TUNING = {
    Kind.BOOLEAN: """
        follower.fetch.last.tiered.offset.enable
    """,
    Kind.DOUBLE: """
        log.cleaner.io.buffer.load.factor sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.window.factor
        sasl.login.refresh.window.jitter
    """,
    Kind.INT: """
        background.threads group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
        group.streams.assignment.interval.ms log.cleaner.io.buffer.size log.cleaner.threads
        num.io.threads num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
        remote.fetch.max.wait.ms remote.log.manager.copier.thread.pool.size
        remote.log.manager.expiration.thread.pool.size remote.log.manager.follower.thread.pool.size
        remote.log.reader.threads share.coordinator.cached.buffer.max.bytes
    """,
    Kind.LIST: """
        sasl.kerberos.principal.to.local.rules
    """,
    Kind.LONG: """
        remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
        remote.log.manager.copy.max.bytes.per.second remote.log.manager.fetch.max.bytes.per.second
        sasl.kerberos.min.time.before.relogin
    """,
    Kind.SHORT: """
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    """,
    Kind.STRING: """
        sasl.kerberos.kinit.cmd sasl.kerberos.service.name
    """,
}

_DEFINITIONS = {
    name: Definition(name=name, kind=kind, default=None, doc="", dynamic=True)
    for kind, names in _TUNING.items()
    for name in names.split()
}

_REFUSED_NAMES = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name
    client.quota.callback.class config.providers connection.failed.authentication.delay.ms
    connections.max.reauth.ms controlled.shutdown.enable controller.listener.names
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable
    controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
    controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms
    cordoned.log.dirs create.topic.policy.class.name delegation.token.expiry.check.interval.ms
    delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
    delete.records.purgatory.purge.interval.requests early.start.listeners
    fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.rebalance.protocols
    group.coordinator.threads group.share.assignors group.share.delivery.count.limit
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms
    group.share.max.share.sessions group.share.max.size group.share.min.assignment.interval.ms
    group.share.min.delivery.count.limit group.share.min.heartbeat.interval.ms
    group.share.min.partition.max.record.locks group.share.min.record.lock.duration.ms
    group.share.min.session.timeout.ms group.share.partition.max.record.locks
    group.share.persister.class.name group.share.record.lock.duration.ms
    group.share.session.timeout.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms
    group.streams.max.size group.streams.max.standby.replicas
    group.streams.min.assignment.interval.ms group.streams.min.heartbeat.interval.ms
    group.streams.min.session.timeout.ms group.streams.num.standby.replicas
    group.streams.session.timeout.ms initial.broker.registration.timeout.ms
    inter.broker.listener.name internal.metadata.delete.delay.millis
    internal.metadata.log.segment.bytes internal.metadata.max.batch.size.in.bytes
    kafka.metrics.polling.interval.secs kafka.metrics.reporters listener.security.protocol.map
    log.dir log.dir.failure.timeout.ms log.dirs log.flush.offset.checkpoint.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
    max.connection.creation.rate max.connections.per.ip.overrides max.request.partition.size.limit
    metadata.log.dir metadata.log.max.record.bytes.between.snapshots
    metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes metadata.log.segment.ms
    metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms node.id
    num.replica.alter.log.dirs.threads offsets.commit.timeout.ms offsets.load.buffer.size
    offsets.topic.compression.codec principal.builder.class process.roles
    producer.id.expiration.check.interval.ms producer.purgatory.purge.interval.requests
    quota.window.num quota.window.size.seconds remote.log.index.file.cache.ttl.ms
    remote.log.manager.copy.quota.window.num remote.log.manager.copy.quota.window.size.seconds
    remote.log.manager.fetch.quota.window.num remote.log.manager.fetch.quota.window.size.seconds
    remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
    remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.storage.manager.class.name
    remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix
    remote.log.storage.system.enable replica.fetch.backoff.ms replica.fetch.max.bytes
    replica.fetch.min.bytes replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms replica.selector.class
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
    sasl.enabled.mechanisms sasl.jaas.config sasl.login.callback.handler.class sasl.login.class
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms
    sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
    sasl.mechanism.inter.broker.protocol sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
    sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class
    sasl.server.max.receive.size security.inter.broker.protocol security.providers
    server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cold.partition.snapshot.interval.ms share.coordinator.load.buffer.size
    share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.allow.dn.changes ssl.allow.san.changes ssl.cipher.suites
    ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm
    ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.principal.mapping.rules ssl.protocol ssl.provider
    ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type telemetry.max.bytes
    transaction.abort.timed.out.transaction.cleanup.interval.ms
    transaction.partition.verification.enable
    transaction.remove.expired.transaction.cleanup.interval.ms
    transaction.state.log.load.buffer.size transaction.state.log.min.isr
    transaction.two.phase.commit.enable transactional.id.expiration.ms
    unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
"""
_REFUSED = frozenset(_REFUSED_NAMES.split())


def only_of_one_broker(name: str) -> bool:
    """Whether Kafka takes this setting for a broker by its number only, not for all of them."""
    return name in _DEFINITIONS and name.startswith("sasl.")


def unread_definition(name: str) -> Definition | None:
    """The definition of a broker setting that `broker_configs` does not have; None if it cannot be set."""
    if name in _REFUSED:
        return None
    return _DEFINITIONS.get(name) or Definition(
        name=name, kind=Kind.UNKNOWN, default=None, doc="", dynamic=True
    )
