/* Random operations on arrays against naive ones: contents after every step, whether an update was
 * in place by a count of the holders, and that what is refused changes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvcache/array.h>

#include "model/array_model.h"
#include "support/arrays.h"
#include "support/reference.h"

enum { SLOTS = 24, STEPS = 60000, PARTS = 4, ARENA_BYTES = 8192 };

/* An array, what it should be, and who else holds its buffer. */
typedef struct slot {
    kvc_array array;
    model model;
    int *holders; /* of the buffer; NULL when the memory is borrowed or the slot is empty */
} slot;

typedef struct world {
    kvc_pool *pool;
    uint64_t random;
    slot slots[SLOTS];
    int64_t in_place, copied, refused; /* how often */
    unsigned char arena[ARENA_BYTES];  /* lent to borrowed arrays, never written */
} world;

/* Returns one of 0 to n - 1; 0 when n is 0. */
static int64_t below(world *w, int64_t n) {
    return n > 0 ? (int64_t)(test_random(&w->random) % (uint64_t)n) : 0;
}

static bool chance(world *w, int64_t one_in) {
    return below(w, one_in) == 0;
}

static kvc_dtype random_dtype(world *w) {
    return reference_dtypes[below(w, 6)];
}

static double random_value(world *w, kvc_dtype dtype) {
    if (chance(w, 50)) return reference_round(dtype, (double)NAN);
    if (chance(w, 20)) return reference_round(dtype, (double)(below(w, 200001) - 100000));
    return reference_round(dtype, (double)(below(w, 2001) - 1000) / 8);
}

static slot *random_slot(world *w) {
    return &w->slots[below(w, SLOTS)];
}

static bool is_used(const slot *s) {
    return s->array.dtype != 0;
}

static void hold(slot *s, int *holders) {
    s->holders = holders;
    if (holders) ++*holders;
}

static int *new_holders(void) {
    int *holders = calloc(1, sizeof *holders);
    assert_non_null(holders);
    return holders;
}

static void let_go(slot *s) {
    if (s->holders && --*s->holders == 0) free(s->holders);
    s->holders = NULL;
}

static void empty(slot *s) {
    kvc_array_release(&s->array);
    let_go(s);
}

static void random_shape(world *w, model *m) {
    m->ndim = (int)(chance(w, 8) ? below(w, KVC_MAX_DIMS + 1) : 1 + below(w, 3));
    for (int i = 0; i < m->ndim; i++) {
        m->shape[i] = chance(w, 25) ? 0 : 1 + below(w, 9);
        if (i > 3) m->shape[i] = 1 + below(w, 2);
    }
    while (model_size(m) > MODEL_MOST) m->shape[below(w, m->ndim)] = 1;
}

static void random_values(world *w, model *m) {
    for (int64_t n = 0; n < model_size(m); n++) m->values[n] = random_value(w, m->dtype);
}

/* Sets a slot to a new array of its model's shape and values. */
static void from_host(world *w, slot *s) {
    const model *m = &s->model;
    s->array = array_of(w->pool, m->dtype, m->ndim, m->shape, m->values);
    hold(s, new_holders());
}

static void make(world *w, slot *s) {
    model *m = &s->model;
    empty(s);
    m->dtype = random_dtype(w);
    random_shape(w, m);
    const double value = chance(w, 2) ? 0 : random_value(w, random_dtype(w));
    for (int64_t n = 0; n < model_size(m); n++) m->values[n] = reference_round(m->dtype, value);
    switch (below(w, 3)) {
    case 0:
        random_values(w, m);
        from_host(w, s);
        return;
    case 1:
        assert_ok(kvc_array_full(&s->array, w->pool, m->dtype, m->ndim, m->shape, value));
        break;
    default:
        memset(m->values, 0, sizeof m->values);
        assert_ok(kvc_array_zeros(&s->array, w->pool, m->dtype, m->ndim, m->shape));
    }
    hold(s, new_holders());
}

/* Lends the arena to a slot, under strides of any kind. */
static void borrow(world *w, slot *s) {
    model *m = &s->model;
    int64_t strides[KVC_MAX_DIMS];
    empty(s);
    m->dtype = random_dtype(w);
    random_shape(w, m);
    for (int i = 0; i < m->ndim; i++) strides[i] = below(w, 41) - 20;
    const void *middle = w->arena + ARENA_BYTES / 2;
    assert_ok(kvc_array_borrow(&s->array, m->dtype, m->ndim, m->shape, strides, middle));
    for (int64_t n = 0; n < model_size(m); n++) m->values[n] = array_value(&s->array, n);
}

