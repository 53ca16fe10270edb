/** @file
 * Scores of packed keys, for tile_quant.h, which tells how. Lanes are keys: nothing is added up
 * across them. */
#ifndef KVC_ATTENTION_QUANT_SCORE_H
#define KVC_ATTENTION_QUANT_SCORE_H

/* A prepared query: integers in the order in which keys are split, of 16 bits for keys of 8, of 8
 * for keys of 4, so that both have twice the bytes of a key; behind them one of these a group. */
typedef struct query_group {
    float scale;    /* of the integers */
    float total;    /* Σ q */
    int32_t offset; /* -surplus · Σ of the integers */
} query_group;

static inline const query_group *query_groups(const float *q, int64_t width) {
    return (const query_group *)(const void *)(q + width / 2);
}

/* Where the high byte of integer i is, of two: four high ones come first, then the four low. */
static inline int64_t high_place(int64_t i) {
    return i / 4 * 8 + i % 4;
}

/* Integer i of a prepared query. */
static inline int32_t query_at(const float *q, int64_t i, const int bits) {
    const int8_t *bytes = (const int8_t *)(const void *)q;
    if (bits == 4) return bytes[i];
    if (BY_BYTES) return 256 * bytes[high_place(i)] + bytes[high_place(i) + 4];
    return ((const int16_t *)(const void *)q)[i];
}
static inline void set_query(float *q, int64_t i, int32_t x, const int bits) {
    int8_t *bytes = (int8_t *)(void *)q;
    if (bits == 4) bytes[i] = (int8_t)x;
    else if (BY_BYTES) {
        const int32_t high = (x + 128) >> 8;
        bytes[high_place(i)] = (int8_t)high;
        bytes[high_place(i) + 4] = (int8_t)(x - 256 * high);
    } else ((int16_t *)(void *)q)[i] = (int16_t)x;
}

/* Where a prepared query has the element at i of one that is not, within its group: of four bytes
 * that become words the even ones come first, of eight where place_packed has put them. */
static inline int64_t query_place(int64_t i, const int bits) {
    return bits == 8 && !BY_BYTES ? i / 8 * 8 + i % 4 / 2 * 4 + i % 8 / 4 * 2 + i % 2 : i;
}

/* A group of a query, to integers. Where an element is not finite, or too large for a total, scores
 * become NaN. */
static inline query_group round_group(int32_t *to, const float *q, int64_t group, const int bits) {
    float most = 0;
    double total = 0;
    int32_t sum = 0;
    for (int64_t d = 0; d < group; d++) {
        most = fabsf(q[d]) > most ? fabsf(q[d]) : most;
        total += (double)q[d];
    }
    const bool finite = fabs(total) < (double)INFINITY && most < INFINITY;
    const float inverse = most > 0x1p-100f && finite ? most_of(bits) / most : 0;
    for (int64_t d = 0; d < group; d++) {
        const int32_t x = finite ? (int32_t)lrintf(q[d] * inverse) : 0;
        to[query_place(d, bits)] = x;
        sum += x;
    }
    return (query_group){finite ? most / most_of(bits) : NAN, (float)total,
                         -surplus_of(bits) * sum};
}

/* A kvc__prepare_fn. */
static inline void prepare_packed(float *q, int64_t width, int64_t group, const int bits) {
    query_group groups[KVC__FUSED_MAX_DIM / 32];
    int32_t integers[KVC__GROUP_MOST];
    for (int64_t g = 0; g < width / group; g++) {
        groups[g] = round_group(integers, q + g * group, group, bits);
        /* Integers are shorter than what they are made of: what follows is not overwritten. */
        for (int64_t i = 0; i < group; i++) set_query(q, g * group + i, integers[i], bits);
    }
    memcpy(q + width / 2, groups, (size_t)(width / group) * sizeof *groups);
}

/* One score in f32, one element after another, as the formula has it. */
static float score_slowly(const float *q, int64_t width, const kvc__block *k, int64_t j,
                          const int bits) {
    const char *row = k->data + j * k->step_bytes;
    const query_group *groups = query_groups(q, width);
    float sum = 0;
    for (int64_t d = 0; d < width; d++) {
        const int64_t g = d / k->group, at = g * KVC__BLOCK + j;
        const int64_t place = query_place(place_packed(d, bits), bits);
        sum += groups[g].scale * (float)query_at(q, place, bits) *
               (k->scales[at] * element_of(row, d, bits) + k->biases[at]);
    }
    return sum;
}

/* A group of R queries, as what is multiplied with 4 bytes of W keys. */
typedef struct query_words {
    vi of[KVC__GROUP_MOST / 4][4][2];
} query_words;

static inline __attribute__((always_inline)) void
spread_queries(query_words *to, const kvc__tile *t, int64_t g, int64_t bytes, const int R) {
    for (int64_t i = 0; i < bytes / 4; i++)
        for (int r = 0; r < R; r++) {
            const char *q = (const char *)(t->q + r * t->key_width) + 2 * (g * bytes + 4 * i);
            to->of[i][r][0] = v_broadcast(q);
            to->of[i][r][1] = v_broadcast(q + 4);
        }
}

/* Sums of products of R queries with W keys: of words, of bytes with the first of a query's two
 * vectors, and with the second. */
typedef struct score_sums {
    word_sums words[4];
    byte_sums first[4], second[4];
} score_sums;

