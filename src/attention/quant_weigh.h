/** @file
 * Weighted sums of packed values, for tile_quant.h, which tells how. Lanes are dims; two positions
 * of 8 bits or four of 4 are added up by an instruction. */
#ifndef KVC_ATTENTION_QUANT_WEIGH_H
#define KVC_ATTENTION_QUANT_WEIGH_H

/* p of a block, row by row, and zeros behind them. */
typedef struct weight_rows {
    float p[4][KVC__BLOCK];
} weight_rows;

/* p · s of a block and group as integers, of 16 bits for values of 8, of 8 for values of 4. Of
 * those in two bytes all high ones come first. */
typedef struct weights {
    _Alignas(32) char integers[4][KVC__BLOCK * 2];
    float step[4]; /* of the integers */
    float rest[4]; /* Σ_j p_j (b_j + c s_j) - step · surplus · Σ of the integers */
} weights;

/* x, but 0 in lanes from n on. */
static inline vf keep_first(vf x, int64_t n) {
    static const int32_t ones[2 * KVC__UNIT_MOST / 2] = {
        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
    };
    vi mask;
    if (n >= W) return x;
    memcpy(&mask, ones + KVC__UNIT_MOST / 2 - n, sizeof mask);
    return (vf)((vi)x & mask);
}

static inline vf v_magnitude(vf x) {
    return (vf)((vi)x & ~(vi)v_set(-0.0f));
}

static inline __attribute__((always_inline)) void
split_rows(weight_rows *rows, const float *p, int64_t step, int64_t count, const int R) {
    const int64_t whole = step == R ? count / W * W : 0;
    for (int r = 0; r < R; r++)
        memset(rows->p[r] + whole, 0, (size_t)(KVC__BLOCK - whole) * sizeof(float));
    for (int64_t j = 0; j < whole; j += W) {
        vf x[4];
        if (R == 1) x[0] = v_load(p + j);
        if (R == 2) v_unzip(&x[0], &x[1], v_load(p + j * R), v_load(p + j * R + W));
        if (R == 4) v_columns((vi *)x, (const char *)(p + j * R), R * (int64_t)sizeof *p);
        for (int r = 0; r < R; r++) v_store(rows->p[r] + j, x[r]);
    }
    for (int64_t j = whole; j < count; j++)
        for (int r = 0; r < R; r++) rows->p[r][j] = p[j * step + r];
}

/* Positions, or channels, until sums of products of bytes overflow. */
enum { BYTES_MOST = 32 };

/* Weights that are rounded at a time. */
#define ROUNDED ((int64_t)4 * W)

/* Scales s and b + c s of a group, by whole steps of rounding: zeros behind the last. */
typedef struct weight_scaling {
    float scales[KVC__BLOCK], biases[KVC__BLOCK];
    int64_t count;
} weight_scaling;

static inline __attribute__((always_inline)) void
scale_group(weight_scaling *to, const kvc__block *v, int64_t g, const int bits) {
    const float *scales = v->scales + g * KVC__BLOCK, *biases = v->biases + g * KVC__BLOCK;
    const vf middle = v_set((float)middle_of(bits));
    to->count = (v->count + ROUNDED - 1) / ROUNDED * ROUNDED;
    for (int64_t j = 0; j < to->count; j += W) {
        const int64_t left = v->count - j;
        const vf scale = left > 0 ? keep_first(v_load(scales + j), left) : v_set(0);
        const vf bias = left > 0 ? keep_first(v_load(biases + j), left) : v_set(0);
        v_store(to->scales + j, scale);
        v_store(to->biases + j, bias + scale * middle);
    }
}

/* Integers of weights j and on, narrowed. */
static inline __attribute__((always_inline)) void store_rounded(char *to, int64_t j, vi x[4],
                                                                const int bits) {
    if (bits == 8 && BY_BYTES) {
        vi high[4];
        for (int i = 0; i < 4; i++) {
            high[i] = (x[i] + 128) >> 8;
            x[i] -= 256 * high[i];
        }
        v_store_bytes((int8_t *)to + j, high);
        v_store_bytes((int8_t *)to + KVC__BLOCK + j, x);
    } else if (bits == 8) {
        int16_t *words = (int16_t *)(void *)to + j;
        v_store_words(words, x[0], x[1]);
        v_store_words(words + ROUNDED / 2, x[2], x[3]);
    } else v_store_bytes((int8_t *)to + j, x);
}

