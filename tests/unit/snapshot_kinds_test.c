/* Snapshots: random caches of every kind that there is, beside what came back of their files. */
#include <stdio.h>
#include <string.h>

#include <kvcache/snapshot.h>

#include "support/arrays.h"
#include "support/snapshot_fixture.h"
#include "support/support.h"

enum { LAYERS = 3, MOST = 800, BLOCK = 16, MOST_BATCH = 3, ROUNDS = 200 };

typedef struct stage {
    snapshot_stage at;
    char third[TEST_PATH];
    kvc_layer_spec specs[LAYERS];
    int64_t batch, slack;
    bool windows, paged;     /* some layer is one, the first cache is */
    const int64_t *sequence; /* the one that is saved; NULL: all */
} stage;

static int setup(void **state) {
    static stage s;
    snapshot_stage_init(&s.at, 1);
    (void)test_folder_path(&s.at.folder, "c.safetensors", s.third);
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    stage *s = *state;
    snapshot_stage_deinit(&s->at);
    return 0;
}

static bool chance(stage *s, int64_t of) {
    return test_below(&s->at.random, of) == 0;
}

static void choose_spec(stage *s, kvc_layer_spec *spec) {
    *spec = (kvc_layer_spec){
        .kv_heads = 1 + test_below(&s->at.random, 2),
        .key_dim = snapshot_one_of(&s->at, 2, I64(64, 128)),
        .value_dim = snapshot_one_of(&s->at, 3, I64(0, 64, 128)),
        .dtype = (kvc_dtype)snapshot_one_of(&s->at, 3, I64(KVC_F32, KVC_F16, KVC_BF16))};
    if (!chance(s, 4)) {
        spec->kv_bits = (int)snapshot_one_of(&s->at, 6, I64(2, 3, 4, 5, 6, 8));
        spec->kv_group = (int)snapshot_one_of(&s->at, 2, I64(32, 64));
        spec->rotated = chance(s, 2);
        spec->keys_per_channel = !s->paged && chance(s, 2);
    }
    if (!s->paged && !spec->keys_per_channel && chance(s, 3)) {
        spec->window = 1 + test_below(&s->at.random, 40);
        spec->keep = test_below(&s->at.random, spec->window);
        s->windows = true;
    }
}

static kvc_blocks *new_blocks(const stage *s) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = LAYERS,
                                  .specs = s->specs,
                                  .spec_count = LAYERS,
                                  .positions = BLOCK};
    kvc_blocks *blocks;
    assert_ok(kvc_blocks_new(&blocks, s->at.pool, &desc));
    return blocks;
}

static kvc_cache *new_cache(const stage *s, kvc_growth growth, kvc_blocks *blocks, int64_t batch,
                            int64_t slack) {
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .batch = batch,
                                 .layers = LAYERS,
                                 .specs = s->specs,
                                 .spec_count = LAYERS,
                                 .growth = growth,
                                 .max_positions = MOST,
                                 .blocks = blocks,
                                 .slack = slack};
    kvc_cache *cache;
    assert_ok(kvc_cache_new(&cache, s->at.pool, &desc));
    return cache;
}

static void append_some(stage *s, kvc_cache *cache, kvc_cache *other) {
    int64_t counts[SNAPSHOT_MOST_BATCH];
    const int64_t n = 1 + test_below(&s->at.random, chance(s, 2) ? 90 : 5);
    for (int b = 0; b < SNAPSHOT_MOST_BATCH; b++) counts[b] = test_below(&s->at.random, n + 1);
    snapshot_append(&s->at, cache, n, chance(s, 2) ? counts : NULL, other, s->sequence);
}

/* Saves what a cache holds, however it came to it: its copy in one range a head. */
static void save_copy(const stage *s, const kvc_cache *cache, int64_t batch,
                      const int64_t *sequence, const char *path) {
    const kvc_snapshot_info info = {.struct_size = sizeof info, .sequence = sequence};
    kvc_cache *copy = new_cache(s, KVC_GROW_CHUNK, NULL, batch, 0);
    assert_ok(kvc_cache_copy(copy, cache));
    assert_ok(kvc_snapshot_save(path, copy, &info));
    kvc_cache_free(copy);
}