static void share(world *w, slot *s) {
    const slot *from = random_slot(w);
    if (from == s || !is_used(from)) return;
    empty(s);
    s->array = kvc_array_retain(&from->array);
    s->model = from->model;
    hold(s, from->holders);
}

/* One end of a slice, told in any of the ways there are; now and then far outside. */
static int64_t told(world *w, int64_t at, int64_t extent, bool is_the_end) {
    if (chance(w, 40)) return below(w, 8 * extent + 9) - 4 * extent - 4;
    if (is_the_end) return KVC_SLICE_ALL;
    return chance(w, 3) && at < extent ? at - extent : at;
}

static void random_range(world *w, model_range *r, const model *m) {
    for (int i = 0; i < m->ndim; i++) {
        const int64_t n = m->shape[i], a = below(w, n + 1), b = chance(w, 3) ? n : below(w, n + 1);
        const int64_t low = a < b ? a : b, high = a < b ? b : a; /* [low, high) is taken */
        r->step[i] = chance(w, 2) ? 1 : 1 + below(w, 3);
        r->start[i] = told(w, low, n, low == 0 && chance(w, 2));
        r->stop[i] = told(w, high, n, high == n && chance(w, 2));
        if (chance(w, 2)) continue;
        r->step[i] = -r->step[i];
        r->start[i] = told(w, high > 0 ? high - 1 : 0, n, high == n && chance(w, 2));
        r->stop[i] = low == 0 ? KVC_SLICE_ALL : told(w, low - 1, n, false);
    }
}

static void slice(world *w, slot *s) {
    slot *from = random_slot(w);
    model_range r;
    static model sliced;
    if (from == s || !is_used(from)) return;
    empty(s);
    random_range(w, &r, &from->model);
    (void)model_slice(&sliced, &from->model, &r);
    if (model_size(&sliced) == 0 && !chance(w, 8)) return; /* or they would be most */
    s->model = sliced;
    assert_ok(kvc_array_slice(&s->array, &from->array, r.start, r.stop, r.step));
    hold(s, from->holders);
}

static void convert(world *w, slot *s) {
    const slot *from = random_slot(w);
    if (from == s || !is_used(from)) return;
    const kvc_dtype dtype = random_dtype(w);
    const bool same = dtype == from->model.dtype;
    empty(s);
    s->model = from->model;
    model_convert(&s->model, dtype);
    assert_ok(kvc_array_astype(&s->array, w->pool, &from->array, dtype));
    hold(s, same ? from->holders : new_holders());
    assert_true(same ? s->array.data == from->array.data : kvc_array_is_contiguous(&s->array));
}

static void contiguous(world *w, slot *s) {
    const slot *from = random_slot(w);
    if (from == s || !is_used(from)) return;
    empty(s);
    const bool same = kvc_array_is_contiguous(&from->array);
    s->model = from->model;
    assert_ok(kvc_array_contiguous(&s->array, w->pool, &from->array));
    hold(s, same ? from->holders : new_holders());
    assert_true(kvc_array_is_contiguous(&s->array));
    assert_int_equal(same, s->array.data == from->array.data || model_size(&s->model) == 0);
}

/* Slices of one array fit together along any axis; now and then a stranger is among them. */
static void concatenate(world *w, slot *s) {
    const slot *from = random_slot(w), *stranger = random_slot(w);
    kvc_array parts[PARTS];
    static model models[PARTS], joined;
    if (from == s || !is_used(from) || from->model.ndim == 0) return;
    const int axis = (int)below(w, from->model.ndim);
    const size_t count = 1 + (size_t)below(w, PARTS);
    bool fits = true;
    for (size_t p = 0; p < count; p++) {
        const model *m = &from->model;
        model_range r;
        random_range(w, &r, m);
        for (int i = 0; i < m->ndim; i++)
            if (i != axis) r.start[i] = r.stop[i] = KVC_SLICE_ALL;
        for (int i = 0; i < m->ndim; i++)
            if (i != axis) r.step[i] = 1;
        const bool strange = p > 0 && chance(w, 20) && is_used(stranger) && stranger != s;
        models[p] = *m;
        if (strange) models[p] = stranger->model;
        else (void)model_slice(&models[p], m, &r);
        parts[p] = strange ? kvc_array_retain(&stranger->array)
                           : array_sliced(&from->array, r.start, r.stop, r.step);
        fits = fits && models[p].ndim == models[0].ndim && models[p].dtype == models[0].dtype;
        for (int i = 0; fits && i < m->ndim; i++)
            fits = i == axis || models[p].shape[i] == models[0].shape[i];
    }
    empty(s);
    const int signed_axis = chance(w, 2) ? axis : axis - models[0].ndim;
    if (!fits) {
        assert_fails(kvc_array_concatenate(&s->array, w->pool, parts, count, signed_axis),
                     KVC_E_SHAPE);
        array_expect_none(&s->array);
        w->refused++;
    } else if (model_concatenate(&joined, models, count, axis)) {
        assert_ok(kvc_array_concatenate(&s->array, w->pool, parts, count, signed_axis));
        s->model = joined;
        hold(s, new_holders());
    }
    for (size_t p = 0; p < count; p++) kvc_array_release(&parts[p]);
}

