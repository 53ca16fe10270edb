#include <string.h>

#include <kvcache/dtype.h>

#include "support/support.h"

static void dtype__every_one_has_its_size_and_is_found_by_its_name(void **state) {
    (void)state;
    kvc_dtype found;
#define CHECK(id, value, text, bytes)                                                              \
    assert_int_equal(id, value);                                                                   \
    assert_int_equal(kvc_dtype_size_bytes(id), bytes);                                             \
    assert_string_equal(kvc_dtype_name(id), text);                                                 \
    assert_ok(kvc_dtype_from_name(&found, text));                                                  \
    assert_int_equal(found, id);
    KVC_DTYPE_LIST(CHECK)
#undef CHECK
}

static void dtype__a_value_that_is_none_has_no_size(void **state) {
    (void)state;
    assert_int_equal(kvc_dtype_size_bytes((kvc_dtype)0), 0);
    assert_int_equal(kvc_dtype_size_bytes((kvc_dtype)99), 0);
    assert_string_equal(kvc_dtype_name((kvc_dtype)0), "?");
}

static void dtype__an_unknown_name_is_refused_and_named(void **state) {
    (void)state;
    kvc_dtype found;
    assert_fails(kvc_dtype_from_name(&found, "fp8"), KVC_E_INVALID);
    assert_non_null(strstr(kvc_last_error(), "'fp8'"));
    assert_non_null(strstr(kvc_last_error(), "bf16"));
    assert_fails(kvc_dtype_from_name(&found, "f3"), KVC_E_INVALID);
    assert_fails(kvc_dtype_from_name(&found, "f322"), KVC_E_INVALID);
    assert_fails(kvc_dtype_from_name(&found, ""), KVC_E_INVALID);
    assert_fails(kvc_dtype_from_name(&found, NULL), KVC_E_INVALID);
    assert_fails(kvc_dtype_from_name(NULL, "f32"), KVC_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype__every_one_has_its_size_and_is_found_by_its_name),
        cmocka_unit_test(dtype__a_value_that_is_none_has_no_size),
        cmocka_unit_test(dtype__an_unknown_name_is_refused_and_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
