/* A broker that accepts and discards: the floor under every measurement.
 *
 *   cc -O2 -o null null.c && ./null 127.0.0.1:9092
 *
 * One thread, one epoll loop. It answers ApiVersions, Metadata, CreateTopics, InitProducerId, ListOffsets, Produce
 * and Fetch correctly as far as their form and their offsets go, and keeps of all that was produced only the largest
 * batch of each partition. A Fetch gets that batch again and again under the offsets asked for (the base offset is
 * outside a batch's CRC), so readers run at full speed with as many records as were produced, of the same sizes.
 * Each member of a group is told that it is alone in it and leads it, which is what ConsumerPerformance needs. The
 * versions on offer end where topic ids begin; only Produce 9 is flexible.
 */
#include "fields.h"
#include <signal.h>
#include <sys/epoll.h>

enum { NODE = 1, TOPICS_MAX = 4096, FRAME_MAX = 128 << 20, READ_AHEAD = 256 << 10 };

static const int16_t VERSIONS[][3] = {
    {API_PRODUCE, 3, 9}, {API_FETCH, 4, 11}, {API_LIST_OFFSETS, 1, 5}, {API_METADATA, 0, 8},
    {API_OFFSET_COMMIT, 2, 4}, {API_OFFSET_FETCH, 1, 4}, {API_FIND_COORDINATOR, 0, 2}, {API_JOIN_GROUP, 0, 4},
    {API_HEARTBEAT, 0, 2}, {API_LEAVE_GROUP, 0, 2}, {API_SYNC_GROUP, 0, 2}, {API_VERSIONS, 0, 2},
    {API_CREATE_TOPICS, 2, 4}, {API_INIT_PRODUCER_ID, 0, 1}};
enum { APIS = sizeof VERSIONS / sizeof *VERSIONS };

typedef struct { int64_t end; uint8_t *batch; size_t size; int64_t records; } Partition;
typedef struct { char *name; size_t length; int count; Partition *partitions; } Topic;
typedef struct Connection {
    int fd, writing, parked;          /* parked: the first frame in `in` is a Fetch that waits */
    uint64_t deadline;
    Buffer in, out;
    struct Connection *next;
} Connection;

static Topic topics[TOPICS_MAX];
static int topic_count, poll_fd, advertised_port;
static char advertised_host[256];
static int64_t next_producer = 1;
static Connection *all;
static int produced;                  /* something came since the parked were last looked at */

/* --- topics ------------------------------------------------------------------------------------------------- */

static Topic *find(const uint8_t *name, size_t length) {
    for (int i = topic_count; i--;)
        if (topics[i].length == length && !memcmp(topics[i].name, name, length)) return &topics[i];
    return NULL;
}
static Topic *create(const uint8_t *name, size_t length, int64_t partitions) {
    Topic *topic = find(name, length);
    if (topic || topic_count == TOPICS_MAX || partitions > 10000) return topic;
    topic = &topics[topic_count++];
    topic->name = strndup((const char *)name, length);
    topic->length = length;
    topic->count = partitions > 0 ? (int)partitions : 1;
    topic->partitions = calloc((size_t)topic->count, sizeof *topic->partitions);
    return topic;
}
static Partition *partition_of(Topic *topic, int64_t index) {
    return topic && index >= 0 && index < topic->count ? &topic->partitions[index] : NULL;
}

/* --- answers ------------------------------------------------------------------------------------------------ */

static void answer_versions(int version, Buffer *out) {
    give_int(out, 2, version > 2 ? 35 : 0);
    give_int(out, 4, APIS);
    for (int i = 0; i < APIS; i++)
        for (int j = 0; j < 3; j++) give_int(out, 2, VERSIONS[i][j]);
    if (version == 1 || version == 2) give_int(out, 4, 0);
}

static void give_topic(Buffer *out, int version, const Topic *topic) {
    give_int(out, 2, 0);
    give_text(out, topic->name, topic->length, 0);
    if (version >= 1) give_int(out, 1, 0);
    give_int(out, 4, topic->count);
    for (int i = 0; i < topic->count; i++) {
        give_int(out, 2, 0);
        give_int(out, 4, i);
        give_int(out, 4, NODE);
        if (version >= 7) give_int(out, 4, 0);
        for (int list = 0; list < 2; list++) {
            give_int(out, 4, 1);
            give_int(out, 4, NODE);
        }
        if (version >= 5) give_int(out, 4, 0);
    }
    if (version >= 8) give_int(out, 4, INT32_MIN);
}

