/* Several continuations of a prompt: their texts come one after another, when all have ended. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "generate/parallel.h"
#include "generate_session.h"
#include "report.h"
#include "trace.h"

/* The texts so far. */
typedef struct texts {
    session *s;
    char *bytes[TRANSFORMER_MOST];
    size_t lengths[TRANSFORMER_MOST];
    FILE *streams[TRANSFORMER_MOST];
} texts;

static bool keep_text(void *context, int64_t sequence, span text, failure *error) {
    texts *t = context;
    if (fwrite(text.bytes, 1, text.length, t->streams[sequence]) == text.length) return true;
    return failure_set(error, "no memory for the text of a continuation");
}

static void forward_begins(void *context, int64_t done) {
    session_forward_begins(((texts *)context)->s, done);
}

static void forward_ended(void *context, int64_t done) {
    session_forward_ended(((texts *)context)->s, done);
}

static bool open_texts(texts *t, failure *error) {
    for (int64_t i = 0; i < t->s->wanted->parallel; i++) {
        t->streams[i] = open_memstream(&t->bytes[i], &t->lengths[i]);
        if (!t->streams[i]) return failure_set(error, "no memory for a text: %s", strerror(errno));
    }
    return true;
}

static void close_texts(texts *t) {
    for (int i = 0; i < TRANSFORMER_MOST; i++) {
        if (t->streams[i]) (void)fclose(t->streams[i]);
        free(t->bytes[i]);
    }
}

static int print_texts(texts *t) {
    for (int64_t i = 0; i < t->s->wanted->parallel; i++) {
        if (fflush(t->streams[i]) != 0) return cli_fail("no memory for the texts");
        printf("%s--- continuation %" PRId64 ", seed %" PRId64 "\n", i ? "\n" : "", i + 1,
               t->s->wanted->seed + i);
        (void)fwrite(t->bytes[i], 1, t->lengths[i], stdout);
        (void)putchar('\n');
    }
    return cli_flush(CLI_DONE);
}

/* What the sequences hold together, and what they would alone. */
static void print_sharing(const session *s) {
    char shared[REPORT_ROOM], alone[REPORT_ROOM];
    kvc_blocks_stats blocks = {.struct_size = sizeof blocks};
    uint64_t count = 0;
    for (int64_t b = 0; b < s->wanted->parallel; b++) {
        const int32_t *table;
        int64_t used;
        if (kvc_cache_block_table(s->transformer.cache, b, &table, &used) == KVC_OK)
            count += (uint64_t)used;
    }
    if (kvc_blocks_stats_get(s->transformer.blocks, &blocks) != KVC_OK) return;
    (void)fprintf(stderr, "%-12s%llu blocks hold all, %s; each for itself, %llu would, %s\n",
                  "shared", (unsigned long long)blocks.used_blocks,
                  report_bytes(shared, (double)(blocks.used_blocks * blocks.block_bytes)),
                  (unsigned long long)count,
                  report_bytes(alone, (double)(count * blocks.block_bytes)));
}

static void print_figures(const session *s, int64_t computed) {
    const int64_t in_prompt = s->done < s->prompt_count ? s->done : s->prompt_count;
    const int64_t continued = computed - (in_prompt - s->ready);
    session_print_speed("prompt", computed - continued, s->prompt_ns);
    (void)fputc('\n', stderr);
    if (continued > 0) {
        session_print_speed("continued", continued, s->steps_ns);
        (void)fprintf(stderr, ", all continuations together\n");
    }
    session_print_shares(s, s->prompt_ns + s->steps_ns);
    print_sharing(s);
}

int session_continue_parallel(session *s) {
    texts t = {.s = s};
    failure error;
    int64_t computed = 0;
    const parallel_generation wanted = {.prompt = s->prompt,
                                        .prompt_count = s->prompt_count,
                                        .ready = s->ready,
                                        .steps = s->steps,
                                        .text = keep_text,
                                        .forward_begins = forward_begins,
                                        .forward_ended = forward_ended,
                                        .context = &t};
    trace_record(true);
    const bool done =
        open_texts(&t, &error) &&
        generate_parallel(&s->transformer, &s->tokens, s->samplers, &wanted, &computed, &error);
    trace_record(false);
    cli_progress_end();
    int status = done ? print_texts(&t) : cli_fail("%s", error.sentence);
    close_texts(&t);
    if (status == CLI_DONE && !s->wanted->quiet) print_figures(s, computed);
    return status;
}