/* Adds the products with 4 bytes of W keys. Sums are kept: a compiler that puts them off has all
 * products wait for them on the stack. */
static inline __attribute__((always_inline)) void
score_bytes(score_sums *sums, vi x, const vi q[4][2], const int R, const int bits) {
    vi a, b; /* what the first vector is multiplied with, and the second */
    if (bits == 4) {
        a = v_even_nibbles(x);
        b = v_odd_nibbles(x);
    } else if (BY_BYTES) a = b = multiplied_bytes(x);
    else {
        a = v_even_bytes(x);
        b = v_odd_bytes(x);
    }
    for (int r = 0; r < R; r++)
        if (bits == 8 && !BY_BYTES) {
            sums->words[r] = v_keep_words(v_dot_words(sums->words[r], a, q[r][0]));
            sums->words[r] = v_keep_words(v_dot_words(sums->words[r], b, q[r][1]));
        } else {
            byte_sums *second = bits == 4 ? &sums->first[r] : &sums->second[r];
            sums->first[r] = v_keep_bytes(v_dot_bytes(sums->first[r], a, q[r][0]));
            *second = v_keep_bytes(v_dot_bytes(*second, b, q[r][1]));
        }
}

/* total[r] += the products of R queries with W keys, a group of them; row points to the group. */
static inline __attribute__((always_inline)) void score_group(vi total[4], const query_words *q,
                                                              const char *row, int64_t step_bytes,
                                                              int64_t bytes, const int R,
                                                              const int bits) {
    score_sums sums;
    for (int r = 0; r < R; r++) {
        sums.words[r] = (word_sums){0};
        sums.first[r] = sums.second[r] = (byte_sums){0};
    }
    for (int64_t at = 0; at < bytes; at += LANE_BYTES) {
        vi x[4];
        v_columns(x, row + at, step_bytes);
        for (int i = 0; i < 4; i++) score_bytes(&sums, x[i], q->of[at / 4 + i], R, bits);
        for (int r = 0; bits == 4 && r < R; r++) {
            total[r] += v_fold_bytes(sums.first[r]);
            sums.first[r] = (byte_sums){0};
        }
    }
    for (int r = 0; bits == 8 && r < R; r++)
        if (BY_BYTES) total[r] += 256 * v_fold_bytes(sums.first[r]) + v_fold_bytes(sums.second[r]);
        else total[r] += v_fold_words(sums.words[r]);
}

/* sums[r][j] += those of group g, for all keys. */
static inline __attribute__((always_inline)) void score_groups(float sums[4][KVC__BLOCK],
                                                               const kvc__tile *t,
                                                               const kvc__block *k, int64_t g,
                                                               const int R, const int bits) {
    const int64_t bytes = k->group * bits / 8, width = t->key_width;
    const float *scales = k->scales + g * KVC__BLOCK, *biases = k->biases + g * KVC__BLOCK;
    const char *row = k->data + g * bytes;
    int64_t step_bytes = k->step_bytes;
    const query_group *own[4];
    last_rows last;
    query_words q;
    spread_queries(&q, t, g, bytes, R);
    for (int r = 0; r < R; r++) own[r] = query_groups(t->q + r * width, width) + g;
    for (int64_t j = 0; j < k->count; j += W, row += W * step_bytes) {
        vi total[4];
        if (g == 0) kvc__ask(k->ahead, W * width);
        if (k->count - j < W) {
            copy_last(&last, row, step_bytes, k->count - j, bytes, W);
            row = last.bytes[0];
            step_bytes = sizeof last.bytes[0];
        }
        for (int r = 0; r < R; r++) total[r] = v_broadcast(&own[r]->offset);
        score_group(total, &q, row, step_bytes, bytes, R, bits);
        const vf scale = v_load(scales + j);
        const vf middle = v_load(biases + j) + scale * v_set((float)middle_of(bits));
        for (int r = 0; r < R; r++) {
            vf sum = v_load(sums[r] + j) + middle * v_set(own[r]->total);
            sum += v_float(total[r]) * (scale * v_set(own[r]->scale));
            v_store(sums[r] + j, sum);
        }
    }
}

/* As score. Sums that are not finite are taken again: scales of infinity, or products that overflow
 * and have a sum. */
static inline __attribute__((always_inline)) void score_packed(float *restrict s,
                                                               const kvc__tile *t,
                                                               const kvc__block *k, const int R,
                                                               const int bits) {
    float sums[4][KVC__BLOCK];
    vf nothing = v_set(0); /* until a sum is not finite */
    memset(sums, 0, (size_t)R * sizeof *sums);
    for (int64_t g = 0; g < k->groups; g++) score_groups(sums, t, k, g, R, bits);
    for (int64_t j = 0; j < k->count; j += W) {
        vf x[4];
        for (int r = 0; r < R; r++) x[r] = v_load(sums[r] + j);
        for (int r = 0; r < R; r++) nothing += x[r] * v_set(0);
        store_by_turns(s + j * R, x, R);
    }
    if (sum_of(nothing) == 0) return;
    for (int64_t i = 0; i < k->count * R; i++)
        if (!(fabsf(s[i]) < INFINITY))
            s[i] = score_slowly(t->q + i % R * t->key_width, t->key_width, k, i / R, bits);
}

#endif