static void answer_metadata(int version, Cursor *in, Buffer *out) {
    static const char cluster[] = "null-broker-cluster-id";
    int64_t asked = take_int(in, 4);
    if (version >= 3) give_int(out, 4, 0);
    give_int(out, 4, 1);
    give_int(out, 4, NODE);
    give_text(out, advertised_host, strlen(advertised_host), 0);
    give_int(out, 4, advertised_port);
    if (version >= 1) give_int(out, 2, -1);
    if (version >= 2) give_text(out, cluster, sizeof cluster - 1, 0);
    if (version >= 1) give_int(out, 4, NODE);
    int everything = asked < 0 || (version == 0 && asked == 0);
    give_int(out, 4, everything ? topic_count : asked);
    for (int i = 0; everything && i < topic_count; i++) give_topic(out, version, &topics[i]);
    for (int64_t i = 0; i < asked && !in->bad; i++) {
        size_t length;
        const uint8_t *name = take_text(in, &length);
        Topic *topic = name ? create(name, length, 1) : NULL;
        if (topic) give_topic(out, version, topic);
        else in->bad = 1;
    }
    if (version >= 8) give_int(out, 4, INT32_MIN);
}

static void answer_create_topics(Cursor *in, Buffer *out) {
    int64_t count = take_int(in, 4);
    give_int(out, 4, 0);
    give_int(out, 4, count);
    while (count-- > 0 && !in->bad) {
        size_t length, skipped;
        const uint8_t *name = take_text(in, &length);
        int64_t partitions = take_int(in, 4);
        take_int(in, 2);
        for (int64_t n = take_int(in, 4); n > 0 && !in->bad; n--) {
            take_int(in, 4);
            take(in, 4 * (size_t)take_int(in, 4));
        }
        for (int64_t n = 2 * take_int(in, 4); n > 0 && !in->bad; n--) take_text(in, &skipped);
        if (in->bad) return;
        int exists = find(name, length) != NULL;
        create(name, length, partitions);
        give_text(out, name, length, 0);
        give_int(out, 2, exists ? 36 : 0);
        give_int(out, 2, -1);
    }
}

static void answer_list_offsets(int version, Cursor *in, Buffer *out) {
    take_int(in, 4);
    if (version >= 2) { take_int(in, 1); give_int(out, 4, 0); }
    int64_t count = take_int(in, 4);
    give_int(out, 4, count);
    while (count-- > 0 && !in->bad) {
        size_t length;
        const uint8_t *name = take_text(in, &length);
        if (!name) return;
        Topic *topic = find(name, length);
        int64_t partitions = take_int(in, 4);
        give_text(out, name, length, 0);
        give_int(out, 4, partitions);
        while (partitions-- > 0 && !in->bad) {
            int64_t index = take_int(in, 4);
            if (version >= 4) take_int(in, 4);
            int64_t timestamp = take_int(in, 8);
            Partition *partition = partition_of(topic, index);
            give_int(out, 4, index);
            give_int(out, 2, partition ? 0 : 3);
            give_int(out, 8, -1);
            give_int(out, 8, partition && timestamp == -1 ? partition->end : 0);
            if (version >= 4) give_int(out, 4, 0);
        }
    }
}

/* Count the records of a partition's batches and keep the largest batch; gives the first record's offset. */
static int64_t discard(Partition *partition, const uint8_t *at, size_t length) {
    const uint8_t *end = at + length;
    int64_t base = partition->end;
    while (end - at >= BATCH_RECORDS) {
        size_t size = (size_t)get32(at + BATCH_LENGTH) + 12;
        if (size > (size_t)(end - at)) break;
        int64_t records = get32(at + BATCH_LAST_DELTA) + 1;
        partition->end += records;
        if (size > partition->size) {
            partition->batch = realloc(partition->batch, size);
            memcpy(partition->batch, at, partition->size = size);
            put32(partition->batch + BATCH_EPOCH, 0);
            partition->records = records;
        }
        at += size;
    }
    produced = 1;
    return base;
}

