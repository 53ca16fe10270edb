#include "cache_option.h"

#include "cli.h"

/* By kvc_growth; the seed's word for the last. */
static const char *const growths[] = {
    [KVC_GROW_RESERVE] = "reserve", [KVC_GROW_CHUNK] = "chunk", [KVC_GROW_EXACT] = "concat"};

bool cache_option(const char *text, transformer_options *out) {
    size_t growth;
    if (!cli_choice("--cache", text, growths, sizeof growths / sizeof *growths, &growth))
        return false;
    out->growth = (kvc_growth)growth;
    return true;
}