/* After an update of s from src: it is right, and in place if nobody else could see. */
static void expect_update(world *w, slot *s, const slot *src, kvc_update how) {
    const bool in_place = *s->holders == 1 && src->holders != s->holders;
    assert_int_equal(how, in_place ? KVC_UPDATE_IN_PLACE : KVC_UPDATE_COPIED);
    if (in_place) {
        w->in_place++;
        return;
    }
    w->copied++;
    let_go(s);
    hold(s, new_holders());
    assert_true(kvc_array_is_contiguous(&s->array));
}

static void expect_refused(world *w, const slot *s, const kvc_array *before, kvc_status given,
                           kvc_status wanted, kvc_update how) {
    assert_string_equal(kvc_status_name(given), kvc_status_name(wanted));
    assert_memory_equal(&s->array, before, sizeof *before);
    assert_int_equal(how, 77);
    w->refused++;
}

/* A source for an update: a slot, or a new array of a shape. Returns which; scratch is then free'd
 * by the caller. */
static slot *random_source(world *w, slot *scratch, const model *shape) {
    slot *other = random_slot(w);
    if (chance(w, 6) && is_used(other)) return other;
    scratch->model = *shape;
    scratch->model.dtype = random_dtype(w);
    random_values(w, &scratch->model);
    from_host(w, scratch);
    return scratch;
}

static void slice_update(world *w, slot *s) {
    static slot scratch;
    static model shape;
    model_range r;
    int64_t start[KVC_MAX_DIMS];
    int axes[KVC_MAX_DIMS], naxes = 0;
    if (!is_used(s)) return;
    shape = s->model;
    for (int i = 0; i < shape.ndim; i++) shape.shape[i] = below(w, shape.shape[i] + 1);
    slot *src = random_source(w, &scratch, &shape);
    const model *m = &s->model, *x = &src->model;
    bool too_large = x->ndim != m->ndim, outside = false;
    for (int i = 0; i < m->ndim && !too_large; i++) {
        const int64_t room = m->shape[i] - x->shape[i];
        r.start[i] = room > 0 ? below(w, room + 1) : 0;
        if (chance(w, 60)) r.start[i] = below(w, 9) - 4 + room;
        if (r.start[i] != 0 || chance(w, 2)) {
            axes[naxes] = chance(w, 2) ? i : i - m->ndim;
            start[naxes++] = r.start[i];
        }
        r.stop[i] = r.start[i] + x->shape[i];
        r.step[i] = 1;
        too_large = room < 0;
        outside = outside || r.start[i] < 0 || r.start[i] > room;
    }
    const kvc_array before = s->array;
    kvc_update how = (kvc_update)77;
    const kvc_status status =
        kvc_array_slice_update(&s->array, &src->array, start, axes, naxes, &how);
    if (!s->holders) expect_refused(w, s, &before, status, KVC_E_INVALID, how);
    else if (too_large && !outside) expect_refused(w, s, &before, status, KVC_E_SHAPE, how);
    else if (too_large) assert_memory_equal(&s->array, &before, sizeof before);
    else if (outside) expect_refused(w, s, &before, status, KVC_E_RANGE, how);
    else {
        static model source;
        source = *x;
        assert_ok(status);
        model_assign(&s->model, &source, &r);
        expect_update(w, s, src, how);
    }
    empty(&scratch);
}

