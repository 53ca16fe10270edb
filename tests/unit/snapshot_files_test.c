/* Snapshots: what files tell, and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/snapshot.h>

#include "support/arrays.h"
#include "support/snapshot_fixture.h"
#include "support/support.h"

enum { HEADS = SNAPSHOT_HEADS, DIM = SNAPSHOT_DIM };

typedef snapshot_stage stage;

static const kvc_layer_spec plain = {.kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_BF16};
static const kvc_layer_spec window = {
    .kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F16, .window = 8, .keep = 2};
static const kvc_layer_spec packed = {
    .kv_heads = HEADS, .key_dim = DIM, .dtype = KVC_F32, .kv_bits = 4, .kv_group = 32};
static const kvc_layer_spec rotated = {.kv_heads = HEADS,
                                       .key_dim = DIM,
                                       .dtype = KVC_F32,
                                       .kv_bits = 4,
                                       .kv_group = 32,
                                       .rotated = true};
static const kvc_layer_spec per_channel = {.kv_heads = HEADS,
                                           .key_dim = DIM,
                                           .dtype = KVC_F16,
                                           .kv_bits = 3,
                                           .kv_group = 32,
                                           .keys_per_channel = true,
                                           .rotated = true};

static void attention__over_what_came_back_is_the_same(void **state) {
    stage *s = *state;
    const kvc_layer_spec *specs[] = {&plain, &window, &packed, &rotated, &per_channel};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            kvc_cache *cache = snapshot_filled(s, specs[i], KVC_GROW_CHUNK, 1, 300), *back;
            const kvc_snapshot_options options = {.struct_size = sizeof options, .flags = flags};
            float before[4 * HEADS * DIM] = {0}, after[4 * HEADS * DIM] = {1};
            assert_ok(kvc_snapshot_save(s->path, cache, NULL));
            assert_ok(kvc_snapshot_load(&back, s->pool, s->path, &options));
            snapshot_attend(cache, 0, before);
            snapshot_attend(back, 0, after);
            assert_memory_equal(before, after, HEADS * DIM * sizeof(float));
            kvc_cache_free(cache);
            kvc_cache_free(back);
        }
}

static void info__comes_back(void **state) {
    stage *s = *state;
    const int32_t tokens[] = {0, 17, INT32_MAX, 5};
    const kvc_snapshot_text texts[] = {{"model", "a \"name\""}, {"tokenizer_config", ""}};
    kvc_snapshot_info info = {.struct_size = sizeof info,
                              .fingerprint = {.model = "m", .rope = "10000", .dtype = "bf16"},
                              .tokens = tokens,
                              .token_count = 4,
                              .texts = texts,
                              .text_count = 2};
    kvc_cache *cache = snapshot_filled(s, &plain, KVC_GROW_RESERVE, 1, 4);
    for (int form = 0; form < 2; form++) {
        kvc_snapshot *snapshot;
        info.form = (kvc_snapshot_form)form;
        assert_ok(kvc_snapshot_save(s->path, cache, &info));
        assert_ok(kvc_snapshot_open(&snapshot, s->path));
        const kvc_snapshot_contents *c = kvc_snapshot_contents_of(snapshot);
        assert_int_equal(c->form, form);
        assert_int_equal(c->layers, 1);
        assert_int_equal(c->batch, 1);
        assert_int_equal(c->layer[0].held[0].length, 4);
        assert_int_equal(c->token_count, 4);
        assert_memory_equal(c->tokens, tokens, sizeof tokens);
        assert_string_equal(c->fingerprint.rope, "10000");
        assert_null(c->fingerprint.layout);
        assert_int_equal(c->text_count, 2);
        assert_string_equal(c->texts[0].text, texts[0].text);
        assert_string_equal(c->texts[1].key, texts[1].key);
        assert_true(kvc_safetensors_has_checksums(c->container));
        kvc_snapshot_close(snapshot);
    }
    const kvc_snapshot_text wrong[] = {{"a.b", ""}, {"12", ""},  {"", ""},    {NULL, ""},
                                       {"kvc", ""}, {"k", NULL}, {"\xff", ""}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        info.texts = &wrong[i];
        info.text_count = 1;
        assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_INVALID);
    }
    info.text_count = 0;
    info.tokens = (const int32_t[]){-1};
    info.token_count = 1;
    assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_INVALID);
    info.token_count = 0;
    info.sequence = I64(1);
    assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_INVALID);
    kvc_cache_free(cache);
}

static void fingerprint__that_differs_is_refused_by_field(void **state) {
    stage *s = *state;
    const kvc_snapshot_info info = {.struct_size = sizeof info,
                                    .fingerprint = {.model = "m", .rope = "10000"}};
    const struct {
        kvc_fingerprint expected;
        const char *sentence; /* NULL: it is loaded */
    } cases[] = {{{.model = "m"}, NULL},
                 {{.model = "m", .rope = "10000"}, NULL},
                 {{.model = "n"}, "model: \"n\" expected, \"m\" found"},
                 {{.model = "m", .rope = "1"}, "rope: \"1\" expected, \"10000\" found"},
                 {{.layout = "x"}, "layout: \"x\" expected, none found"},
                 {{.dtype = "x"}, "dtype: \"x\" expected, none found"},
                 {{.quantization = ""}, "quantization: \"\" expected, none found"}};
    kvc_cache *cache = snapshot_filled(s, &plain, KVC_GROW_RESERVE, 1, 4), *back;
    assert_ok(kvc_snapshot_save(s->path, cache, &info));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kvc_snapshot_options options = {.struct_size = sizeof options,
                                              .expected = &cases[i].expected};
        const kvc_status status = kvc_snapshot_load(&back, s->pool, s->path, &options);
        assert_int_equal(status, cases[i].sentence ? KVC_E_INVALID : KVC_OK);
        if (status) assert_non_null(strstr(kvc_last_error(), cases[i].sentence));
        kvc_cache_free(back);
    }
    kvc_cache_free(cache);
}

