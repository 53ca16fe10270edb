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
