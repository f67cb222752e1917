/* Fields read from a request, bounded by its end, and written to an answer that grows; classic and flexible forms. */
#ifndef PENSTOCK_BENCH_FIELDS_H
#define PENSTOCK_BENCH_FIELDS_H
#include "wire.h"

enum { ROOM = 1 << 20 };   /* what a buffer starts with */

typedef struct { uint8_t *bytes; size_t room, start, end; } Buffer;
typedef struct { const uint8_t *at, *end; int flexible, bad; } Cursor;   /* bad: something did not fit */

static const uint8_t *take(Cursor *in, size_t length) {
    const uint8_t *at = in->at;
    if (in->bad || (size_t)(in->end - at) < length) { in->bad = 1; return NULL; }
    in->at += length;
    return at;
}
static int64_t take_int(Cursor *in, int size) {
    const uint8_t *at = take(in, (size_t)size);
    if (!at) return 0;
    return size == 1 ? (int8_t)*at : size == 2 ? (int16_t)get16(at) : size == 4 ? (int32_t)get32(at) : (int64_t)get64(at);
}
static uint64_t take_uvarint(Cursor *in) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        const uint8_t *at = take(in, 1);
        if (!at) return 0;
        value |= (uint64_t)(*at & 0x7f) << shift;
        if (*at < 0x80) break;
    }
    return value;
}
static const uint8_t *take_text(Cursor *in, size_t *length) {
    int64_t size = in->flexible ? (int64_t)take_uvarint(in) - 1 : take_int(in, 2);
    *length = size > 0 ? (size_t)size : 0;
    return take(in, *length);
}
static int64_t take_count(Cursor *in) { return in->flexible ? (int64_t)take_uvarint(in) - 1 : take_int(in, 4); }
static void take_tags(Cursor *in) {
    if (!in->flexible) return;
    for (uint64_t tags = take_uvarint(in); tags && !in->bad; tags--) {
        take_uvarint(in);
        take(in, take_uvarint(in));
    }
}

static uint8_t *grow(Buffer *buffer, size_t more) {
    if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
    if (buffer->room - buffer->end < more && buffer->start) {
        memmove(buffer->bytes, buffer->bytes + buffer->start, buffer->end - buffer->start);
        buffer->end -= buffer->start;
        buffer->start = 0;
    }
    if (buffer->room - buffer->end < more) {
        while (buffer->room - buffer->end < more) buffer->room = buffer->room ? buffer->room * 2 : ROOM;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) die("out of memory");
    }
    return buffer->bytes + buffer->end;
}
static void give(Buffer *out, const void *data, size_t length) {
    uint8_t *at = grow(out, length);
    if (length) memcpy(at, data, length);
    out->end += length;
}
static void give_int(Buffer *out, int size, int64_t value) {
    uint8_t *at = grow(out, 8);
    if (size == 1) *at = (uint8_t)value;
    else if (size == 2) put16(at, (uint16_t)value);
    else if (size == 4) put32(at, (uint32_t)value);
    else put64(at, (uint64_t)value);
    out->end += (size_t)size;
}
static void give_text(Buffer *out, const void *text, size_t length, int flexible) {
    if (flexible) {
        uint8_t *at = grow(out, 8);
        out->end += (size_t)(put_uvarint(at, length + 1) - at);
    } else give_int(out, 2, (int64_t)length);
    give(out, text, length);
}
static void give_count(Buffer *out, int64_t count, int flexible) {
    if (!flexible) { give_int(out, 4, count); return; }
    uint8_t *at = grow(out, 8);
    out->end += (size_t)(put_uvarint(at, (uint64_t)(count + 1)) - at);
}
#endif