static void sequence__of_a_batch_is_a_file_of_its_own(void **state) {
    stage *s = *state;
    const kvc_layer_spec *specs[] = {&plain, &window, &packed};
    for (size_t i = 0; i < 3; i++) {
        kvc_cache *cache = snapshot_filled(s, specs[i], KVC_GROW_EXACT, 3, 20), *back;
        const kvc_snapshot_info info = {.struct_size = sizeof info, .sequence = I64(1)};
        kvc_snapshot *snapshot;
        assert_ok(kvc_cache_trim_sequence(cache, 2, i == 1 ? 0 : 5));
        assert_ok(kvc_snapshot_save(s->path, cache, &info));
        assert_ok(kvc_snapshot_open(&snapshot, s->path));
        assert_int_equal(kvc_snapshot_contents_of(snapshot)->batch, 1);
        assert_string_not_equal(kvc_snapshot_contents_of(snapshot)->layer[0].kind, "KvcCache");
        assert_ok(kvc_snapshot_restore(&back, s->pool, snapshot, NULL));
        kvc_snapshot_close(snapshot);
        assert_int_equal(kvc_cache_length(back, 0), 20);
        kvc_cache_free(back);
        kvc_cache_free(cache);
    }
}

static void ragged__batches_have_a_class_that_mlx_lm_refuses(void **state) {
    stage *s = *state;
    kvc_cache *cache = snapshot_filled(s, &plain, KVC_GROW_RESERVE, 2, 20);
    kvc_snapshot *snapshot;
    kvc_snapshot_info info = {.struct_size = sizeof info, .form = KVC_SNAPSHOT_MLX_LM_0_32};
    assert_ok(kvc_cache_trim_sequence(cache, 0, 5));
    assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_UNSUPPORTED);
    assert_int_not_equal(access(s->path, F_OK), 0);
    info.form = KVC_SNAPSHOT_MLX_LM_0_31;
    assert_ok(kvc_snapshot_save(s->path, cache, &info));
    assert_ok(kvc_snapshot_open(&snapshot, s->path));
    const kvc_snapshot_layer *layer = &kvc_snapshot_contents_of(snapshot)->layer[0];
    assert_string_equal(layer->kind, "KvcCache");
    assert_int_equal(layer->held[0].length, 15);
    assert_int_equal(layer->held[1].length, 20);
    kvc_snapshot_close(snapshot);
    kvc_cache_free(cache);
}

