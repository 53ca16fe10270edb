/** @file
 * Scores of keys that are packed per channel, for tile.h. Lanes are positions: nothing is turned,
 * and nothing added up across lanes.
 *
 * Element d of a key is s_d k_d + b_d, scale s and bias b being those of the channel at all
 * positions of a packed block. So scores are
 *     Σ_d (q_d s_d) k_d + Σ_d q_d b_d
 * of which q s and the second sum are computed once for a row and block: an element is then to be
 * made a float, once for all rows, and multiplied and added once a row.
 *
 * Nothing is rounded but in f32, so that with n dims, k of at most m,
 *     |error| <= (n + 3) · 2^-24 · Σ_d |q_d| (|s_d| m + |b_d|)
 * in which |s_d| m is what the channel spans, thus at most twice, and |b_d| at most once the
 * largest that there is in the channel. Sums that are not finite are taken again as the formula has
 * them: q s may be infinite where k is 0, or both sums where their sum is not.
 *
 * Wants of the instruction set besides what tile.h wants:
 *     vf v_bytes(const char *)           W bytes
 *     v_nibbles(even, odd, const char *) 2 W elements of 4 bits: those at even, those at odd places
 *     v_zip(lower, upper, a, b)          2 W floats by turns of a and b */
#ifndef KVC_ATTENTION_TILE_CHANNELS_H
#define KVC_ATTENTION_TILE_CHANNELS_H

/* to[i][r] = x[r][i], W of each. */
static inline __attribute__((always_inline)) void store_by_turns(float *to, vf x[4], const int R) {
    vf even[2], odd[2];
    if (R == 2) v_zip(&x[0], &x[1], x[0], x[1]);
    if (R == 4) { /* rows 0 and 2 by turns, 1 and 3 by turns, then both */
        v_zip(&even[0], &even[1], x[0], x[2]);
        v_zip(&odd[0], &odd[1], x[1], x[3]);
        v_zip(&x[0], &x[1], even[0], odd[0]);
        v_zip(&x[2], &x[3], even[1], odd[1]);
    }
    for (int i = 0; i < R; i++) v_store(to + (int64_t)i * W, x[i]);
}

/* Rows of queries for a packed block: q s, and Σ q b. */
typedef struct channel_queries {
    float of[KVC__FUSED_MAX_DIM * 4]; /* [dim][R] */
    float rest[4];
} channel_queries;

static inline __attribute__((always_inline)) void
scale_queries(channel_queries *to, const kvc__tile *t, const kvc__block *k, const int R) {
    vf rest[4];
    for (int r = 0; r < R; r++) rest[r] = v_set(0);
    for (int64_t d = 0; d < k->dim; d += W) {
        const vf scale = v_load(k->scales + d), bias = v_load(k->biases + d);
        vf x[4];
        for (int r = 0; r < R; r++) {
            const vf q = v_load(t->q + r * t->key_width + d);
            x[r] = q * scale;
            rest[r] += q * bias;
        }
        store_by_turns(to->of + d * R, x, R);
    }
    for (int r = 0; r < R; r++) to->rest[r] = sum_of(rest[r]);
}

/* Scores of UNITS times 2 W positions from j on, of R rows: eight sums at once, as in weigh. */
static inline __attribute__((always_inline)) void
score_columns(float sums[4][KVC__BLOCK + W], const channel_queries *q, const kvc__block *k,
              int64_t j, const int R, const int UNITS, const int bits) {
    const char *column = k->data + j * bits / 8;
    vf sum[4][2];
    kvc__ask(k->ahead, UNITS * UNIT * k->dim);
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++) sum[u * R + r][0] = sum[u * R + r][1] = v_set(q->rest[r]);
    for (int64_t d = 0; d < k->dim; d++, column += k->step_bytes)
        for (int u = 0; u < UNITS; u++) {
            const char *from = column + u * UNIT * bits / 8;
            vf x, y;
            if (bits == 8) {
                x = v_bytes(from);
                y = v_bytes(from + W);
            } else v_nibbles(&x, &y, from);
            for (int r = 0; r < R; r++) {
                const vf weight = v_set(q->of[d * R + r]);
                sum[u * R + r][0] += weight * x;
                sum[u * R + r][1] += weight * y;
            }
        }
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < R; r++) {
            vf x = sum[u * R + r][0], y = sum[u * R + r][1];
            if (bits == 4) v_zip(&x, &y, x, y);
            v_store(sums[r] + j + u * UNIT, x);
            v_store(sums[r] + j + u * UNIT + W, y);
        }
}

/* One score in f32, one element after another, as the formula has it. */
static float score_channels_slowly(const float *q, const kvc__block *k, int64_t j, const int bits) {
    float sum = 0;
    for (int64_t d = 0; d < k->dim; d++)
        sum += q[d] * (k->scales[d] * element_of(k->data + d * k->step_bytes, k->skip + j, bits) +
                       k->biases[d]);
    return sum;
}

/* Scores of the positions of k; tells whether all sums are finite. */
static inline __attribute__((always_inline)) bool
store_scores(float *restrict s, float sums[4][KVC__BLOCK + W], const kvc__block *k, const int R) {
    vf nothing = v_set(0); /* until a sum is not finite */
    for (int64_t j = 0; j < k->count; j += W) {
        vf x[4];
        for (int r = 0; r < R; r++) x[r] = v_load(sums[r] + k->skip + j);
        for (int r = 0; r < R; r++) nothing += x[r] * v_set(0);
        store_by_turns(s + j * R, x, R);
    }
    return sum_of(nothing) == 0;
}

/* As score. Whole units are computed, of positions that are all there: packed together are at least
 * 32. */
static inline __attribute__((always_inline)) void score_channels(float *restrict s,
                                                                 const kvc__tile *t,
                                                                 const kvc__block *k, const int R,
                                                                 const int bits) {
    const int units = 4 / R;
    const int64_t end = k->skip + k->count;
    float sums[4][KVC__BLOCK + W];
    channel_queries q;
    scale_queries(&q, t, k, R);
    for (int r = 0; r < R; r++) v_store(sums[r] + (end + UNIT - 1) / UNIT * UNIT, v_set(0));
    int64_t j = k->skip / UNIT * UNIT;
    for (; j + (units - 1) * UNIT < end; j += units * UNIT)
        score_columns(sums, &q, k, j, R, units, bits);
    for (; j < end; j += UNIT) score_columns(sums, &q, k, j, R, 1, bits);
    if (store_scores(s, sums, k, R)) return;
    for (int64_t i = 0; i < k->count * R; i++)
        if (!(fabsf(s[i]) < INFINITY))
            s[i] = score_channels_slowly(t->q + i % R * t->key_width, k, i / R, bits);
}

#define CHANNELS_TILE(R, bits)                                                                     \
    static void score_##R##_c##bits(const kvc__tile *t, const kvc__block *k, float *s) {           \
        score_channels(s, t, k, R, bits);                                                          \
    }
CHANNELS_TILE(1, 8)
CHANNELS_TILE(2, 8)
CHANNELS_TILE(4, 8)
CHANNELS_TILE(1, 4)
CHANNELS_TILE(2, 4)
CHANNELS_TILE(4, 4)

static inline void fill_channels(kvc__ops *ops) {
    const kvc__score_fn scores[2][KVC__TILES] = {SCORES(c8), SCORES(c4)};
    memcpy(ops->score[KVC__OPS_C8], scores, sizeof scores);
}

#endif