static int answer_produce(int version, Cursor *in, Buffer *out) {
    size_t length;
    int flexible = in->flexible = version >= 9;
    take_tags(in);
    take_text(in, &length);
    int acks = (int)take_int(in, 2);
    take_int(in, 4);
    if (flexible) give_int(out, 1, 0);
    int64_t count = take_count(in);
    give_count(out, count, flexible);
    while (count-- > 0 && !in->bad) {
        const uint8_t *name = take_text(in, &length);
        if (!name) return 0;
        Topic *topic = find(name, length);
        int64_t partitions = take_count(in);
        give_text(out, name, length, flexible);
        give_count(out, partitions, flexible);
        while (partitions-- > 0 && !in->bad) {
            int64_t index = take_int(in, 4), size = take_count(in);
            const uint8_t *records = take(in, size > 0 ? (size_t)size : 0);
            take_tags(in);
            Partition *partition = partition_of(topic, index);
            give_int(out, 4, index);
            give_int(out, 2, partition ? 0 : 3);
            give_int(out, 8, partition && records ? discard(partition, records, (size_t)size) : -1);
            give_int(out, 8, -1);
            if (version >= 5) give_int(out, 8, 0);
            if (version >= 8) {
                give_count(out, 0, flexible);
                if (flexible) give_int(out, 1, 0);
                else give_int(out, 2, -1);
            }
            if (flexible) give_int(out, 1, 0);
        }
        take_tags(in);
        if (flexible) give_int(out, 1, 0);
    }
    give_int(out, 4, 0);
    if (flexible) give_int(out, 1, 0);
    return acks != 0;
}

static size_t give_records(Buffer *out, const Partition *partition, int64_t offset, size_t most, int first) {
    size_t total = 0, length_at = out->end - out->start;
    give_int(out, 4, 0);
    if (partition && partition->size && offset < partition->end) {
        /* Whole copies of one batch, the last of them pulled back so that it ends where the log does; readers skip
         * what lies before the offset they asked for. */
        int64_t last = partition->end - partition->records, base = offset / partition->records * partition->records;
        while (base < partition->end && (total + partition->size <= most || (first && !total))) {
            uint8_t *at = grow(out, partition->size);
            memcpy(at, partition->batch, partition->size);
            put64(at, (uint64_t)(base < last ? base : last));
            out->end += partition->size;
            total += partition->size;
            base = base < last ? base + partition->records : partition->end;
        }
    }
    put32(out->bytes + out->start + length_at, (uint32_t)total);
    return total;
}

/* Gives the bytes of records in the answer; the caller parks the request when there are none. */
static size_t answer_fetch(int version, Cursor *in, Buffer *out, int64_t *wait_ms) {
    take_int(in, 4);
    *wait_ms = take_int(in, 4);
    take_int(in, 4);
    size_t left = (size_t)take_int(in, 4), total = 0;
    take_int(in, 1);
    give_int(out, 4, 0);
    if (version >= 7) {
        take_int(in, 8);
        give_int(out, 2, 0);
        give_int(out, 4, 0);
    }
    int64_t count = take_int(in, 4);
    give_int(out, 4, count);
    while (count-- > 0 && !in->bad) {
        size_t length;
        const uint8_t *name = take_text(in, &length);
        if (!name) return 0;
        Topic *topic = find(name, length);
        int64_t partitions = take_int(in, 4);
        give_text(out, name, length, 0);
        give_int(out, 4, partitions);
        while (partitions-- > 0 && !in->bad) {
            int64_t index = take_int(in, 4);
            if (version >= 9) take_int(in, 4);
            int64_t offset = take_int(in, 8);
            if (version >= 5) take_int(in, 8);
            size_t most = (size_t)take_int(in, 4);
            Partition *partition = partition_of(topic, index);
            int64_t end = partition ? partition->end : -1;
            give_int(out, 4, index);
            give_int(out, 2, partition ? 0 : 3);
            give_int(out, 8, end);
            give_int(out, 8, end);
            if (version >= 5) give_int(out, 8, 0);
            give_int(out, 4, -1);
            if (version >= 11) give_int(out, 4, -1);
            size_t got = give_records(out, partition, offset, most < left ? most : left, !total);
            total += got;
            left -= got < left ? got : left;
        }
    }
    return total;
}

/* --- groups of one ------------------------------------------------------------------------------------------ */

static void answer_find_coordinator(int version, Buffer *out) {
    if (version >= 1) give_int(out, 4, 0);
    give_int(out, 2, 0);
    if (version >= 1) give_int(out, 2, -1);
    give_int(out, 4, NODE);
    give_text(out, advertised_host, strlen(advertised_host), 0);
    give_int(out, 4, advertised_port);
}

static void answer_join_group(int version, Cursor *in, Buffer *out) {
    static const char member[] = "only-member";
    size_t skipped, name_length;
    take_text(in, &skipped);
    take_int(in, 4);
    if (version >= 1) take_int(in, 4);
    take_text(in, &skipped);
    take_text(in, &skipped);
    if (take_int(in, 4) < 1) in->bad = 1;
    const uint8_t *name = take_text(in, &name_length);
    int64_t size = take_int(in, 4);
    const uint8_t *metadata = take(in, size > 0 ? (size_t)size : 0);
    if (in->bad) return;
    if (version >= 2) give_int(out, 4, 0);
    give_int(out, 2, 0);
    give_int(out, 4, 1);
    give_text(out, name, name_length, 0);
    for (int i = 0; i < 2; i++) give_text(out, member, sizeof member - 1, 0);
    give_int(out, 4, 1);
    give_text(out, member, sizeof member - 1, 0);
    give_int(out, 4, size);
    give(out, metadata, (size_t)size);
}