static void keys_per_channel__are_not_for_mlx_lm_0_32(void **state) {
    stage *s = *state;
    const kvc_snapshot_info info = {.struct_size = sizeof info, .form = KVC_SNAPSHOT_MLX_LM_0_32};
    kvc_cache *cache = snapshot_filled(s, &per_channel, KVC_GROW_RESERVE, 1, 40);
    assert_fails(kvc_snapshot_save(s->path, cache, &info), KVC_E_UNSUPPORTED);
    assert_non_null(strstr(kvc_last_error(), "packed per channel"));
    assert_int_equal(test_folder_count(&s->folder), 0);
    kvc_cache_free(cache);
}

/* A file of one layer: class, numbers, and tensors of zeros. */
typedef struct odd {
    const char *kind;
    const char *numbers[8]; /* 0.0.i; NULL ends them */
    int64_t rows;
    kvc_status wanted;
    const char *sentence;
} odd;

static kvc_status zeros(void *context, void *out, size_t offset, size_t bytes) {
    (void)context;
    (void)offset;
    memset(out, 0, bytes);
    return KVC_OK;
}

static void put_tensor(kvc_safetensors_writer *w, const char *name, const char *dtype,
                       const int64_t *shape) {
    assert_ok(kvc_safetensors_writer_fill(w, name, dtype, 4, shape, zeros, NULL));
}

static void put_odd(const stage *s, const odd *o) {
    kvc_safetensors_writer *w;
    char key[32], name[32];
    assert_ok(kvc_safetensors_writer_new(&w, "1."));
    assert_ok(kvc_safetensors_writer_metadata(w, "2.0", o->kind));
    for (int i = 0; i < 8 && o->numbers[i]; i++) {
        (void)snprintf(key, sizeof key, "0.0.%d", i);
        assert_ok(kvc_safetensors_writer_metadata(w, key, o->numbers[i]));
    }
    for (int side = 0; side < 2; side++) {
        (void)snprintf(name, sizeof name, "0.%d", side);
        if (strcmp(o->kind, "QuantizedKVCache") != 0) {
            put_tensor(w, name, "BF16", I64(1, 2, o->rows, 32));
            continue;
        }
        for (int part = 0; part < 3; part++) {
            (void)snprintf(name, sizeof name, "0.%d.%d", side, part);
            put_tensor(w, name, part ? "BF16" : "U32", I64(1, 2, o->rows, part ? 1 : 4));
        }
    }
    assert_ok(kvc_safetensors_writer_save(w, s->path));
    kvc_safetensors_writer_free(w);
}

