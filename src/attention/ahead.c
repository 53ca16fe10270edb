/* Asks for rows before tiles read them, wherever they lie. */
#include "attention/work.h"

enum { DISTANCE_BYTES = 2048 };

/* Streams are the keys and the values of a lane, then those of the next. */
static const kvc__rows *rows_of(const kvc__ahead *a, int stream) {
    const kvc__job *job = a->work->job;
    return stream % 2 == 0 ? &job->k : &job->v;
}

/* Has a stream go on with the next run of rows. What is asked for runs over the end of a part a
 * little: a prefetch may. But a map is not asked where positions behind that lie. */
static void go_on(kvc__ahead *a, int stream) {
    const int64_t left = a->work->part.end - a->next[stream], due_bytes = a->end_bytes[stream];
    int64_t run;
    const char *at = kvc__work_at(a->work, rows_of(a, stream), a->next[stream], &run);
    const bool is_last = run >= left;
    a->at[stream] = a->line_elements > 0 ? at - due_bytes : at;
    a->left[stream] = is_last ? INT64_MAX : run;
    a->end_bytes[stream] = is_last ? INT64_MAX : due_bytes + run * a->step_bytes[stream];
    if (!is_last) a->next[stream] += run;
}

void kvc__ahead_turn(kvc__ahead *a) {
    a->limit_bytes = INT64_MAX;
    for (int i = 0; i < KVC__STREAMS; i++) {
        if (a->line_elements > 0)
            while (a->end_bytes[i] <= a->offset_bytes) go_on(a, i);
        else if (a->left[i] == 0) go_on(a, i);
        a->limit_bytes = kvc__smaller(a->limit_bytes, a->end_bytes[i]);
    }
}

kvc__ahead kvc__look_ahead(const kvc__work *w, const int64_t *start) {
    const kvc__job *job = w->job;
    const int64_t element_bits = kvc__element_bits(job->format);
    const int64_t row_bytes = kvc__row_bytes(job, job->key_dim);
    const bool alike = w->direct && job->key_dim == job->value_dim &&
                       w->key_step_bytes == row_bytes && w->value_step_bytes == row_bytes;
    kvc__ahead a = {.line_elements = alike ? (int64_t)64 * 8 / element_bits : 0, .work = w};
    for (int i = 0; i < KVC__STREAMS; i++) {
        const bool is_key = i % 2 == 0;
        const int64_t dim = is_key ? job->key_dim : job->value_dim;
        const int64_t width = is_key ? w->key_width : w->value_width;
        /* A lane without positions asks for those of the first, which it must have some of. */
        a.next[i] = start[i / 2] < w->part.end ? start[i / 2] : start[0];
        a.width[i] = w->direct ? dim : width;
        a.row_bytes[i] = kvc__row_bytes(job, dim);
        a.step_bytes[i] = is_key ? w->key_step_bytes : w->value_step_bytes;
    }
    kvc__ahead_turn(&a);
    kvc__ask(&a, (int64_t)KVC__STREAMS * DISTANCE_BYTES * 8 / element_bits);
    return a;
}
