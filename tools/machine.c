#include "machine.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli.h"
#include "report.h"
#include "stats.h"

/* Reads the first line of a file without its end. False when there is none. */
static bool read_line(const char *path, char *out, size_t room) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool got = fgets(out, (int)room, file) != NULL;
    (void)fclose(file);
    if (got) out[strcspn(out, "\n")] = '\0';
    return got;
}

/* Finds "key   : value" in a file such as /proc/cpuinfo. */
static bool read_field(const char *path, const char *key, char *out, size_t room) {
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "r");
    if (!file) return false;
    while (!found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || !colon) continue;
        colon++;
        colon += strspn(colon, " \t");
        (void)snprintf(out, room, "%.*s", (int)strcspn(colon, "\n"), colon);
        found = true;
    }
    (void)fclose(file);
    return found;
}

/* A field in kB, as bytes. */
static uint64_t read_bytes(const char *path, const char *key) {
    char text[64];
    return read_field(path, key, text, sizeof text) ? 1024 * strtoull(text, NULL, 10) : 0;
}

static uint64_t read_meminfo_bytes(const char *key) {
    return read_bytes("/proc/meminfo", key);
}

uint64_t machine_huge_bytes(void) {
    return read_bytes("/proc/self/smaps_rollup", "AnonHugePages");
}

/* What the control group leaves; UINT64_MAX without a limit. */
static uint64_t read_group_room_bytes(void) {
    char most[32], used[32];
    if (!read_line("/sys/fs/cgroup/memory.max", most, sizeof most) || most[0] == 'm' ||
        !read_line("/sys/fs/cgroup/memory.current", used, sizeof used))
        return UINT64_MAX;
    const uint64_t limit = strtoull(most, NULL, 10), current = strtoull(used, NULL, 10);
    return limit > current ? limit - current : 0;
}

/* "always [madvise] never": the word in brackets. */
static void read_chosen(const char *path, char *out, size_t room) {
    char line[128];
    (void)snprintf(out, room, "unknown");
    if (!read_line(path, line, sizeof line)) return;
    const char *open = strchr(line, '[');
    const char *close = open ? strchr(open, ']') : NULL;
    if (close) (void)snprintf(out, room, "%.*s", (int)(close - open - 1), open + 1);
}

/* The caches of the first core, from sysfs. */
static void read_caches(machine *m) {
    uint64_t largest_level = 0;
    for (int i = 0; i < 8; i++) {
        char path[96], level[16], type[24], size[24];
        const char *const names[] = {"level", "type", "size"};
        char *const texts[] = {level, type, size};
        const size_t rooms[] = {sizeof level, sizeof type, sizeof size};
        for (int k = 0; k < 3; k++) {
            (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i,
                           names[k]);
            if (!read_line(path, texts[k], rooms[k])) return;
        }
        const uint64_t bytes = strtoull(size, NULL, 10) * (strchr(size, 'M') ? 1048576 : 1024);
        const uint64_t number = strtoull(level, NULL, 10);
        if (strcmp(type, "Instruction") == 0) continue;
        if (number == 1) m->l1d_bytes = bytes;
        if (number == 2) m->l2_bytes = bytes;
        if (number >= largest_level) {
            largest_level = number;
            m->llc_bytes = bytes;
        }
    }
}

static void read_cpu(machine *m) {
    cpu_set_t set;
    if (!read_field("/proc/cpuinfo", "model name", m->cpu, sizeof m->cpu))
        (void)snprintf(m->cpu, sizeof m->cpu, "unknown");
    m->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                           : sysconf(_SC_NPROCESSORS_ONLN);
}

void machine_read(machine *out) {
    struct utsname names;
    *out = (machine){0};
    read_cpu(out);
    read_caches(out);
    if (uname(&names) == 0)
        (void)snprintf(out->kernel, sizeof out->kernel, "%.20s %.40s", names.sysname,
                       names.release);
    read_chosen("/sys/kernel/mm/transparent_hugepage/enabled", out->thp, sizeof out->thp);
    read_chosen("/sys/kernel/mm/transparent_hugepage/defrag", out->thp_defrag,
                sizeof out->thp_defrag);
    out->page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    out->memory_bytes = read_meminfo_bytes("MemTotal");
    out->available_bytes = read_meminfo_bytes("MemAvailable");
    const uint64_t group_room = read_group_room_bytes();
    if (group_room < out->available_bytes) out->available_bytes = group_room;
    out->timer_ns = stats_timer_ns();
}

json_t *machine_json(const machine *m) {
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:o}", "cpu", m->cpu,
                     "cores", (json_int_t)m->cores, "l1d_bytes", (json_int_t)m->l1d_bytes,
                     "l2_bytes", (json_int_t)m->l2_bytes, "llc_bytes", (json_int_t)m->llc_bytes,
                     "memory_bytes", (json_int_t)m->memory_bytes, "page_bytes",
                     (json_int_t)m->page_bytes, "transparent_hugepage", m->thp,
                     "transparent_hugepage_defrag", m->thp_defrag, "kernel", m->kernel, "timer_ns",
                     report_json_number(m->timer_ns));
}

void machine_line(char *out, size_t room, const machine *m) {
    char llc[REPORT_ROOM], memory[REPORT_ROOM], page[REPORT_ROOM];
    if (m->llc_bytes) (void)report_bytes(llc, (double)m->llc_bytes);
    else (void)snprintf(llc, sizeof llc, "unknown");
    (void)report_bytes(memory, (double)m->memory_bytes);
    (void)report_bytes(page, (double)m->page_bytes);
    (void)snprintf(out, room,
                   "%s, %" PRId64 " cores, %s last-level cache, %s memory, %s pages, "
                   "huge pages: %s",
                   m->cpu, m->cores, llc, memory, page, m->thp);
}

bool machine_has_room(const machine *m, uint64_t bytes, const char *what, const char *reduce) {
    char need[REPORT_ROOM], room[REPORT_ROOM];
    if (m->available_bytes == 0 || bytes <= m->available_bytes) return true;
    (void)report_bytes(need, (double)bytes);
    (void)report_bytes(room, (double)m->available_bytes);
    (void)cli_fail("%s needs %s of memory, %s are available; reduce %s", what, need, room, reduce);
    return false;
}