static void odd__files_are_refused_with_a_sentence(void **state) {
    stage *s = *state;
    static const odd cases[] = {
        {"KVCache", {NULL}, 9, KVC_OK, NULL},
        {"KVCache", {NULL}, 0, KVC_OK, NULL},
        {"CacheList", {NULL}, 9, KVC_E_CORRUPT, "layer 0 is a CacheList of no caches"},
        {"ArraysCache", {NULL}, 9, KVC_E_UNSUPPORTED, "no keys and values"},
        {"BatchKVCache", {NULL}, 9, KVC_E_UNSUPPORTED, "one by one"},
        {"ChunkedKVCache", {"1"}, 9, KVC_E_UNSUPPORTED, "ChunkedKVCache"},
        {"os.system", {NULL}, 9, KVC_E_UNSUPPORTED, "os.system"},
        {"RotatingKVCache", {"2", "8", "13", "5"}, 8, KVC_OK, NULL},
        {"RotatingKVCache", {"2", "8", "13", "8"}, 8, KVC_OK, NULL},
        {"RotatingKVCache", {"2", "8", "13", "10"}, 10, KVC_OK, NULL},
        {"RotatingKVCache", {"2", "8", "13"}, 8, KVC_E_CORRUPT, "0.0.3 is not there"},
        {"RotatingKVCache", {"2", "8", "13", "-1"}, 8, KVC_E_CORRUPT, "0.0.3 is -1"},
        {"RotatingKVCache", {"2", "8", "1e1", "5"}, 8, KVC_E_CORRUPT, "0.0.2 is 1e1"},
        {"RotatingKVCache", {"2", "8", "", "5"}, 8, KVC_E_CORRUPT, "a number wanted"},
        {"RotatingKVCache", {"2", "8", "9223372036854775808", "5"}, 8, KVC_E_CORRUPT, "0.0.2"},
        {"RotatingKVCache", {"2", "8", "13", "9"}, 8, KVC_E_CORRUPT, "idx is 9"},
        {"RotatingKVCache", {"2", "8", "13", "1"}, 8, KVC_E_CORRUPT, "idx is 1"},
        {"RotatingKVCache", {"2", "8", "13", "5"}, 10, KVC_E_CORRUPT, "idx is 5"},
        {"RotatingKVCache", {"2", "8", "13", "7"}, 7, KVC_E_CORRUPT, "rows is 7"},
        {"RotatingKVCache", {"2", "8", "7", "6"}, 7, KVC_E_CORRUPT, "idx is 6"},
        {"RotatingKVCache", {"8", "8", "13", "8"}, 8, KVC_E_CORRUPT, "keep is 8"},
        {"RotatingKVCache", {"0", "0", "13", "8"}, 8, KVC_E_CORRUPT, "max_size is 0"},
        {"RotatingKVCache", {"0", "9223372036854775807", "8", "8"}, 8, KVC_OK, NULL},
        {"RotatingKVCache", {"0", "8", "9223372036854775807", "8"}, 8, KVC_E_RANGE, "overflow"},
        {"QuantizedKVCache", {"9", "32", "4"}, 9, KVC_OK, NULL},
        {"QuantizedKVCache", {"5", "32", "4"}, 9, KVC_OK, NULL},
        {"QuantizedKVCache", {"10", "32", "4"}, 9, KVC_E_CORRUPT, "offset is 10"},
        {"QuantizedKVCache", {"9", "32", "7"}, 9, KVC_E_CORRUPT, "bits is 7"},
        {"QuantizedKVCache", {"9", "31", "4"}, 9, KVC_E_CORRUPT, "group is 31"},
        {"QuantizedKVCache", {"9", "64", "4"}, 9, KVC_E_CORRUPT, "a scale for each group"},
        {"QuantizedKVCache", {"9", "32", "8"}, 9, KVC_E_CORRUPT, "a scale for each group"},
        {"KvcCache", {"0", "0", "0", "0", "0", "9", "9"}, 9, KVC_OK, NULL},
        {"KvcCache", {"0", "0", "0", "0", "0", "9", "8"}, 9, KVC_E_CORRUPT, "rows is 8"},
        {"KvcCache", {"0", "0", "0", "0", "0", "10", "10"}, 9, KVC_E_CORRUPT, "rows is 10"},
        {"KvcCache", {"0", "0", "0", "0", "1", "9", "9"}, 9, KVC_E_CORRUPT, "packing is 1"},
        {"KvcCache", {"0", "0", "0", "0", "2", "9", "9"}, 9, KVC_E_CORRUPT, "packing is 2"},
        {"KvcCache", {"4", "1", "0", "0", "0", "20", "9"}, 9, KVC_OK, NULL},
        {"KvcCache", {"4", "1", "0", "0", "0", "20", "3"}, 9, KVC_E_CORRUPT, "rows is 3"},
        {"KvcCache", {"4", "4", "0", "0", "0", "20", "9"}, 9, KVC_E_CORRUPT, "keep is 4"},
        {"KvcCache", {"4", "1", "0", "0", "0", "20"}, 9, KVC_E_CORRUPT, "0.0.6 is not there"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            const kvc_snapshot_options options = {.struct_size = sizeof options, .flags = flags};
            kvc_cache *cache;
            put_odd(s, &cases[i]);
            const kvc_status status = kvc_snapshot_load(&cache, s->pool, s->path, &options);
            if (status != cases[i].wanted)
                fail_msg("case %zu: %s: %s", i, kvc_status_name(status), kvc_last_error());
            if (status) assert_non_null(strstr(kvc_last_error(), cases[i].sentence));
            if (status) assert_null(cache);
            else assert_ok(kvc_cache_check(cache));
            kvc_cache_free(cache);
        }
}

/* Files of two layers that do not fit together. */
static void mixed__up_layers_are_refused(void **state) {
    stage *s = *state;
    static const struct {
        const char *names[5];
        int64_t shapes[5][4];
        const char *sentence;
    } cases[] = {
        {{"0.0", "0.1", "1.0"}, {{1, 2, 9, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}}, "1.1 is not there"},
        {{"0.0", "0.1", "1.0", "1.1"},
         {{1, 2, 9, 32}, {1, 2, 9, 32}, {2, 2, 9, 32}, {2, 2, 9, 32}},
         "batch is 2"},
        {{"0.0", "0.1", "1.0", "1.1"},
         {{1, 2, 9, 32}, {1, 2, 8, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}},
         "tensor 0.0"},
        {{"0.0", "0.1", "1.0", "1.1", "2.0"},
         {{1, 2, 9, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}},
         "5 tensors, of which its 2 layers have 4"},
        {{"0.0", "0.1", "1.0", "1.1"},
         {{1, 0, 9, 32}, {1, 0, 9, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}},
         "extents of at least 1"},
        {{"0.0", "0.1", "1.0", "1.1"},
         {{1LL << 40, 1, 0, 32}, {1LL << 40, 1, 0, 32}, {1, 2, 9, 32}, {1, 2, 9, 32}},
         "at most 65536 sequences"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvc_safetensors_writer *w;
        kvc_cache *cache;
        assert_ok(kvc_safetensors_writer_new(&w, "1."));
        assert_ok(kvc_safetensors_writer_metadata(w, "2.0", "KVCache"));
        assert_ok(kvc_safetensors_writer_metadata(w, "2.1", "KVCache"));
        for (int t = 0; t < 5 && cases[i].names[t]; t++)
            put_tensor(w, cases[i].names[t], "F16", cases[i].shapes[t]);
        assert_ok(kvc_safetensors_writer_save(w, s->path));
        kvc_safetensors_writer_free(w);
        assert_fails(kvc_snapshot_load(&cache, s->pool, s->path, NULL), KVC_E_CORRUPT);
        assert_non_null(strstr(kvc_last_error(), cases[i].sentence));
        assert_null(cache);
    }
}

static void bytes__flipped_one_at_a_time_give_no_other_values(void **state) {
    stage *s = *state;
    kvc_cache *cache = snapshot_filled(s, &packed, KVC_GROW_CHUNK, 1, 3), *back;
    float before[4 * HEADS * DIM], after[4 * HEADS * DIM];
    size_t bytes, loaded = 0;
    assert_ok(kvc_snapshot_save(s->path, cache, NULL));
    char *file = test_file_get(s->path, &bytes);
    snapshot_attend(cache, 0, before);
    for (size_t i = 0; i < bytes; i++) {
        file[i] = (char)(file[i] ^ (1 << i % 8));
        test_file_put(s->path, file, bytes);
        file[i] = (char)(file[i] ^ (1 << i % 8));
        if (kvc_snapshot_load(&back, s->pool, s->path, NULL) != KVC_OK) continue;
        snapshot_attend(back, 0, after);
        assert_memory_equal(before, after, HEADS * DIM * sizeof(float));
        loaded++;
        kvc_cache_free(back);
    }
    assert_true(loaded < 60); /* flips in the keys of checksums, which make it a file without */
    for (size_t length = 0; length < bytes; length += 7) {
        test_file_put(s->path, file, length);
        assert_fails(kvc_snapshot_load(&back, s->pool, s->path, NULL), KVC_E_CORRUPT);
    }
    free(file);
    kvc_cache_free(cache);
}

static void executor__has_the_caller_told_what_is_damaged(void **state) {
    stage *s = *state;
    kvc_threads *threads;
    kvc_cache *cache = snapshot_filled(s, &packed, KVC_GROW_RESERVE, 1, 70), *back;
    kvc_snapshot *snapshot;
    assert_ok(kvc_threads_new(&threads, 3));
    kvc_executor executor = kvc_threads_executor(threads);
    const kvc_snapshot_options options = {.struct_size = sizeof options, .executor = &executor};
    for (size_t i = 0; i < 6; i++) { /* the planes */
        assert_ok(kvc_snapshot_save(s->path, cache, NULL));
        assert_ok(kvc_snapshot_open(&snapshot, s->path));
        const kvc_safetensors_tensor *t =
            kvc_safetensors_at(kvc_snapshot_contents_of(snapshot)->container, i);
        const size_t at = (size_t)t->offset + t->bytes / 2;
        char tensor[32], *bytes;
        size_t count;
        (void)snprintf(tensor, sizeof tensor, "tensor %s: ", t->name);
        kvc_snapshot_close(snapshot);
        bytes = test_file_get(s->path, &count);
        bytes[at] ^= 1;
        test_file_put(s->path, bytes, count);
        free(bytes);
        assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_CORRUPT);
        assert_non_null(strstr(kvc_last_error(), tensor));
        assert_null(back);
    }
    executor.threads = 0;
    assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_INVALID);
    executor.threads = 3;
    executor.parallel_for = NULL;
    assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_INVALID);
    kvc_cache_free(cache);
    kvc_threads_free(threads);
}

