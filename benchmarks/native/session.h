/* The requests that prepare a run, one at a time: create a topic, wait until it can be used, get a producer id. */
#ifndef PENSTOCK_BENCH_SESSION_H
#define PENSTOCK_BENCH_SESSION_H
#include "wire.h"

#define CLIENT "penstock-load"
enum { PATIENCE = 500, PAUSE_US = 10000 };   /* attempts, and the time between two of them */

static uint8_t *begin(uint8_t *frame, const char *client, int api, int version) {
    static int correlation;
    put16(frame + 4, (uint16_t)api);
    put16(frame + 6, (uint16_t)version);
    put32(frame + 8, (uint32_t)++correlation);
    return put_string(frame + 12, client);
}
static uint8_t *ask(int fd, uint8_t *frame, uint8_t *end, size_t *size) {
    static uint8_t *answer;
    static size_t room;
    uint8_t prefix[4];
    put32(frame, (uint32_t)(end - frame - 4));
    send_all(fd, frame, (size_t)(end - frame));
    receive_all(fd, prefix, 4);
    *size = get32(prefix);
    if (*size > room) answer = realloc(answer, room = *size);
    receive_all(fd, answer, *size);
    return answer;
}
static const uint8_t *skip_string(const uint8_t *at) {
    return at + 2 + ((int16_t)get16(at) < 0 ? 0 : get16(at));
}

/* How many partitions of the topic have a leader, by Metadata v4. */
static int leaders_of(int fd, const char *topic) {
    uint8_t frame[1024], *end = begin(frame, CLIENT, API_METADATA, 4);
    size_t size;
    put32(end, 1);
    end = put_string(end + 4, topic);
    *end = 0;
    const uint8_t *at = ask(fd, frame, end + 1, &size) + 8;
    int brokers = (int)get32(at), leaders = 0;
    at += 4;
    while (brokers--) at = skip_string(skip_string(at + 4) + 4);
    at = skip_string(at) + 8;
    if (get16(at)) return 0;
    at = skip_string(at + 2) + 1;
    int partitions = (int)get32(at);
    at += 4;
    while (partitions--) {
        if (!get16(at) && (int32_t)get32(at + 6) >= 0) leaders++;
        at += 10;
        at += 4 + 4 * get32(at);
        at += 4 + 4 * get32(at);
    }
    return leaders;
}

/* Whether the leader itself says that it serves the partition, by ListOffsets v1. */
static int serves(int fd, const char *topic, int partition) {
    uint8_t frame[1024], *at = begin(frame, CLIENT, API_LIST_OFFSETS, 1);
    size_t size;
    put32(at, (uint32_t)-1);
    put32(at + 4, 1);
    at = put_string(at + 8, topic);
    put32(at, 1);
    put32(at + 4, (uint32_t)partition);
    put64(at + 8, (uint64_t)-1);
    uint8_t *answer = ask(fd, frame, at + 16, &size);
    return !get16(answer + 8 + 2 + strlen(topic) + 4 + 4);
}

/* Brokers may answer before every part of them knows the topic, so wait until its leader serves it. */
static void create_topic(int fd, const char *topic, int partitions) {
    uint8_t frame[1024], *at = begin(frame, CLIENT, API_CREATE_TOPICS, 4);
    size_t size;
    put32(at, 1);
    at = put_string(at + 4, topic);
    put32(at, (uint32_t)partitions);
    put16(at + 4, (uint16_t)-1);
    put32(at + 6, 0);
    put32(at + 10, 0);
    put32(at + 14, 10000);
    at[18] = 0;
    uint8_t *answer = ask(fd, frame, at + 19, &size);
    int error = (int16_t)get16(answer + 12 + 2 + strlen(topic)), attempts = 0;
    if (error) die("CreateTopics %s: error %d", topic, error);
    for (; leaders_of(fd, topic) < partitions; usleep(PAUSE_US))
        if (++attempts > PATIENCE) die("no leader for %s", topic);
    for (int partition = 0; partition < partitions; partition++)
        for (; !serves(fd, topic, partition); usleep(PAUSE_US))
            if (++attempts > PATIENCE) die("partition %d of %s is not served", partition, topic);
}

static int64_t producer_id(int fd) {
    uint8_t frame[512];
    size_t size;
    for (int attempt = 0; attempt < PATIENCE; attempt++, usleep(PAUSE_US)) {
        uint8_t *at = begin(frame, CLIENT, API_INIT_PRODUCER_ID, 1);
        put16(at, (uint16_t)-1);
        put32(at + 2, 60000);
        uint8_t *answer = ask(fd, frame, at + 6, &size);
        if (!get16(answer + 8)) return (int64_t)get64(answer + 10);
    }
    die("InitProducerId gave nothing but errors");
}
#endif
