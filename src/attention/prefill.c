/* Many rows at once, by panels (panel.h). */
#include "attention/adjust.h"
#include "attention/work.h"

/* How many positions' scores are computed between asking for as many of the next block. */
enum { SLICE = 8, LINE_BYTES = 64 };

/* What the rows of a panel see of a block. */
typedef enum extent { NOTHING, SOME, ALL } extent;

/* As far as ranges tell. */
static extent look(const kvc__work *w, int64_t first, int64_t rows, int64_t start, int64_t count) {
    const kvc__range low = kvc__work_seen(w, first, start, count);
    const kvc__range high = kvc__work_seen(w, first + rows - 1, start, count);
    if (high.begin == 0 && low.end == count) return ALL;
    return low.begin < high.end ? SOME : NOTHING;
}

/* Row by row: a bit a position. Lanes behind the last row see what that does.
 * @param seen   [panel]
 * @param count  of the block; becomes that up to the last position which any row sees */
static extent look_closely(const kvc__work *w, int64_t first, int64_t rows, int64_t start,
                           int64_t *count, uint64_t *seen) {
    const uint64_t whole = kvc__bits((kvc__range){0, *count});
    uint64_t all = whole, any = 0;
    for (int64_t r = 0; r < rows; r++)
        seen[r] = kvc__bits(kvc__work_seen(w, first + r, start, *count));
    if (w->job->mask.data) kvc__work_keep(w, first, rows, start, *count, seen);
    for (int64_t r = rows; r < w->panel; r++) seen[r] = seen[rows - 1];
    for (int64_t r = 0; r < rows; r++) {
        all &= seen[r];
        any |= seen[r];
    }
    if (any == 0) return NOTHING;
    *count = kvc__hull(any).end;
    return all == whole ? ALL : SOME;
}

/* Asks for rows [start, end). */
static void fetch(const kvc__work *w, const kvc__rows *rows, int64_t step_bytes, int64_t row_bytes,
                  int64_t start, int64_t end) {
    while (start < end) {
        int64_t run;
        const char *row = kvc__work_at(w, rows, start, &run);
        run = kvc__smaller(run, end - start);
        for (int64_t i = 0; i < run; i++, row += step_bytes)
            for (int64_t at = 0; at < row_bytes; at += LINE_BYTES)
                __builtin_prefetch(row + at, 0, 2);
        start += run;
    }
}

/* The scores of a block, while the next one comes: where rows are few, to wait for memory would
 * take about as long as all that is done with it. */
static void score_and_fetch(const kvc__work *w, const kvc__panel *panel, const kvc__tile *rows,
                            const kvc__block *k, int64_t next_start) {
    const kvc__job *job = w->job;
    const int64_t key_bytes = kvc__row_bytes(job, job->key_dim);
    const int64_t value_bytes = kvc__row_bytes(job, job->value_dim);
    for (int64_t j = 0; j < k->count; j += SLICE) {
        const kvc__block slice = kvc__some(k, j, kvc__smaller(j + SLICE, k->count));
        const int64_t next = next_start + j, stop = kvc__smaller(next + SLICE, w->part.end);
        if (!job->format.keys_per_channel)
            fetch(w, &job->k, w->key_step_bytes, key_bytes, next, stop);
        fetch(w, &job->v, w->value_step_bytes, value_bytes, next, stop);
        panel->score(rows, &slice, w->scores + j * w->panel);
    }
}

/* @param next_start  of the block that is taken in next */
static void attend_block(const kvc__work *w, int64_t start, int64_t count, int64_t next_start) {
    bool is_read = false; /* a block that no row sees never is */
    kvc__block k, v;
    for (int64_t first = 0; first < w->part.rows; first += w->panel) {
        const int64_t rows = kvc__smaller(w->panel, w->part.rows - first);
        const kvc__panel *panel = &w->ops->panels[(rows - 1) / w->ops->lanes];
        kvc__tile tile = kvc__work_tile(w, first);
        uint64_t seen[KVC__PANEL_MOST];
        float factor[KVC__PANEL_MOST];
        int64_t own = count;
        extent what = look(w, first, rows, start, count);
        if (what == SOME || (what == ALL && w->job->mask.data))
            what = look_closely(w, first, rows, start, &own, seen);
        if (what == NOTHING) continue;
        if (!is_read) {
            k = kvc__work_keys(w, start, count);
            v = kvc__work_values(w, start, count);
        }
        k.count = own;
        if (is_read) panel->score(&tile, &k, w->scores);
        else score_and_fetch(w, panel, &tile, &k, next_start);
        is_read = true;
        if (w->adjusts) kvc__work_adjust(w, first, rows, w->panel, start, own);
        panel->soften(&tile, what == SOME ? seen : NULL, own, w->scores, factor);
        panel->weigh(&tile, &v, what == SOME ? seen : NULL, w->scores, factor);
    }
}

void kvc__prefill(const kvc__work *w) {
    const kvc__part *part = &w->part;
    int64_t next;
    for (int64_t at = part->kept > 0 ? 0 : part->begin; at < part->end; at = next) {
        const int64_t stop = at < part->kept ? part->kept : part->end;
        const int64_t count = kvc__work_together(w, at, kvc__smaller(w->block, stop - at));
        next = at + count == part->kept ? part->begin : at + count;
        attend_block(w, at, count, next);
    }
}