static void mapped__load_verifies_if_asked(void **state) {
    stage *s = *state;
    kvc_cache *cache = snapshot_filled(s, &plain, KVC_GROW_RESERVE, 1, 100), *back;
    kvc_snapshot *snapshot;
    size_t bytes;
    assert_ok(kvc_snapshot_save(s->path, cache, NULL));
    kvc_cache_free(cache);
    char *file = test_file_get(s->path, &bytes);
    file[bytes - 1] = (char)(file[bytes - 1] ^ 1);
    test_file_put(s->path, file, bytes);
    free(file);
    kvc_snapshot_options options = {.struct_size = sizeof options, .flags = KVC_LOAD_MAP};
    assert_ok(kvc_snapshot_load(&back, s->pool, s->path, &options));
    kvc_cache_free(back);
    options.flags |= KVC_LOAD_VERIFY;
    assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_CORRUPT);
    assert_ok(kvc_snapshot_open(&snapshot, s->path));
    assert_fails(kvc_snapshot_verify(snapshot), KVC_E_CORRUPT);
    kvc_snapshot_close(snapshot);
    options.flags = 8;
    assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_INVALID);
    options.flags = KVC_LOAD_MAP;
    options.growth = KVC_GROW_CHUNK;
    assert_fails(kvc_snapshot_load(&back, s->pool, s->path, &options), KVC_E_INVALID);
}

