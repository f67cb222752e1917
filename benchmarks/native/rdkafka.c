/* Drives a broker through librdkafka from C, without a Python interpreter in between, and prints one JSON object.
 *
 *   rdkafka produce --broker B --topic T --records N --value V      as fast as it can, to partition 0
 *   rdkafka consume --broker B --topic T --records N --partitions P --value V
 *   rdkafka small   --broker B --topic T --connections C --seconds S --value V
 *   rdkafka latency --broker B --topic T --rate R --seconds S --value V
 *
 * With --ca FILE --login USER:PASSWORD it speaks TLS and logs in by SCRAM-SHA-512.
 *
 * The library is the one inside the confluent-kafka wheel, so no package of the system is needed; its C interface is
 * stable, and what is used of it is declared below. Values, digests and modes mean what they mean in franz/main.go.
 */
#include "wire.h"
#include <getopt.h>
#include <pthread.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} rd_kafka_message_t;
struct rd_kafka_metadata;
enum { PRODUCER = 0, CONSUMER = 1, F_COPY = 2, QUEUE_FULL = -184, PARTITION_EOF = -191 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *name, const char *value, char *error, size_t room);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
void rd_kafka_conf_set_opaque(rd_kafka_conf_t *, void *);
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *, char *error, size_t room);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *name, rd_kafka_topic_conf_t *);
int rd_kafka_metadata(rd_kafka_t *, int all, rd_kafka_topic_t *, const struct rd_kafka_metadata **, int timeout_ms);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t partition, int flags, void *, size_t, const void *, size_t, void *);
int rd_kafka_last_error(void);
const char *rd_kafka_err2str(int);
int rd_kafka_poll(rd_kafka_t *, int timeout_ms);
int rd_kafka_flush(rd_kafka_t *, int timeout_ms);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t partition, int64_t offset, rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t room);
void rd_kafka_message_destroy(rd_kafka_message_t *);

enum { POOL_BYTES = 1 << 20, TOGETHER = 4096, WAIT_MS = 30000 };

static struct {
    const char *broker, *topic, *authority, *login;
    int64_t records;
    int value, partitions, connections;
    double seconds, rate;
} options = {.value = 1024, .partitions = 1, .connections = 1, .seconds = 2, .rate = 1000};

static uint8_t pool[POOL_BYTES];
static uint64_t *due_ns;              /* latency: when record i was due */
static double *ack_us, *arrival_us;
static volatile int64_t arrived;

typedef struct { rd_kafka_t *handle; rd_kafka_topic_t *topic; uint64_t sum; int64_t acknowledged; int index;
                 double *waits; size_t count, room; double elapsed; } Producer;

