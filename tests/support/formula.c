#include <math.h>
#include <stdlib.h>

#include "support/attend.h"
#include "support/support.h"

/* Rows of the problem in f64, and a row of scores. */
typedef struct scratch {
    double *scores; /* [length] */
    double *q, *k;  /* [key_dim] */
    double *v;      /* [value_dim] */
} scratch;

/* scale · q · k; adds up in *parts what its products are in magnitude. */
static double raw_score(const test_case *c, const double *q, const double *k, double *parts) {
    const double scale = c->scale != 0 ? (double)c->scale : 1 / sqrt((double)c->key_dim);
    double sum = 0;
    *parts = 0;
    for (int64_t d = 0; d < c->key_dim; d++) {
        const double product = scale * q[d] * k[d];
        sum += product;
        *parts += fabs(product);
    }
    return sum;
}

static double of_head(const test_tensor *t, int64_t head) {
    return test_get(&t->array, head, 0, 0, 0);
}

static int64_t length_of(const test_case *c, int64_t b) {
    return c->lengths ? c->lengths[b] : c->length;
}

/* What a case makes of a score: soft cap, slope, mask. */
static double adjusted(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j,
                       double raw) {
    const test_case *c = &p->c;
    const double cap = (double)c->softcap;
    const double slope = c->slopes ? of_head(&p->slopes, h) : 0;
    const double distance = (double)(length_of(c, b) - c->queries + i - j);
    const bool adds = c->mask.dtype && c->mask.dtype != KVC_U8;
    const double mask = adds ? test_get(&p->mask.array, b, h, i, j) : 0;
    return (cap > 0 ? cap * tanh(raw / cap) : raw) - slope * distance + mask;
}

static bool sees(const test_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    const test_case *c = &p->c;
    const double mask = c->mask.dtype ? test_get(&p->mask.array, b, h, i, j) : 1;
    if (mask == (c->mask.dtype == KVC_U8 ? 0 : (double)-INFINITY)) return false;
    const int64_t position = length_of(c, b) - c->queries + i;
    if (c->not_causal) return j < length_of(c, b);
    if (j > position) return false;
    return c->window == 0 || j < c->keep || j > position - (c->window - c->keep);
}

void test_poison_unseen(const test_problem *p) {
    const test_case *c = &p->c;
    const int64_t group = c->q_heads / c->kv_heads;
    for (int64_t n = 0; n < c->batch * c->kv_heads * c->length; n++) {
        const int64_t b = n / c->length / c->kv_heads, h = n / c->length % c->kv_heads;
        const int64_t j = n % c->length;
        bool seen = false;
        for (int64_t row = 0; row < group * c->queries; row++)
            seen = seen || sees(p, b, h * group + row % group, row / group, j);
        if (seen) continue;
        for (int64_t d = 0; d < c->key_dim; d++) test_set(&p->k.array, b, h, j, d, (double)NAN);
        for (int64_t d = 0; d < c->value_dim; d++) test_set(&p->v.array, b, h, j, d, (double)NAN);
    }
}

/* One row of the truth; returns its log-sum-exp. */
static double attend_row(test_truth *truth, const test_problem *p, int64_t b, int64_t h, int64_t i,
                         const scratch *s, double *out) {
    const test_case *c = &p->c;
    const int64_t kv_head = h / (c->q_heads / c->kv_heads);
    const double sink = c->sinks ? of_head(&p->sinks, h) : -INFINITY;
    double most = sink, *scores = s->scores;
    test_get_row(s->q, &p->q.array, b, h, i);
    for (int64_t j = 0; j < c->length; j++) {
        scores[j] = -INFINITY;
        if (!sees(p, b, h, i, j)) continue;
        double parts;
        test_get_row(s->k, &p->k.array, b, kv_head, j);
        const double raw = raw_score(c, s->q, s->k, &parts);
        scores[j] = adjusted(p, b, h, i, j, raw);
        most = fmax(most, scores[j]);
        truth->largest_score = fmax(truth->largest_score, fmax(fabs(raw), fabs(scores[j])));
        truth->largest_parts = fmax(truth->largest_parts, parts);
    }
    for (int64_t d = 0; d < c->value_dim; d++) out[d] = 0;
    if (most == -INFINITY) return most;
    double total = exp(sink - most);
    for (int64_t j = 0; j < c->length; j++) {
        const double weight = exp(scores[j] - most);
        if (weight == 0) continue;
        total += weight;
        test_get_row(s->v, &p->v.array, b, kv_head, j);
        for (int64_t d = 0; d < c->value_dim; d++) out[d] += weight * s->v[d];
    }
    for (int64_t d = 0; d < c->value_dim; d++) out[d] /= total;
    return most + log(total);
}

static double *new_doubles(int64_t count) {
    double *doubles = malloc((size_t)(count + 1) * sizeof *doubles);
    assert_non_null(doubles);
    return doubles;
}

test_truth test_truth_new(const test_problem *p) {
    const test_case *c = &p->c;
    const int64_t rows = c->batch * c->q_heads * c->queries;
    const scratch s = {.scores = new_doubles(c->length),
                       .q = new_doubles(c->key_dim),
                       .k = new_doubles(c->key_dim),
                       .v = new_doubles(c->value_dim)};
    test_truth truth = {.out = new_doubles(rows * c->value_dim), .lse = new_doubles(rows)};
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / c->queries / c->q_heads, h = row / c->queries % c->q_heads;
        truth.lse[row] =
            attend_row(&truth, p, b, h, row % c->queries, &s, truth.out + row * c->value_dim);
    }
    free(s.scores);
    free(s.q);
    free(s.k);
    free(s.v);
    return truth;
}

void test_truth_free(test_truth *truth) {
    free(truth->out);
    free(truth->lse);
}
