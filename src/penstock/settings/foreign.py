"""Broker settings that Kafka has and nothing here reads: why, and what happens when a tool sets them.

None can be given when a broker starts. While it runs, Kafka takes any name that it does not define itself,
because it may be a setting of a plugin. It shows that the name is set, but not its value. Tools and clients'
own tests rely on it, so it is the same here. Of the settings that Kafka does define:

- settings that tune parts which Penstock does not have (threads, buffers, tiered storage) are checked for
  their type, kept and shown;
- settings that would make somebody believe in a protection or an observer that is not there are refused, and
  so are those that Kafka cannot change either while it runs.
"""

from penstock.settings.listening import LIMITS, of_all_listeners, prefixed
from penstock.settings.setting import Kind, Setting, Update, by_name

_LOG_DIRS = "Records live in the store (`store`), not in directories of brokers."
_SHARE = "Share groups are not served."
_STREAMS = "Groups of Kafka Streams' own protocol are not served."
_TIERED = "All records are in the shared store; there is no second tier."
_QUOTAS = "What clients use is measured in eleven samples of a second."
_CONTROLLER = "There are no controllers: brokers agree through the metadata log in the store."
_JAVA_TLS = "Only Java's TLS has this."
_CIPHERS = "OpenSSL chooses among its strong suites; ssl.enabled.protocols says which versions are spoken."
_TAKEN_UP = "A changed file is taken up, whatever names are in its certificate."
_PEM = (
    "Java's key stores are not read (`openssl pkcs12 -in STORE.p12 -out STORE.pem` converts one), and a PEM "
    "file has no password but that of its key, ssl.key.password."
)
_PLUGINS = "A broker loads no Java classes."
_OBSERVERS = "A broker loads no Java classes, for observers either."
_METRICS = "Metrics are not collected."
_REPLICATION = "Brokers do not copy records to each other: they share one store."
_TWO_PHASES = "Two-phase commit of transactions is not served."
_PURGATORY = "A request that waits is woken by what it waits for; nothing has to be purged."
_GROUPS = "Groups are kept by the broker's one event loop, and written as requests come."
_UNSTABLE = "There are no unstable APIs and features to enable."
_OTHER = "A broker looks after this itself."
_THREADS = "A broker is one process with one event loop; `--brokers N` runs more of them."
_BUFFERS = "Buffers grow as they are needed; log.cleaner.dedupe.buffer.size bounds compaction's."
_LOGIN = "A broker logs in to other brokers only, with a name and a password (sasl.jaas.config)."

_KEPT: tuple[tuple[str, Kind, Update, str], ...] = (
    (_THREADS, Kind.INT, "cluster-wide", """
        background.threads log.cleaner.threads num.io.threads num.network.threads
        num.recovery.threads.per.data.dir num.replica.fetchers
    """),
    (_BUFFERS, Kind.INT, "cluster-wide", """
        group.coordinator.cached.buffer.max.bytes log.cleaner.io.buffer.size
        share.coordinator.cached.buffer.max.bytes
    """),
    (_BUFFERS, Kind.DOUBLE, "cluster-wide", """
        log.cleaner.io.buffer.load.factor
    """),
    (_SHARE, Kind.INT, "cluster-wide", """
        group.share.assignment.interval.ms
    """),
    (_STREAMS, Kind.INT, "cluster-wide", """
        group.streams.assignment.interval.ms
    """),
    (_TIERED, Kind.BOOLEAN, "cluster-wide", """
        follower.fetch.last.tiered.offset.enable
    """),
    (_TIERED, Kind.INT, "cluster-wide", """
        remote.fetch.max.wait.ms remote.log.manager.copier.thread.pool.size
        remote.log.manager.expiration.thread.pool.size remote.log.manager.follower.thread.pool.size
        remote.log.reader.threads
    """),
    (_TIERED, Kind.LONG, "cluster-wide", """
        remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
        remote.log.manager.copy.max.bytes.per.second remote.log.manager.fetch.max.bytes.per.second
    """),
    (_LOGIN, Kind.DOUBLE, "per-broker", """
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    """),
    (_LOGIN, Kind.LIST, "per-broker", """
        sasl.kerberos.principal.to.local.rules
    """),
    (_LOGIN, Kind.LONG, "per-broker", """
        sasl.kerberos.min.time.before.relogin
    """),
    (_LOGIN, Kind.SHORT, "per-broker", """
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    """),
    (_LOGIN, Kind.STRING, "per-broker", """
        sasl.kerberos.kinit.cmd sasl.kerberos.service.name
    """),
)  # fmt: skip
"""Why it has no effect, its type, how Kafka changes it, and the names."""

