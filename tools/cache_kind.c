#include "cache_kind.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { GROUP_DEFAULT = 64, MOST_WINDOW = 1 << 24 };

/* By kvc_growth; concat is the seed's word. */
static const char *const growths[] = {[KVC_GROW_RESERVE] = "reserve",
                                      [KVC_GROW_CHUNK] = "chunk",
                                      [KVC_GROW_EXACT] = "concat",
                                      [KVC_GROW_PAGED] = "paged"};

/* A part such as "window:4096:4": a word, and up to two numbers. */
typedef struct part {
    char word[16];
    int64_t numbers[2];
    int count;
} part;

/* What of a kind has been said. */
typedef struct said {
    bool growth, window, packing;
} said;

/* Digits alone, as many as no number overflows. */
static bool read_number(const char *text, size_t length, int64_t *out) {
    if (length == 0 || length > 9 || strspn(text, "0123456789") < length) return false;
    *out = strtoll(text, NULL, 10);
    return true;
}

static bool split(const char *text, size_t length, part *out) {
    const char *const end = text + length;
    const char *at = text + strcspn(text, ":+");
    const size_t word = (size_t)(at - text);
    *out = (part){.count = 0};
    if (word >= sizeof out->word) return false;
    memcpy(out->word, text, word);
    while (at < end) {
        const char *const number = at + 1;
        at = number + strcspn(number, ":+");
        if (out->count == 2 ||
            !read_number(number, (size_t)(at - number), &out->numbers[out->count++]))
            return false;
    }
    return true;
}

/* Each reads one part into the kind; returns what is wanted instead, or NULL when all is well. */

static const char *read_growth(cache_kind *kind, const part *p, said *before) {
    size_t growth = 0;
    while (growth < sizeof growths / sizeof *growths && strcmp(p->word, growths[growth]) != 0)
        growth++;
    if (growth == sizeof growths / sizeof *growths || before->growth ||
        p->count > (growth == KVC_GROW_PAGED))
        return CACHE_KIND_FORMS " wanted, one of each sort, with + between";
    before->growth = true;
    kind->growth = (kvc_growth)growth;
    if (growth != KVC_GROW_PAGED) return NULL;
    kind->block = p->count ? p->numbers[0] : KVC_BLOCK_POSITIONS_DEFAULT;
    return kind->block < KVC_BLOCK_POSITIONS_MIN || kind->block > KVC_BLOCK_POSITIONS_MAX
               ? "paged[:BLOCK] with blocks of 16 to 256 positions wanted"
               : NULL;
}

static const char *read_window(cache_kind *kind, const part *p, said *before) {
    kind->window = p->numbers[0];
    kind->keep = p->numbers[1];
    if (before->window || p->count == 0 || kind->window < 1 || kind->window > MOST_WINDOW ||
        kind->keep >= kind->window)
        return "one window:W[:KEEP] with W from 1 to 16777216 and KEEP below W wanted";
    before->window = true;
    return NULL;
}

static const char *read_packing(cache_kind *kind, const part *p, said *before) {
    const char *form = p->word + 2;
    const bool known = strlen(p->word) >= 2 && strchr("234568", p->word[1]);
    const bool per_channel = known && *form == 'c', rotated = known && form[per_channel] == 'r';
    const int64_t group = p->count ? p->numbers[0] : GROUP_DEFAULT;
    if (before->packing || !known || form[per_channel + rotated] || p->count > 1 ||
        (group != 32 && group != 64 && group != 128))
        return "one qBITS[c][r][:GROUP] with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128 "
               "wanted";
    before->packing = true;
    kind->bits = p->word[1] - '0';
    kind->group = (int)group;
    kind->keys_per_channel = per_channel;
    kind->rotated = rotated;
    return NULL;
}

static const char *read_parts(cache_kind *kind, const char *text) {
    said before = {.growth = false};
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, "+");
        const char *wanted;
        part p;
        if (!split(at, length, &p)) p.word[0] = '\0'; /* which nothing is called */
        if (strcmp(p.word, "window") == 0) wanted = read_window(kind, &p, &before);
        else if (p.word[0] == 'q') wanted = read_packing(kind, &p, &before);
        else wanted = read_growth(kind, &p, &before);
        if (wanted) return wanted;
        at += length;
        if (*at == '\0') break;
    }
    if (kind->window && kind->growth == KVC_GROW_PAGED)
        return "a window or blocks wanted: blocks keep every position";
    if (kind->keys_per_channel && (kind->window || kind->growth == KVC_GROW_PAGED))
        return "q without c wanted: keys per channel have neither windows nor blocks";
    return NULL;
}

