#include "draft.h"

/* Returns how many tokens before `end` are those at the end of the text; DRAFT_LONGEST at most. */
static int64_t match(const int32_t *text, int64_t count, int64_t end) {
    int64_t length = 0;
    while (length < DRAFT_LONGEST && length < end &&
           text[end - 1 - length] == text[count - 1 - length])
        length++;
    return length;
}

int64_t draft_propose(int32_t *text, int64_t count, int64_t most) {
    int64_t longest = DRAFT_LEAST - 1, from = 0;
    for (int64_t end = count - 1; end > 0 && longest < DRAFT_LONGEST; end--) {
        const int64_t length = match(text, count, end);
        if (length <= longest) continue;
        longest = length;
        from = end;
    }
    if (from == 0) return 0;
    /* In this order: what is written may be read again. */
    for (int64_t i = 0; i < most; i++) text[count + i] = text[from + i];
    return most;
}
