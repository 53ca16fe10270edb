#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/version.h>

#include "base/error.h"

#define TEXT(x)  #x
#define VALUE(x) TEXT(x)

static _Thread_local char last_error[512];

const char *kvc_version(void) {
    return VALUE(KVC_VERSION_MAJOR) "." VALUE(KVC_VERSION_MINOR) "." VALUE(KVC_VERSION_PATCH);
}

const char *kvc_status_name(kvc_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case name: return #name;
        KVC_STATUS_LIST(CASE)
#undef CASE
    }
    return "KVC_E_?";
}

const char *kvc_status_text(kvc_status status) {
    switch (status) {
#define CASE(name, value, text)                                                                    \
    case name: return text;
        KVC_STATUS_LIST(CASE)
#undef CASE
    }
    return "an unknown status";
}

const char *kvc_last_error(void) {
    return last_error;
}

void kvc_last_error_set(const char *format, ...) {
    char sentence[sizeof last_error]; /* an argument may be the last one */
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    memcpy(last_error, sentence, sizeof sentence);
}

/* A struct's tag: the size that its owner compiled it with. */
static size_t tag_of(const void *tagged) {
    size_t bytes;
    memcpy(&bytes, tagged, sizeof bytes);
    return bytes;
}

static kvc_status check_tag(const void *tagged, const char *type) {
    if (!tagged) return kvc__fail(KVC_E_INVALID, "%s: NULL given, a struct wanted", type);
    const size_t bytes = tag_of(tagged);
    if (bytes <= sizeof(size_t) || bytes > 65536)
        return kvc__fail(KVC_E_INVALID, "%s.struct_size: %zu given, sizeof(%s) wanted", type, bytes,
                         type);
    return KVC_OK;
}

kvc_status kvc__struct_out(void *out, const void *full, size_t full_bytes, const char *type) {
    KVC_TRY(check_tag(out, type));
    const size_t bytes = tag_of(out) < full_bytes ? tag_of(out) : full_bytes;
    memcpy((char *)out + sizeof bytes, (const char *)full + sizeof bytes, bytes - sizeof bytes);
    return KVC_OK;
}

kvc_status kvc__struct_in(void *full, size_t full_bytes, const void *desc, const char *type) {
    KVC_TRY(check_tag(desc, type));
    const size_t bytes = tag_of(desc) < full_bytes ? tag_of(desc) : full_bytes;
    memset(full, 0, full_bytes);
    memcpy(full, desc, bytes);
    return KVC_OK;
}