/* A row's weights as integers; returns their sums by lanes. */
static inline __attribute__((always_inline)) vi
round_row(char *to, const float *p, const weight_scaling *own, float inverse, const int bits) {
    vi sum = {0};
    for (int64_t j = 0; j < own->count; j += ROUNDED) {
        vi x[4];
        for (int i = 0; i < 4; i++) {
            const vf scale = v_load(own->scales + j + (int64_t)i * W) * v_set(inverse);
            x[i] = v_round(v_load(p + j + (int64_t)i * W) * scale);
        }
        sum += (x[0] + x[1]) + (x[2] + x[3]);
        store_rounded(to, j, x, bits);
    }
    return sum;
}

/* The weights of group g. Tells whether they are as finite as integers want. */
static inline __attribute__((always_inline)) bool round_weights(weights *to,
                                                                const weight_rows *rows,
                                                                const kvc__block *v, int64_t g,
                                                                const int R, const int bits) {
    weight_scaling own;
    vf most[4], rest[4];
    scale_group(&own, v, g, bits);
    for (int r = 0; r < R; r++) most[r] = rest[r] = v_set(0);
    for (int64_t j = 0; j < own.count; j += W) {
        const vf scale = v_magnitude(v_load(own.scales + j)), bias = v_load(own.biases + j);
        for (int r = 0; r < R; r++) {
            const vf p = v_load(rows->p[r] + j);
            most[r] = v_max(p * scale, most[r]);
            rest[r] += p * bias;
        }
    }
    for (int r = 0; r < R; r++) {
        const float top = most_in(most[r]), all = sum_of(rest[r]);
        if (!(top < 0x1p100f && fabsf(all) < INFINITY)) return false;
        const float inverse = top > 0x1p-100f ? most_of(bits) / top : 0;
        const vi sum = round_row(to->integers[r], rows->p[r], &own, inverse, bits);
        to->step[r] = top / most_of(bits);
        to->rest[r] = all - to->step[r] * (float)surplus_of(bits) * sum_of(v_float(sum));
    }
    return true;
}

/* Four bytes of the weights of row r, by lanes. */
static inline __attribute__((always_inline)) vi weights_at(const weights *w, const bool same, int r,
                                                           int64_t byte) {
    const void *from[LANES];
    for (int l = 0; l < LANES; l++) from[l] = w[l].integers[r] + byte;
    return v_lanes(from, same);
}

/* Adds the products of two positions of 8 bits, of dims 8 tile to 8 tile + 7 of each lane. */
static inline __attribute__((always_inline)) void
add_words(word_sums sum[4][2], const char *row, int64_t step_bytes, int64_t lanes, const weights *w,
          const bool same, int64_t j, const int tile, const int R) {
    const vi both =
        v_zip_words(v_load_bytes(row, lanes), v_load_bytes(row + step_bytes, lanes), tile);
    const vi even = v_even_bytes(both), odd = v_odd_bytes(both);
    for (int r = 0; r < R; r++) {
        const vi weight = weights_at(w, same, r, 2 * j);
        sum[r][0] = v_dot_words(sum[r][0], even, weight);
        sum[r][1] = v_dot_words(sum[r][1], odd, weight);
    }
}

/* The same of four positions of 4 bits. Sums are kept: a compiler that loads all weights first has
 * one register too few, and a sum on the stack takes eight cycles from one product to the next. */