/* Attention gives the same bits. What blocks and rings hold may be summed in another order. */
static void expect_attention(const stage *s, const kvc_cache *cache, const kvc_cache *back,
                             bool in_blocks) {
    static float wanted[MOST_BATCH * 2 * 128], found[MOST_BATCH * 2 * 128];
    for (int i = 0; !s->sequence && !in_blocks && i < LAYERS; i++) {
        if (s->specs[i].window || kvc_cache_length(cache, i) == 0) continue;
        memset(wanted, 1, sizeof wanted);
        memset(found, 1, sizeof found);
        snapshot_attend(cache, i, wanted);
        snapshot_attend(back, i, found);
        assert_memory_equal(wanted, found, sizeof found);
    }
}

static void expect_same(const stage *s, const kvc_cache *cache, const kvc_cache *back) {
    assert_ok(kvc_cache_check(cache));
    assert_ok(kvc_cache_check(back));
    save_copy(s, cache, s->batch, s->sequence, s->at.again);
    save_copy(s, back, s->sequence ? 1 : s->batch, NULL, s->third);
    snapshot_files_equal(s->at.again, s->third);
    if (!s->windows && !s->sequence)
        assert_int_equal(kvc_cache_trimmable(cache), kvc_cache_trimmable(back));
}

static void trim_some(stage *s, kvc_cache *cache, kvc_cache *back) {
    const int64_t a = kvc_cache_trimmable(cache), b = back ? kvc_cache_trimmable(back) : a;
    const int64_t most = a < b ? a : b, n = most > 0 ? test_below(&s->at.random, most + 1) : 0;
    assert_ok(kvc_cache_trim(cache, n));
    if (back) assert_ok(kvc_cache_trim(back, n));
}

/* Loads the file in some way; what comes back is what was saved, and goes on as that does. */
static void expect_load(stage *s, kvc_cache *cache) {
    const int64_t way = test_below(&s->at.random, s->paged ? 5 : 4);
    int64_t mapped = -1;
    kvc_blocks *blocks = way == 4 ? new_blocks(s) : NULL;
    const kvc_snapshot_options options = {.struct_size = sizeof options,
                                          .flags = way == 3 ? KVC_LOAD_MAP : 0,
                                          .growth = way == 4   ? KVC_GROW_PAGED
                                                    : way == 3 ? KVC_GROW_RESERVE
                                                               : (kvc_growth)way,
                                          .max_positions = MOST,
                                          .blocks = blocks,
                                          .slack = s->slack,
                                          .mapped_layers = &mapped};
    const bool in_blocks = s->paged || blocks;
    kvc_cache *back;
    assert_ok(kvc_snapshot_load(&back, s->at.pool, s->at.path, &options));
    if (way == 3 && kvc_cache_length(back, 0) > 0) assert_int_equal(mapped, LAYERS);
    assert_ok(kvc_snapshot_save(s->at.again, back, NULL));
    snapshot_files_equal(s->at.path, s->at.again);
    expect_same(s, cache, back);
    expect_attention(s, cache, back, in_blocks);
    for (int i = 0; i < 3; i++) {
        append_some(s, cache, back);
        if (!s->sequence && chance(s, 2)) trim_some(s, cache, back);
        expect_same(s, cache, back);
    }
    expect_attention(s, cache, back, in_blocks);
    kvc_cache_free(back);
    kvc_blocks_free(blocks);
}

