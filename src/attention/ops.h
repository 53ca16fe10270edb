/** @file
 * The table of inner loops, one an instruction set, filled at start; and what they work on. */
#ifndef KVC_ATTENTION_OPS_H
#define KVC_ATTENTION_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include <kvcache/dtype.h>

#include "attention/exp.h"
#include "base/isa.h"

/** The most positions of a block: of 128 dims in 8 bits 16 KiB of keys, as much of values. */
#define KVC__BLOCK 128

/** The most of one that is not packed, or of which bits tell what rows see: of 128 dims in a half
 * type as many bytes. */
#define KVC__SHORT_BLOCK 64

/** The most elements that a loader takes at a time. */
#define KVC__UNIT_MOST 32

/** Room for the scores of a block and four rows, and a vector more. */
#define KVC__SCORES (4 * KVC__BLOCK + KVC__UNIT_MOST)

/** R rows at work, R in {1, 2, 4}. Widths are dims rounded up to whole units, the rest zeros;
 * elements of a unit lie in the order of the loader. */
typedef struct kvc__tile {
    const float *q; /**< [R][key_width], scaled unless prepared by rounding, prepared */
    float *sums;    /**< [R][value_width], Σ p v */
    float *max;     /**< [R], largest score so far */
    float *total;   /**< [R], Σ p */
    int64_t key_width, value_width;
    float scale; /**< of scores, where queries are rounded: one in bf16 then stays exact */
} kvc__tile;

/** Rewrites a query in place, as a set's score loops want it.
 * @param group  elements of a key that share a scale; 0 where keys are not packed */
typedef void (*kvc__prepare_fn)(float *q, int64_t width, int64_t group);

/** Copies scales or biases into f32, group by group: to[g · KVC__BLOCK + j] = from[j][g].
 * @param from   [count][groups]
 * @param count  0 to KVC__BLOCK */
typedef void (*kvc__scaling_fn)(float *to, const void *from, kvc_dtype dtype, int64_t groups,
                                int64_t count);

/** Rows read at the same time: keys and values of two ranges of positions. */
#define KVC__STREAMS 4

struct kvc__work;

/** Rows that are to be read soon. They are asked for while others are computed with, in the order
 * in which they lie, a few streams by turns: one stream keeps too few lines on their way, and each
 * has a prefetcher of the hardware at work for it. */
typedef struct kvc__ahead {
    const char *at[KVC__STREAMS];
    int64_t due; /**< elements computed with, for which nothing was asked yet */
    /* Where the rows of all streams touch and are as long, by turns a line: */
    int64_t line_elements; /**< > 0 */
    int64_t offset_bytes;
    /* Otherwise a row: */
    int turn;                    /**< the stream that is next */
    int64_t width[KVC__STREAMS]; /**< elements of a row, as tiles count them */
    int64_t row_bytes[KVC__STREAMS], step_bytes[KVC__STREAMS];
    /* Where rows stop to follow each other (ahead.c): */
    int64_t safe;                   /**< elements, before whose rows no stream has to go on */
    const struct kvc__work *work;   /**< whose rows these are */
    const char *stop[KVC__STREAMS]; /**< where a stream's rows end; NULL: nowhere */
    int64_t position[KVC__STREAMS]; /**< with which it goes on there */
} kvc__ahead;

/** Positions of keys or values. */
typedef struct kvc__block {
    const char *data;
    int64_t step_bytes; /**< from position to position */
    int64_t count;      /**< 0 to KVC__BLOCK; nothing behind them is read */
    int64_t dim;        /**< elements of each; whole units, unless tiles take any dim */
    kvc__ahead *ahead;  /**< as many elements of it are asked for meanwhile */
    /* Of packed elements: */
    const float *scales, *biases; /**< [groups][KVC__BLOCK], `count` of each in use */
    int64_t groups;               /**< of a row */
    int64_t group;                /**< elements that share a scale and a bias */
    /* Of keys packed per channel, whose scales and biases are [dim]: */
    int bits;     /**< of an element, 8 or 4; those of a channel follow each other, step_bytes being
                       from channel to channel. 0: those of a position do */
    int64_t skip; /**< positions in data before the first; at most KVC__BLOCK with these */
} kvc__block;

/** Returns positions [begin, end) of a block. */
static inline kvc__block kvc__some(const kvc__block *block, int64_t begin, int64_t end) {
    kvc__block some = *block;
    some.count = end - begin;
    if (block->bits > 0) {
        some.skip += begin;
        return some;
    }
    some.data += begin * block->step_bytes;
    if (block->groups > 0) {
        some.scales += begin;
        some.biases += begin;
    }
    return some;
}

/** Positions for which loops of sums ask at a time: a pass over a block at once would be more lines
 * than a core has under way. */
#define KVC__ASKED 8

/** Asks for as many elements as are computed with. */
static inline __attribute__((always_inline)) void kvc__ask(kvc__ahead *a, int64_t elements) {
    enum { LINE_BYTES = 64 };
    a->due += elements;
    if (a->line_elements > 0) {
        const int64_t round = (int64_t)KVC__STREAMS * a->line_elements;
        for (; a->due >= round; a->due -= round) {
            for (int i = 0; i < KVC__STREAMS; i++)
                __builtin_prefetch(a->at[i] + a->offset_bytes, 0, 3);
            a->offset_bytes += LINE_BYTES;
        }
        return;
    }
    for (; a->due >= a->width[a->turn]; a->turn = (a->turn + 1) % KVC__STREAMS) {
        for (int64_t i = 0; i < a->row_bytes[a->turn]; i += LINE_BYTES)
            __builtin_prefetch(a->at[a->turn] + i, 0, 3);
        a->at[a->turn] += a->step_bytes[a->turn];
        a->due -= a->width[a->turn];
    }
}