static void mapped__files_may_be_replaced_and_are_not_written(void **state) {
    stage *s = *state;
    kvc_cache *cache = snapshot_filled(s, &plain, KVC_GROW_RESERVE, 1, 300), *one, *two;
    const kvc_snapshot_options options = {.struct_size = sizeof options, .flags = KVC_LOAD_MAP};
    float wanted[4 * HEADS * DIM], found[4 * HEADS * DIM];
    snapshot_attend(cache, 0, wanted);
    assert_ok(kvc_snapshot_save(s->path, cache, NULL));
    assert_ok(kvc_snapshot_load(&one, s->pool, s->path, &options));
    assert_ok(kvc_snapshot_load(&two, s->pool, s->path, &options));
    kvc_cache *other = snapshot_filled(s, &plain, KVC_GROW_CHUNK, 1, 3);
    assert_ok(kvc_snapshot_save(s->path, other, NULL)); /* over the file that both map */
    kvc_cache_free(other);
    snapshot_attend(one, 0, found);
    assert_memory_equal(wanted, found, HEADS * DIM * sizeof(float));
    assert_ok(kvc_cache_trim(one, 200)); /* and what one writes the other does not see */
    other = snapshot_filled(s, &plain, KVC_GROW_CHUNK, 1, 100);
    kvc_array k, v;
    assert_ok(kvc_cache_view(other, 0, &k, &v));
    assert_ok(kvc_cache_append(one, 0, &k, &v));
    kvc_array_release(&k);
    kvc_array_release(&v);
    kvc_cache_free(other);
    snapshot_attend(two, 0, found);
    assert_memory_equal(wanted, found, HEADS * DIM * sizeof(float));
    snapshot_attend(one, 0, found);
    assert_memory_not_equal(wanted, found, HEADS * DIM * sizeof(float));
    kvc_cache_free(cache);
    kvc_cache_free(one);
    kvc_cache_free(two);
}

