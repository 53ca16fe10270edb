/* Snapshots: caches in lists of mlx-lm, CacheList. */
#include <stdio.h>
#include <string.h>

#include <kvcache/snapshot.h>

#include "support/arrays.h"
#include "support/snapshot_fixture.h"
#include "support/support.h"

enum { LAYERS = 7, HEADS = SNAPSHOT_HEADS, DIM = SNAPSHOT_DIM };

static const kvc_layer_spec plain = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16};
static const kvc_layer_spec window = {
    .kv_heads = 1, .key_dim = DIM, .dtype = KVC_F16, .window = 8, .keep = 2};
static const kvc_layer_spec packed = {
    .kv_heads = HEADS, .key_dim = 64, .dtype = KVC_F32, .kv_bits = 4, .kv_group = 32};

static kvc_cache *new_cache(snapshot_stage *s) {
    const kvc_layer_spec specs[LAYERS] = {plain, plain, window, packed, plain, packed, window};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = LAYERS,
                                 .specs = specs,
                                 .spec_count = LAYERS,
                                 .max_positions = 64};
    kvc_cache *cache;
    assert_ok(kvc_cache_new(&cache, s->pool, &desc));
    for (int i = 0; i < 3; i++) snapshot_append(s, cache, 7, NULL, NULL, NULL);
    return cache;
}

static const char *const paths[LAYERS] = {"0", "1.0", "1.1", "1.2.0.0", "1.2.0.1", "2.0", "3"};
static const char *const kinds[LAYERS] = {"KVCache",          "KVCache", "RotatingKVCache",
                                          "QuantizedKVCache", "KVCache", "QuantizedKVCache",
                                          "RotatingKVCache"};

static void lists__come_back_and_are_written_again(void **state) {
    snapshot_stage *s = *state;
    kvc_cache *cache = new_cache(s);
    for (int form = 0; form < 2; form++)
        for (unsigned flags = 0; flags < 2; flags++) {
            const kvc_snapshot_options options = {
                .struct_size = sizeof options, .flags = flags, .max_positions = 64};
            kvc_snapshot_info info = {
                .struct_size = sizeof info, .form = (kvc_snapshot_form)form, .paths = paths};
            const char *again[LAYERS];
            kvc_snapshot *snapshot;
            kvc_cache *back;
            assert_ok(kvc_snapshot_save(s->path, cache, &info));
            assert_ok(kvc_snapshot_open(&snapshot, s->path));
            assert_ok(kvc_snapshot_verify(snapshot));
            const kvc_snapshot_contents *c = kvc_snapshot_contents_of(snapshot);
            assert_int_equal(c->layers, LAYERS);
            assert_int_equal(c->form, form);
            for (int i = 0; i < LAYERS; i++) {
                assert_string_equal(c->layer[i].path, paths[i]);
                assert_string_equal(c->layer[i].kind, kinds[i]);
                again[i] = c->layer[i].path;
            }
            assert_ok(kvc_snapshot_restore(&back, s->pool, snapshot, &options));
            info.paths = again;
            assert_ok(kvc_snapshot_save(s->again, back, &info));
            snapshot_files_equal(s->path, s->again);
            kvc_cache_free(back);
            kvc_snapshot_close(snapshot);
        }
    kvc_cache_free(cache);
}

static void paths__that_make_no_tree_are_refused(void **state) {
    snapshot_stage *s = *state;
    static const char *const wrong[][LAYERS] = {
        {"1", "2", "3", "4", "5", "6", "7"},
        {"0", "1", "2", "3", "4", "5", "7"},
        {"0", "1", "2", "3", "4", "5", "5"},
        {"0", "1", "2", "3", "4", "5", "5.0"},
        {"0.1", "0.2", "0.3", "1", "2", "3", "4"},
        {"0", "1", "2", "3", "4", "5", "6.1"},
        {"0", "1", "2", "3", "4", "5.0", "5"},
        {"0", "1", "2", "3", "4", "5", "06"},
        {"0", "1", "2", "3", "4", "5", ""},
        {"0", "1", "2", "3", "4", "5", "6."},
        {"0", "1", "2", "3", "4", "5", ".6"},
        {"0", "1", "2", "3", "4", "5", "6..0"},
        {"0", "1", "2", "3", "4", "5", "-6"},
        {"0", "1", "2", "3", "4", "5", "six"},
        {"0", "1", "2", "3", "4", "5", "99999999999999999999"},
        {"0", "1", "2", "3", "4", "5", "6.0.0.0.0.0.0.0.0"},
        {"0", "1", "2", "3", "4", "5", NULL},
        {NULL, "1", "2", "3", "4", "5", "6"}};
    static const char *const deep[LAYERS] = {"0", "1", "2", "3", "4", "5", "6.0.0.0.0.0.0.0"};
    kvc_cache *cache = new_cache(s), *back;
    kvc_snapshot_info info = {.struct_size = sizeof info};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        info.paths = wrong[i];
        assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_INVALID);
        assert_non_null(strstr(kvc_last_error(), "info.paths["));
        assert_int_equal(test_folder_count(&s->folder), 0);
    }
    info.paths = deep;
    for (int form = 0; form < 2; form++) {
        info.form = (kvc_snapshot_form)form;
        assert_ok(kvc_snapshot_save(s->path, cache, &info));
        assert_ok(kvc_snapshot_load(&back, s->pool, s->path, NULL));
        kvc_cache_free(back);
    }
    kvc_cache_free(cache);
}

