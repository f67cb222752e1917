// KafkaJS behind the line protocol of conformance/clients/protocol.py.
//
// KafkaJS has no public way to read a partition outside a group, so "consume" drives the broker object that its own
// consumer drives: the same Fetch versions and the same decoder, without the group around them.

const fs = require('node:fs')
const readline = require('node:readline')
const { AssignerProtocol, Kafka, CompressionTypes, CompressionCodecs, logLevel } = require('kafkajs')
const Batch = require('kafkajs/src/consumer/batch')
const snappy = require('snappyjs')
const lz4 = require('lz4js')
const xxh32 = require('lz4js/xxh32.js')
const { ZstdCodec } = require('zstd-codec')

const option = name => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : null)

// How to log in: see conformance/clients/secured.py.
function secured(file) {
  if (file === null) return {}
  const given = JSON.parse(fs.readFileSync(file))
  const keys = given.keys && fs.readFileSync(given.keys)
  const ssl = given.protocol.endsWith('SSL') && { ca: [fs.readFileSync(given.ca)], key: keys, cert: keys }
  if (!given.mechanism) return { ssl }
  const mechanism = given.mechanism.toLowerCase()
  const oauthBearerProvider = async () => ({ value: fs.readFileSync(given.tokens, 'utf8') })
  const sasl = given.tokens ? { mechanism, oauthBearerProvider } : { mechanism, username: given.user, password: given.password }
  // Unasked it logs in anew ten seconds before a session ends, which is all the time in one that is shorter.
  return { ssl, sasl, reauthenticationThreshold: 1000 }
}

const kafka = new Kafka({
  clientId: 'conformance',
  brokers: option('--bootstrap').split(','),
  logLevel: logLevel.NOTHING,
  ...secured(option('--security')),
})
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const XERIAL = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0x00])

// KafkaJS leaves all codecs but gzip to plug-ins; Java wraps Snappy in the frames of the xerial library.
CompressionCodecs[CompressionTypes.Snappy] = () => ({
  compress: async encoder => snappy.compress(encoder.buffer),
  decompress: async buffer => {
    if (!buffer.subarray(0, XERIAL.length).equals(XERIAL)) return snappy.uncompress(buffer)
    const blocks = []
    for (let at = 16; at < buffer.length; ) {
      const size = buffer.readInt32BE(at)
      blocks.push(snappy.uncompress(buffer.subarray(at + 4, at + 4 + size)))
      at += 4 + size
    }
    return Buffer.concat(blocks)
  },
})
// Java reads only frames whose blocks stand alone. Ours have one block, so saying so is true: set the flag, sum again.
function independent(frame) {
  frame[4] |= 0x20
  frame[6] = xxh32.hash(0, frame, 4, 2) >> 8
  return frame
}
// lz4js expects a block's checksum before the block, where the format puts it after: walk the frame here.
function lz4Blocks(frame) {
  const [flags, descriptor] = [frame[4], frame[5]]
  const blocks = []
  let at = flags & 0x08 ? 15 : 7
  for (let size = frame.readUInt32LE(at); size !== 0; size = frame.readUInt32LE(at)) {
    const length = size & 0x7fffffff
    const block = frame.subarray(at + 4, at + 4 + length)
    if (size & 0x80000000) {
      blocks.push(block)
    } else {
      const out = Buffer.alloc(256 << (2 * ((descriptor >> 4) & 7)))
      blocks.push(out.subarray(0, lz4.decompressBlock(block, out, 0, length, 0)))
    }
    at += 4 + length + (flags & 0x10 ? 4 : 0)
  }
  return Buffer.concat(blocks)
}
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => independent(Buffer.from(lz4.compress(encoder.buffer))),
  decompress: async buffer => lz4Blocks(buffer),
})
const zstd = new Promise(resolve => ZstdCodec.run(found => resolve(new found.Streaming())))
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstd).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstd).decompress(buffer)),
})

const bytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const text = value => (value === null || value === undefined ? null : Buffer.from(value).toString('base64'))

async function create({ topic, partitions }) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: partitions, replicationFactor: 1 }] })
  } finally {
    await admin.disconnect()
  }
  return {}
}

async function produce({ topic, partition, codec, records }) {
  const producer = kafka.producer()
  await producer.connect()
  try {
    const messages = records.map(record => ({
      key: bytes(record.key),
      value: bytes(record.value),
      headers: Object.fromEntries(record.headers.map(([name, value]) => [name, bytes(value)])),
      partition,
      ...(record.timestamp === null ? {} : { timestamp: String(record.timestamp) }),
    }))
    const [answer] = await producer.send({ topic, acks: -1, compression: CODECS[codec], messages })
    return { offsets: records.map((_, at) => Number(answer.baseOffset) + at) }
  } finally {
    await producer.disconnect()
  }
}

// A header that appears several times comes as a list under its name, so the order between names is lost.
function flatHeaders(headers) {
  return Object.entries(headers || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map(each => [name, text(each)])
  )
}

function render(message, partition) {
  return {
    key: text(message.key),
    value: text(message.value),
    headers: flatHeaders(message.headers),
    timestamp: Number(message.timestamp),
    offset: Number(message.offset),
    partition,
  }
}

async function consume({ topic, partition, offset, count, committed, timeout_s }) {
  const named = Object.getOwnPropertySymbols(kafka).find(symbol => symbol.description.endsWith('createCluster'))
  const cluster = kafka[named]({ metadataMaxAge: 300000, allowAutoTopicCreation: false })
  await cluster.connect()
  try {
    await cluster.addTargetTopic(topic)
    const { leader } = cluster.findTopicPartitionMetadata(topic).find(each => each.partitionId === partition)
    const broker = await cluster.findBroker({ nodeId: String(leader) })
    const records = []
    const deadline = Date.now() + timeout_s * 1000
    let next = offset
    while (records.length < count && Date.now() < deadline) {
      const asked = { partition, fetchOffset: String(next), maxBytes: 8 << 20 }
      const answer = await broker.fetch({
        maxWaitTime: 500,
        minBytes: 1,
        maxBytes: 16 << 20,
        isolationLevel: committed ? 1 : 0,
        topics: [{ topic, partitions: [asked] }],
        rackId: '',
      })
      // What its consumer shows to users: without control records and what was aborted.
      const batch = new Batch(topic, String(next), answer.responses[0].partitions[0])
      for (const message of batch.messages) {
        if (records.length < count) records.push(render(message, partition))
      }
      if (!batch.isEmptyIncludingFiltered()) next = Number(batch.lastOffset()) + 1
    }
    return { records }
  } finally {
    await cluster.disconnect()
  }
}

async function group({ group, topic, count, each, timeout_s }) {
  const consumer = kafka.consumer({ groupId: group })
  await consumer.connect()
  const records = []
  const taken = {}
  const committed = {}
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, timeout_s * 1000)
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      consumer
        .run({
          autoCommit: false,
          eachMessage: async ({ partition, message }) => {
            taken[partition] = taken[partition] || 0
            if (records.length >= count || taken[partition] >= each) return
            taken[partition] += 1
            records.push(render(message, partition))
            committed[partition] = Number(message.offset) + 1
            if (records.length === count) {
              clearTimeout(timer)
              resolve()
            }
          },
        })
        .catch(reject)
    })
    await consumer.commitOffsets(
      Object.entries(committed).map(([partition, offset]) => ({ topic, partition: Number(partition), offset: String(offset) }))
    )
  } finally {
    await consumer.disconnect()
  }
  return { records, committed }
}