/* docs/FORMAT.md has this file as its example. */
static void golden__file_of_ours_is_this_to_the_byte(void **state) {
    stage *s = *state;
    static const char header[] =
        "{\"__metadata__\":{\"1.kvc.xxh3.header\":\"6c0306aa6f7f7bd08b58de10346ab427\","
        "\"1.kvc.xxh3.tensors\":\"2babafcad3709c7ce3b3073547aa9dc3"
        "2a078ad327baa97f8c2f48fee4807522\",\"1.kvc.format\":\"1\","
        "\"1.kvc.model\":\"m\",\"2.0\":\"KVCache\",\"0.0\":\"\"},"
        "\"0.0\":{\"dtype\":\"F32\",\"shape\":[1,1,2,2],\"data_offsets\":[0,16]},"
        "\"0.1\":{\"dtype\":\"F32\",\"shape\":[1,1,2,2],\"data_offsets\":[16,32]}}";
    static const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const kvc_layer_spec spec = {.kv_heads = 1, .key_dim = 2, .dtype = KVC_F32};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = KVC_GROW_EXACT};
    const kvc_snapshot_info info = {.struct_size = sizeof info, .fingerprint = {.model = "m"}};
    kvc_array k, v;
    kvc_cache *cache;
    size_t bytes;
    assert_ok(kvc_cache_new(&cache, s->pool, &desc));
    assert_ok(kvc_array_borrow(&k, KVC_F32, 4, I64(1, 1, 2, 2), NULL, numbers));
    assert_ok(kvc_array_borrow(&v, KVC_F32, 4, I64(1, 1, 2, 2), NULL, numbers + 4));
    assert_ok(kvc_cache_append(cache, 0, &k, &v));
    assert_ok(kvc_snapshot_save(s->path, cache, &info));
    kvc_cache_free(cache);
    char *file = test_file_get(s->path, &bytes);
    assert_int_equal(bytes, 384 + sizeof numbers);
    assert_memory_equal(file + 8, header, strlen(header));
    assert_memory_equal(file + 384, numbers, sizeof numbers);
    free(file);
}

/* docs/FORMAT.md tells how this one is made, too: keys per channel, unpacked ones among them. The
 * checksums of the header stand for the data. */
