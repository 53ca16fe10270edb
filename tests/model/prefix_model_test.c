/* The prefix tree against a naive one: a list of sequences, each with its block. What is held, idle
 * and next to go is worked out anew at every step by looking at all of them. */
#include <string.h>
#include <time.h>

#include "support/prefix_fixture.h"

enum { MOST = 40, STEPS = 100000, DEPTH = 6, SPACES = 3, LETTERS = 3, HANDS = 6 };

/* A stored block: the letters up to it name it. */
typedef struct entry {
    char path[DEPTH + 1];
    int space;
    int32_t block;
    int priority, pins;
    bool idle;
    uint64_t used; /* when it became idle */
} entry;

/* Blocks that a caller holds. */
typedef struct hand {
    int32_t ids[DEPTH];
    int64_t count;
} hand;

typedef struct pin {
    char path[DEPTH + 1];
    int space;
} pin;

typedef struct model {
    kvc_blocks *blocks;
    kvc_prefix *tree;
    entry entries[MOST];
    int64_t count, limit;
    int32_t references[MOST]; /* of callers, by block */
    uint64_t clock, stored, evicted, idle;
    hand hands[HANDS];
    pin pins[HANDS];
    int64_t pin_count;
    kvc_prefix_event told[4 * MOST]; /* events of the step under test */
    int64_t told_count;
    kvc_prefix_event wanted[4 * MOST];
    int64_t wanted_count;
    uint64_t random;
} model;

/* By hand: sanitizers watch over strncmp and strlen, which would take most of the time. */
static bool is_prefix(const entry *e, const char *path, int space) {
    if (e->space != space) return false;
    for (int i = 0; e->path[i]; i++)
        if (e->path[i] != path[i]) return false;
    return true;
}

static int64_t length_of(const entry *e) {
    int64_t length = 0;
    while (e->path[length]) length++;
    return length;
}

static entry *find(model *m, const char *path, int64_t length, int space) {
    for (int64_t i = 0; i < m->count; i++)
        if (length_of(&m->entries[i]) == length && is_prefix(&m->entries[i], path, space))
            return &m->entries[i];
    return NULL;
}

static int64_t find_longest(model *m, const char *path, int space) {
    int64_t length = 0;
    while (length < (int64_t)strlen(path) && find(m, path, length + 1, space)) length++;
    return length;
}

static bool is_held(const model *m, const entry *e) {
    for (int64_t i = 0; i < m->count; i++) {
        const entry *behind = &m->entries[i];
        if (is_prefix(e, behind->path, behind->space) &&
            (behind->pins > 0 || m->references[behind->block] > 0))
            return true;
    }
    return false;
}

/* Notes what became idle, the longest first, and what no longer is. */
static void look_for_idle(model *m) {
    for (int64_t length = DEPTH; length > 0; length--)
        for (int64_t i = 0; i < m->count; i++) {
            entry *e = &m->entries[i];
            if (length_of(e) != length) continue;
            const bool idle = !is_held(m, e);
            if (idle && !e->idle) e->used = ++m->clock;
            e->idle = idle;
        }
}

static bool is_leaf(const model *m, const entry *e) {
    for (int64_t i = 0; i < m->count; i++)
        if (&m->entries[i] != e && is_prefix(e, m->entries[i].path, m->entries[i].space))
            return false;
    return true;
}

static void want(model *m, kvc_prefix_event_kind kind, const entry *e) {
    const entry *before = find(m, e->path, length_of(e) - 1, e->space);
    m->wanted[m->wanted_count++] =
        (kvc_prefix_event){.kind = kind,
                           .block = e->block,
                           .parent = before ? before->block : KVC_BLOCK_NONE,
                           .positions = length_of(e) * PREFIX_B};
}

/* Evicts the leaf that is next to go and is not on the way to `path`; false when there is none. */
static bool evict_one(model *m, const char *path, int space) {
    entry *next = NULL;
    for (int64_t i = 0; i < m->count; i++) {
        entry *e = &m->entries[i];
        if (!e->idle || !is_leaf(m, e) || (path && is_prefix(e, path, space))) continue;
        if (!next || e->priority < next->priority ||
            (e->priority == next->priority && e->used < next->used))
            next = e;
    }
    if (!next) return false;
    want(m, KVC_PREFIX_EVICTED, next);
    *next = m->entries[--m->count];
    m->evicted++;
    return true;
}

static void evict_for(model *m, int64_t more, const char *path, int space) {
    while (m->count > m->limit - more && evict_one(m, path, space)) continue;
}

static int64_t held_blocks(const model *m) {
    bool used[MOST] = {false};
    int64_t held = 0;
    for (int64_t i = 0; i < m->count; i++) used[m->entries[i].block] = true;
    for (int i = 0; i < MOST; i++) held += used[i] || m->references[i];
    return held;
}

