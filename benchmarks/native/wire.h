/* What the load generator and the null broker share: big-endian fields, CRC32C, clocks, sockets.
 *
 * Everything is static and in a header so that each program is one `cc -O2 file.c`.
 */
#ifndef PENSTOCK_BENCH_WIRE_H
#define PENSTOCK_BENCH_WIRE_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { API_PRODUCE = 0, API_FETCH = 1, API_LIST_OFFSETS = 2, API_METADATA = 3, API_OFFSET_COMMIT = 8,
       API_OFFSET_FETCH = 9, API_FIND_COORDINATOR = 10, API_JOIN_GROUP = 11, API_HEARTBEAT = 12, API_LEAVE_GROUP = 13,
       API_SYNC_GROUP = 14, API_VERSIONS = 18, API_CREATE_TOPICS = 19, API_INIT_PRODUCER_ID = 22 };

/* Offsets inside a record batch (magic 2). The CRC covers everything from the attributes on. */
enum { BATCH_LENGTH = 8, BATCH_EPOCH = 12, BATCH_MAGIC = 16, BATCH_CRC = 17, BATCH_ATTRIBUTES = 21,
       BATCH_LAST_DELTA = 23, BATCH_PRODUCER = 43, BATCH_SEQUENCE = 53, BATCH_COUNT = 57, BATCH_RECORDS = 61 };

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline void put16(uint8_t *at, uint16_t v) { v = __builtin_bswap16(v); memcpy(at, &v, 2); }
static inline void put32(uint8_t *at, uint32_t v) { v = __builtin_bswap32(v); memcpy(at, &v, 4); }
static inline void put64(uint8_t *at, uint64_t v) { v = __builtin_bswap64(v); memcpy(at, &v, 8); }
static inline uint16_t get16(const uint8_t *at) { uint16_t v; memcpy(&v, at, 2); return __builtin_bswap16(v); }
static inline uint32_t get32(const uint8_t *at) { uint32_t v; memcpy(&v, at, 4); return __builtin_bswap32(v); }
static inline uint64_t get64(const uint8_t *at) { uint64_t v; memcpy(&v, at, 8); return __builtin_bswap64(v); }

static inline uint8_t *put_uvarint(uint8_t *at, uint64_t v) {
    while (v >= 0x80) { *at++ = (uint8_t)v | 0x80; v >>= 7; }
    *at++ = (uint8_t)v;
    return at;
}
static inline uint8_t *put_varint(uint8_t *at, int64_t v) {
    return put_uvarint(at, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63));
}
static inline uint8_t *put_string(uint8_t *at, const char *text) {
    size_t length = strlen(text);
    put16(at, (uint16_t)length);
    memcpy(at + 2, text, length);
    return at + 2 + length;
}

/* CRC32C on a raw state: no initial or final inversion, so that it is linear over GF(2). */
static uint32_t crc_table[256];
static uint32_t crc_raw_portable(uint32_t state, const uint8_t *data, size_t length) {
    if (!crc_table[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++) value = value & 1 ? (value >> 1) ^ 0x82f63b78u : value >> 1;
            crc_table[byte] = value;
        }
    while (length--) state = crc_table[(state ^ *data++) & 0xff] ^ (state >> 8);
    return state;
}
#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2"))) static uint32_t crc_raw_sse(uint32_t state, const uint8_t *data, size_t length) {
    uint64_t wide = state, word;
    for (; length >= 8; length -= 8, data += 8) { memcpy(&word, data, 8); wide = _mm_crc32_u64(wide, word); }
    state = (uint32_t)wide;
    while (length--) state = _mm_crc32_u8(state, *data++);
    return state;
}
static uint32_t crc_raw(uint32_t state, const uint8_t *data, size_t length) {
    return __builtin_cpu_supports("sse4.2") ? crc_raw_sse(state, data, length)
                                            : crc_raw_portable(state, data, length);
}
#else
static uint32_t crc_raw(uint32_t state, const uint8_t *data, size_t length) {
    return crc_raw_portable(state, data, length);
}
#endif
static inline uint32_t crc32c(const uint8_t *data, size_t length) { return ~crc_raw(~0u, data, length); }

static inline uint64_t mix64(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static inline uint64_t next_random(uint64_t *state) { return mix64(*state += 0x9e3779b97f4a7c15ull); }
static inline void fill_random(uint8_t *at, size_t length, uint64_t *state) {
    for (uint64_t word; length >= 8; length -= 8, at += 8) { word = next_random(state); memcpy(at, &word, 8); }
    for (uint64_t word = next_random(state); length; length--, word >>= 8) *at++ = (uint8_t)word;
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static inline uint64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000ull + (uint64_t)t.tv_nsec / 1000000ull;
}

static inline void no_delay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static inline void not_blocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

static inline int split_address(const char *address, char *host, size_t host_size) {
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= host_size) die("an address is HOST:PORT, not %s", address);
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = 0;
    return atoi(colon + 1);
}

static inline int connect_to(const char *address) {
    char host[256], port[16];
    snprintf(port, sizeof port, "%d", split_address(address, host, sizeof host));
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found)) die("cannot resolve %s", address);
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, found->ai_addr, found->ai_addrlen)) die("cannot connect to %s: %s", address, strerror(errno));
    freeaddrinfo(found);
    no_delay(fd);
    return fd;
}

static inline void send_all(int fd, const uint8_t *data, size_t length) {
    while (length) {
        ssize_t n = send(fd, data, length, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("send: %s", strerror(errno));
        data += n;
        length -= (size_t)n;
    }
}
static inline void receive_all(int fd, uint8_t *data, size_t length) {
    while (length) {
        ssize_t n = recv(fd, data, length, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) die("receive: %s", n ? strerror(errno) : "the broker closed the connection");
        data += n;
        length -= (size_t)n;
    }
}
#endif