static void golden__file_of_keys_per_channel_is_this_to_the_byte(void **state) {
    stage *s = *state;
    enum { POSITIONS = 33 };
    static const char header[] =
        "{\"__metadata__\":{\"1.kvc.xxh3.header\":\"e157639c0ab3483edc1f4460c9249b8f\","
        "\"1.kvc.xxh3.tensors\":\"e6ff6f5cfa313e03c50a23d10f70ea6cba4be7088ae515403280e6a148c"
        "2229411b495eab051e13f1a864ccf4ac1b06e11ed2a9f77650c6fb9aeb356c9a0fdb1f176c6d671f9d67"
        "34fd94cff085cbce219c4299abee7a50ed0fb38755b8f5b0cdfb4651c99bcae4c598081b3e16a3aac\","
        "\"1.kvc.format\":\"1\",\"2.0\":\"KvcCache\",\"0.0.0\":\"0\",\"0.0.1\":\"0\",\"0.0.2"
        "\":\"8\",\"0.0.3\":\"32\",\"0.0.4\":\"2\",\"0.0.5\":\"33\",\"0.0.6\":\"0\"},"
        "\"0.0.0\":{\"dtype\":\"U32\",\"shape\":[1,1,2,256],\"data_offsets\":[0,2048]},"
        "\"0.1.0\":{\"dtype\":\"U32\",\"shape\":[1,1,64,8],\"data_offsets\":[2048,4096]},"
        "\"0.0.1\":{\"dtype\":\"F32\",\"shape\":[1,1,2,32],\"data_offsets\":[4096,4352]},"
        "\"0.0.2\":{\"dtype\":\"F32\",\"shape\":[1,1,2,32],\"data_offsets\":[4352,4608]},"
        "\"0.1.1\":{\"dtype\":\"F32\",\"shape\":[1,1,64,1],\"data_offsets\":[4608,4864]},"
        "\"0.1.2\":{\"dtype\":\"F32\",\"shape\":[1,1,64,1],\"data_offsets\":[4864,5120]},"
        "\"0.2\":{\"dtype\":\"F32\",\"shape\":[1,1,64,32],\"data_offsets\":[5120,13312]}}";
    const kvc_layer_spec spec = {.kv_heads = 1,
                                 .key_dim = DIM,
                                 .dtype = KVC_F32,
                                 .kv_bits = 8,
                                 .kv_group = 32,
                                 .keys_per_channel = true};
    const kvc_cache_desc desc = {.struct_size = sizeof desc,
                                 .layers = 1,
                                 .specs = &spec,
                                 .spec_count = 1,
                                 .growth = KVC_GROW_CHUNK};
    float keys[POSITIONS * DIM], values[POSITIONS * DIM];
    kvc_array k, v;
    kvc_cache *cache;
    size_t bytes;
    for (int p = 0; p < POSITIONS; p++)
        for (int d = 0; d < DIM; d++) {
            keys[p * DIM + d] = (float)(p == 31 ? 255 : p);
            values[p * DIM + d] = (float)(d == 31 ? 255 : d);
        }
    assert_ok(kvc_cache_new(&cache, s->pool, &desc));
    assert_ok(kvc_array_borrow(&k, KVC_F32, 4, I64(1, 1, POSITIONS, DIM), NULL, keys));
    assert_ok(kvc_array_borrow(&v, KVC_F32, 4, I64(1, 1, POSITIONS, DIM), NULL, values));
    assert_ok(kvc_cache_append(cache, 0, &k, &v));
    assert_ok(kvc_snapshot_save(s->path, cache, NULL));
    kvc_cache_free(cache);
    char *file = test_file_get(s->path, &bytes);
    assert_int_equal(bytes, 960 + 13312);
    assert_memory_equal(file + 8, header, strlen(header));
    free(file);
}

static void golden__files_of_mlx_lm_load(void **state) {
    stage *s = *state;
    static const char *const files[] = {"kv_bf16",      "rotating_f16", "quant_b2_g32",
                                        "quant_b2_g64", "quant_b3_g32", "quant_b4_g32",
                                        "quant_b4_g64", "quant_b8_g32", "quant_b8_g64"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            char name[64];
            int64_t mapped;
            const kvc_snapshot_options options = {
                .struct_size = sizeof options, .flags = flags, .mapped_layers = &mapped};
            kvc_cache *cache;
            (void)snprintf(name, sizeof name, "golden/mlx-lm/%s.safetensors", files[i]);
            assert_ok(kvc_snapshot_load(&cache, s->pool, test_shared_path(name), &options));
            assert_ok(kvc_cache_check(cache));
            if (i == 1) {
                int64_t positions[8] = {0};
                assert_ok(kvc_cache_row_positions(cache, 0, 0, positions, 8));
                for (int row = 2; row < 8; row++) /* the next position, 13, goes to row 5 */
                    assert_int_equal(positions[row], row < 5 ? 10 + row - 2 : 7 + row - 5);
            }
            kvc_cache_free(cache);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, snapshot_setup, snapshot_teardown)
        TEST(attention__over_what_came_back_is_the_same),
        TEST(info__comes_back),
        TEST(fingerprint__that_differs_is_refused_by_field),
        TEST(sequence__of_a_batch_is_a_file_of_its_own),
        TEST(ragged__batches_have_a_class_that_mlx_lm_refuses),
        TEST(keys_per_channel__are_not_for_mlx_lm_0_32),
        TEST(odd__files_are_refused_with_a_sentence),
        TEST(mixed__up_layers_are_refused),
        TEST(bytes__flipped_one_at_a_time_give_no_other_values),
        TEST(executor__has_the_caller_told_what_is_damaged),
        TEST(mapped__load_verifies_if_asked),
        TEST(mapped__files_may_be_replaced_and_are_not_written),
        TEST(golden__file_of_ours_is_this_to_the_byte),
        TEST(golden__file_of_keys_per_channel_is_this_to_the_byte),
        TEST(golden__files_of_mlx_lm_load),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
