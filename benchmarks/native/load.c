/* Pipelines prebuilt Produce v9 frames at one broker, then reads everything back and compares it.
 *
 *   cc -O2 -o load load.c
 *   ./load --broker 127.0.0.1:9092 --workload 1K-pipe64 --seconds 3 --pid BROKER_PID
 *
 * Workloads: 1K-d1, 1K-pipe64, 1K-8x5, 16K-d5, 128K-d5, 1M-d5, or any SIZE-CONNECTIONSxDEPTH such as 4K-2x10.
 * SIZE is the batch; --value is the size of a record value (1024). One JSON object goes to standard output.
 * `python -m benchmarks.load ...` compiles this file when it has changed and passes its arguments on.
 *
 * Frames are random bytes made before the clock starts. Each one that is sent carries its own number in the first
 * record; as a CRC is linear, the batch's CRC is corrected by table look-ups, so that a unique batch costs this
 * program next to nothing. Read back, the number says which bytes must follow it, and all of them are compared, as
 * is the offset with the one that was acknowledged.
 *
 * --reread N reads all of it N more times without a look at the bytes, which is a consumer at its fastest.
 * --rate N sends at a fixed rate instead (open loop: latency counts from the moment a request was due), and --tail
 * adds a reader that long-polls, which gives end-to-end latency.
 */
#include "session.h"
#include <getopt.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/uio.h>

enum { POOL_MIN = 16, STAMP_BYTES = 8, PATCH_BYTES = 12, FETCH_BYTES = 8 << 20, IOV_MOST = 64 };

typedef struct { uint8_t *bytes; size_t size; uint64_t stamp; uint32_t sequence; uint32_t crc; } Frame;

typedef struct {
    int fd, partition, watching_write;
    Frame *pool;
    uint64_t sent, acknowledged, limit;
    size_t partial;               /* bytes of the frame numbered `sent` that have gone already */
    int started;                  /* frame `sent` is stamped */
    uint64_t *due;                /* by number: when it was (or was due to be) sent */
    int64_t *offset;              /* by number: where it was acknowledged */
    uint64_t room;
    uint8_t in[1 << 16];
    size_t filled;
} Connection;

typedef struct { double *values; size_t count, room; } Samples;

static struct {
    const char *broker, *topic;
    int connections, depth, partitions, idempotent, tail, acks, verify;
    size_t batch_bytes, value_bytes;
    double seconds, warm, rate;
    int pid, reread;
} options = {.connections = 1, .depth = 1, .partitions = 1, .acks = -1, .verify = 1,
             .batch_bytes = 1024, .value_bytes = 1024, .seconds = 3, .warm = 0.3};

static int records_per_batch, comparing = 1;
static size_t batch_at, stamp_at, pool_size;   /* positions inside a frame; frames of a run have one layout */
static uint32_t patch[PATCH_BYTES][256];       /* what a changed byte adds to the CRC */
static Connection *connections;
static Samples acknowledged_us, end_to_end_us;
static int64_t producer_ids[256];

static void sample(Samples *samples, double value) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? samples->room * 2 : 1 << 16;
        samples->values = realloc(samples->values, samples->room * sizeof *samples->values);
    }
    samples->values[samples->count++] = value;
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(Samples *samples, double q) {
    if (!samples->count) return 0;
    size_t at = (size_t)(q * (double)samples->count);
    return samples->values[at < samples->count ? at : samples->count - 1];
}

/* --- frames ------------------------------------------------------------------------------------------------- */

static size_t record_bytes(int delta, size_t value) {
    uint8_t scratch[32], *at = scratch;
    *at++ = 0;
    at = put_varint(at, 0);
    at = put_varint(at, delta);
    at = put_varint(at, -1);
    at = put_varint(at, (int64_t)value);
    return (size_t)(at - scratch) + value + 1;
}
static size_t whole_record(int delta, size_t value) {
    uint8_t scratch[16];
    size_t body = record_bytes(delta, value);
    return (size_t)(put_varint(scratch, (int64_t)body) - scratch) + body;
}

