/* snapshot_resave FROM TO 0|1 [GROWTH]: loads a snapshot and saves it again, in a form, by way of a
 * cache of a growth (reserve, chunk, exact, paged, map), with the texts and lists that it had. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/snapshot.h>

static kvc_status new_blocks(kvc_blocks **out, kvc_pool *pool, const kvc_snapshot_contents *c) {
    kvc_layer_spec *specs = calloc((size_t)c->layers, sizeof *specs);
    if (!specs) return KVC_E_NOMEM;
    for (int64_t i = 0; i < c->layers; i++) specs[i] = c->layer[i].spec;
    const kvc_blocks_desc desc = {.struct_size = sizeof desc,
                                  .layers = c->layers,
                                  .specs = specs,
                                  .spec_count = c->layers,
                                  .positions = 16};
    const kvc_status status = kvc_blocks_new(out, pool, &desc);
    free(specs);
    return status;
}

/* Saves a cache with the texts and in the lists of a file. */
static kvc_status save(const char *path, const kvc_cache *cache, const kvc_snapshot_contents *c,
                       kvc_snapshot_form form) {
    const char **paths = calloc((size_t)c->layers, sizeof *paths);
    if (!paths) return KVC_E_NOMEM;
    for (int64_t i = 0; i < c->layers; i++) paths[i] = c->layer[i].path;
    const kvc_snapshot_info info = {.struct_size = sizeof info,
                                    .form = form,
                                    .fingerprint = {.model = "a test"},
                                    .texts = c->texts,
                                    .text_count = c->text_count,
                                    .paths = paths};
    const kvc_status status = kvc_snapshot_save(path, cache, &info);
    free(paths);
    return status;
}

static kvc_status resave(kvc_pool *pool, const char *const *argv, const char *growth) {
    kvc_snapshot *s = NULL;
    kvc_cache *cache = NULL;
    kvc_blocks *blocks = NULL;
    kvc_snapshot_options options = {.struct_size = sizeof options};
    if (strcmp(growth, "map") == 0) options.flags = KVC_LOAD_MAP;
    for (int g = KVC_GROW_RESERVE; g <= KVC_GROW_PAGED; g++)
        if (strcmp(growth, kvc_growth_name((kvc_growth)g)) == 0) options.growth = (kvc_growth)g;
    kvc_status status = kvc_snapshot_open(&s, argv[1]);
    if (!status && options.growth == KVC_GROW_PAGED)
        status = new_blocks(&blocks, pool, kvc_snapshot_contents_of(s));
    options.blocks = blocks;
    if (!status) status = kvc_snapshot_restore(&cache, pool, s, &options);
    if (!status)
        status = save(argv[2], cache, kvc_snapshot_contents_of(s),
                      argv[3][0] == '1' ? KVC_SNAPSHOT_MLX_LM_0_32 : KVC_SNAPSHOT_MLX_LM_0_31);
    kvc_cache_free(cache);
    kvc_blocks_free(blocks);
    kvc_snapshot_close(s);
    return status;
}

int main(int argc, char **argv) {
    kvc_pool *pool = NULL;
    if (argc != 4 && argc != 5) return 2;
    kvc_status status = kvc_pool_new(&pool, kvc_device_cpu());
    if (!status) status = resave(pool, (const char *const *)argv, argc == 5 ? argv[4] : "reserve");
    kvc_pool_free(pool);
    if (status) fprintf(stderr, "%s\n", kvc_last_error());
    return status != KVC_OK;
}
