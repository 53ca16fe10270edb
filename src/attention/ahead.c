/* Asks for rows before tiles read them, wherever they lie. Loops of tiles go on from row to row and
 * look at no map (kvc__ask). Where a stream's rows end within what a call of theirs computes with,
 * they ask for nothing, and all of it is asked for here, after that call. */
#include "attention/work.h"

enum { LEAST_BYTES = 2048, LINE_BYTES = 64 };

/* How far ahead of its use a stream is asked for. Sums go over a block by columns, so that they
 * soon want a line of each of its rows: a block, or most of one that is packed. Of several tiles
 * the first has read its block while it asked for a part of the next: all compute with what was
 * asked for once. */
static int64_t distance_bytes(int64_t block_bytes, int64_t tiles, bool packed) {
    if (tiles > 1) return LEAST_BYTES + block_bytes;
    if (block_bytes <= (int64_t)2 * LEAST_BYTES) return LEAST_BYTES;
    return packed ? block_bytes * 3 / 4 : block_bytes;
}

/* Elements without end; and what is taken from those due while they are owed. */
#define ENDLESS (INT64_MAX / 2)

/* Streams are the keys and the values of a lane, then those of the next. */
static const kvc__rows *rows_of(const kvc__ahead *a, int stream) {
    const kvc__job *job = a->work->job;
    return stream % 2 == 0 ? &job->k : &job->v;
}

/* What a stream has before it in bytes; endless where it never ends. */
static int64_t left_bytes(const kvc__ahead *a, int stream) {
    return a->stop[stream] ? a->stop[stream] - (a->at[stream] + a->offset_bytes) : ENDLESS;
}

/* Has a stream go on with the rows of its position, at its pace: what was asked for behind the last
 * ones counts. Those of the end of a part have none behind them, as a map may not: what is asked
 * for runs over them a little, which a prefetch may. */
static void find_rows(kvc__ahead *a, int stream) {
    const int64_t left = a->work->part.end - a->position[stream];
    const int64_t before_bytes = a->stop[stream] ? a->stop[stream] - a->at[stream] : 0;
    int64_t run;
    const char *at = kvc__work_at(a->work, rows_of(a, stream), a->position[stream], &run);
    a->at[stream] = at - before_bytes;
    a->stop[stream] = run < left ? at + run * a->step_bytes[stream] : NULL;
    if (run < left) a->position[stream] += run;
}

static void renew(kvc__ahead *a) {
    for (int i = 0; i < KVC__STREAMS; i++)
        while (left_bytes(a, i) <= 0) find_rows(a, i);
}

/* Elements of a line or a row of each stream. */
static int64_t round_elements(const kvc__ahead *a) {
    int64_t sum = 0;
    if (a->line_elements > 0) return KVC__STREAMS * a->line_elements;
    for (int i = 0; i < KVC__STREAMS; i++) sum += a->width[i];
    return sum;
}

/* Elements that may be asked for before a stream ends. */
static int64_t count_safe(const kvc__ahead *a) {
    int64_t rounds = ENDLESS;
    for (int i = 0; i < KVC__STREAMS; i++) {
        const int64_t left = left_bytes(a, i);
        if (left == ENDLESS) continue;
        rounds = kvc__smaller(rounds, a->line_elements > 0 ? (left + LINE_BYTES - 1) / LINE_BYTES
                                                           : left / a->step_bytes[i] - 1);
    }
    return rounds == ENDLESS ? ENDLESS : rounds * round_elements(a) - a->due;
}

void kvc__ahead_turn(kvc__ahead *a, int64_t elements) {
    int64_t owed = a->due < 0 ? a->due + ENDLESS : a->due;
    for (a->due = 0; owed > 0;) { /* a line of each, or a row of one, at a time */
        const int64_t next = a->line_elements > 0 ? round_elements(a) : a->width[a->turn];
        const int64_t elements_now = kvc__smaller(owed, next - a->due);
        renew(a);
        kvc__ask(a, elements_now);
        owed -= elements_now;
    }
    renew(a);
    a->safe = count_safe(a) - elements;
    if (a->safe < 0) a->due -= ENDLESS;
}

/* How many tiles take in each block. */
static int64_t count_tiles(const kvc__work *w) {
    int64_t tiles = 0;
    for (int64_t r = 0; r < w->part.rows; r += (int64_t)1 << kvc__tile_size(w->part.rows - r))
        tiles++;
    return tiles;
}

kvc__ahead kvc__look_ahead(const kvc__work *w, const int64_t *start) {
    const kvc__job *job = w->job;
    const int64_t element_bits = kvc__element_bits(job->format);
    const int64_t row_bytes = kvc__row_bytes(job, job->key_dim);
    const bool alike = w->direct && job->key_dim == job->value_dim &&
                       (int64_t)LINE_BYTES * 8 % element_bits == 0 &&
                       w->key_step_bytes == row_bytes && w->value_step_bytes == row_bytes;
    const int64_t tiles = count_tiles(w);
    const int64_t ahead_bytes = distance_bytes(w->block * row_bytes, tiles, job->format.bits > 0);
    kvc__ahead a = {.line_elements = alike ? tiles * LINE_BYTES * 8 / element_bits : 0, .work = w};
    for (int i = 0; i < KVC__STREAMS; i++) {
        const bool is_key = i % 2 == 0;
        const int64_t dim = is_key ? job->key_dim : job->value_dim;
        const int64_t width = is_key ? w->key_width : w->value_width;
        /* A lane without positions asks for those of the first, which has some. */
        a.position[i] = start[i / 2] < w->part.end ? start[i / 2] : start[0];
        a.width[i] = tiles * (w->direct ? dim : width);
        a.row_bytes[i] = kvc__row_bytes(job, dim);
        a.step_bytes[i] = is_key ? w->key_step_bytes : w->value_step_bytes;
        find_rows(&a, i);
    }
    a.due = tiles * KVC__STREAMS * ahead_bytes * 8 / element_bits;
    kvc__ahead_turn(&a, 0);
    return a;
}