static int64_t idle_blocks(const model *m) {
    int64_t idle = 0;
    for (int64_t i = 0; i < m->count; i++) idle += m->entries[i].idle;
    return idle;
}

/* Takes blocks as a caller does: idle ones go where there are not enough. */
static bool take(model *m, int64_t n, int32_t *ids) {
    const int64_t room = MOST - held_blocks(m);
    const kvc_status status = kvc_blocks_take(m->blocks, n, ids);
    if (n > room + idle_blocks(m)) {
        assert_int_equal(status, KVC_E_LIMIT);
        return false;
    }
    assert_ok(status);
    for (int64_t evict = n - room; evict > 0; evict--) assert_true(evict_one(m, NULL, 0));
    for (int64_t i = 0; i < n; i++) assert_int_equal(m->references[ids[i]]++, 0);
    return true;
}

/* One by one, so that each may be the one that makes others idle. */
static void release(model *m, const int32_t *ids, int64_t n) {
    assert_ok(kvc_blocks_release(m->blocks, ids, n));
    for (int64_t i = 0; i < n; i++) {
        assert_true(m->references[ids[i]]-- > 0);
        look_for_idle(m);
        evict_for(m, 0, NULL, 0);
    }
}

static uint64_t pick(model *m, uint64_t below) {
    return test_random(&m->random) % below;
}

static int64_t draw(model *m, char *path, int *space, int32_t *tokens) {
    const uint64_t length = 1 + pick(m, DEPTH);
    memset(path, 0, DEPTH + 1);
    for (uint64_t i = 0; i < length; i++) path[i] = (char)('a' + pick(m, LETTERS));
    *space = (int)pick(m, SPACES);
    return prefix_tokens(tokens, path);
}

static kvc_prefix_namespace space_of(int space) {
    static const char *const tenants[SPACES] = {"", "t", "tt"}, *adapters[SPACES] = {"", "tt", "t"};
    return prefix_space(tenants[space], adapters[space], "model");
}

/* Matches into an empty hand, and inserts the whole sequence or not. */
static void serve(model *m, hand *h) {
    char path[DEPTH + 1];
    int32_t tokens[DEPTH * PREFIX_B];
    int space;
    const int64_t n = draw(m, path, &space, tokens), length = n / PREFIX_B;
    const kvc_prefix_namespace full = space_of(space);
    const bool matches = pick(m, 4) != 0; /* else what is stored is computed once more */
    if (matches) {
        const int64_t wanted = find_longest(m, path, space);
        assert_ok(kvc_prefix_match(m->tree, &full, tokens, n, h->ids, &h->count));
        assert_int_equal(h->count, wanted);
        for (int64_t i = 0; i < wanted; i++) {
            assert_int_equal(h->ids[i], find(m, path, i + 1, space)->block);
            m->references[h->ids[i]]++;
        }
        look_for_idle(m);
        if (wanted) want(m, KVC_PREFIX_HIT, find(m, path, wanted, space));
    }
    if (!take(m, length - h->count, h->ids + h->count)) return;
    h->count = length;
    if (pick(m, 5) == 0) return; /* given up */

    const int priority = pick(m, 3) ? 0 : (int)pick(m, KVC_PREFIX_PRIORITIES);
    const int64_t found = find_longest(m, path, space);
    int64_t stored, room;
    assert_ok(kvc_prefix_insert(m->tree, &full, tokens, n, h->ids, priority, &stored));
    evict_for(m, length - found, path, space);
    room = m->limit > m->count ? m->limit - m->count : 0;
    if (room > length - found) room = length - found;
    assert_int_equal(stored, room);
    for (int64_t i = found; i < found + room; i++) {
        entry *e = &m->entries[m->count++];
        *e = (entry){.space = space, .block = h->ids[i]};
        memcpy(e->path, path, (size_t)i + 1);
        want(m, KVC_PREFIX_STORED, e);
        m->stored++;
    }
    for (int64_t i = 1; i <= found + room; i++) {
        entry *e = find(m, path, i, space);
        if (e->priority < priority) e->priority = priority;
        e->idle = false; /* a use: what is idle all the same becomes the newest */
    }
    look_for_idle(m);
}

static void let_go(model *m, hand *h) {
    if (pick(m, 3)) { /* from the end or from the beginning, in two parts */
        const int64_t part = (int64_t)pick(m, (uint64_t)h->count + 1);
        const bool end_first = pick(m, 2);
        if (end_first) release(m, h->ids + part, h->count - part);
        release(m, h->ids, part);
        if (!end_first) release(m, h->ids + part, h->count - part);
    } else {
        release(m, h->ids, h->count);
    }
    h->count = 0;
}