static void every__kind_comes_back_whole_or_by_sequence_and_goes_on(void **state) {
    stage *s = *state;
    s->at.random = test_seed(11);
    const double end = test_now() + test_seconds(1);
    for (int round = 0; round < ROUNDS && test_now() < end; round++) {
        s->windows = false;
        s->paged = chance(s, 3);
        s->batch = 1 + test_below(&s->at.random, MOST_BATCH);
        s->slack = chance(s, 2) ? test_below(&s->at.random, 5) : 0;
        const int64_t one = test_below(&s->at.random, s->batch);
        s->sequence = chance(s, 3) ? &one : NULL;
        for (int i = 0; i < LAYERS; i++) choose_spec(s, &s->specs[i]);
        const kvc_growth growth = (kvc_growth)test_below(&s->at.random, 3);
        kvc_blocks *blocks = s->paged ? new_blocks(s) : NULL;
        kvc_cache *cache =
            new_cache(s, blocks ? KVC_GROW_PAGED : growth, blocks, s->batch, s->slack);
        for (int64_t steps = test_below(&s->at.random, 6); steps-- > 0;)
            append_some(s, cache, NULL);
        if (chance(s, 3)) trim_some(s, cache, NULL);
        const kvc_snapshot_info info = {.struct_size = sizeof info, .sequence = s->sequence};
        assert_ok(kvc_snapshot_save(s->at.path, cache, &info));
        expect_load(s, cache);
        kvc_cache_free(cache);
        kvc_blocks_free(blocks);
    }
}

/* After a load as many positions can be trimmed as before the save, into what was unpacked then. */
static void keys_per_channel__are_unpacked_as_far_back_as_they_were(void **state) {
    stage *s = *state;
    enum { G = 32 };
    const kvc_layer_spec spec = {.kv_heads = SNAPSHOT_HEADS,
                                 .key_dim = SNAPSHOT_DIM,
                                 .dtype = KVC_BF16,
                                 .kv_bits = 2,
                                 .kv_group = G,
                                 .keys_per_channel = true};
    const int64_t lengths[] = {1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            const kvc_snapshot_options options = {.struct_size = sizeof options, .flags = flags};
            float wanted[SNAPSHOT_HEADS * SNAPSHOT_DIM], found[SNAPSHOT_HEADS * SNAPSHOT_DIM];
            kvc_cache *cache = snapshot_filled(&s->at, &spec, KVC_GROW_CHUNK, 1, lengths[i]), *back;
            assert_ok(kvc_snapshot_save(s->at.path, cache, NULL));
            assert_ok(kvc_snapshot_load(&back, s->at.pool, s->at.path, &options));
            const int64_t most = kvc_cache_trimmable(cache);
            assert_true(most >= (lengths[i] < G ? lengths[i] : G));
            assert_int_equal(kvc_cache_trimmable(back), most);
            assert_ok(kvc_cache_trim(cache, most));
            assert_ok(kvc_cache_trim(back, most));
            for (int step = 0; step < 3; step++) { /* to where a block is packed anew, and on */
                snapshot_append(&s->at, cache, G - 1, NULL, back, NULL);
                snapshot_attend(cache, 0, wanted);
                snapshot_attend(back, 0, found);
                assert_memory_equal(wanted, found, sizeof found);
            }
            kvc_cache_free(cache);
            kvc_cache_free(back);
        }
}

/* A file of keys per channel in which something is another than it should be. */
typedef struct lie {
    int number; /* which of those of the layer; -1: none */
    const char *text;
    int plane; /* which tensor; -1: none */
    int64_t shape[4];
    const char *dtype; /* NULL: the tensor is not there */
    const char *sentence;
} lie;

static kvc_status zeros(void *context, void *out, size_t offset, size_t bytes) {
    (void)context;
    (void)offset;
    memset(out, 0, bytes);
    return KVC_OK;
}

static void put_lie(const stage *s, const lie *l) {
    static const char *const numbers[] = {"0", "0", "8", "32", "2", "33", "0"};
    static const char *const names[] = {"0.0.0", "0.1.0", "0.0.1", "0.0.2",
                                        "0.1.1", "0.1.2", "0.2"};
    static const int64_t shapes[][4] = {{1, 1, 2, 256}, {1, 1, 64, 8}, {1, 1, 2, 32}, {1, 1, 2, 32},
                                        {1, 1, 64, 1},  {1, 1, 64, 1}, {1, 1, 64, 32}};
    kvc_safetensors_writer *w;
    assert_ok(kvc_safetensors_writer_new(&w, "1."));
    assert_ok(kvc_safetensors_writer_metadata(w, "2.0", "KvcCache"));
    for (int i = 0; i < 7; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "0.0.%d", i);
        assert_ok(kvc_safetensors_writer_metadata(w, key, i == l->number ? l->text : numbers[i]));
        const bool other = i == l->plane;
        const char *dtype = other ? l->dtype : i < 2 ? "U32" : "F32";
        if (dtype)
            assert_ok(kvc_safetensors_writer_fill(w, names[i], dtype, 4,
                                                  other ? l->shape : shapes[i], zeros, NULL));
    }
    assert_ok(kvc_safetensors_writer_save(w, s->at.path));
    kvc_safetensors_writer_free(w);
}