static void answer_sync_group(int version, Cursor *in, Buffer *out) {
    size_t skipped;
    take_text(in, &skipped);
    take_int(in, 4);
    take_text(in, &skipped);
    if (take_int(in, 4) < 1) in->bad = 1;
    take_text(in, &skipped);
    int64_t size = take_int(in, 4);
    const uint8_t *assignment = take(in, size > 0 ? (size_t)size : 0);
    if (in->bad) return;
    if (version >= 1) give_int(out, 4, 0);
    give_int(out, 2, 0);
    give_int(out, 4, size);
    give(out, assignment, (size_t)size);
}

/* Nothing was ever committed, and whatever is committed now is fine. */
static void answer_offsets(int commit, int version, Cursor *in, Buffer *out) {
    size_t length;
    take_text(in, &length);
    if (commit) {
        take_int(in, 4);
        take_text(in, &length);
        take_int(in, 8);
    }
    if (version >= 3) give_int(out, 4, 0);
    int64_t count = take_int(in, 4);
    give_int(out, 4, count > 0 ? count : 0);
    while (count-- > 0 && !in->bad) {
        const uint8_t *name = take_text(in, &length);
        if (!name) return;
        int64_t partitions = take_int(in, 4);
        give_text(out, name, length, 0);
        give_int(out, 4, partitions);
        while (partitions-- > 0 && !in->bad) {
            give_int(out, 4, take_int(in, 4));
            if (commit) {
                take_int(in, 8);
                take_text(in, &length);
            } else {
                give_int(out, 8, -1);
                give_int(out, 2, 0);
            }
            give_int(out, 2, 0);
        }
    }
    if (!commit && version >= 2) give_int(out, 2, 0);
}

/* --- connections -------------------------------------------------------------------------------------------- */

