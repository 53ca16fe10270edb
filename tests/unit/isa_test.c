/* Which instruction set is chosen: by the CPU, and by what KVC_ISA allows; and its loops. */
#include <string.h>

#include "attention/ops.h"
#include "support/support.h"

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static void isa__is_the_best_without_a_cap(void **state) {
    (void)state;
    kvc__isa_choice choice, same;
    kvc__isa_choose(&choice, NULL);
    assert_string_equal(choice.limit, "");
    assert_string_equal(choice.remedy, "");
    kvc__isa_choose(&same, "");
    assert_memory_equal(&same, &choice, sizeof choice);
    kvc__isa_choose(&same, choice.name); /* as if there were none */
    assert_memory_equal(&same, &choice, sizeof choice);
}

static void isa__is_capped_by_name(void **state) {
    (void)state;
    kvc__isa_choice choice, best;
    kvc__ops capped, fastest;
    kvc__isa_choose(&choice, "generic");
    kvc__isa_choose(&best, NULL);
    assert_string_equal(choice.name, "generic");
    if (best.isa == KVC__ISA_GENERIC) return;
    assert_contains(choice.limit, "KVC_ISA=generic");
    assert_contains(choice.remedy, best.name);
    kvc__ops_fill(&capped, choice.isa);
    kvc__ops_fill(&fastest, best.isa);
    assert_true(capped.score[0][0] != fastest.score[0][0]);
}

static void isa__that_is_unknown_allows_all_and_is_told(void **state) {
    (void)state;
    static const char *const unknown[] = {"avx3", "AVX2", "generic ", "a name of more than 16"};
    kvc__isa_choice choice, best;
    kvc__isa_choose(&best, NULL);
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        kvc__isa_choose(&choice, unknown[i]);
        assert_int_equal(choice.isa, best.isa);
        assert_string_equal(choice.name, best.name);
        assert_contains(choice.limit, "names no instruction set");
        assert_contains(choice.remedy, "generic");
        assert_contains(choice.remedy, best.name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(isa__is_the_best_without_a_cap),
        cmocka_unit_test(isa__is_capped_by_name),
        cmocka_unit_test(isa__that_is_unknown_allows_all_and_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