static void keys_per_channel__files_that_lie_are_refused(void **state) {
    stage *s = *state;
    static const lie cases[] = {
        {-1, NULL, -1, {0}, NULL, NULL},
        {5, "64", -1, {0}, NULL, NULL},
        {6, "32", -1, {0}, NULL, NULL},
        {4, "3", -1, {0}, NULL, NULL},
        {0, "8", -1, {0}, NULL, "window is 8, none for keys per channel"},
        {2, "0", -1, {0}, NULL, "packing is 2"},
        {4, "4", -1, {0}, NULL, "packing is 4"},
        {5, "65", -1, {0}, NULL, "length is 65"},
        {5, "9223372036854775807", -1, {0}, NULL, "length is 9223372036854775807"},
        {6, "33", -1, {0}, NULL, "unpacked is 33"},
        {6, "9223372036854775807", -1, {0}, NULL, "unpacked is 9223372036854775807"},
        {6, "-1", -1, {0}, NULL, "0.0.6 is -1"},
        {-1, NULL, 0, {1, 1, 3, 256}, "U32", "tensor 0.0.0 is U32 [1, 1, 3, 256]"},
        {-1, NULL, 0, {1, 1, 64, 8}, "U32", "tensor 0.0.0 is U32 [1, 1, 64, 8]"},
        {-1, NULL, 0, {1, 1, 2, 255}, "U32", "a scale for each group of the words"},
        {-1, NULL, 1, {1, 1, 65, 8}, "U32", "rows of whole groups"},
        {-1, NULL, 1, {1, 1, 0, 8}, "U32", "batch, heads and rows"},
        {-1, NULL, 1, {1, 1, 64, 0}, "U32", "extents of at least 1"},
        {-1, NULL, 1, {1, (int64_t)1 << 40, 0, 8}, "U32", "batch, heads and rows"},
        {-1, NULL, 2, {1, 1, 2, 16}, "F32", "a scale for each group of the words"},
        {-1, NULL, 3, {1, 1, 2, 32}, "F16", "one dtype of scales"},
        {-1, NULL, 4, {2, 1, 64, 1}, "F32", "batch, heads and rows"},
        {-1, NULL, 6, {1, 1, 33, 32}, "F32", "tensor 0.2 is F32 [1, 1, 33, 32]"},
        {-1, NULL, 6, {1, 1, 64, 64}, "F32", "dtype and channels"},
        {-1, NULL, 6, {1, 1, 64, 32}, "F16", "dtype and channels"},
        {-1, NULL, 6, {1, 1, 64, 32}, "U32", "F32, F16 or BF16"},
        {-1, NULL, 6, {0}, NULL, "tensor 0.2 is not there"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            const kvc_snapshot_options options = {.struct_size = sizeof options, .flags = flags};
            const char *sentence = cases[i].sentence;
            kvc_cache *cache;
            put_lie(s, &cases[i]);
            const kvc_status status = kvc_snapshot_load(&cache, s->at.pool, s->at.path, &options);
            if (status != (sentence ? KVC_E_CORRUPT : KVC_OK) ||
                (sentence && !strstr(kvc_last_error(), sentence)))
                fail_msg("case %zu: %s: %s", i, kvc_status_name(status), kvc_last_error());
            if (status) assert_null(cache);
            else assert_ok(kvc_cache_check(cache));
            kvc_cache_free(cache);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(every__kind_comes_back_whole_or_by_sequence_and_goes_on),
        TEST(keys_per_channel__are_unpacked_as_far_back_as_they_were),
        TEST(keys_per_channel__files_that_lie_are_refused),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
