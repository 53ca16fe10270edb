/* Many rows at once, by panels (panel.h). */
#include "attention/bits.h"
#include "attention/work.h"

/* What rows from r on see of a block: all of it (seen is left alone then), some, or nothing. */
typedef enum extent { NOTHING, SOME, ALL } extent;

static extent look(const kvc__work *w, int64_t r, int64_t start, int64_t count, uint64_t *seen) {
    const int64_t last = w->part.rows - 1 < r + w->panel - 1 ? w->part.rows - 1 : r + w->panel - 1;
    const kvc__range first_seen = kvc__work_seen(w, r, start, count);
    const kvc__range last_seen = kvc__work_seen(w, last, start, count);
    if (last_seen.begin == 0 && first_seen.end == count) return ALL;
    if (first_seen.begin >= last_seen.end) return NOTHING;
    for (int64_t i = 0; i < w->panel; i++)
        seen[i] = kvc__bits(kvc__work_seen(w, r + i < last ? r + i : last, start, count));
    return SOME;
}

void kvc__prefill_block(const kvc__work *w, const kvc__block *k, const kvc__block *v,
                        int64_t start) {
    for (int64_t r = 0; r < w->part.rows; r += w->panel) {
        uint64_t seen[KVC__PANEL_MOST];
        float factor[KVC__PANEL_MOST];
        const extent sight = look(w, r, start, k->count, seen);
        if (sight == NOTHING) continue;
        const int64_t left = w->part.rows - r;
        const int vectors = (int)(((left < w->panel ? left : w->panel) - 1) / w->ops->lanes);
        const kvc__panel *panel = &w->ops->panels[vectors];
        kvc__tile rows = kvc__work_tile(w, r);
        panel->score(&rows, k, w->scores);
        if (w->job->softcap > 0) w->ops->cap(w->scores, k->count * w->panel, w->job->softcap);
        panel->soften(&rows, sight == ALL ? NULL : seen, k->count, w->scores, factor);
        panel->weigh(&rows, v, sight == ALL ? NULL : seen, w->scores, factor);
    }
}
