/** @file
 * Scores of keys that are packed per channel (tile_channels.h) by products of integers, for
 * tile_quant.h: channels are here what positions are for weighted sums, queries what weights are.
 * So q s is rounded for 64 channels at a time, and a score is
 *     Σ_d q_d s_d (k_d - c) + Σ_d q_d (b_d + c s_d)
 * which rounding has off by at most 2^-9 (8 bits) or 2^-5 (4 bits) of the largest |q s| of the 64
 * for each channel. Elements of fewer bits than 8 in bytes of their own are as those of 8. */
#ifndef KVC_ATTENTION_QUANT_CHANNELS_H
#define KVC_ATTENTION_QUANT_CHANNELS_H

#include "attention/quant_weigh.h"

/* Channels whose queries are rounded together. */
enum { CHANNELS = 64 };

/* q s of R rows and up to CHANNELS of them as integers; all lanes take the first. Tells whether
 * they are as finite as integers want. */
static inline __attribute__((always_inline)) bool
round_channels(weights to[LANES], const kvc__tile *t, const kvc__block *k, int64_t first,
               int64_t count, const int R, const int bits) {
    const vf middle = v_set((float)middle_of(bits));
    float products[4][CHANNELS];
    vf most[4], rest[4];
    for (int r = 0; r < R; r++) most[r] = rest[r] = v_set(0);
    for (int64_t d = 0; d < count; d += W) {
        const vf scale = v_load(k->scales + first + d);
        const vf bias = v_load(k->biases + first + d) + scale * middle;
        for (int r = 0; r < R; r++) {
            const vf q = v_load(t->q + r * t->key_width + first + d), x = q * scale;
            v_store(products[r] + d, x);
            most[r] = v_max(v_magnitude(x), most[r]);
            rest[r] += q * bias;
        }
    }
    for (int r = 0; r < R; r++) {
        const float top = most_in(most[r]), all = sum_of(rest[r]);
        if (!(top < 0x1p100f && fabsf(all) < INFINITY)) return false;
        const float inverse = top > 0x1p-100f ? most_of(bits) / top : 0;
        vi sum = {0};
        for (int64_t d = 0; d < count; d += ROUNDED) {
            vi x[4];
            for (int i = 0; i < 4; i++)
                x[i] = v_round(v_load(products[r] + d + (int64_t)i * W) * v_set(inverse));
            sum += (x[0] + x[1]) + (x[2] + x[3]);
            store_rounded(to->integers[r], d, x, bits);
        }
        to->step[r] = top / most_of(bits);
        to->rest[r] = all - to->step[r] * (float)surplus_of(bits) * sum_of(v_float(sum));
    }
    return true;
}

/* sums[r] += those of channels v, eight positions of each of `lanes` lanes: from `first` on, and
 * every `positions` behind it. */
static inline __attribute__((always_inline)) void
score_channel_tile(float sums[4][KVC__BLOCK + W], const kvc__block *v, int64_t first, int64_t lanes,
                   const weights *w, const int tile, const int R, const int bits) {
    const int64_t positions = (int64_t)LANE_BYTES * 8 / bits;
    const int64_t most = bits == 8 ? CHANNELS : BYTES_MOST;
    vi total[4][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = (vi){0};
    for (int64_t d = 0; d < v->count; d += most) {
        const int64_t end = d + most < v->count ? d + most : v->count;
        sum_positions(total, v, d, end, first * bits / 8, lanes, w, true, tile, R, bits);
    }
    for (int r = 0; r < R; r++) {
        const vf step = v_set(w->step[r]), rest = v_set(w->rest[r]);
        vf x[2] = {v_float(total[r][0]) * step + rest, v_float(total[r][1]) * step + rest};
        float *to = sums[r] + first + (int64_t)tile * 8;
        if (place_packed(1, bits) == 1) {
            v_add_lanes(to, positions, lanes, v_set(1), x[0], x[1]);
            continue;
        }
        v_zip(&x[0], &x[1], x[0], x[1]);
        for (int64_t i = 0; i < lanes * 8; i += W) {
            float *eight = to + i / 8 * positions + i % 8;
            v_store(eight, v_load(eight) + x[i / W]);
        }
    }
}

/* sums[r] += those of channels v, of all positions of `lanes` lanes. */
static inline __attribute__((always_inline)) void
score_channel_span(float sums[4][KVC__BLOCK + W], const kvc__block *v, int64_t first, int64_t lanes,
                   const weights *w, const int R, const int bits) {
    score_channel_tile(sums, v, first, lanes, w, 0, R, bits);
    score_channel_tile(sums, v, first, lanes, w, 1, R, bits);
    if (bits == 8) return;
    score_channel_tile(sums, v, first, lanes, w, 2, R, bits);
    score_channel_tile(sums, v, first, lanes, w, 3, R, bits);
}

/* As score_channels, which takes what integers do not. */
static inline __attribute__((always_inline)) void
score_channels_packed(float *restrict s, const kvc__tile *t, const kvc__block *k, const int R,
                      const int bits) {
    const int64_t lane = (int64_t)LANE_BYTES * 8 / bits, end = k->skip + k->count;
    float sums[4][KVC__BLOCK + W];
    weights w[LANES];
    for (int r = 0; r < R; r++)
        for (int64_t j = 0; j < KVC__BLOCK + W; j += W) v_store(sums[r] + j, v_set(0));
    for (int64_t d = 0; d < k->dim; d += CHANNELS) {
        const int64_t count = kvc__smaller(k->dim - d, CHANNELS);
        const kvc__block some = {
            .data = k->data + d * k->step_bytes, .step_bytes = k->step_bytes, .count = count};
        if (!round_channels(w, t, k, d, count, R, bits)) {
            score_channels(s, t, k, R, bits);
            return;
        }
        kvc__ask(k->ahead, count * k->count);
        for (int64_t first = 0; first < end; first += lane * LANES) {
            const int64_t lanes = (end - first + lane - 1) / lane;
            score_channel_span(sums, &some, first, lanes < LANES ? lanes : LANES, w, R, bits);
        }
    }
    store_scores(s, sums, k, R);
}

#define PACKED_CHANNELS(R, bits)                                                                   \
    static void score_##R##_i##bits(const kvc__tile *t, const kvc__block *k, float *s) {           \
        score_channels_packed(s, t, k, R, bits);                                                   \
    }
PACKED_CHANNELS(1, 8)
PACKED_CHANNELS(2, 8)
PACKED_CHANNELS(4, 8)
PACKED_CHANNELS(1, 4)
PACKED_CHANNELS(2, 4)
PACKED_CHANNELS(4, 4)

#endif