static void lay_out(void) {
    size_t size = BATCH_RECORDS;
    for (records_per_batch = 0;; records_per_batch++) {
        size_t next = whole_record(records_per_batch, options.value_bytes);
        if (records_per_batch && size + next > options.batch_bytes) break;
        size += next;
    }
    pool_size = (size_t)options.depth > POOL_MIN ? (size_t)options.depth : POOL_MIN;
}

static void build(Frame *frame, int partition, int64_t producer, uint64_t *random) {
    size_t topic = strlen(options.topic), size = BATCH_RECORDS;
    for (int i = 0; i < records_per_batch; i++) size += whole_record(i, options.value_bytes);
    uint8_t *start = frame->bytes = malloc(size + 256), *at = begin(start, CLIENT, API_PRODUCE, 9);
    *at++ = 0;                          /* header: no tags */
    *at++ = 0;                          /* no transactional id */
    put16(at, (uint16_t)options.acks);
    put32(at + 2, 30000);
    at = put_uvarint(at + 6, 2);
    at = put_uvarint(at, topic + 1);
    memcpy(at, options.topic, topic);
    at = put_uvarint(at + topic, 2);
    put32(at, (uint32_t)partition);
    at = put_uvarint(at + 4, size + 1);
    batch_at = (size_t)(at - start);
    memset(at, 0, BATCH_RECORDS);
    put32(at + BATCH_LENGTH, (uint32_t)(size - 12));
    put32(at + BATCH_EPOCH, (uint32_t)-1);
    at[BATCH_MAGIC] = 2;
    put32(at + BATCH_LAST_DELTA, (uint32_t)records_per_batch - 1);
    put64(at + 27, wall_ms());
    put64(at + 35, get64(at + 27));
    put64(at + BATCH_PRODUCER, (uint64_t)producer);
    put16(at + BATCH_PRODUCER + 8, producer < 0 ? (uint16_t)-1 : 0);
    put32(at + BATCH_SEQUENCE, producer < 0 ? (uint32_t)-1 : 0);
    put32(at + BATCH_COUNT, (uint32_t)records_per_batch);
    uint8_t *record = at + BATCH_RECORDS;
    for (int i = 0; i < records_per_batch; i++) {
        record = put_varint(record, (int64_t)record_bytes(i, options.value_bytes));
        *record++ = 0;
        record = put_varint(record, 0);
        record = put_varint(record, i);
        record = put_varint(record, -1);
        record = put_varint(record, (int64_t)options.value_bytes);
        fill_random(record, options.value_bytes, random);
        if (!i) {
            stamp_at = (size_t)(record - start);
            put64(record, 0);
        }
        record += options.value_bytes;
        *record++ = 0;
    }
    frame->crc = crc32c(at + BATCH_ATTRIBUTES, size - BATCH_ATTRIBUTES);
    put32(at + BATCH_CRC, frame->crc);
    record[0] = record[1] = record[2] = 0;    /* tags of partition, topic and request */
    frame->size = (size_t)(record + 3 - start);
    frame->stamp = 0;
    frame->sequence = 0;
    put32(start, (uint32_t)(frame->size - 4));
}

/* What each bit of each changeable byte adds to the CRC: the bit, followed by as many zeros as bytes follow it. */
static void learn_patch(const Frame *frame) {
    size_t end = frame->size - 3;
    uint8_t *zeros = calloc(1, end);
    for (int byte = 0; byte < PATCH_BYTES; byte++) {
        size_t at = byte < STAMP_BYTES ? stamp_at + (size_t)byte
                                       : batch_at + BATCH_SEQUENCE + (size_t)(byte - STAMP_BYTES);
        for (int bit = 0; bit < 8; bit++) {
            uint8_t one = (uint8_t)(1 << bit);
            uint32_t effect = crc_raw(crc_raw(0, &one, 1), zeros, end - at - 1);
            for (int value = 0; value < 256; value++)
                if (value & one) patch[byte][value] ^= effect;
        }
    }
    free(zeros);
}

