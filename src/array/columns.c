#include "array/columns.h"

#include <stdbool.h>

#include <kvcache/dtype.h>

/* Columns that are turned into rows together, and the least rows that loops of pack.h take. */
enum { COLUMNS = 8, STEP = 32 };

/* The groups from a column on. */
static kvc__packed groups_from(const kvc__packing *p, const kvc__packed *all, int64_t column,
                               int64_t row) {
    const int64_t scale_bytes = (int64_t)kvc_dtype_size_bytes(p->scaling);
    return (kvc__packed){all->words + (column * p->group + row) * p->bits / 8,
                         (char *)all->scales + column * scale_bytes,
                         (char *)all->biases + column * scale_bytes};
}

/* Eight columns of rows, one after another. Only moves bits. */
static void gather_floats(float *restrict to, const float *restrict row, int64_t step, int rows) {
    for (int i = 0; i < rows; i++, row += step)
        for (int e = 0; e < COLUMNS; e++) to[e * rows + i] = row[e];
}

static void gather_halves(uint16_t *restrict to, const uint16_t *restrict row, int64_t step,
                          int rows) {
    for (int i = 0; i < rows; i++, row += step)
        for (int e = 0; e < COLUMNS; e++) to[e * rows + i] = row[e];
}

void kvc__pack_columns(const kvc__packing *p, const kvc__packed *to, const void *from,
                       int64_t step) {
    kvc__packing some = *p;
    some.groups = COLUMNS;
    for (int64_t c = 0; c < p->groups; c += COLUMNS) {
        union {
            float floats[COLUMNS * KVC__GROUP_MOST];
            uint16_t halves[COLUMNS * KVC__GROUP_MOST];
        } turned;
        const kvc__packed groups = groups_from(p, to, c, 0);
        if (p->dtype == KVC_F32)
            gather_floats(turned.floats, (const float *)from + c, step, p->group);
        else gather_halves(turned.halves, (const uint16_t *)from + c, step, p->group);
        kvc__pack_best()->pack(&some, &groups, &turned);
    }
}

/* Eight columns of `rows` floats, into rows of which they are a part. */
static void turn(float *restrict to, int64_t step, const float *restrict columns, int64_t rows,
                 int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int e = 0; e < COLUMNS; e++) to[i * step + e] = columns[e * rows + i];
}

void kvc__unpack_columns(const kvc__packing *p, float *to, int64_t step, const kvc__packed *from,
                         int64_t first, int64_t count) {
    /* A part of a group unpacks as a smaller one does. */
    const int64_t begin = first / STEP * STEP, end = (first + count + STEP - 1) / STEP * STEP;
    const bool whole = end - begin == p->group;
    kvc__packing some = *p;
    some.groups = whole ? COLUMNS : 1;
    some.group = (int)(end - begin);
    for (int64_t c = 0; c < p->groups; c += COLUMNS) {
        float columns[COLUMNS * KVC__GROUP_MOST];
        for (int e = 0; e < COLUMNS; e += (int)some.groups) {
            const kvc__packed group = groups_from(p, from, c + e, begin);
            kvc__pack_best()->unpack(&some, columns + e * (end - begin), &group);
        }
        turn(to + c, step, columns + (first - begin), end - begin, count);
    }
}

/* Eight elements that follow each other, to eight bytes: halves move apart, then their halves, then
 * those of these. */
static inline uint64_t spread(uint64_t x, const int bits) {
    const uint64_t four = (UINT64_C(1) << 4 * bits) - 1;
    const uint64_t two = ((UINT64_C(1) << 2 * bits) - 1) * UINT64_C(0x100000001);
    const uint64_t one = ((UINT64_C(1) << bits) - 1) * UINT64_C(0x1000100010001);
    x = (x & four) | (x >> 4 * bits & four) << 32;
    x = (x & two) | (x >> 2 * bits & two) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

static inline __attribute__((always_inline)) void
split_elements(uint8_t *restrict to, const uint8_t *restrict from, int64_t n, const int bits) {
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t eight = 0;
        for (int byte = 0; byte < bits; byte++) eight |= (uint64_t)*from++ << (8 * byte);
        eight = spread(eight, bits);
        for (int byte = 0; byte < 8; byte++) to[i + byte] = (uint8_t)(eight >> (8 * byte));
    }
}

void kvc__split_elements(uint8_t *to, const uint8_t *from, int64_t n, int bits) {
    switch (bits) { /* a loop for each, with masks that are known */
    case 2: split_elements(to, from, n, 2); return;
    case 3: split_elements(to, from, n, 3); return;
    case 4: split_elements(to, from, n, 4); return;
    case 5: split_elements(to, from, n, 5); return;
    default: split_elements(to, from, n, 6);
    }
}
