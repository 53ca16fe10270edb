/* What a run of `bench attend` is: its keys, bytes and operations. */
#include "attend_measure.h"

static uint64_t saturated(double count) {
    return count < 0x1p58 ? (uint64_t)count : (uint64_t)1 << 58;
}

int64_t attend_length(const attend_shape *s, int64_t context, int64_t rank) {
    if (s->shortest == 0 || s->batch == 1) return context;
    return s->shortest + (context - s->shortest) * rank / (s->batch - 1);
}

int64_t attend_window(const attend_shape *s, const cache_kind *cache) {
    return cache->window ? cache->window : s->window;
}

/* The keys of a sequence that any query sees: the last ones, and those that a window keeps. */
static int64_t seen_of(const attend_shape *s, int64_t window, int64_t length) {
    const int64_t most = window + s->q_len - 1;
    return window && most < length ? most : length;
}

/* The pairs of a query and a key that it sees. The first query of n sees length - n + 1 keys, each
 * other one more, up to the window. */
static double pairs_of(const attend_shape *s, int64_t window, int64_t length) {
    const double n = (double)s->q_len, first = (double)length - n + 1;
    const double most = window && window < length ? (double)window : (double)length;
    const double growing = first < most ? most - first : 0; /* queries that see less than most */
    return growing * (first + most - 1) / 2 + (n - growing) * most;
}

/* Bytes of a position of one sequence in one layer. */
static double position_bytes(const attend_shape *s, const cache_kind *cache) {
    const kvc_layer_spec spec = cache_kind_spec(cache, s->kv_heads, s->dim, s->dtype);
    return (double)cache_kind_position_bytes(&spec);
}

void attend_row_init(attend_row *row, const attend_shape *s, const cache_kind *cache,
                     int64_t context) {
    const int64_t window = attend_window(s, cache);
    double seen = 0, pairs = 0;
    for (int64_t rank = 0; rank < s->batch; rank++) {
        const int64_t length = attend_length(s, context, rank);
        seen += (double)seen_of(s, window, length);
        pairs += pairs_of(s, window, length);
    }
    row->cache = cache;
    row->context = context;
    row->bytes = saturated(seen * position_bytes(s, cache));
    row->flops = 4 * pairs * (double)s->q_heads * (double)s->dim;
    const uint64_t layers = (s->rotate_bytes + row->bytes - 1) / row->bytes;
    row->layers = layers < 2                    ? 2
                  : layers > ATTEND_LAYERS_MOST ? ATTEND_LAYERS_MOST
                                                : (int64_t)layers;
}

uint64_t attend_need_bytes(const attend_row *row, const attend_shape *s) {
    const double queries = (double)s->batch * (double)s->q_heads * (double)s->q_len;
    /* Rows of a ring: while it fills, it holds what the queries of an append see. */
    const double ring = (double)(row->cache->window + s->q_len + 1024);
    const double held =
        row->cache->window && ring < (double)row->context ? ring : (double)row->context;
    const double positions = (double)s->batch * held * (double)row->layers;
    /* Pages are committed a little ahead of the length; growth holds both sizes of one layer. */
    return saturated(17.0 / 16 * positions * position_bytes(s, row->cache) +
                     2 * queries * (double)s->dim * sizeof(float));
}

static double multiply_us(const attend_row *row) {
    return 1e-3 * row->flops / row->ceiling_gflops;
}

bool attend_is_bound_by_fma(const attend_row *row) {
    return multiply_us(row) > row->floor_us.p50;
}

double attend_limit_us(const attend_row *row) {
    return attend_is_bound_by_fma(row) ? multiply_us(row) : row->floor_us.p50;
}