static void stamp(Frame *frame, uint64_t number, uint32_t sequence) {
    uint64_t changed = frame->stamp ^ number;
    for (int byte = STAMP_BYTES - 1; changed; byte--, changed >>= 8) frame->crc ^= patch[byte][changed & 0xff];
    put64(frame->bytes + stamp_at, frame->stamp = number);
    if (options.idempotent) {
        uint32_t moved = frame->sequence ^ sequence;
        for (int byte = PATCH_BYTES - 1; moved; byte--, moved >>= 8) frame->crc ^= patch[byte][moved & 0xff];
        put32(frame->bytes + batch_at + BATCH_SEQUENCE, frame->sequence = sequence);
    }
    put32(frame->bytes + batch_at + BATCH_CRC, frame->crc);
}
static void stamp_number(Connection *connection, uint64_t number) {
    uint64_t which = (uint64_t)(connection - connections);
    stamp(&connection->pool[number % pool_size], which << 40 | number,
          (uint32_t)(number * (uint64_t)records_per_batch) & 0x7fffffff);
}

/* --- the timed loop ----------------------------------------------------------------------------------------- */

static void remember(Connection *connection, uint64_t number, uint64_t due) {
    if (number >= connection->room) {
        connection->room = connection->room ? connection->room * 2 : 1 << 16;
        connection->due = realloc(connection->due, connection->room * sizeof *connection->due);
        connection->offset = realloc(connection->offset, connection->room * sizeof *connection->offset);
    }
    connection->due[number] = due;
    connection->offset[number] = -1;
}

static void watch(int poll, Connection *connection, int write) {
    if (connection->watching_write == write) return;
    connection->watching_write = write;
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0u), .data.ptr = connection};
    epoll_ctl(poll, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Send up to the limit, as many frames per call as fit; due[] was set by the caller or is now. */
static void pump(int poll, Connection *connection) {
    while (connection->sent < connection->limit) {
        struct iovec vector[IOV_MOST];
        int count = 0;
        uint64_t now = now_ns();
        for (uint64_t n = connection->sent; n < connection->limit && count < IOV_MOST; n++, count++) {
            Frame *frame = &connection->pool[n % pool_size];
            if (n != connection->sent || !connection->started) {
                stamp_number(connection, n);
                if (options.rate <= 0) remember(connection, n, now);
            }
            vector[count] = (struct iovec){frame->bytes, frame->size};
        }
        connection->started = 1;
        vector[0].iov_base = (uint8_t *)vector[0].iov_base + connection->partial;
        vector[0].iov_len -= connection->partial;
        ssize_t gone = writev(connection->fd, vector, count);
        if (gone < 0 && errno == EAGAIN) break;
        if (gone < 0) die("send: %s", strerror(errno));
        size_t left = (size_t)gone + connection->partial, whole = connection->pool[0].size;
        connection->sent += left / whole;
        connection->partial = left % whole;
        connection->started = connection->partial > 0;
    }
    watch(poll, connection, connection->sent < connection->limit);
}

static uint64_t take_answers(Connection *connection) {
    ssize_t n = recv(connection->fd, connection->in + connection->filled, sizeof connection->in - connection->filled, 0);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) die("receive: %s", n ? strerror(errno) : "the broker closed the connection");
    connection->filled += (size_t)n;
    size_t at = 0, topic = strlen(options.topic);
    uint64_t taken = 0, now = now_ns();
    while (connection->filled - at >= 4) {
        size_t size = get32(connection->in + at);
        if (size + 4 > sizeof connection->in) die("an answer of %zu bytes", size);
        if (connection->filled - at < size + 4) break;
        const uint8_t *partition = connection->in + at + 4 + 5 + 1 + 1 + topic + 1;
        int error = (int16_t)get16(partition + 4);
        uint64_t number = connection->acknowledged++;
        if (error) die("produce %llu: error %d", (unsigned long long)number, error);
        connection->offset[number] = (int64_t)get64(partition + 6);
        sample(&acknowledged_us, (double)(now - connection->due[number]) / 1e3);
        taken++;
        at += size + 4;
    }
    memmove(connection->in, connection->in + at, connection->filled -= at);
    return taken;
}