// The assignor that every other client has; KafkaJS' own is known to KafkaJS alone.
const range = ({ cluster }) => ({
  name: 'range',
  version: 0,
  async assign({ members, topics }) {
    const ids = members.map(({ memberId }) => memberId).sort()
    const shares = new Map(ids.map(id => [id, {}]))
    for (const topic of topics) {
      const partitions = cluster.findTopicPartitionMetadata(topic).map(({ partitionId }) => partitionId)
      partitions.sort((a, b) => a - b)
      ids.forEach((id, at) => {
        const [from, to] = [at, at + 1].map(edge => Math.ceil((edge * partitions.length) / ids.length))
        shares.get(id)[topic] = partitions.slice(from, to)
      })
    }
    return ids.map(memberId => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({ version: 0, assignment: shares.get(memberId) }),
    }))
  },
  protocol({ topics }) {
    return { name: this.name, metadata: AssignerProtocol.MemberMetadata.encode({ version: this.version, topics }) }
  },
})

const say = (event, details) => process.stdout.write(JSON.stringify({ event, ...details, at: Date.now() }) + '\n')

// The times are those of voice.py. KafkaJS has no callback for partitions that are taken away; it stops before it joins
// again, and says then that it is rebalancing.
async function member({ group, topic }) {
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: 15000,
    rebalanceTimeout: 60000,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 200,
    partitionAssigners: [range],
  })
  let owned = []
  let leaving = false
  const giveUp = event => {
    if (owned.length) say(event, { partitions: owned })
    owned = []
  }
  consumer.on(consumer.events.REBALANCING, () => giveUp('revoked'))
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    giveUp('lost')
    owned = payload.memberAssignment[topic] || []
    say('assigned', { partitions: owned })
  })
  const crashed = new Promise((_, reject) => consumer.on(consumer.events.CRASH, event => reject(event.payload.error)))
  await consumer.connect()
  try {
    await consumer.subscribe({ topic, fromBeginning: true })
    await consumer.run({
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, resolveOffset, isStale }) => {
        if (leaving || isStale() || !owned.includes(batch.partition)) return
        say('consumed', { partition: batch.partition, offsets: batch.messages.map(({ offset }) => Number(offset)) })
        resolveOffset(batch.lastOffset())
      },
    })
    await Promise.race([lines.next(), crashed])
    leaving = true
    giveUp('revoked')
  } finally {
    await consumer.disconnect()
  }
  return {}
}

// One producer with a transactional id, which outlives commands, and its transaction.
let transactor
let transaction

async function open({ id, timeout_ms }) {
  transactor = kafka.producer({
    transactionalId: id,
    transactionTimeout: timeout_ms,
    maxInFlightRequests: 1,
    idempotent: true,
  })
  await transactor.connect()
  return {}
}

async function begin() {
  transaction = await transactor.transaction()
  return {}
}

async function send({ topic, records }) {
  const messages = records.map(record => ({ value: bytes(record.value), partition: record.partition }))
  const answers = await transaction.send({ topic, acks: -1, messages })
  const next = Object.fromEntries(answers.map(({ partition, baseOffset }) => [partition, Number(baseOffset)]))
  return { offsets: records.map(({ partition }) => next[partition]++) }
}

async function offsets({ group, topic, offsets }) {
  const partitions = Object.entries(offsets).map(([partition, offset]) => ({ partition: Number(partition), offset: String(offset) }))
  await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic, partitions }] })
  return {}
}

async function commit() {
  await transaction.commit()
  return {}
}

async function abort() {
  await transaction.abort()
  return {}
}

async function close() {
  await transactor.disconnect()
  return {}
}

const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity })[Symbol.asyncIterator]()

async function main() {
  const steps = { open, begin, send, offsets, commit, abort, close }
  const commands = { create, produce, consume, group, member, ...steps }
  for (;;) {
    const { value: line, done } = await lines.next()
    if (done) break
    const { do: name, ...command } = JSON.parse(line)
    let answer
    try {
      answer = await commands[name](command)
    } catch (error) {
      console.error(error)
      answer = { error: String(error), kind: error.type || error.name }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