static void sequences__in_lists_are_files_of_their_own(void **state) {
    snapshot_stage *s = *state;
    const kvc_layer_spec spec = packed;
    const char *const path = "0.0.0";
    kvc_cache *cache = snapshot_filled(s, &spec, KVC_GROW_CHUNK, 3, 20), *back;
    kvc_snapshot_info info = {.struct_size = sizeof info,
                              .paths = &path,
                              .sequence = I64(2),
                              .form = KVC_SNAPSHOT_MLX_LM_0_32};
    assert_ok(kvc_snapshot_save(s->path, cache, &info));
    assert_ok(kvc_snapshot_load(&back, s->pool, s->path, NULL));
    info.sequence = NULL;
    assert_ok(kvc_snapshot_save(s->again, back, &info));
    snapshot_files_equal(s->path, s->again);
    kvc_cache_free(back);
    kvc_cache_free(cache);
}

/* A file of metadata, and tensors: those whose name ends as a class does are of characters. */
typedef struct odd {
    const char *texts[8][2];
    const char *tensors[8]; /* "name" of four dimensions, "name=text" of characters, "name#" a 5 */
    kvc_status wanted;
    const char *sentence;
} odd;

static kvc_status give(void *context, void *out, size_t offset, size_t bytes) {
    static const char five[] = {5};
    const char *text = context && *(const char *)context == '#' ? five : context;
    memset(out, 0, bytes);
    for (size_t i = 0; text && i < bytes; i++)
        if ((offset + i) % 4 == 0) ((char *)out)[i] = text[(offset + i) / 4];
    return KVC_OK;
}

static void put_odd(const snapshot_stage *s, const odd *o) {
    kvc_safetensors_writer *w;
    assert_ok(kvc_safetensors_writer_new(&w, NULL));
    for (int i = 0; i < 8 && o->texts[i][0]; i++)
        assert_ok(kvc_safetensors_writer_metadata(w, o->texts[i][0], o->texts[i][1]));
    for (int i = 0; i < 8 && o->tensors[i]; i++) {
        char name[64];
        const size_t length = strcspn(o->tensors[i], "=#");
        const char *rest = o->tensors[i] + length;
        const int64_t characters = *rest ? (int64_t)strlen(rest + 1) : 0;
        (void)snprintf(name, sizeof name, "%.*s", (int)length, o->tensors[i]);
        if (*rest == '=')
            assert_ok(kvc_safetensors_writer_fill(w, name, "I32", 1, &characters, give,
                                                  (void *)(rest + 1)));
        else if (*rest == '#')
            assert_ok(kvc_safetensors_writer_fill(w, name, "I32", 0, NULL, give, (void *)rest));
        else
            assert_ok(kvc_safetensors_writer_fill(w, name, "F32", 4, I64(1, 2, 5, 32), give, NULL));
    }
    assert_ok(kvc_safetensors_writer_save(w, s->path));
    kvc_safetensors_writer_free(w);
}

#define OLD(...)                                                                                   \
    { {"2.0", "CacheList"}, __VA_ARGS__ }
#define NEW                                                                                        \
    {                                                                                              \
        {"2.0", ""}, {                                                                             \
            "1.0", "CacheList"                                                                     \
        }                                                                                          \
    }