static uint64_t digest(int32_t partition, int64_t offset, const void *value, size_t length) {
    uint64_t place = (uint64_t)(uint32_t)partition << 48 | (uint64_t)offset;
    return mix64(place * 0x9e3779b97f4a7c15ull + ((uint64_t)length << 32 | crc32c(value, length)));
}
static void fill(uint8_t *value, uint64_t number) {
    size_t at = (size_t)((unsigned __int128)mix64(number + 1) * (POOL_BYTES - (unsigned)options.value) >> 64);
    memcpy(value, pool + at, (size_t)options.value);
    put64(value, number);
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void print_quantiles(const char *name, double *values, size_t count) {
    if (!count) return;
    qsort(values, count, sizeof *values, ascending);
    printf(", \"%s\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}", name, values[count / 2], values[count * 99 / 100],
           values[count - 1]);
}
static void print_head(int64_t records, int64_t measured, double seconds, uint64_t sum) {
    printf("{\"records\": %lld, \"seconds\": %.6f, \"records_per_second\": %.1f, \"megabytes_per_second\": %.3f, "
           "\"digest\": \"%016llx\"", (long long)records, seconds, (double)measured / seconds,
           (double)measured * options.value / seconds / 1e6, (unsigned long long)sum);
}

static void delivered(rd_kafka_t *handle, const rd_kafka_message_t *message, void *opaque) {
    Producer *producer = opaque;
    (void)handle;
    if (message->err) die("delivery: %s", rd_kafka_err2str(message->err));
    producer->sum += digest(message->partition, message->offset, message->payload, message->len);
    producer->acknowledged++;
    if (ack_us) {
        size_t number = (size_t)(uintptr_t)message->private_;
        ack_us[number] = (double)(now_ns() - due_ns[number]) / 1e3;
    }
}

static rd_kafka_t *open_handle(int type, void *opaque, const char *const (*settings)[2]) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    if (rd_kafka_conf_set(conf, "bootstrap.servers", options.broker, error, sizeof error)) die("%s", error);
    if (options.authority) {
        char *user = strdup(options.login), *password = strchr(user, ':');
        if (!password) die("--login is USER:PASSWORD");
        *password++ = 0;
        const char *const secured[][2] = {{"security.protocol", "SASL_SSL"}, {"sasl.mechanism", "SCRAM-SHA-512"},
            {"ssl.ca.location", options.authority}, {"sasl.username", user}, {"sasl.password", password}};
        for (size_t i = 0; i < sizeof secured / sizeof *secured; i++)
            if (rd_kafka_conf_set(conf, secured[i][0], secured[i][1], error, sizeof error)) die("%s", error);
    }
    for (; settings && (*settings)[0]; settings++)
        if (rd_kafka_conf_set(conf, (*settings)[0], (*settings)[1], error, sizeof error)) die("%s", error);
    if (type == PRODUCER) rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_conf_set_opaque(conf, opaque);
    rd_kafka_t *handle = rd_kafka_new(type, conf, error, sizeof error);
    if (!handle) die("%s", error);
    return handle;
}
static rd_kafka_topic_t *open_topic(rd_kafka_t *handle) {
    const struct rd_kafka_metadata *metadata;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(handle, options.topic, NULL);
    int error = rd_kafka_metadata(handle, 0, topic, &metadata, WAIT_MS);
    if (error) die("metadata: %s", rd_kafka_err2str(error));
    return topic;
}
static void open_producer(Producer *producer, const char *const (*settings)[2]) {
    producer->handle = open_handle(PRODUCER, producer, settings);
    producer->topic = open_topic(producer->handle);
}
static void enqueue(Producer *producer, int32_t partition, uint8_t *value, uintptr_t number) {
    while (rd_kafka_produce(producer->topic, partition, F_COPY, value, (size_t)options.value, NULL, 0, (void *)number)) {
        if (rd_kafka_last_error() != QUEUE_FULL) die("produce: %s", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(producer->handle, 10);
    }
}

static void produce(void) {
    Producer producer = {0};
    uint8_t *value = malloc((size_t)options.value);
    open_producer(&producer, NULL);
    uint64_t begun = now_ns();
    for (int64_t i = 0; i < options.records; i++) {
        fill(value, (uint64_t)i);
        enqueue(&producer, 0, value, 0);
        if (i % 256 == 0) rd_kafka_poll(producer.handle, 0);
    }
    int error = rd_kafka_flush(producer.handle, WAIT_MS);
    if (error || producer.acknowledged != options.records) die("flush: %s", rd_kafka_err2str(error));
    print_head(options.records, options.records, (double)(now_ns() - begun) / 1e9, producer.sum);
}

static rd_kafka_queue_t *start_reading(const char *const (*settings)[2]) {
    rd_kafka_t *handle = open_handle(CONSUMER, NULL, settings);
    rd_kafka_topic_t *topic = open_topic(handle);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(handle);
    for (int i = 0; i < options.partitions; i++)
        if (rd_kafka_consume_start_queue(topic, i, 0, queue)) die("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
    return queue;
}

static void consume(void) {
    static rd_kafka_message_t *messages[TOGETHER];
    rd_kafka_queue_t *queue = start_reading(NULL);
    uint64_t sum = 0, begun = now_ns(), progress = begun;
    int64_t seen = 0;
    while (seen < options.records) {
        ssize_t count = rd_kafka_consume_batch_queue(queue, 100, messages, TOGETHER);
        if (count < 0) die("consume: %s", rd_kafka_err2str(rd_kafka_last_error()));
        if (count) progress = now_ns();
        else if (now_ns() - progress > WAIT_MS * 1000000ull) die("only %lld records came", (long long)seen);
        for (ssize_t i = 0; i < count; i++) {
            rd_kafka_message_t *message = messages[i];
            if (message->err && message->err != PARTITION_EOF) die("consume: %s", rd_kafka_err2str(message->err));
            if (!message->err && seen < options.records) {
                sum += digest(message->partition, message->offset, message->payload, message->len);
                seen++;
            }
            rd_kafka_message_destroy(message);
        }
    }
    print_head(seen, seen, (double)(now_ns() - begun) / 1e9, sum);
}

static void send_and_wait(Producer *producer, uint8_t *value, uint64_t number) {
    int64_t target = producer->acknowledged + 1;
    fill(value, (uint64_t)producer->index << 40 | number);
    uint64_t begun = now_ns();
    enqueue(producer, producer->index, value, 0);
    while (producer->acknowledged < target) rd_kafka_poll(producer->handle, 1000);
    if (producer->count == producer->room) {
        producer->room = producer->room ? producer->room * 2 : 4096;
        producer->waits = realloc(producer->waits, producer->room * sizeof *producer->waits);
    }
    producer->waits[producer->count++] = (double)(now_ns() - begun) / 1e3;
}
static void *send_small(void *argument) {
    Producer *producer = argument;
    uint8_t *value = malloc((size_t)options.value);
    uint64_t begun = now_ns(), until = begun + (uint64_t)(options.seconds * 1e9);
    for (uint64_t number = 1; now_ns() < until; number++) send_and_wait(producer, value, number);
    producer->elapsed = (double)(now_ns() - begun) / 1e9;
    return NULL;
}

static const char *const AT_ONCE[][2] = {{"linger.ms", "0"}, {"queue.buffering.backpressure.threshold", "1000"}, {NULL, NULL}};

static void small(void) {
    Producer *producers = calloc((size_t)options.connections, sizeof *producers);
    pthread_t *threads = calloc((size_t)options.connections, sizeof *threads);
    uint8_t *value = malloc((size_t)options.value);
    for (int i = 0; i < options.connections; i++) {
        producers[i].index = i;
        open_producer(&producers[i], AT_ONCE);
        send_and_wait(&producers[i], value, 0);
        producers[i].count = 0;
    }
    for (int i = 0; i < options.connections; i++) pthread_create(&threads[i], NULL, send_small, &producers[i]);
    int64_t measured = 0;
    uint64_t sum = 0;
    double elapsed = 0, *waits = NULL;
    for (int i = 0; i < options.connections; i++) {
        Producer *producer = &producers[i];
        pthread_join(threads[i], NULL);
        waits = realloc(waits, ((size_t)measured + producer->count) * sizeof *waits);
        memcpy(waits + measured, producer->waits, producer->count * sizeof *waits);
        measured += (int64_t)producer->count;
        sum += producer->sum;
        if (producer->elapsed > elapsed) elapsed = producer->elapsed;
    }
    print_head(measured + options.connections, measured, elapsed, sum);
    print_quantiles("ack_us", waits, (size_t)measured);
}

static void *follow(void *argument) {
    static rd_kafka_message_t *messages[TOGETHER];
    int64_t count = (int64_t)(options.rate * options.seconds);
    while (arrived < count) {
        ssize_t got = rd_kafka_consume_batch_queue(argument, 100, messages, 1);
        uint64_t now = now_ns();
        for (ssize_t i = 0; i < got; i++) {
            if (!messages[i]->err && messages[i]->offset == arrived) {
                arrival_us[arrived] = (double)(now - due_ns[arrived]) / 1e3;
                arrived++;
            }
            rd_kafka_message_destroy(messages[i]);
        }
    }
    return NULL;
}

static void latency(void) {
    static const char *const eager[][2] = {{"fetch.wait.max.ms", "500"}, {"fetch.queue.backoff.ms", "0"}, {NULL, NULL}};
    int64_t count = (int64_t)(options.rate * options.seconds), warm = (int64_t)(options.rate / 2);
    if (warm > count / 4) warm = count / 4;
    Producer producer = {0};
    pthread_t reader;
    uint8_t *value = malloc((size_t)options.value);
    due_ns = calloc((size_t)count, sizeof *due_ns);
    arrival_us = calloc((size_t)count, sizeof *arrival_us);
    ack_us = calloc((size_t)count, sizeof *ack_us);
    open_producer(&producer, AT_ONCE);
    uint64_t begun = now_ns() + 300000000ull;
    for (int64_t i = 0; i < count; i++) due_ns[i] = begun + (uint64_t)((double)i / options.rate * 1e9);
    pthread_create(&reader, NULL, follow, start_reading(eager));
    for (int64_t i = 0; i < count; i++) {
        for (uint64_t now; (now = now_ns()) < due_ns[i];) {
            uint64_t left_ms = (due_ns[i] - now) / 1000000u;
            if (left_ms) rd_kafka_poll(producer.handle, (int)left_ms);
            else if (rd_kafka_poll(producer.handle, 0) == 0) usleep(20);
        }
        fill(value, (uint64_t)i);
        enqueue(&producer, 0, value, (uintptr_t)i);
    }
    if (rd_kafka_flush(producer.handle, WAIT_MS)) die("flush did not end");
    pthread_join(reader, NULL);
    print_head(count, count, (double)(now_ns() - begun) / 1e9, producer.sum);
    print_quantiles("ack_us", ack_us + warm, (size_t)(count - warm));
    print_quantiles("end_to_end_us", arrival_us + warm, (size_t)(count - warm));
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"broker", 1, 0, 'b'}, {"topic", 1, 0, 't'}, {"records", 1, 0, 'n'}, {"value", 1, 0, 'v'}, {"partitions", 1, 0, 'p'},
        {"connections", 1, 0, 'c'}, {"seconds", 1, 0, 's'}, {"rate", 1, 0, 'r'},
        {"ca", 1, 0, 'a'}, {"login", 1, 0, 'l'}, {0, 0, 0, 0}};
    const char *mode = argc > 1 ? argv[1] : "";
    for (int option; (option = getopt_long(argc - 1, argv + 1, "", known, NULL)) != -1;) switch (option) {
        case 'b': options.broker = optarg; break;
        case 't': options.topic = optarg; break;
        case 'n': options.records = atoll(optarg); break;
        case 'v': options.value = atoi(optarg); break;
        case 'p': options.partitions = atoi(optarg); break;
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'r': options.rate = atof(optarg); break;
        case 'a': options.authority = optarg; break;
        case 'l': options.login = optarg; break;
        default: die("see the head of rdkafka.c");
    }
    if (!options.broker || !options.topic) die("--broker and --topic are needed");
    if (!options.authority != !options.login) die("--ca and --login come together");
    uint64_t seed = now_ns();
    fill_random(pool, sizeof pool, &seed);
    if (!strcmp(mode, "produce")) produce();
    else if (!strcmp(mode, "consume")) consume();
    else if (!strcmp(mode, "small")) small();
    else if (!strcmp(mode, "latency")) latency();
    else die("the first argument is produce, consume, small or latency");
    puts("}");
    fflush(stdout);
    _exit(0);   /* everything is acknowledged; handles need no orderly end */
}