static void pin_or_unpin(model *m) {
    char path[DEPTH + 1];
    int32_t tokens[DEPTH * PREFIX_B];
    int space;
    int64_t count;
    if (m->pin_count < HANDS && pick(m, 2)) {
        const int64_t n = draw(m, path, &space, tokens), wanted = find_longest(m, path, space);
        const kvc_prefix_namespace full = space_of(space);
        assert_ok(kvc_prefix_pin(m->tree, &full, tokens, n, &count));
        assert_int_equal(count, wanted);
        if (!wanted) return;
        path[wanted] = 0;
        find(m, path, wanted, space)->pins++;
        pin *p = &m->pins[m->pin_count++];
        *p = (pin){.space = space};
        memcpy(p->path, path, (size_t)wanted + 1);
    } else if (m->pin_count) {
        pin *p = &m->pins[pick(m, (uint64_t)m->pin_count)];
        const int64_t n = prefix_tokens(tokens, p->path);
        const kvc_prefix_namespace full = space_of(p->space);
        assert_ok(kvc_prefix_unpin(m->tree, &full, tokens, n));
        find(m, p->path, n / PREFIX_B, p->space)->pins--;
        *p = m->pins[--m->pin_count];
    }
    look_for_idle(m);
    evict_for(m, 0, NULL, 0);
}

static void evict_some(model *m) {
    const uint64_t blocks = pick(m, 6);
    uint64_t wanted = 0;
    const uint64_t got = kvc_prefix_evict(m->tree, blocks * PREFIX_BLOCK_BYTES);
    while (wanted < blocks && evict_one(m, NULL, 0)) wanted++;
    assert_int_equal(got, wanted * PREFIX_BLOCK_BYTES);
}

static void set_limit(model *m) {
    const int64_t blocks = pick(m, 3) ? MOST : (int64_t)pick(m, MOST);
    const uint64_t before =
        kvc_prefix_limit_set(m->tree, (uint64_t)blocks * PREFIX_BLOCK_BYTES + pick(m, 128));
    assert_int_equal(before / PREFIX_BLOCK_BYTES, m->limit);
    m->limit = blocks;
    evict_for(m, 0, NULL, 0);
}

static void tell(void *context, const kvc_prefix_event *event) {
    model *m = context;
    m->told[m->told_count] = *event;
    m->told[m->told_count++].tokens = NULL;
}

static void compare(model *m) {
    assert_int_equal(m->told_count, m->wanted_count);
    for (int64_t i = 0; i < m->told_count; i++) {
        assert_int_equal(m->told[i].kind, m->wanted[i].kind);
        assert_int_equal(m->told[i].block, m->wanted[i].block);
        assert_int_equal(m->told[i].parent, m->wanted[i].parent);
        assert_int_equal(m->told[i].positions, m->wanted[i].positions);
    }
    m->told_count = m->wanted_count = 0;
    const kvc_prefix_stats s = prefix_stats(m->tree);
    assert_int_equal(s.blocks, m->count);
    assert_int_equal(s.stored, m->stored);
    assert_int_equal(s.evicted, m->evicted);
    assert_int_equal(s.idle_blocks, idle_blocks(m));
    for (int64_t i = 0; i < m->count; i++) {
        const int32_t block = m->entries[i].block;
        assert_int_equal(kvc_blocks_references(m->blocks, block), m->references[block] + 1);
    }
    assert_ok(kvc_prefix_check(m->tree));
    assert_ok(kvc_blocks_check(m->blocks));
    m->idle += s.idle_blocks;
}

static void prefix__a_random_walk_finds_and_evicts_what_the_naive_one_does(void **state) {
    pool_fixture *f = *state;
    static model m;
    m = (model){.blocks = prefix_blocks(f->pool, MOST, 8), .limit = MOST, .random = test_seed(9)};
    assert_ok(kvc_prefix_new(&m.tree, m.blocks));
    (void)kvc_prefix_limit_set(m.tree, MOST * PREFIX_BLOCK_BYTES);
    kvc_prefix_event_set(m.tree, tell, &m);
    const double seconds = test_seconds(0);
    const time_t start = time(NULL);
    for (long step = 0; step < STEPS || difftime(time(NULL), start) < seconds; step++) {
        hand *h = &m.hands[pick(&m, HANDS)];
        const uint64_t what = pick(&m, 40);
        if (what == 0) set_limit(&m);
        else if (what == 1) evict_some(&m);
        else if (what < 6) pin_or_unpin(&m);
        else if (h->count) let_go(&m, h);
        else serve(&m, h);
        compare(&m);
    }
    assert_true(m.evicted > STEPS / 10 && m.idle > STEPS); /* the walk went everywhere */
    for (int i = 0; i < HANDS; i++) release(&m, m.hands[i].ids, m.hands[i].count);
    kvc_prefix_free(m.tree);
    assert_ok(kvc_blocks_check(m.blocks));
    kvc_blocks_free(m.blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        pool_test(prefix__a_random_walk_finds_and_evicts_what_the_naive_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