static void flush(Connection *connection) {
    Buffer *out = &connection->out;
    while (out->start < out->end) {
        ssize_t n = send(connection->fd, out->bytes + out->start, out->end - out->start, MSG_NOSIGNAL);
        if (n <= 0) break;
        out->start += (size_t)n;
    }
    int writing = out->start < out->end;
    if (writing == connection->writing) return;
    connection->writing = writing;
    struct epoll_event event = {.events = writing ? EPOLLOUT : EPOLLIN, .data.ptr = connection};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Answer one frame; -1 closes the connection, 0 leaves the frame parked. */
static int serve(Connection *connection, const uint8_t *frame, size_t size, uint64_t now) {
    Cursor in = {.at = frame, .end = frame + size};
    Buffer *out = &connection->out;
    size_t skipped;
    grow(out, 64);
    size_t begun = out->end - out->start;
    int api = (int)take_int(&in, 2), version = (int)take_int(&in, 2), answered = 1;
    int64_t correlation = take_int(&in, 4), wait_ms = 0;
    take_text(&in, &skipped);
    give_int(out, 4, 0);
    give_int(out, 4, correlation);
    int known = 0;
    for (int i = 0; i < APIS; i++) known |= VERSIONS[i][0] == api && version >= VERSIONS[i][1] && version <= VERSIONS[i][2];
    if (!known && api != API_VERSIONS) return -1;
    if (api == API_VERSIONS) answer_versions(version, out);
    else if (api == API_METADATA) answer_metadata(version, &in, out);
    else if (api == API_CREATE_TOPICS) answer_create_topics(&in, out);
    else if (api == API_LIST_OFFSETS) answer_list_offsets(version, &in, out);
    else if (api == API_PRODUCE) answered = answer_produce(version, &in, out);
    else if (api == API_FIND_COORDINATOR) answer_find_coordinator(version, out);
    else if (api == API_JOIN_GROUP) answer_join_group(version, &in, out);
    else if (api == API_SYNC_GROUP) answer_sync_group(version, &in, out);
    else if (api == API_OFFSET_COMMIT || api == API_OFFSET_FETCH)
        answer_offsets(api == API_OFFSET_COMMIT, version, &in, out);
    else if (api == API_HEARTBEAT || api == API_LEAVE_GROUP) {
        if (version >= 1) give_int(out, 4, 0);
        give_int(out, 2, 0);
    } else if (api == API_INIT_PRODUCER_ID) {
        give_int(out, 4, 0);
        give_int(out, 2, 0);
        give_int(out, 8, next_producer++);
        give_int(out, 2, 0);
    } else if (!answer_fetch(version, &in, out, &wait_ms) && !in.bad) {
        if (!connection->parked) connection->deadline = now + (uint64_t)wait_ms * 1000000u;
        connection->parked = connection->deadline > now;
        if (connection->parked) { out->end = out->start + begun; return 0; }
    }
    connection->parked = 0;
    if (in.bad) return -1;
    if (!answered) out->end = out->start + begun;
    else put32(out->bytes + out->start + begun, (uint32_t)(out->end - out->start - begun - 4));
    return 1;
}

static int serve_frames(Connection *connection, uint64_t now) {
    Buffer *in = &connection->in;
    while (in->end - in->start >= 4) {
        size_t size = get32(in->bytes + in->start);
        if (size > FRAME_MAX) return -1;
        if (in->end - in->start < size + 4) break;
        int done = serve(connection, in->bytes + in->start + 4, size, now);
        if (done < 0) return -1;
        if (!done) break;
        in->start += size + 4;
    }
    flush(connection);
    return 0;
}

static void drop(Connection *connection) {
    for (Connection **link = &all; *link; link = &(*link)->next)
        if (*link == connection) { *link = connection->next; break; }
    close(connection->fd);
    free(connection->in.bytes);
    free(connection->out.bytes);
    free(connection);
}

static int file_fd = -1;

/* What a broker on a file cannot do without: the bytes go to the page cache before the answer goes out. */
static void append_to_file(const uint8_t *bytes, size_t size) {
    while (file_fd >= 0 && size) {
        ssize_t n = write(file_fd, bytes, size);
        if (n < 0) die("write: %s", strerror(errno));
        bytes += n;
        size -= (size_t)n;
    }
}

static int receive(Connection *connection) {
    Buffer *in = &connection->in;
    size_t more = READ_AHEAD;
    if (in->end - in->start >= 4 && get32(in->bytes + in->start) <= FRAME_MAX) {
        size_t whole = get32(in->bytes + in->start) + 4, have = in->end - in->start;
        if (whole > have && whole - have > more) more = whole - have;
    }
    uint8_t *at = grow(in, more);
    ssize_t n = recv(connection->fd, at, in->room - in->end, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return -1;
    append_to_file(at, (size_t)n);
    in->end += (size_t)n;
    return connection->parked ? 0 : serve_frames(connection, now_ns());
}

static int wake_parked(uint64_t now) {
    int timeout = -1;
    for (Connection *connection = all, *next; connection; connection = next) {
        next = connection->next;
        if (!connection->parked) continue;
        if ((produced || connection->deadline <= now) && serve_frames(connection, now) < 0) { drop(connection); continue; }
        if (!connection->parked) continue;
        int left = (int)((connection->deadline - now) / 1000000u) + 1;
        if (timeout < 0 || left < timeout) timeout = left;
    }
    produced = 0;
    return timeout;
}

static int listen_on(const char *address) {
    advertised_port = split_address(address, advertised_host, sizeof advertised_host);
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_port = htons((uint16_t)advertised_port)};
    if (inet_pton(AF_INET, advertised_host, &local.sin_addr) != 1) die("listen on an IPv4 address, not %s", address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&local, sizeof local) || listen(fd, 512)) die("listen on %s: %s", address, strerror(errno));
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) die("usage: null HOST:PORT [FILE]");
    if (argc == 3 && (file_fd = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) < 0)
        die("open %s: %s", argv[2], strerror(errno));
    signal(SIGPIPE, SIG_IGN);
    int listener = listen_on(argv[1]);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    printf("null broker serves at %s\n", argv[1]);
    fflush(stdout);
    for (int timeout = -1;; timeout = wake_parked(now_ns())) {
        struct epoll_event events[64];
        int count = epoll_wait(poll_fd, events, 64, timeout);
        for (int i = 0; i < count; i++) {
            Connection *connection = events[i].data.ptr;
            if (!connection) {
                connection = calloc(1, sizeof *connection);
                connection->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (connection->fd < 0) { free(connection); continue; }
                no_delay(connection->fd);
                connection->next = all;
                all = connection;
                event = (struct epoll_event){.events = EPOLLIN, .data.ptr = connection};
                epoll_ctl(poll_fd, EPOLL_CTL_ADD, connection->fd, &event);
                continue;
            }
            int failed = 0;
            if (events[i].events & EPOLLOUT) flush(connection);
            else failed = receive(connection) < 0;
            if (failed || events[i].events & EPOLLERR) drop(connection);
        }
    }
}