_REFUSED: tuple[tuple[str, str], ...] = (
    (_LOG_DIRS, """
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds cordoned.log.dirs log.dir
        log.dir.failure.timeout.ms log.dirs log.flush.offset.checkpoint.interval.ms
        log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms metadata.log.dir
        num.replica.alter.log.dirs.threads
    """),
    (_SHARE, """
        group.share.assignors group.share.delivery.count.limit group.share.heartbeat.interval.ms
        group.share.initialize.retry.interval.ms group.share.max.assignment.interval.ms
        group.share.max.delivery.count.limit group.share.max.heartbeat.interval.ms
        group.share.max.partition.max.record.locks group.share.max.record.lock.duration.ms
        group.share.max.session.timeout.ms group.share.max.share.sessions group.share.max.size
        group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
        group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
        group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
        group.share.partition.max.record.locks group.share.persister.class.name
        group.share.record.lock.duration.ms group.share.session.timeout.ms
        share.coordinator.append.linger.ms share.coordinator.cold.partition.snapshot.interval.ms
        share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
        share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
        share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
        share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
        share.coordinator.threads share.coordinator.write.timeout.ms
        share.fetch.purgatory.purge.interval.requests
    """),
    (_STREAMS, """
        group.streams.heartbeat.interval.ms group.streams.initial.rebalance.delay.ms
        group.streams.max.assignment.interval.ms group.streams.max.heartbeat.interval.ms
        group.streams.max.session.timeout.ms group.streams.max.size
        group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
        group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms
        group.streams.num.standby.replicas group.streams.session.timeout.ms
    """),
    (_TIERED, """
        remote.log.index.file.cache.ttl.ms remote.log.manager.copy.quota.window.num
        remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
        remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
        remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
        remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
        remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
        remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
        remote.log.storage.manager.class.name remote.log.storage.manager.class.path
        remote.log.storage.manager.impl.prefix remote.log.storage.system.enable
    """),
    (_QUOTAS, """
        client.quota.callback.class controller.quota.window.num controller.quota.window.size.seconds
        quota.window.num quota.window.size.seconds
    """),
    (_CONTROLLER, """
        controlled.shutdown.enable controller.listener.names
        controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
        controller.quorum.append.linger.ms controller.quorum.auto.join.enable
        controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
        controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
        controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
        controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
        controller.quorum.voters controller.socket.timeout.ms early.start.listeners
        sasl.mechanism.controller.protocol
        initial.broker.registration.timeout.ms internal.metadata.delete.delay.millis
        internal.metadata.log.segment.bytes internal.metadata.max.batch.size.in.bytes
        metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
        metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
        metadata.max.retention.bytes metadata.max.retention.ms node.id process.roles
        server.max.startup.time.ms
    """),
    (_LOGIN, """
        sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
        sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms
        sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm
        sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
        sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
        sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
        sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
        sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
        sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
    """),
    (_JAVA_TLS, """
        security.providers ssl.keymanager.algorithm ssl.protocol ssl.provider
        ssl.secure.random.implementation ssl.trustmanager.algorithm
    """),
    (_CIPHERS, """
        ssl.cipher.suites
    """),
    (_TAKEN_UP, """
        ssl.allow.dn.changes ssl.allow.san.changes
    """),
    (_PEM, """
        ssl.keystore.password ssl.truststore.password
    """),
    (_PLUGINS, """
        alter.config.policy.class.name config.providers create.topic.policy.class.name
        principal.builder.class sasl.oauthbearer.jwt.validator.class
        sasl.server.callback.handler.class ssl.engine.factory.class
    """),
    (_OBSERVERS, """
        kafka.metrics.polling.interval.secs kafka.metrics.reporters metric.reporters
        replica.selector.class
    """),
    (_METRICS, """
        metrics.num.samples metrics.recording.level metrics.sample.window.ms telemetry.max.bytes
    """),
    (_REPLICATION, """
        replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
        replica.fetch.response.max.bytes replica.fetch.wait.max.ms
        replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
        replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
        replication.quota.window.size.seconds request.timeout.ms
        socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
        transaction.state.log.min.isr unclean.leader.election.interval.ms
    """),
    (_TWO_PHASES, """
        transaction.two.phase.commit.enable
    """),
    (_PURGATORY, """
        delete.records.purgatory.purge.interval.requests fetch.purgatory.purge.interval.requests
        producer.purgatory.purge.interval.requests
    """),
    (_GROUPS, """
        group.coordinator.append.linger.ms group.coordinator.background.threads
        group.coordinator.rebalance.protocols group.coordinator.threads offsets.commit.timeout.ms
        offsets.load.buffer.size offsets.topic.compression.codec
    """),
    (_UNSTABLE, """
        unstable.api.versions.enable unstable.feature.versions.enable
    """),
    (_OTHER, """
        max.request.partition.size.limit producer.id.expiration.check.interval.ms
        transaction.state.log.load.buffer.size
    """),
)  # fmt: skip

