/* Many rows at once, by panels (panel.h). */
#include "attention/bits.h"
#include "attention/work.h"

/* How many positions' scores are computed between asking for as many of the next block. */
enum { SLICE = 8, LINE_BYTES = 64 };

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* What rows see of a block. */
typedef enum extent { NOTHING, SOME, ALL } extent;

/* Looks at the rows of a panel, from r on.
 * @param seen  [panel], receives what each sees, where that is SOME */
static extent look(const kvc__work *w, int64_t r, int64_t start, int64_t count, uint64_t *seen) {
    const int64_t last = smaller(w->part.rows, r + w->panel) - 1;
    const kvc__range low = kvc__work_seen(w, r, start, count);
    const kvc__range high = kvc__work_seen(w, last, start, count);
    if (high.begin == 0 && low.end == count) return ALL;
    if (low.begin >= high.end) return NOTHING;
    for (int64_t i = 0; i < w->panel; i++)
        seen[i] = kvc__bits(kvc__work_seen(w, smaller(r + i, last), start, count));
    return SOME;
}

static void fetch_row(const kvc__work *w, const kvc__rows *rows, int64_t position, int64_t dim) {
    const char *row = kvc__at(rows, w->part.sequence, w->part.kv_head, position, 0);
    const int64_t bytes = dim * (int64_t)kvc_dtype_size_bytes(rows->dtype);
    for (int64_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(row + at, 0, 2);
}

/* The scores of a block, while the next one comes: where rows are few, to wait for memory would
 * take about as long as all that is done with it. */
static void score_and_fetch(const kvc__work *w, const kvc__panel *panel, const kvc__tile *rows,
                            const kvc__block *k, int64_t start) {
    const kvc__job *job = w->job;
    for (int64_t j = 0; j < k->count; j += SLICE) {
        const kvc__block slice = {k->data + j * k->step_bytes, k->step_bytes,
                                  smaller(SLICE, k->count - j)};
        const int64_t next = start + k->count + j;
        for (int64_t i = next; i < smaller(next + SLICE, w->part.end); i++) {
            fetch_row(w, &job->k, i, job->key_dim);
            fetch_row(w, &job->v, i, job->value_dim);
        }
        panel->score(rows, &slice, w->scores + j * w->panel);
    }
}

void kvc__prefill_block(const kvc__work *w, const kvc__block *k, const kvc__block *v,
                        int64_t start) {
    bool is_first = true;
    for (int64_t r = 0; r < w->part.rows; r += w->panel) {
        uint64_t seen[KVC__PANEL_MOST];
        float factor[KVC__PANEL_MOST];
        const extent what = look(w, r, start, k->count, seen);
        if (what == NOTHING) continue;
        const uint64_t *some = what == SOME ? seen : NULL;
        const int64_t left = smaller(w->panel, w->part.rows - r);
        const kvc__panel *panel = &w->ops->panels[(left - 1) / w->ops->lanes];
        kvc__tile rows = kvc__work_tile(w, r);
        if (is_first) score_and_fetch(w, panel, &rows, k, start);
        else panel->score(&rows, k, w->scores);
        is_first = false;
        if (w->job->softcap > 0) w->ops->cap(w->scores, k->count * w->panel, w->job->softcap);
        panel->soften(&rows, some, k->count, w->scores, factor);
        panel->weigh(&rows, v, some, w->scores, factor);
    }
}
