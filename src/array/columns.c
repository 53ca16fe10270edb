#include "array/columns.h"

#include <string.h>

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

void kvc__pack_columns(const kvc__packing *p, const kvc__packed *to, const void *from,
                       int64_t step) {
    const size_t element = kvc_dtype_size_bytes(p->dtype);
    kvc__packing some = *p;
    some.groups = COLUMNS;
    for (int64_t c = 0; c < p->groups; c += COLUMNS) {
        float turned[COLUMNS * KVC__GROUP_MOST]; /* room for elements of any dtype */
        const char *row = (const char *)from + (size_t)c * element;
        for (int i = 0; i < p->group; i++, row += (size_t)step * element)
            for (int e = 0; e < COLUMNS; e++)
                memcpy((char *)turned + (size_t)(e * p->group + i) * element,
                       row + (size_t)e * element, element);
        const kvc__packed groups = groups_from(p, to, c, 0);
        kvc__pack_best()->pack(&some, &groups, turned);
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
    kvc__packing some = *p;
    some.groups = 1;
    some.group = (int)(end - begin);
    for (int64_t c = 0; c < p->groups; c += COLUMNS) {
        float columns[COLUMNS * KVC__GROUP_MOST];
        for (int e = 0; e < COLUMNS; e++) {
            const kvc__packed group = groups_from(p, from, c + e, begin);
            kvc__pack_best()->unpack(&some, columns + e * (end - begin), &group);
        }
        turn(to + c, step, columns + (first - begin), end - begin, count);
    }
}