KEPT: dict[str, Setting] = by_name(
    Setting(name=name, kind=kind, default=None, doc="", scope="cluster", update=update, moot=why)
    for why, kind, update, names in _KEPT
    for name in names.split()
)
REFUSED: dict[str, str] = {name: why for why, names in _REFUSED for name in names.split()}
"""By name, why it cannot be set."""

_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_OWN_CLASSES = {
    "principal.builder.class": (
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    ),
    "sasl.oauthbearer.jwt.validator.class": (f"{_OAUTH}DefaultJwtValidator", f"{_OAUTH}BrokerJwtValidator"),
    "sasl.server.callback.handler.class": (
        f"{_OAUTH}OAuthBearerValidatorCallbackHandler",
        f"{_OAUTH}secured.OAuthBearerValidatorCallbackHandler",
    ),
}
"""Kafka's classes, by setting, whose work a broker does as they do it. Kafka checks no bearer token without
the last ones, so each file that lets clients log in so has them."""


def names_own_class(name: str, value: str) -> bool:
    """Whether a setting, also one of a single listener, names a class whose work is done anyway."""
    return any(
        value in classes
        and (name == setting or (name.startswith("listener.name.") and name.endswith(f".{setting}")))
        for setting, classes in _OWN_CLASSES.items()
    )


_PROTECTIVE = frozenset((_CIPHERS, _TAKEN_UP, _PEM, _PLUGINS, _QUOTAS))
"""Whoever sets one of these relies on it."""


def left_alone(name: str) -> bool:
    """Whether a setting means something to Kafka's own parts only, so that a file for Kafka may have it."""
    name = of_all_listeners(name)
    return name in KEPT or REFUSED.get(name, _PLUGINS) not in _PROTECTIVE


_UNDEFINED = "No broker defines this setting. It is kept, because other tools may; nothing depends on it."


def why_foreign(name: str) -> str:
    """Why nothing here reads a setting that Kafka has, for one listener too; "" if Kafka has none of this
    name."""
    name = of_all_listeners(name)
    kept = KEPT.get(name)
    return kept.moot if kept is not None else REFUSED.get(name, "")


def foreign_setting(name: str) -> Setting | None:
    """What a running broker makes of a setting that it does not have itself; None if it cannot be set."""
    whole = of_all_listeners(name)
    if name in REFUSED or (
        whole != name and (whole in REFUSED or whole in LIMITS or prefixed(name) is not None)
    ):
        return None
    return KEPT.get(name) or Setting(
        name=name, kind=Kind.UNKNOWN, default=None, doc="", update="cluster-wide", moot=_UNDEFINED
    )