const char *cache_kind_parse(const char *text, cache_kind *out) {
    cache_kind kind = {.growth = KVC_GROW_RESERVE};
    const char *wanted = read_parts(&kind, text);
    if (!wanted) *out = kind;
    return wanted;
}

bool cache_kind_read(const char *name, const char *text, cache_kind *out) {
    const char *wanted = cache_kind_parse(text, out);
    if (wanted) (void)cli_usage("%s: '%s' given, %s", name, text, wanted);
    return !wanted;
}

static bool is_same(const cache_kind *a, const cache_kind *b) {
    char texts[2][CACHE_KIND_ROOM];
    return strcmp(cache_kind_text(texts[0], a), cache_kind_text(texts[1], b)) == 0;
}

bool cache_kind_list(const char *name, const char *text, cache_kind *out, size_t room,
                     size_t *count) {
    cache_kind kinds[16];
    char one[CACHE_KIND_ROOM];
    size_t n = 0;
    if (room > sizeof kinds / sizeof *kinds) room = sizeof kinds / sizeof *kinds;
    for (const char *at = text; cli_list_part(&at, one, sizeof one); n++) {
        if (n == room) {
            (void)cli_usage("%s: '%s' given, up to %zu kinds wanted", name, text, room);
            return false;
        }
        if (!cache_kind_read(name, one, &kinds[n])) return false;
        for (size_t i = 0; i < n; i++) {
            if (!is_same(&kinds[i], &kinds[n])) continue;
            (void)cli_usage("%s: '%s' given twice, different kinds wanted", name, one);
            return false;
        }
    }
    memcpy(out, kinds, n * sizeof *kinds);
    *count = n;
    return true;
}

__attribute__((format(printf, 2, 3))) static void add(char out[CACHE_KIND_ROOM], const char *format,
                                                      ...) {
    const size_t used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(out + used, CACHE_KIND_ROOM - used, format, arguments);
    va_end(arguments);
}

const char *cache_kind_text(char out[CACHE_KIND_ROOM], const cache_kind *kind) {
    out[0] = '\0';
    if (kind->bits)
        add(out, "q%d%s%s", kind->bits, kind->keys_per_channel ? "c" : "",
            kind->rotated ? "r" : "");
    if (kind->bits && kind->group != GROUP_DEFAULT) add(out, ":%d", kind->group);
    if (kind->window) add(out, "%swindow:%lld", *out ? "+" : "", (long long)kind->window);
    if (kind->keep) add(out, ":%lld", (long long)kind->keep);
    if (kind->growth != KVC_GROW_RESERVE || !*out)
        add(out, "%s%s", *out ? "+" : "", growths[kind->growth]);
    if (kind->growth == KVC_GROW_PAGED && kind->block != KVC_BLOCK_POSITIONS_DEFAULT)
        add(out, ":%lld", (long long)kind->block);
    return out;
}

bool cache_kind_fits(const char *name, const cache_kind *kind, int64_t dim) {
    char text[CACHE_KIND_ROOM];
    if (!kind->bits || dim % kind->group == 0) return true;
    (void)cli_usage("%s: '%s' given, with heads of %lld elements; groups of 32, 64 or 128 that "
                    "divide these wanted",
                    name, cache_kind_text(text, kind), (long long)dim);
    return false;
}

kvc_layer_spec cache_kind_spec(const cache_kind *kind, int64_t kv_heads, int64_t dim,
                               kvc_dtype dtype) {
    return (kvc_layer_spec){.kv_heads = kv_heads,
                            .key_dim = dim,
                            .dtype = dtype,
                            .window = kind->window,
                            .keep = kind->keep,
                            .kv_bits = kind->bits,
                            .kv_group = kind->group,
                            .keys_per_channel = kind->keys_per_channel,
                            .rotated = kind->rotated};
}

uint64_t cache_kind_position_bytes(const kvc_layer_spec *spec) {
    const uint64_t heads = (uint64_t)spec->kv_heads, dim = (uint64_t)spec->key_dim;
    const uint64_t element = kvc_dtype_size_bytes(spec->dtype);
    if (!spec->kv_bits) return 2 * heads * dim * element;
    return 2 * heads *
           (dim * (uint64_t)spec->kv_bits / 8 + 2 * dim / (uint64_t)spec->kv_group * element);
}

kvc_status cache_kind_blocks(kvc_blocks **out, kvc_pool *pool, const cache_kind *kind,
                             const kvc_layer_spec *spec, int64_t layers) {
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = layers,
                                  .specs = spec,
                                  .spec_count = 1,
                                  .positions = kind->block};
    *out = NULL;
    return kind->growth == KVC_GROW_PAGED ? kvc_blocks_new(out, pool, &desc) : KVC_OK;
}