/** Positions [begin, end) of a block: what a row sees of it. Empty where end <= begin. */
typedef struct kvc__range {
    int64_t begin, end;
} kvc__range;

/** A tile takes in a block in three steps, between which the caller may change scores.
 * Scores: s[j][r] = q[r] · k[j], of all positions of the block.
 * @param s  [KVC__SCORES], 64-byte aligned */
typedef void (*kvc__score_fn)(const kvc__tile *tile, const kvc__block *k, float *s);

/** Caps scores: s[i] = cap · tanh(s[i] / cap) for n of them, and for what fills their last vector.
 * Within 5 ulp of the true value (tests/unit/attention_variants_test.c); ±inf gives ±cap, NaN
 * stays.
 * @param cap  > 0, normal */
typedef void (*kvc__cap_fn)(float *s, int64_t n, float cap);

/** Online softmax: turns the scores that rows see into weights, those that they do not into 0.
 * @param seen    [R], within the block
 * @param factor  [R], what the sums so far scale by */
typedef void (*kvc__soften_fn)(kvc__tile *tile, const kvc__range *seen, int64_t count, float *s,
                               float *factor);

/** Weighted sums: sums[r] = sums[r] · factor[r] + Σ_j s[j][r] v[j] over what row r sees. */
typedef void (*kvc__weigh_fn)(kvc__tile *tile, const kvc__block *v, const kvc__range *seen,
                              const float *s, const float *factor);

/** Tiles of 1, 2 and 4 rows: the log2 of the rows is the place in a table. */
#define KVC__TILES 3

/** The place of a dtype in a table. */
#define KVC__OPS_SLOT(dtype) ((int)(dtype) - (int)KVC_F32)

/** Places behind those of dtypes: elements of 8 and of 4 bits, packed by groups; and scores of keys
 * packed per channel, whose queries are those of f32. */
#define KVC__OPS_Q8    3
#define KVC__OPS_Q4    4
#define KVC__OPS_C8    5
#define KVC__OPS_C4    6
#define KVC__OPS_SLOTS 7

/** Vectors of a panel (panel.h): so many times the lanes of a vector are its rows. */
#define KVC__PANEL_VECTORS 3

/** The most rows of a panel. */
#define KVC__PANEL_MOST (KVC__PANEL_VECTORS * KVC__UNIT_MOST / 2)

/** As the loops of a tile, for the rows of a panel and a block in f32: q is [key_width][rows], sums
 * is [value_width][rows], scores are s[j][rows]. A panel with fewer rows in use takes the loops of
 * fewer vectors, which leave the last rows alone.
 * @param seen  [rows], a bit a position of the block; NULL: every row sees all of it */
typedef struct kvc__panel {
    kvc__score_fn score;
    void (*soften)(kvc__tile *panel, const uint64_t *seen, int64_t count, float *s, float *factor);
    void (*weigh)(kvc__tile *panel, const kvc__block *v, const uint64_t *seen, const float *s,
                  const float *factor);
} kvc__panel;

/** Copies n elements into f32, in the order of the loader, and zeros up to a whole unit. */
typedef void (*kvc__widen_fn)(float *dst, const void *src, int64_t n);

/** The inner loops of one instruction set. */
typedef struct kvc__ops {
    int unit;           /**< elements that a loader takes at a time */
    bool takes_any_dim; /**< loaders take less than a unit at the end of a row */
    kvc__prepare_fn prepare[KVC__OPS_SLOTS]; /**< [f32, f16, bf16, q8, …]; NULL: as it is */
    bool rounds[KVC__OPS_SLOTS];             /**< prepared queries are rounded to bf16 */
    kvc__score_fn score[KVC__OPS_SLOTS][KVC__TILES]; /**< [][rows]; NULL: copy to f32 first */
    kvc__weigh_fn weigh[KVC__OPS_SLOTS][KVC__TILES];
    kvc__soften_fn soften[KVC__TILES];
    kvc__cap_fn cap;
    uint8_t place[KVC__OPS_SLOTS][KVC__UNIT_MOST]; /**< where a loader puts element i of a unit */
    kvc__widen_fn widen[3];                        /**< NULL: there is no loader */
    kvc__scaling_fn scaling;                       /**< where packed rows are read as they lie */
    int lanes;                                     /**< of a vector */
    int panel_least[KVC__OPS_SLOTS]; /**< rows from which panels are faster than these tiles */
    kvc__panel panels[KVC__PANEL_VECTORS]; /**< [vectors in use - 1] */
} kvc__ops;

/** Returns the table of kvc__isa_best. Filled once; thread-safe. */
const kvc__ops *kvc__ops_best(void);

/** Fills the table of an instruction set; portable C's for one of another kind of CPU. */
void kvc__ops_fill(kvc__ops *out, kvc__isa isa);

/** Fill the table of one instruction set. */
void kvc__ops_generic(kvc__ops *ops);
void kvc__ops_avx2(kvc__ops *ops);
void kvc__ops_avx512(kvc__ops *ops);
void kvc__ops_avx512bf16(kvc__ops *ops);
void kvc__ops_vnni(kvc__ops *ops);    /* what is packed alone */
void kvc__ops_avxvnni(kvc__ops *ops); /* likewise */
void kvc__ops_neon(kvc__ops *ops);
void kvc__ops_neon_dot(kvc__ops *ops);
void kvc__ops_neon_bf16(kvc__ops *ops);

#endif