static void assign(world *w, slot *s) {
    static slot scratch;
    static model region, shape;
    model_range r;
    if (!is_used(s)) return;
    random_range(w, &r, &s->model);
    const bool outside = model_slice(&region, &s->model, &r);
    const int dropped = chance(w, 3) ? (int)below(w, region.ndim + 1) : 0;
    shape = region;
    shape.ndim = region.ndim - dropped;
    for (int i = 0; i < shape.ndim; i++) {
        shape.shape[i] = chance(w, 4) ? 1 : region.shape[i + dropped];
        if (chance(w, 80)) shape.shape[i]++;
    }
    if (model_size(&shape) > MODEL_MOST) return;
    slot *src = random_source(w, &scratch, &shape);
    const kvc_array before = s->array;
    kvc_update how = (kvc_update)77;
    const kvc_status status =
        kvc_array_assign(&s->array, &src->array, r.start, r.stop, r.step, &how);
    if (!s->holders) expect_refused(w, s, &before, status, KVC_E_INVALID, how);
    else if (outside) expect_refused(w, s, &before, status, KVC_E_RANGE, how);
    else if (!model_broadcasts(&src->model, &region))
        expect_refused(w, s, &before, status, KVC_E_SHAPE, how);
    else {
        static model source;
        source = src->model;
        assert_ok(status);
        model_assign(&s->model, &source, &r);
        expect_update(w, s, src, how);
    }
    empty(&scratch);
}

static void compare(world *w, slot *s) {
    const slot *other = random_slot(w);
    bool equal;
    if (!is_used(s) || !is_used(other)) return;
    assert_ok(kvc_array_equal(&equal, &s->array, &other->array));
    assert_int_equal(equal, model_equal(&s->model, &other->model));
}

static void to_host(world *w, slot *s) {
    char bytes[4 * MODEL_MOST];
    (void)w;
    if (!is_used(s)) return;
    const size_t nbytes = kvc_array_nbytes(&s->array), size = kvc_dtype_size_bytes(s->model.dtype);
    if (!kvc_array_is_contiguous(&s->array)) {
        assert_fails(kvc_array_to_host(bytes, nbytes, &s->array), KVC_E_SHAPE);
        return;
    }
    assert_ok(kvc_array_to_host(bytes, nbytes, &s->array));
    for (int64_t n = 0; n < model_size(&s->model); n++)
        assert_memory_equal(bytes + (size_t)n * size, array_element(&s->array, n), size);
}

static void disturb_pool(world *w, slot *s) {
    (void)s;
    if (chance(w, 2)) kvc_pool_clear(w->pool);
    else (void)kvc_pool_cache_limit_set(w->pool, chance(w, 2) ? SIZE_MAX : (size_t)below(w, 5000));
}

static void check(const slot *s) {
    if (!is_used(s)) return;
    model_expect(&s->model, &s->array);
    assert_int_equal(s->array.buffer != NULL, s->holders != NULL);
    if (s->holders) assert_int_equal(kvc_buffer_is_sole(s->array.buffer), *s->holders == 1);
}

static void arrays__a_random_walk_matches_naive_ones(void **state) {
    (void)state;
    static void (*const operations[])(world *, slot *) = {
        make,        borrow,       share,        slice,  slice,  convert, contiguous, concatenate,
        concatenate, slice_update, slice_update, assign, assign, compare, to_host,    disturb_pool,
    };
    static world w;
    memset(&w, 0, sizeof w);
    w.random = test_seed(8);
    assert_ok(kvc_pool_new(&w.pool, kvc_device_cpu()));
    for (size_t i = 0; i < ARENA_BYTES; i++) w.arena[i] = (unsigned char)test_random(&w.random);
    const double seconds = test_seconds(0);
    const time_t start = time(NULL);
    for (long step = 0; step < STEPS || difftime(time(NULL), start) < seconds; step++) {
        slot *s = random_slot(&w);
        if (chance(&w, 12)) empty(s);
        else operations[below(&w, sizeof operations / sizeof *operations)](&w, s);
        check(s);
        if (step % 64 == 0)
            for (size_t i = 0; i < SLOTS; i++) check(&w.slots[i]);
    }
    /* The walk went everywhere. */
    assert_true(w.in_place > STEPS / 50 && w.copied > STEPS / 50 && w.refused > STEPS / 100);
    for (size_t i = 0; i < SLOTS; i++) empty(&w.slots[i]);
    kvc_pool_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvc_pool_stats_get(w.pool, &stats));
    assert_int_equal(stats.active_bytes, 0);
    kvc_pool_free(w.pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays__a_random_walk_matches_naive_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