static inline __attribute__((always_inline)) void
add_bytes(byte_sums sum[4][2], const char *row, int64_t step_bytes, int64_t lanes, const weights *w,
          const bool same, int64_t j, const int tile, const int R) {
    const char *more = row + 2 * step_bytes;
    const vi a = v_load_bytes(row, lanes), b = v_load_bytes(row + step_bytes, lanes);
    const vi c = v_load_bytes(more, lanes), d = v_load_bytes(more + step_bytes, lanes);
    const vi four = v_zip_words(v_zip_bytes(a, b, tile / 2), v_zip_bytes(c, d, tile / 2), tile % 2);
    const vi even = v_even_nibbles(four), odd = v_odd_nibbles(four);
    for (int r = 0; r < R; r++) {
        const vi weight = weights_at(w, same, r, j);
        sum[r][0] = v_keep_bytes(v_dot_bytes(sum[r][0], even, weight));
        sum[r][1] = v_keep_bytes(v_dot_bytes(sum[r][1], odd, weight));
    }
}

/* The same of four positions of 8 bits, by bytes: a high sum and a low one for each. */
static inline __attribute__((always_inline)) void
add_both_bytes(byte_sums high[4][2], byte_sums low[4][2], const char *row, int64_t step_bytes,
               int64_t lanes, const weights *w, const bool same, int64_t j, const int tile,
               const int R) {
    const char *more = row + 2 * step_bytes;
    const vi a = v_load_bytes(row, lanes), b = v_load_bytes(row + step_bytes, lanes);
    const vi c = v_load_bytes(more, lanes), d = v_load_bytes(more + step_bytes, lanes);
    const vi ab = v_zip_bytes(a, b, tile), cd = v_zip_bytes(c, d, tile);
    const vi x[2] = {multiplied_bytes(v_zip_words(ab, cd, 0)),
                     multiplied_bytes(v_zip_words(ab, cd, 1))};
    for (int r = 0; r < R; r++) {
        const vi first = weights_at(w, same, r, j), second = weights_at(w, same, r, KVC__BLOCK + j);
        for (int i = 0; i < 2; i++) {
            high[r][i] = v_keep_bytes(v_dot_bytes(high[r][i], x[i], first));
            low[r][i] = v_keep_bytes(v_dot_bytes(low[r][i], x[i], second));
        }
    }
}

/* total[r] += the sums of positions [begin, end), fewer than overflow, two vectors a row. */
static inline __attribute__((always_inline)) void
sum_positions(vi total[4][2], const kvc__block *v, int64_t begin, int64_t end, int64_t at,
              int64_t lanes, const weights *w, const bool same, const int tile, const int R,
              const int bits) {
    const int together = bits == 8 && !BY_BYTES ? 2 : 4;
    const int64_t step_bytes = v->step_bytes;
    const char *row = v->data + begin * step_bytes + at;
    word_sums words[4][2];
    byte_sums bytes[4][2], low[4][2];
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++) {
            words[r][i] = (word_sums){0};
            bytes[r][i] = low[r][i] = (byte_sums){0};
        }
    int64_t j = begin;
    for (; j + together <= end; j += together, row += together * step_bytes)
        if (bits == 4) add_bytes(bytes, row, step_bytes, lanes, w, same, j, tile, R);
        else if (BY_BYTES) add_both_bytes(bytes, low, row, step_bytes, lanes, w, same, j, tile, R);
        else add_words(words, row, step_bytes, lanes, w, same, j, tile, R);
    if (j < end) {
        last_rows last;
        const char *rows = last.bytes[0];
        const int64_t bytes_each = sizeof last.bytes[0];
        copy_last(&last, row, step_bytes, end - j, lanes * LANE_BYTES, together);
        if (bits == 4) add_bytes(bytes, rows, bytes_each, lanes, w, same, j, tile, R);
        else if (BY_BYTES) add_both_bytes(bytes, low, rows, bytes_each, lanes, w, same, j, tile, R);
        else add_words(words, rows, bytes_each, lanes, w, same, j, tile, R);
    }
    for (int r = 0; r < R; r++)
        for (int i = 0; i < 2; i++)
            if (bits == 4) total[r][i] += v_fold_bytes(bytes[r][i]);
            else if (BY_BYTES)
                total[r][i] += 256 * v_fold_bytes(bytes[r][i]) + v_fold_bytes(low[r][i]);
            else total[r][i] += v_fold_words(words[r][i]);
}