static double processor_seconds(void) {
    if (!options.pid) return 0;
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", options.pid);
    FILE *file = fopen(path, "r");
    if (!file) die("no process %d", options.pid);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    unsigned long user = 0, system = 0;
    sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

/* --- reading ------------------------------------------------------------------------------------------------ */

typedef struct { int fd; size_t room, filled; uint8_t *in; int64_t *position; int waiting; } Reader;

static void send_fetch(Reader *reader, int partition, int wait_ms) {
    uint8_t frame[1024], *at = begin(frame, CLIENT, API_FETCH, 11);
    put32(at, (uint32_t)-1);
    put32(at + 4, (uint32_t)wait_ms);
    put32(at + 8, 1);
    put32(at + 12, FETCH_BYTES);
    at[16] = 0;
    put32(at + 17, 0);
    put32(at + 21, (uint32_t)-1);
    put32(at + 25, 1);
    at = put_string(at + 29, options.topic);
    int first = partition < 0 ? 0 : partition, last = partition < 0 ? options.partitions - 1 : partition;
    put32(at, (uint32_t)(last - first + 1));
    at += 4;
    for (int i = first; i <= last; i++, at += 28) {
        put32(at, (uint32_t)i);
        put32(at + 4, (uint32_t)-1);
        put64(at + 8, (uint64_t)reader->position[i]);
        put64(at + 16, (uint64_t)-1);
        put32(at + 24, FETCH_BYTES);
    }
    put32(at, 0);
    at = put_string(at + 4, "");
    put32(frame, (uint32_t)(at - frame - 4));
    send_all(reader->fd, frame, (size_t)(at - frame));
}

/* Compare one stored batch with the frame that its number names; gives its record count. */
static int check_batch(const uint8_t *batch, size_t size, int partition, int64_t expected, uint64_t now) {
    const Frame *like = &connections[0].pool[0];
    size_t whole = like->size - 3 - batch_at;
    if (size != whole) die("offset %lld: a batch of %zu bytes, not %zu", (long long)expected, size, whole);
    if (!comparing) return records_per_batch;
    if (now) {      /* only its arrival counts; one connection's batches lie in the order it sent them */
        sample(&end_to_end_us, (double)(now - connections[0].due[expected / records_per_batch]) / 1e3);
        return records_per_batch;
    }
    uint64_t mark = get64(batch + (stamp_at - batch_at)), number = mark & ((1ull << 40) - 1), which = mark >> 40;
    if (which >= (uint64_t)options.connections) die("offset %lld: a batch that nobody sent", (long long)expected);
    Connection *connection = &connections[which];
    if (number >= connection->sent || connection->partition != partition) die("offset %lld: a batch that was not sent here", (long long)expected);
    if ((int64_t)get64(batch) != expected) die("base offset %lld where %lld should be", (long long)get64(batch), (long long)expected);
    if (options.acks && connection->offset[number] != expected)
        die("batch %llu of connection %llu was acknowledged at %lld and is at %lld", (unsigned long long)number,
            (unsigned long long)which, (long long)connection->offset[number], (long long)expected);
    stamp_number(connection, number);
    const uint8_t *sent = connection->pool[number % pool_size].bytes + batch_at;
    if (memcmp(batch + 8, sent + 8, 4) || memcmp(batch + BATCH_MAGIC, sent + BATCH_MAGIC, whole - BATCH_MAGIC))
        die("offset %lld: stored bytes differ from those sent", (long long)expected);
    return records_per_batch;
}

/* Take the whole answers that have come; gives the number of batches in them. */
static uint64_t take_fetched(Reader *reader, uint64_t now) {
    uint64_t batches = 0;
    while (reader->filled >= 4) {
        size_t size = get32(reader->in) + 4;
        if (size > reader->room) reader->in = realloc(reader->in, reader->room = size);
        if (reader->filled < size) break;
        reader->waiting = 0;
        const uint8_t *at = reader->in + 8;
        if (get16(at + 4)) die("fetch: error %d", (int16_t)get16(at + 4));
        at += 10;
        if (get32(at)) {
            at += 4;
            at += 2 + get16(at);
            int partitions = (int)get32(at);
            at += 4;
            while (partitions--) {
                int partition = (int)get32(at), error = (int16_t)get16(at + 4);
                if (error) die("fetch of partition %d: error %d", partition, error);
                at += 30;
                int32_t aborted = (int32_t)get32(at);
                at += 4 + (aborted > 0 ? 16 * aborted : 0) + 4;
                int32_t length = (int32_t)get32(at);
                const uint8_t *end = (at += 4) + (length > 0 ? length : 0);
                while (end - at > BATCH_RECORDS) {
                    size_t batch = get32(at + BATCH_LENGTH) + 12;
                    if (batch > (size_t)(end - at)) break;
                    reader->position[partition] += check_batch(at, batch, partition, reader->position[partition], now);
                    batches++;
                    at += batch;
                }
                at = end;
            }
        }
        memmove(reader->in, reader->in + size, reader->filled -= size);
    }
    return batches;
}

static void receive_some(Reader *reader, int flags) {
    if (reader->filled == reader->room) reader->in = realloc(reader->in, reader->room *= 2);
    ssize_t n = recv(reader->fd, reader->in + reader->filled, reader->room - reader->filled, flags);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("receive: %s", n ? strerror(errno) : "the broker closed the connection");
    reader->filled += (size_t)n;
}

static Reader open_reader(void) {
    return (Reader){.fd = connect_to(options.broker), .room = FETCH_BYTES + (1 << 20),
                    .in = malloc(FETCH_BYTES + (1 << 20)), .position = calloc((size_t)options.partitions, sizeof(int64_t))};
}

static double read_back(uint64_t batches) {
    Reader reader = open_reader();
    uint64_t start = now_ns(), seen = 0;
    for (int partition = 0; partition < options.partitions; partition++) {
        uint64_t due = 0;
        for (int i = 0; i < options.connections; i++)
            if (connections[i].partition == partition) due += connections[i].acknowledged;
        for (uint64_t here = 0; here < due;) {
            send_fetch(&reader, partition, 5000);
            uint64_t got = 0;
            for (reader.waiting = 1; reader.waiting;) {
                receive_some(&reader, 0);
                got += take_fetched(&reader, 0);
            }
            if (!got) die("partition %d ends after %llu of %llu batches", partition, (unsigned long long)here, (unsigned long long)due);
            here += got;
            seen += got;
        }
    }
    if (seen != batches) die("read %llu batches, %llu were acknowledged", (unsigned long long)seen, (unsigned long long)batches);
    close(reader.fd);
    return (double)(now_ns() - start) / 1e9;
}

/* --- the run ------------------------------------------------------------------------------------------------ */

static uint64_t acknowledged_total(void) {
    uint64_t total = 0;
    for (int i = 0; i < options.connections; i++) total += connections[i].acknowledged;
    return total;
}
static int settled(void) {
    for (int i = 0; i < options.connections; i++)
        if (connections[i].acknowledged < connections[i].sent || connections[i].partial) return 0;
    return 1;
}

static void release_due(int poll, uint64_t begun, uint64_t *released, uint64_t now) {
    double interval = 1e9 / options.rate;
    for (uint64_t due; (due = begun + (uint64_t)((double)*released * interval)) <= now; ++*released) {
        Connection *connection = &connections[*released % (uint64_t)options.connections];
        if (connection->limit - connection->acknowledged >= pool_size) break;
        remember(connection, connection->limit++, due);
        pump(poll, connection);
    }
}

/* Drive all connections until `until` and then to the last answer. */
static void drive(int poll, Reader *tail, uint64_t until) {
    uint64_t begun = now_ns(), released = 0;
    int stopping = 0;
    for (int i = 0; options.rate <= 0 && i < options.connections; i++) {
        connections[i].limit = connections[i].acknowledged + (uint64_t)options.depth;
        pump(poll, &connections[i]);
    }
    for (;;) {
        uint64_t now = now_ns();
        if (now >= until && !stopping) {
            stopping = 1;
            for (int i = 0; i < options.connections; i++)
                if (options.rate <= 0) connections[i].limit = connections[i].sent + (connections[i].partial > 0);
        }
        if (stopping && settled() && (!tail || end_to_end_us.count >= acknowledged_us.count)) break;
        if (now > until + 20000000000ull) die("answers stopped coming");
        struct timespec pause = {.tv_nsec = 100000000};
        if (options.rate > 0 && !stopping) {
            release_due(poll, begun, &released, now);
            uint64_t next = begun + (uint64_t)((double)released * 1e9 / options.rate);
            now = now_ns();
            pause.tv_nsec = next > now ? (long)(next - now < 100000000 ? next - now : 100000000) : 0;
        }
        if (tail && !tail->waiting) {
            send_fetch(tail, -1, 500);
            tail->waiting = 1;
        }
        struct epoll_event events[64];
        int count = epoll_pwait2(poll, events, 64, &pause, NULL);
        for (int i = 0; i < count; i++) {
            Connection *connection = events[i].data.ptr;
            if (!connection) {
                receive_some(tail, MSG_DONTWAIT);
                take_fetched(tail, now_ns());
                continue;
            }
            uint64_t taken = events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? take_answers(connection) : 0;
            if (options.rate <= 0 && !stopping) connection->limit += taken;
            if (taken || events[i].events & EPOLLOUT) pump(poll, connection);
        }
    }
}

static size_t bytes_of(const char *text) {
    char *unit;
    double value = strtod(text, &unit);
    return (size_t)(value * (*unit == 'K' ? 1024 : *unit == 'M' ? 1048576 : 1));
}
static void read_workload(const char *text) {
    const char *shape = strchr(text, '-');
    options.batch_bytes = bytes_of(text);
    if (!shape) die("a workload is SIZE-SHAPE, not %s", text);
    shape++;
    if (sscanf(shape, "d%d", &options.depth) == 1 || sscanf(shape, "pipe%d", &options.depth) == 1) return;
    if (sscanf(shape, "%dx%d", &options.connections, &options.depth) != 2) die("unknown shape %s", shape);
}
static void read_options(int argc, char **argv) {
    static char name[64];
    static const struct option known[] = {
        {"broker", 1, 0, 'b'}, {"topic", 1, 0, 't'}, {"workload", 1, 0, 'w'}, {"seconds", 1, 0, 's'},
        {"warm", 1, 0, 'W'}, {"value", 1, 0, 'v'}, {"partitions", 1, 0, 'n'}, {"rate", 1, 0, 'r'},
        {"pid", 1, 0, 'p'}, {"acks", 1, 0, 'a'}, {"idempotent", 0, 0, 'i'}, {"tail", 0, 0, 'l'},
        {"no-verify", 0, 0, 'x'}, {"reread", 1, 0, 'R'}, {0, 0, 0, 0}};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (option) {
        case 'b': options.broker = optarg; break;
        case 't': options.topic = optarg; break;
        case 'w': read_workload(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'W': options.warm = atof(optarg); break;
        case 'v': options.value_bytes = bytes_of(optarg); break;
        case 'n': options.partitions = atoi(optarg); break;
        case 'r': options.rate = atof(optarg); break;
        case 'p': options.pid = atoi(optarg); break;
        case 'a': options.acks = atoi(optarg); break;
        case 'i': options.idempotent = 1; break;
        case 'l': options.tail = 1; break;
        case 'x': options.verify = 0; break;
        case 'R': options.reread = atoi(optarg); break;
        default: die("see the head of load.c");
    }
    if (!options.broker) die("--broker HOST:PORT is needed");
    if (options.connections < 1 || options.connections > 256 || options.depth < 1) die("1 to 256 connections");
    if (options.tail && (options.connections > 1 || options.partitions > 1)) die("--tail follows one connection");
    if (options.acks == 0) die("acks 0 has no answers to count");
    if (options.value_bytes < STAMP_BYTES) die("values hold at least %d bytes", STAMP_BYTES);
    snprintf(name, sizeof name, "load-%llx", (unsigned long long)now_ns());
    if (!options.topic) options.topic = name;
    if (strlen(options.topic) > 100) die("a topic name of at most 100 letters");
}

static void set_up(int poll, Reader *tail) {
    uint64_t random = now_ns();
    int fd = connect_to(options.broker);
    create_topic(fd, options.topic, options.partitions);
    connections = calloc((size_t)options.connections, sizeof *connections);
    lay_out();
    for (int i = 0; i < options.connections; i++) {
        Connection *connection = &connections[i];
        connection->fd = connect_to(options.broker);
        connection->partition = i % options.partitions;
        producer_ids[i] = options.idempotent ? producer_id(fd) : -1;
        connection->pool = calloc(pool_size, sizeof *connection->pool);
        for (size_t j = 0; j < pool_size; j++) build(&connection->pool[j], connection->partition, producer_ids[i], &random);
        not_blocking(connection->fd);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(poll, EPOLL_CTL_ADD, connection->fd, &event);
    }
    learn_patch(&connections[0].pool[0]);
    if (tail) {
        *tail = open_reader();
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(poll, EPOLL_CTL_ADD, tail->fd, &event);
    }
    close(fd);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    Reader tail_reader, *tail = options.tail ? &tail_reader : NULL;
    set_up(poll, tail);
    if (options.warm > 0) drive(poll, tail, now_ns() + (uint64_t)(options.warm * 1e9));
    acknowledged_us.count = end_to_end_us.count = 0;
    uint64_t before = acknowledged_total(), start = now_ns();
    double processor = processor_seconds();
    drive(poll, tail, start + (uint64_t)(options.seconds * 1e9));
    double elapsed = (double)(now_ns() - start) / 1e9;
    processor = processor_seconds() - processor;
    uint64_t requests = acknowledged_total() - before;
    double payload = (double)options.value_bytes * records_per_batch;
    qsort(acknowledged_us.values, acknowledged_us.count, sizeof(double), ascending);
    qsort(end_to_end_us.values, end_to_end_us.count, sizeof(double), ascending);
    printf("{\"requests\": %llu, \"seconds\": %.4f, \"requests_per_second\": %.0f, \"records_per_second\": %.0f, "
           "\"megabytes_per_second\": %.2f, \"ack_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}",
           (unsigned long long)requests, elapsed, (double)requests / elapsed,
           (double)requests * records_per_batch / elapsed, (double)requests * payload / elapsed / 1e6,
           quantile(&acknowledged_us, 0.5), quantile(&acknowledged_us, 0.99), quantile(&acknowledged_us, 0.999),
           quantile(&acknowledged_us, 1));
    if (tail)
        printf(", \"end_to_end_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}",
               quantile(&end_to_end_us, 0.5), quantile(&end_to_end_us, 0.99), quantile(&end_to_end_us, 0.999),
               quantile(&end_to_end_us, 1));
    if (options.pid) printf(", \"broker_cpu_us_per_request\": %.2f, \"broker_cores\": %.2f", processor / (double)requests * 1e6, processor / elapsed);
    fflush(stdout);
    if (options.verify) {
        double seconds = read_back(acknowledged_total());
        printf(", \"read_back\": \"equal\", \"read_back_megabytes_per_second\": %.1f",
               (double)acknowledged_total() * payload / seconds / 1e6);
    }
    if (options.reread) {
        double seconds = 0, before_reading = processor_seconds();
        comparing = 0;
        for (int i = 0; i < options.reread; i++) seconds += read_back(acknowledged_total());
        double megabytes = (double)acknowledged_total() * payload / 1e6 * options.reread;
        printf(", \"reread_megabytes_per_second\": %.1f", megabytes / seconds);
        if (options.pid)
            printf(", \"reread_cpu_us_per_megabyte\": %.1f", (processor_seconds() - before_reading) / megabytes * 1e6);
    }
    puts("}");
    return 0;
}