static void odd__lists_are_refused_with_a_sentence(void **state) {
    snapshot_stage *s = *state;
    static const char long_name[] =
        "0.0.1=KVCacheKVCacheKVCacheKVCacheKVCacheKVCacheKVCacheKVCacheKVCacheKVCache";
    static const odd cases[] = {
        {OLD({"0.0.0.0", "KVCache"}, {"0.0.1.0", ""}), {"0.0.0", "0.0.1"}, KVC_OK, NULL},
        {OLD({"0.0.0.0", "KVCache"}), {"0.0.0", "0.0.1"}, KVC_OK, NULL},
        {OLD({"0.0.0.0", ""}), {"0.0.0", "0.0.1"}, KVC_E_CORRUPT, "layer 0 is a CacheList of no"},
        {OLD({"0.0.0.1", "KVCache"}), {"0.1.0", "0.1.1"}, KVC_E_CORRUPT, "CacheList of no caches"},
        {OLD({"0.0.0.0", "CacheList"}), {"0.0.0"}, KVC_E_CORRUPT, "layer 0.0 is a CacheList of no"},
        {OLD({"0.0.0.0", "ArraysCache"}, {"0.0.0.1", "KVCache"}),
         {"0.1.0", "0.1.1"},
         KVC_E_UNSUPPORTED,
         "layer 0.0 is a ArraysCache; it has no keys and values"},
        {OLD({"0.0.0.0", "KVCache"}, {"0.0.0.1", "ChunkedKVCache"}),
         {"0.0.0", "0.0.1"},
         KVC_E_UNSUPPORTED,
         "layer 0.1 is a ChunkedKVCache; save a KVCache"},
        {OLD({"0.0.0.0", "KVCache"}), {"0.0.0"}, KVC_E_CORRUPT, "tensor 0.0.1 is not there"},
        {OLD({"0.0.0.0", "KVCache"}), {"0.0.0", "0.0.1", "0.1.0"}, KVC_E_CORRUPT, "3 tensors"},
        {OLD({"0.0.0.0", "RotatingKVCache"}, {"0.0.1.0.0", "0"}),
         {"0.0.0", "0.0.1"},
         KVC_E_CORRUPT,
         "metadata 0.0.1.0.1 is not there"},
        {NEW, {"0.0.0.0", "0.0.0.1", "0.0.0.2#", "0.0.1=KVCache"}, KVC_OK, NULL},
        {NEW, {"0.0.0.0", "0.0.0.1", "0.0.0.2#"}, KVC_E_CORRUPT, "layer 0 is a CacheList of no"},
        {NEW, {"0.0.0.0", "0.0.0.1", "0.0.1=KVCache"}, KVC_E_CORRUPT, "0.0.0.2 is not there"},
        {NEW, {"0.0.1=MambaCache"}, KVC_E_UNSUPPORTED, "layer 0.0 is a MambaCache"},
        {NEW, {"0.0.1=KvcCache"}, KVC_E_UNSUPPORTED, "layer 0.0 is a KvcCache"},
        {NEW, {"0.0.1="}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
        {NEW, {"0.0.1=KV\xff"}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
        {NEW, {"0.0.1=KV Cache"}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
        {NEW, {"0.0.1#"}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
        {NEW, {"0.0.1"}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
        {NEW, {long_name}, KVC_E_CORRUPT, "tensor 0.0.1: the characters of a class"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvc_cache *cache;
        put_odd(s, &cases[i]);
        const kvc_status status = kvc_snapshot_load(&cache, s->pool, s->path, NULL);
        if (status != cases[i].wanted)
            fail_msg("case %zu: %s: %s", i, kvc_status_name(status), kvc_last_error());
        if (status && !strstr(kvc_last_error(), cases[i].sentence))
            fail_msg("case %zu: %s", i, kvc_last_error());
        if (status) assert_null(cache);
        else assert_int_equal(kvc_cache_length(cache, 0), 5);
        kvc_cache_free(cache);
    }
}

static void lists__in_lists_end_somewhere(void **state) {
    snapshot_stage *s = *state;
    kvc_safetensors_writer *w;
    kvc_snapshot *snapshot;
    char key[64] = "0.0";
    assert_ok(kvc_safetensors_writer_new(&w, NULL));
    assert_ok(kvc_safetensors_writer_metadata(w, "2.0", "CacheList"));
    for (int depth = 1; depth < 12; depth++) {
        const size_t at = strlen(key);
        (void)snprintf(key + at, sizeof key - at, ".0.0");
        assert_ok(kvc_safetensors_writer_metadata(w, key, "CacheList"));
        (void)snprintf(key + at, sizeof key - at, ".1.0");
    }
    assert_ok(kvc_safetensors_writer_save(w, s->path));
    kvc_safetensors_writer_free(w);
    assert_fails(kvc_snapshot_open(&snapshot, s->path), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "at most 7 deep"));
    assert_null(snapshot);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, snapshot_setup, snapshot_teardown)
        TEST(lists__come_back_and_are_written_again),
        TEST(paths__that_make_no_tree_are_refused),
        TEST(sequences__in_lists_are_files_of_their_own),
        TEST(odd__lists_are_refused_with_a_sentence),
        TEST(lists__in_lists_end_somewhere),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