/* sums[r] = sums[r] · factor[r] + those of 8 dims of each lane: those at d and every `dims` on. */
static inline __attribute__((always_inline)) void
weigh_tile(float *restrict sums, const float *factor, const kvc__block *v, int64_t width, int64_t d,
           int64_t lanes, const weights *w, const bool same, const int tile, const int R,
           const int bits) {
    const int64_t dims = (int64_t)LANE_BYTES * 8 / bits;
    const int64_t most = bits == 8 ? KVC__BLOCK : BYTES_MOST;
    vi total[4][2];
    kvc__ask(v->ahead, v->count * lanes * 8);
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = (vi){0};
    for (int64_t j = 0; j < v->count; j += most) {
        const int64_t end = j + most < v->count ? j + most : v->count;
        sum_positions(total, v, j, end, d * bits / 8, lanes, w, same, tile, R, bits);
    }
    for (int r = 0; r < R; r++) {
        const void *steps[LANES], *rests[LANES];
        for (int l = 0; l < LANES; l++) {
            steps[l] = &w[l].step[r];
            rests[l] = &w[l].rest[r];
        }
        const vf step = (vf)v_lanes(steps, same), rest = (vf)v_lanes(rests, same);
        v_add_lanes(sums + r * width + d + (int64_t)tile * 8, dims, lanes, v_set(factor[r]),
                    v_float(total[r][0]) * step + rest, v_float(total[r][1]) * step + rest);
    }
}

/* All dims of `lanes` lanes, the first of which are at d. */
static inline __attribute__((always_inline)) void
weigh_span(float *restrict sums, const float *factor, const kvc__block *v, int64_t width, int64_t d,
           int64_t lanes, const weights *w, const bool same, const int R, const int bits) {
    weigh_tile(sums, factor, v, width, d, lanes, w, same, 0, R, bits);
    weigh_tile(sums, factor, v, width, d, lanes, w, same, 1, R, bits);
    if (bits == 8) return;
    weigh_tile(sums, factor, v, width, d, lanes, w, same, 2, R, bits);
    weigh_tile(sums, factor, v, width, d, lanes, w, same, 3, R, bits);
}

/* Dims d to end in f32, one product after another, as the formula has it. */
static void weigh_slowly(float *restrict sums, const weight_rows *rows, const float *factor,
                         const kvc__block *v, int64_t width, int64_t d, int64_t end, int R,
                         const int bits) {
    for (int r = 0; r < R; r++)
        for (int64_t i = d; i < end; i++) {
            float *sum = sums + r * width + place_packed(i, bits);
            const int64_t g = i / v->group * KVC__BLOCK;
            *sum *= factor[r];
            for (int64_t j = 0; j < v->count; j++)
                *sum += rows->p[r][j] *
                        (v->scales[g + j] * element_of(v->data + j * v->step_bytes, i, bits) +
                         v->biases[g + j]);
        }
}

/* A sum_fn. Groups go one by one, or those that share a register together. */
static inline __attribute__((always_inline)) void
weigh_packed(float *restrict sums, const float *restrict p, int64_t step, const float *factor,
             const kvc__block *v, int64_t width, const int R, const int bits) {
    const int64_t dims = (int64_t)LANE_BYTES * 8 / bits, span = dims * LANES;
    const int64_t chunk = v->group > span ? v->group : span;
    const bool same = v->group >= span;
    weight_rows rows;
    split_rows(&rows, p, step, v->count, R);
    for (int64_t d = 0; d < width; d += chunk) {
        const int64_t end = d + chunk < width ? d + chunk : width;
        weights w[LANES];
        bool finite = true;
        for (int l = 0; l < (same ? 1 : LANES); l++) {
            const int64_t at = d + l * dims;
            if (at < end && at % v->group == 0)
                finite = round_weights(&w[l], &rows, v, at / v->group, R, bits) && finite;
            else if (l > 0) w[l] = w[l - 1];
        }
        if (!finite) {
            weigh_slowly(sums, &rows, factor, v, width, d, end, R, bits);
            continue;
        }
        for (int64_t at = d; same && at < end; at += span)
            weigh_span(sums, factor, v, width, at, LANES, w, true, R, bits);
        if (!same) weigh_span(sums, factor, v, width, d, (end - d) / dims, w, false, R, bits);
    }
}

#endif
