#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

#include <kvcache/status.h>

bool failure_set(failure *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(out->sentence, sizeof out->sentence, format, arguments);
    va_end(arguments);
    return false;
}

bool failure_set_library(failure *out, const char *what) {
    return failure_set(out, "%s: %s", what, kvc_last_error());
}
